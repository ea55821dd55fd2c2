"""Gateways of several ranks: one passes on to the others what they play."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import ClientSession
from yarl import URL

from abut import RolloutError, agent
from abut.gateway.server.gateway import Gateway
from tests.kit.dialects.asking import ASKING, Asking
from tests.kit.servers.free_port import free_port
from tests.kit.stage.agents import RUN, Client, play_agents, user
from tests.kit.stage.rollouts import Stage

KEY = "the key of the run, and of all its ranks"


@pytest.fixture
def first() -> Iterator[Gateway]:
    """That of rank 0, which all agents ask."""
    gateway = Gateway(key=KEY)
    gateway.registry.join_run(RUN, rank=0)
    gateway.start()
    yield gateway
    gateway.stop()


@pytest.fixture
def second() -> Iterator[Gateway]:
    """That of rank 1, which plays."""
    gateway = Gateway(key=KEY)
    yield gateway
    gateway.stop()


def asks(first: Gateway, peer: str | None, answers: list[Any]) -> Any:
    """An agent of rank 1 that asks rank 0, which knows rank 1 at `peer`."""

    @agent
    async def asks(endpoint: Any) -> float:
        own = endpoint.base_url.partition("/r/")[0]
        first.registry.peers = {1: peer or own}
        there = endpoint.base_url.replace(own, first.base_url.removesuffix("/v1"))
        async with Client(replace(endpoint, base_url=there)) as client:
            answers.append(await client.post({"model": "policy", "messages": [user("hi")]}))
        return 1.0

    return asks


def test_a_connection_between_ranks_outlives_the_rollout_it_served(
    stage: Stage, first: Gateway, second: Gateway
) -> None:
    """Closed with a rollout, it would be taken for the next one's request, and lose it."""
    answers: list[Any] = []
    plays = asks(first, None, answers)
    engine = None
    for _ in range(3):
        engine = play_agents(stage, plays, gateway=second, rank=1, engine=engine).engine
    assert [status for status, _ in answers] == [200] * 3


@pytest.mark.parametrize("where", ["Authorization", "x-api-key", "x-goog-api-key", "key"])
@pytest.mark.parametrize("asking", ASKING.values(), ids=ASKING)
def test_each_protocol_is_passed_on_with_its_key(
    stage: Stage, first: Gateway, second: Gateway, asking: Asking, where: str
) -> None:
    answers: list[Any] = []

    @agent
    async def plays(endpoint: Any) -> float:
        own = endpoint.base_url.partition("/r/")[0]
        first.registry.peers = {1: own}
        there = endpoint.anthropic_url.replace(own, first.base_url.removesuffix("/v1"))
        bearer = "Bearer " * (where == "Authorization")
        placed = {where: f"{bearer}{endpoint.api_key}"}
        headers, query = ({}, placed) if where == "key" else (placed, {})
        async with ClientSession(headers=headers) as session:
            for path in (asking.path, asking.stream_path):
                url = URL(there + path).update_query(query)
                body = asking.body("hi", stream=path == asking.stream_path)
                async with session.post(url, json=body) as reply:
                    answers.append((reply.status, await reply.text()))
        return 1.0

    rollout = play_agents(stage, plays, gateway=second, rank=1).one
    assert [status for status, _ in answers] == [200, 200], answers
    assert all('"yes"' in text for _, text in answers)
    assert len(rollout.turns) == 1


def test_a_rank_that_is_gone_is_named(
    stage: Stage, first: Gateway, second: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    """And its agents get a status that they do not ask again for without end."""
    answers: list[Any] = []
    peer = f"http://127.0.0.1:{free_port()}"
    plays = asks(first, peer, answers)
    with caplog.at_level(logging.WARNING), pytest.raises(RolloutError, match="made no call"):
        play_agents(stage, plays, gateway=second, rank=1)
    status, body = answers[0]
    assert status == 500
    assert body["error"]["message"] == "rank 1 of this run does not answer"
    assert f"rank 1's gateway at {peer} does not answer: ClientConnectorError" in caplog.text
