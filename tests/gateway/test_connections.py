"""Which connections are closed with a rollout."""

import asyncio
import gc
import os
import sys
from typing import Any

import pytest

from abut import agent
from abut.gateway.connections import Connections
from abut.gateway.server import Gateway
from agent_stage import play_agents
from stage import Stage, eventually


class Connection:
    def __init__(self) -> None:
        self.transport: Any = self

    def close(self) -> None:
        self.transport = None


async def ended(connections: Connections, *rollouts: str) -> None:
    for rollout in rollouts:
        connections.end(rollout)


def test_those_that_one_rollout_alone_has_used() -> None:
    connections = Connections()
    own, other, shared = Connection(), Connection(), Connection()
    connections.note(own, "a")
    connections.note(other, "b")
    for rollout in ("a", "b", "a"):
        connections.note(shared, rollout)
    asyncio.run(ended(connections, "a"))
    assert [c.transport is None for c in (own, other, shared)] == [True, False, False]
    asyncio.run(ended(connections, "b", "never there"))
    assert [c.transport is None for c in (own, other, shared)] == [True, True, False]


def test_nothing_is_kept_of_connections_that_clients_close() -> None:
    connections = Connections()
    for number in range(10_000):
        connection = Connection()
        connections.note(connection, f"r{number % 3}")
        connection.close()
    assert len(connections._used_by) + sum(map(len, connections._of.values())) < 1500


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_clients_that_nobody_closes_keep_no_files_of_the_gateway_open(stage: Stage) -> None:
    openai = pytest.importorskip("openai")

    @agent
    async def forgets(endpoint: Any) -> float:
        client = openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key)
        kept.append(client)
        ask = {"role": "user", "content": "hi"}
        await client.chat.completions.create(model=endpoint.model, messages=[ask])
        return 1.0

    kept: list[Any] = []
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
