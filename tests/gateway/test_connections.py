"""Connections: which outlive a rollout, and which are closed after it."""

import asyncio
import functools
import gc
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any

import pytest

from abut import agent
from abut.gateway.server import connections as connections_module
from abut.gateway.server.connections import IDLE_TICKS, Connection, Connections
from abut.gateway.server.gateway import Gateway
from tests.kit.clients.raw_http import RawClient
from tests.kit.stage.agents import play_agents, says, serving, user
from tests.kit.stage.rollouts import Recording, Stage, eventually


class Serves(asyncio.Protocol):
    """What serves requests, and does nothing."""


class Transport:
    """One whose end the other side does not see."""

    is_open = True

    def close(self) -> None:
        self.is_open = False

    abort = close


def on_a_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @functools.wraps(test)
    def runs() -> None:
        asyncio.run(test())

    return runs


def connected(connections: Connections) -> tuple[Connection, Transport]:
    """A connection over which one request was answered."""
    connection, transport = Connection(Serves(), connections), Transport()
    connection.connection_made(transport)  # type: ignore[arg-type]
    connection.data_received(b"a request")
    connection.begin()
    connection.end()
    return connection, transport


def after(connections: Connections, ticks: int, *all_: Transport) -> list[bool]:
    """Which of them are open after so many ticks."""
    for _ in range(ticks):
        for connection in tuple(connections._open):
            connection.tick()
    return [transport.is_open for transport in all_]


def test_idle_clients_lose_their_connections_before_there_are_too_many(
    stage: Stage, hf_tokenizer: Any
) -> None:
    with serving(says(stage), hf_tokenizer) as gateway, ExitStack() as stack:
        gateway.registry.connections.most = 4

        def client() -> RawClient:
            return stack.enter_context(RawClient(gateway.base_url, gateway.key))

        path, busy = "/r/a/v1/chat/completions", client()
        busy.socket.sendall(busy.head(path, 999) + b"{")
        opened = [client() for _ in range(8)]  # which send nothing
        assert [one.is_closed() for one in opened[:5]] == [True] * 5
        opened[-1].send(path, {"messages": [user("hi")]})
        answer = opened[-1].answer()
        assert answer is not None
        assert answer[0] == 200
        busy.socket.sendall(b" " * 998)
        assert busy.answer() is not None


@on_a_loop
async def test_connections_that_serve_requests_are_kept_and_the_new_one_is_not() -> None:
    connections = Connections()
    connections.most = 2
    kept = []
    for _ in range(4):
        connection, transport = Connection(Serves(), connections), Transport()
        connection.connection_made(transport)  # type: ignore[arg-type]
        connection.begin()
        kept.append(transport.is_open)
    assert kept == [True, True, False, False]
    assert len(connections) == 2
    connections.close()


@on_a_loop
async def test_idle_connections_of_one_ended_rollout_are_closed_after_a_while() -> None:
    connections = Connections()
    (own, one), (other, two), (shared, three) = [connected(connections) for _ in range(3)]
    connections.note(own, "a")
    connections.note(other, "b")
    for rollout in ("a", "b", "a"):
        connections.note(shared, rollout)
    connections.end("a")
    assert after(connections, IDLE_TICKS, one, two, three) == [True] * 3
    assert after(connections, 1, one, two, three) == [False, True, True]
    connections.end("b")
    connections.end("never there")
    assert after(connections, IDLE_TICKS + 1, one, two, three) == [False, False, True]
    connections.close()


@on_a_loop
async def test_a_connection_that_is_used_again_is_not_closed() -> None:
    connections = Connections()
    connection, transport = connected(connections)
    connections.note(connection, "a")
    connections.end("a")
    after(connections, IDLE_TICKS)
    connection.data_received(b"headers of b")  # nobody knows yet whose they are
    assert after(connections, 1, transport) == [True]
    connection.begin()
    assert after(connections, 10 * IDLE_TICKS, transport) == [True]
    connections.note(connection, "b")
    connection.end()
    assert after(connections, 10 * IDLE_TICKS, transport) == [True]
    connections.close()


@on_a_loop
async def test_nothing_is_kept_of_connections_that_clients_close() -> None:
    connections = Connections()
    for number in range(1000):
        connection, _ = connected(connections)
        connections.note(connection, f"r{number % 3}")
        connection.connection_lost(None)
    assert (len(connections), len(connections._of)) == (0, 0)
    connections.close()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_clients_that_nobody_closes_keep_no_files_of_the_gateway_open(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    openai = pytest.importorskip("openai")

    @agent
    async def forgets(endpoint: Any) -> float:
        client = openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key)
        kept.append(client)
        ask = {"role": "user", "content": "hi"}
        await client.chat.completions.create(model=endpoint.model, messages=[ask])
        return 1.0

    kept: list[Any] = []
    monkeypatch.setattr(connections_module, "TICK_S", 0.01)
    gateway = Gateway()
    try:
        engine = play_agents(stage, forgets, gateway=gateway).engine
        files = len(os.listdir("/proc/self/fd"))
        played = play_agents(stage, *[forgets] * 8, gateway=gateway, engine=engine)
        assert [rollout.reward for rollout in played.rollouts] == [1.0] * 8

        # Our end of each is closed; the client's is when it is collected, since none reads there.
        assert eventually(lambda: len(os.listdir("/proc/self/fd")) <= files + 8)
    finally:
        gateway.stop()
    kept.clear()
    del engine, played
    gc.collect()


CHAT = "/v1/chat/completions"
BODY = {"model": "policy", "messages": [user("hi")]}


def test_a_rollout_s_end_leaves_its_connection_to_the_next(stage: Stage, hf_tokenizer: Any) -> None:
    with (
        serving(says(stage), hf_tokenizer) as gateway,
        RawClient(gateway.base_url, gateway.key) as client,
    ):
        for rollout in ("a", "b", "c"):
            client.send(f"/r/{rollout}{CHAT}", BODY)
            answer = client.answer()
            assert answer is not None, f"the connection was closed before {rollout}'s request"
            assert (answer[0], answer[1]["x-abut-rollout"]) == (200, rollout)
            gateway.end(rollout)


def test_a_connection_with_another_rollout_s_request_is_not_touched(
    stage: Stage, hf_tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request of b is sampled for longer than the connection of a may stay open."""
    monkeypatch.setattr(connections_module, "TICK_S", 0.001)
    asked, goes_on = threading.Event(), threading.Event()

    class Slow(Recording):
        async def sample(self, request: Any) -> Any:
            if request.rollout_id == "b":
                asked.set()
                await asyncio.to_thread(goes_on.wait, 60)
            return await super().sample(request)

    with (
        serving(Slow(stage.says()), hf_tokenizer) as gateway,
        RawClient(gateway.base_url, gateway.key) as client,
    ):
        client.send(f"/r/a{CHAT}", BODY)
        assert client.answer() is not None
        client.send(f"/r/b{CHAT}", BODY)
        assert asked.wait(60)
        gateway.end("a")
        passed = gateway.registry.connections.ticks
        assert eventually(lambda: gateway.registry.connections.ticks > passed + IDLE_TICKS + 20)
        goes_on.set()
        answer = client.answer()
        assert answer is not None
        assert (answer[0], answer[1]["x-abut-rollout"]) == (200, "b")


def test_64_rollouts_share_one_client_and_none_fails(stage: Stage) -> None:
    """As docs/integrations/agents.md says: one pool of connections, no request sent twice."""
    openai = pytest.importorskip("openai")

    class Solves:
        async def start(self, gateway: Gateway) -> None:
            self.shared = openai.AsyncOpenAI(
                base_url="http://each.rollout.has.its.own",
                api_key="too",
                max_retries=0,
                http_client=openai.DefaultAsyncHttpxClient(),
            )

        async def run(self, endpoint: Any, task: Any) -> float:
            client = self.shared.with_options(base_url=endpoint.base_url, api_key=endpoint.api_key)
            said: list[Any] = [user("hi")]
            for turn in range(3):
                reply = await client.chat.completions.create(model=endpoint.model, messages=said)
                said += [reply.choices[0].message.model_dump(exclude_none=True), user(f"{turn}?")]
            return 1.0

        async def stop(self) -> None:
            await self.shared.close()

    limits: dict[str, Any] = {"retries": 0, "max_failed_frac": 1.0, "max_rollouts": 8}
    played = play_agents(stage, *[Solves()] * 64, **limits)
    assert [rollout.error for rollout in played.rollouts if rollout.failed] == []
    assert [len(rollout.turns) for rollout in played.rollouts] == [3] * 64


def test_a_pool_with_the_run_s_key_loses_no_connection_between_rollouts(
    stage: Stage, hf_tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is closed looks open for a moment, and would lose the next rollout's request."""
    httpx = pytest.importorskip("httpx2")  # of the openai that tests have
    monkeypatch.setattr(connections_module, "TICK_S", 0.001)
    limits = httpx.Limits(keepalive_expiry=None)
    with (
        serving(says(stage), hf_tokenizer) as gateway,
        httpx.Client(limits=limits, timeout=60) as pool,
    ):
        connections = gateway.registry.connections
        for rollout in map(str, range(5)):
            headers = {"Authorization": f"Bearer {gateway.key}", "x-abut-rollout": rollout}
            url = gateway.base_url + "/chat/completions"
            assert pool.post(url, json=BODY, headers=headers).status_code == 200
            gateway.end(rollout)
            passed = connections.ticks
            assert eventually(lambda passed=passed: connections.ticks > passed + IDLE_TICKS + 20)
            assert len(connections) == 1
