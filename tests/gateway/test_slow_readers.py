"""Clients that read their streams slowly, or never: each holds up nothing but its own answer."""

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from abut.gateway.server.connections import Connection
from abut.gateway.server.gateway import Gateway
from abut.rollout.config import RolloutConfig
from tests.kit.clients.dialect_clients import ledger_of
from tests.kit.clients.raw_http import RawClient
from tests.kit.stage.agents import ask, says, user
from tests.kit.stage.rollouts import Recording, Stage, eventually

BUFFER = 4096
WORDS = 20_000
"""In an answer: more than aiohttp takes at once (64 KiB) without waiting for the client to read."""
ASKED = [user("hi")]
STREAMS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": ASKED, "stream": True},
    "/v1/responses": {"input": ASKED, "stream": True},
    "/v1/messages": {"messages": ASKED, "max_tokens": 100_000, "stream": True},
    "/v1beta/models/m:streamGenerateContent?alt=sse": {"contents": [{"parts": [{"text": "hi"}]}]},
}


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set as soon as the gateway waits for a client to read."""
    waits = threading.Event()
    made, pause = Connection.connection_made, Connection.pause_writing

    def connection_made(self: Connection, transport: Any) -> None:
        own = transport.get_extra_info("socket")
        own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        transport.set_write_buffer_limits(BUFFER)
        made(self, transport)

    def pause_writing(self: Connection) -> None:
        pause(self)
        waits.set()

    monkeypatch.setattr(Connection, "connection_made", connection_made)
    monkeypatch.setattr(Connection, "pause_writing", pause_writing)
    return waits


@pytest.fixture
def sampler(stage: Stage) -> Recording:
    return says(stage, "yes " * WORDS)


@pytest.fixture
def gateway(sampler: Recording, hf_tokenizer: Any) -> Iterator[Gateway]:
    config = RolloutConfig(max_completion_tokens=100_000)
    with Gateway(sampler=sampler, tokenizer=hf_tokenizer, config=config) as gateway:
        yield gateway


@pytest.mark.parametrize("path", STREAMS)
def test_a_client_that_reads_late_holds_up_no_other_and_gets_its_whole_answer(
    gateway: Gateway, sampler: Recording, waits: threading.Event, path: str
) -> None:
    with RawClient(gateway.base_url, gateway.key, BUFFER) as slow:
        slow.send(f"/r/slow{path}", STREAMS[path])
        assert waits.wait(60)
        # Its next requests wait for its answer, so that no answers pile up that nobody reads.
        for _ in range(3):
            slow.send(f"/r/slow{path}", STREAMS[path])
        for rollout in ("slow", "other"):  # another connection
            assert ask(gateway, ASKED, rollout)[0]["content"].count("yes") == WORDS
        ledger = ledger_of(gateway, "slow")
        assert ledger is not None
        assert [bool(call.delivered) for call in ledger.calls] == [False, True]
        assert sum(request.rollout_id == "slow" for request, _ in sampler.calls) == 2
        said = b""
        while b"\r\n0\r\n\r\n" not in said:
            said += slow.socket.recv(65536)
        assert said.count(b"yes") >= WORDS
        assert eventually(lambda: bool(ledger.calls[0].delivered))


@pytest.mark.parametrize("path", STREAMS)
def test_an_answer_that_nobody_read_is_not_delivered_and_its_connection_is_forgotten(
    gateway: Gateway, waits: threading.Event, path: str
) -> None:
    with RawClient(gateway.base_url, gateway.key, BUFFER) as never:
        never.send(f"/r/never{path}", STREAMS[path])
        assert waits.wait(60)
    assert eventually(lambda: not len(gateway.registry.connections))
    ledger = ledger_of(gateway, "never")
    assert ledger is not None
    assert [bool(call.delivered) for call in ledger.calls] == [False]
    assert ask(gateway, ASKED, "other")[0]["content"].count("yes") == WORDS
