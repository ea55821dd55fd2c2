"""`abut gateway`: a process of its own before a server, until it is told to stop."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from abut.cli.__main__ import main
from tests.kit.checkout import DEMO_ASSETS
from tests.kit.forks import python
from tests.kit.servers.fake_server import FakeServer

MODELS = [{"id": "tiny", "max_model_len": 512}]
HI = ({"role": "user", "content": "hi"},)


def started(server: FakeServer, *args: Any, **environment: str) -> tuple[Any, str]:
    """The command, and the base URL that it says."""
    options = ("--upstream", server.url, "--tokenizer", DEMO_ASSETS, "--port", 0, *args)
    process = subprocess.Popen(
        python("-m", "abut.cli", "gateway", *map(str, options)),
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"http://\S+/v1(?=;)", line):
            return process, found.group()
    raise AssertionError(f"it ended with {process.wait()}")


def ask(base_url: str, key: str, messages: Any = HI, **headers: str) -> Any:
    body = {"messages": messages, "max_tokens": 4}
    headers |= {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(
        f"{base_url}/chat/completions", json.dumps(body).encode(), headers
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)


def post(base_url: str, path: str, key: str, body: bytes = b"{}") -> tuple[int, Any]:
    request = urllib.request.Request(
        base_url.removesuffix("/v1") + path, body, {"Authorization": f"Bearer {key}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.skipif(sys.platform == "win32", reason="no such signals there")
def test_it_serves_until_it_is_told_to_stop_and_records(
    tmp_path: Path, number: signal.Signals
) -> None:
    records, key_file = tmp_path / "rollouts.jsonl", tmp_path / "key"
    with FakeServer(models=MODELS) as server:
        process, base_url = started(
            server,
            *("--record", records, "--key-file", key_file, "--session-header", "x-session-id"),
        )
        assert key_file.stat().st_mode & 0o777 == 0o600
        key = key_file.read_text().strip()
        answer = ask(base_url, key, **{"x-session-id": "s1", "x-abut-name": "a"})
        assert answer["choices"][0]["finish_reason"] == "length"
        process.send_signal(number)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 0, said
    assert "1 ended, 1 calls, 4 tokens sampled" in said
    assert key not in said
    (record,) = map(json.loads, records.read_text().splitlines())
    assert (record["stop_reason"], len(record["turns"])) == ("env_done", 1)
    assert (record["session"], record["name"]) == ("s1", "a")


def test_a_key_that_nobody_would_learn_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ABUT_GATEWAY_KEY", raising=False)
    args = ["gateway", "--upstream", "http://127.0.0.1:9", "--tokenizer", str(DEMO_ASSETS)]
    assert main(args) == 1
    said = capsys.readouterr().err
    assert "stderr is not a terminal" in said
    assert "--key-file" in said


def test_a_server_with_other_logprobs_is_refused_before_anybody_asks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ABUT_GATEWAY_KEY", "a key of sixteen or more")
    with FakeServer(models=MODELS, probe_logprob=-3.0) as server:
        args = ["gateway", "--upstream", server.url, "--tokenizer", str(DEMO_ASSETS), "--port", "0"]
        assert main(args) == 1
    assert "--logprobs-mode processed_logprobs" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals there")
@pytest.mark.parametrize("may_end", [False, True])
def test_agents_end_their_own_rollout_only_where_the_option_says_so(may_end: bool) -> None:
    key = "a key of sixteen or more"

    with FakeServer(models=MODELS) as server:
        options = ["--agents-may-end"] if may_end else []
        process, base_url = started(server, *options, ABUT_GATEWAY_KEY=key)
        own = post(base_url, "/r/a/key", key)[1]["key"]
        ask(f"{base_url.removesuffix('/v1')}/r/a/v1", own)
        status, _ = post(base_url, "/r/a/end", own)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert status == (200 if may_end else 400)


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals there")
def test_images_go_to_the_servers(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("PIL")
    from abut.images import Image
    from tests.kit.clients.image_pictures import as_text, encoded, picture
    from tests.kit.servers.image_server import ImageServer
    from tests.kit.training.vision import llava

    processor = llava().processor
    folder, records, key_file = tmp_path / "model", tmp_path / "rollouts.jsonl", tmp_path / "key"
    processor.save_pretrained(folder)
    # As models have it whose tokenizer has no template.
    template = (folder / "chat_template.jinja").rename(tmp_path / "chat_template.jinja")
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": template.read_text()}))
    pictures = [picture(1), picture(2)]

    def shows(pixels: Any) -> dict[str, Any]:
        url = f"data:image/png;base64,{as_text(encoded(pixels))}"
        image = {"type": "image_url", "image_url": {"url": url}}
        return {"role": "user", "content": [image, {"type": "text", "text": "What?"}]}

    class Server(ImageServer):
        media, features = processor.image_token_id, 16

    with Server(models=MODELS) as server:
        process, base_url = started(
            server, "--tokenizer", folder, "--record", records, "--key-file", key_file
        )
        key, root = key_file.read_text().strip(), base_url.removesuffix("/v1")
        history = [shows(pictures[0])]
        for more in ([shows(pictures[1])], []):
            answer = ask(f"{root}/r/a/v1", key, history)
            history += [answer["choices"][0]["message"], *more]
        assert post(base_url, "/r/a/end", key, b'{"reward": 1.0}')[0] == 200
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 0, said
    first, second = (body["content_parts"] for body in server.requests)
    assert Image.of(first[0]["url"]) is Image.of(pictures[0])
    assert first[0]["uuid"] == second[0]["uuid"], "a name for as long as the gateway runs"
    assert ("url" in second[0], Image.of(second[1]["url"])) == (False, Image.of(pictures[1]))
    (record,) = map(json.loads, records.read_text().splitlines())
    assert [one["hash"] for one in record["images"]] == [Image.of(one).hash for one in pictures]
    assert (record["reward"], len(record["turns"])) == (1.0, 2)
