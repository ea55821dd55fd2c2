"""Keys wherever clients write them, cut letters and clients that are gone, in each protocol."""

import asyncio
import json
import logging
import threading
from collections.abc import Iterator
from typing import Any
from urllib.request import Request, urlopen

import pytest

from abut.gateway.server import app
from abut.gateway.server.gateway import Gateway
from tests.kit.clients.dialect_clients import causes, ledger_of, send
from tests.kit.clients.raw_http import RawClient
from tests.kit.dialects.asking import ASKING, Asking, encoded
from tests.kit.stage.agents import check_tree, says, serving
from tests.kit.stage.rollouts import Recording, Stage

KEYS = ("Authorization", "x-api-key", "x-goog-api-key", "key")
"""Where clients write a key; the last is a part of the address."""


@pytest.fixture(params=ASKING.values(), ids=ASKING)
def asking(request: pytest.FixtureRequest) -> Asking:
    asking: Asking = request.param
    return asking


@pytest.fixture
def sampler(stage: Stage) -> Recording:
    return says(stage)


@pytest.fixture
def gateway(sampler: Recording, hf_tokenizer: Any) -> Iterator[Gateway]:
    with serving(sampler, hf_tokenizer) as gateway:
        yield gateway


def root(gateway: Gateway) -> str:
    return gateway.base_url.removesuffix("/v1")


def opened_by(path: str, where: str, key: str) -> tuple[str, dict[str, str]]:
    """An address and headers that have a key in one place."""
    if where == "key":
        return f"{path}{'&' if '?' in path else '?'}key={key}", {"x-nothing": "1"}
    return path, {where: f"Bearer {key}" if where == "Authorization" else key}


# ---- keys


@pytest.mark.parametrize("where", KEYS)
def test_a_key_opens_its_rollout_alone_wherever_it_is(
    gateway: Gateway, sampler: Recording, asking: Asking, where: str
) -> None:
    own = gateway.endpoint("a").api_key
    for rollout, key, status in (("a", own, 200), ("b", own, 400), ("a", f"{own}x", 400)):
        path, headers = opened_by(f"/r/{rollout}{asking.path}", where, key)
        got, answer = send(root(gateway) + path, "", asking.body("hi"), **headers)
        assert got == status, answer
        if status == 400:
            assert "does not open this rollout" in answer["error"]["message"]
            assert own not in json.dumps(answer)
    assert len(sampler.calls) == 1


@pytest.mark.parametrize("where", KEYS)
def test_no_byte_of_a_body_is_read_before_the_key(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, asking: Asking, where: str
) -> None:
    def reads(*args: Any) -> Any:
        raise AssertionError("a body was parsed")

    monkeypatch.setattr(app, "read_body", reads)
    monkeypatch.setattr(app, "json_object", reads)
    counted = {"/v1/messages": "/v1/messages/count_tokens"}
    counted["/v1beta/models/policy:generateContent"] = "/v1beta/models/policy:countTokens"
    for path in (asking.path, asking.stream_path, counted.get(asking.path, asking.path)):
        address, headers = opened_by(f"/r/a{path}", where, "a wrong one".replace(" ", "-"))
        with RawClient(gateway.base_url) as client:
            client.socket.sendall(client.head(address, 9_000_000, **headers))  # and not one byte
            answer = client.answer()
            assert answer is not None
            assert (answer[0], answer[1]["connection"]) == (400, "close")
            assert "does not open this rollout" in answer[2]["error"]["message"]


def test_a_key_in_an_address_is_logged_nowhere(
    gateway: Gateway, asking: Asking, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    own = gateway.endpoint("a").api_key
    for body in (asking.body("hi"), {asking.list_key: 7}):
        path, headers = opened_by(f"/r/a{asking.path}", "key", own)
        send(root(gateway) + path, "", body, **headers)
    assert own not in caplog.text


# ---- cut letters


def streamed(gateway: Gateway, asking: Asking, body: Any) -> str:
    """The text of a stream."""
    headers = {"Authorization": f"Bearer {gateway.key}", "content-type": "application/json"}
    request = Request(f"{root(gateway)}/r/a{asking.stream_path}", encoded(body), headers)
    with urlopen(request, timeout=60) as reply:
        assert reply.headers.get_content_type() == "text/event-stream"
        return str(reply.read().decode())  # which raises where it is no UTF-8


def test_an_answer_that_is_cut_inside_a_letter_comes_back_as_it_was(
    stage: Stage, hf_tokenizer: Any, asking: Asking
) -> None:
    """Its half letter is written as U+FFFD, and is that answer all the same."""
    half = [int(id_) for id_ in stage.tokenizer.encode("yes 漢")][:-1]
    whole = stage.says("no")
    sampler = Recording(lambda request: half if request.turn == 0 else whole(request))
    with serving(sampler, hf_tokenizer) as gateway:
        url = f"{root(gateway)}/r/a{asking.path}"
        status, answer = send(url, gateway.key, asking.body("hi"))
        assert status == 200
        assert asking.text(answer) == "yes \ufffd"
        assert '"yes \\ufffd"' in streamed(gateway, asking, asking.body("hi", stream=True))
        follow = asking.body("hi", *asking.heard(answer), "go on")
        assert send(url, gateway.key, follow)[0] == 200
        assert causes(gateway, "a") == [None, "repeated"]
        check_tree(gateway.end("a"), sampler.calls)


# ---- clients that are gone


def test_a_client_that_hangs_up_in_a_stream_gets_its_sample_when_it_asks_again(
    stage: Stage, hf_tokenizer: Any, asking: Asking, caplog: pytest.LogCaptureFixture
) -> None:
    asked, goes_on = threading.Event(), threading.Event()

    class Slow(Recording):
        async def sample(self, request: Any) -> Any:
            asked.set()
            await asyncio.to_thread(goes_on.wait, 60)
            return await super().sample(request)

    with serving(sampler := Slow(stage.says()), hf_tokenizer) as gateway:
        body = asking.body("hi", stream=True)
        with RawClient(gateway.base_url, gateway.key) as client:
            client.send(f"/r/a{asking.stream_path}", body)
            assert asked.wait(60)
        ledger = ledger_of(gateway, "a")
        assert ledger is not None
        (call,) = ledger.calls
        while call.is_open():  # until the gateway has seen it
            threading.Event().wait(0.001)
        goes_on.set()
        assert '"yes"' in streamed(gateway, asking, body)
        rollout = gateway.end("a")
    assert len(sampler.calls) == 1
    assert (len(rollout.turns), rollout.branches) == (1, [])
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
