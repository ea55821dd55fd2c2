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
from tests.kit.servers.fake_server import FakeServer

MODELS = [{"id": "tiny", "max_model_len": 512}]


def started(server: FakeServer, *args: Any, **environment: str) -> tuple[Any, str]:
    """The command, and the base URL that it says."""
    options = ("--upstream", server.url, "--tokenizer", DEMO_ASSETS, "--port", 0, *args)
    process = subprocess.Popen(
        [sys.executable, "-m", "abut.cli", "gateway", *map(str, options)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"http://\S+/v1(?=;)", line):
            return process, found.group()
    raise AssertionError(f"it ended with {process.wait()}")


def ask(base_url: str, key: str, **headers: str) -> Any:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    headers |= {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(
        f"{base_url}/chat/completions", json.dumps(body).encode(), headers
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)


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
    assert "nobody would learn the key" in said
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

    def post(path: str, key: str) -> tuple[int, Any]:
        request = urllib.request.Request(
            base_url.removesuffix("/v1") + path, b"{}", {"Authorization": f"Bearer {key}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    with FakeServer(models=MODELS) as server:
        options = ["--agents-may-end"] if may_end else []
        process, base_url = started(server, *options, ABUT_GATEWAY_KEY=key)
        own = post("/r/a/key", key)[1]["key"]
        ask(f"{base_url.removesuffix('/v1')}/r/a/v1", own)
        status, _ = post("/r/a/end", own)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert status == (200 if may_end else 400)
