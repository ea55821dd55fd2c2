"""What is kept out: each gets a 400 that says why, and no sampler hears of it."""

import asyncio
import io
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from abut import agent
from abut.gateway import Gateway
from tests.kit.stage.agents import LOOKUP, Client, play_agents, user
from tests.kit.stage.rollouts import Recording, Stage

BODY = {"model": "policy", "messages": [user("hi")]}
DEEP = "[" * 100_000 + "]" * 100_000


def knocks(stage: Stage, knock: Callable[[Client], Awaitable[Any]]) -> tuple[Any, Recording]:
    """What a client got that did something odd before it did as it should."""
    got: list[Any] = []

    @agent
    async def knocks_and_plays(endpoint: Any) -> float:
        async with Client(endpoint) as client:
            got.append(await knock(client))
            await client.ask([user("hi")])
        return 1.0

    sampler = Recording(stage.says())
    rollout = play_agents(stage, knocks_and_plays, sampler=sampler).one
    assert (rollout.error, len(rollout.turns), rollout.branches) == (None, 1, [])
    assert len(sampler.calls) == 1
    return got[0], sampler


def said(reply: tuple[int, Any]) -> str:
    """The message of a refusal in OpenAI's form."""
    status, body = reply
    assert status == 400, reply
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return str(body["error"]["message"])


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({"Authorization": ""}, "no API key"),
        ({"Authorization": "Basic abc"}, "no API key"),
        ({"Authorization": "Bearer wrong"}, "does not open this rollout"),
        ({"x-abut-rollout": "r7-run0.0"}, "does not open this rollout"),
    ],
)
def test_who_has_no_key(stage: Stage, headers: dict[str, str], message: str) -> None:
    reply, _ = knocks(stage, lambda client: client.post(BODY, **headers))
    assert message in said(reply)


def test_the_key_of_another_rollout(stage: Stage) -> None:
    gateway = Gateway()

    async def knock(client: Client) -> Any:
        key = gateway.registry.key_of("r1-run0.0")
        return await client.post(BODY, Authorization=f"Bearer {key}")

    got: list[Any] = []

    @agent
    async def plays(endpoint: Any) -> float:
        async with Client(endpoint) as client:
            got.append(await knock(client))
            await client.ask([user("hi")])
        return 1.0

    play_agents(stage, plays, gateway=gateway)
    gateway.stop()
    assert "does not open this rollout" in said(got[0])


@pytest.mark.parametrize(
    ("rollout", "message"),
    [
        ("r0-run0.7", "this rollout is over"),  # well formed, of this run, and not live
        ("r0-run1.0", "this run has no rollout"),
        ("r0-run0.0r3", "this run has no rank 3"),
        ("../../etc/passwd", "this run has no rollout"),
        ("x" * 10_000, "this run has no rollout"),
    ],
)
def test_a_rollout_that_is_not_there(stage: Stage, rollout: str, message: str) -> None:
    gateway = Gateway(key="0123456789abcdef")
    got: list[Any] = []

    @agent
    async def plays(endpoint: Any) -> float:
        async with Client(endpoint) as client:
            body = {**BODY, "rollout_id": rollout}
            got.append(await client.post(body, Authorization="Bearer 0123456789abcdef"))
            await client.ask([user("hi")])
        return 1.0

    play_agents(stage, plays, gateway=gateway)
    gateway.stop()
    assert message in said(got[0])


async def _raw(client: Client, data: bytes, path: str = "") -> tuple[int, Any]:
    url = client.url if not path else client.endpoint.base_url + path
    async with client.session.post(url, data=io.BytesIO(data)) as reply:
        text = await reply.text()
        return reply.status, json.loads(text)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "must be a JSON object, got list"),
        (b'{"messages": "\xff"}', "not UTF-8"),
        (DEEP.encode(), "nested too deeply"),
        (json.dumps({**BODY, "metadata": 1}).replace("1", DEEP).encode(), "nested too deeply"),
        (b'{"messages": []}', "at least one message"),
        (b'{"messages": [{"role": "robot"}]}', "messages[0] must be an object whose role"),
        (b'{"messages": [{"role": "user", "content": 1}]}', "must be a string"),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "cannot write"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_what_is_no_request(stage: Stage, data: bytes, message: str) -> None:
    reply, _ = knocks(stage, lambda client: _raw(client, data))
    assert message in said(reply)


def test_nothing_at_all_is_refused_each_time(stage: Stage) -> None:
    """What aiohttp reads an empty body from is one object for all."""

    async def asks(client: Client) -> tuple[int, Any]:
        await _raw(client, b"")
        return await _raw(client, b"")

    reply, _ = knocks(stage, asks)
    assert "not JSON" in said(reply)


def test_a_hundred_megabytes(stage: Stage) -> None:
    reply, _ = knocks(stage, lambda client: _raw(client, b"x" * 100_000_000))
    assert "more than 67108864 bytes" in said(reply)


IMAGE = [{"type": "image_url", "image_url": {"url": "data:"}}]
TOOLS = [{**LOOKUP, "function": {**LOOKUP["function"], "name": f"t{k}"}} for k in range(1000)]  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logit_bias": {"7": 1}}, "logit_bias"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"messages": [{"role": "user", "content": IMAGE}]}, "messages"),
        ({"tools": TOOLS}, "tools"),
        ({"tools": [{"type": "retrieval"}]}, "tools"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs"),
        ({"tool_choice": 7}, "tool_choice"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_a_field_that_could_not_be_exact(stage: Stage, fields: dict[str, Any], param: str) -> None:
    (status, body), _ = knocks(stage, lambda client: client.post({**BODY, **fields}))
    assert (status, body["error"]["param"]) == (400, param)


def test_other_routes(stage: Stage) -> None:
    async def knock(client: Client) -> Any:
        one = await _raw(client, b"{}", "/responses/compact")
        two = await _raw(client, b"{}", "/../../v1/embeddings")
        return one, two

    (compact, other), _ = knocks(stage, knock)
    assert (compact[0], other[0]) == (404, 404)


def test_an_orphan_is_told_each_time_that_it_is_over(stage: Stage) -> None:
    endpoints: list[Any] = []

    @agent
    async def plays(endpoint: Any) -> float:
        endpoints.append(endpoint)
        async with Client(endpoint) as client:
            await client.ask([user("hi")])
        return 1.0

    gateway = Gateway()
    play_agents(stage, plays, gateway=gateway)

    async def asks() -> list[Any]:
        async with Client(endpoints[0]) as client:
            return [await client.post(BODY) for _ in range(3)]

    replies = asyncio.run(asks())
    gateway.stop()
    assert {body["error"]["code"] for _, body in replies} == {"rollout_over"}
    assert {said(reply) for reply in replies} == {"this rollout is over"}


def test_nothing_secret_is_logged(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    gateway = Gateway(key="a-secret-of-this-run")

    @agent
    async def plays(endpoint: Any) -> float:
        async with Client(endpoint) as client:
            await client.post({**BODY, "n": 2})
            await client.ask([user("hi")])
        raise ValueError(repr(endpoint))

    play_agents(stage, plays, gateway=gateway, retries=0, max_failed_frac=1.0)
    gateway.stop()
    assert "a-secret" not in caplog.text
    assert "abut-" not in caplog.text.replace("abut-gateway", "").replace("abut-loop", "")


def test_what_is_not_honoured_is_said_once(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    @agent
    async def plays(endpoint: Any) -> float:
        async with Client(endpoint) as client:
            for _ in range(2):
                await client.ask([user("hi")], user="me", tool_choice="required", tools=[LOOKUP])
        return 1.0

    rollout = play_agents(stage, plays).one
    assert caplog.text.count("'user', which the gateway ignores") == 1
    assert caplog.text.count("tool_choice, which the gateway does not enforce") == 1
    assert rollout.tool_choice_unmet == 2
