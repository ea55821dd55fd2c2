"""Limits of a whole rollout of an agent, over all of its conversations."""

import asyncio
from typing import Any

import openai
import pytest

from abut import Endpoint, agent
from abut.rollout.config import RolloutConfig
from tests.kit.stage.agents import Client, play_agents, post, says, serving, user
from tests.kit.stage.rollouts import Stage

FULL = "context_length_exceeded"


@agent
async def asks_for_ever(endpoint: Endpoint) -> float:
    """Begin one conversation after the other, as an agent that compacts its history."""
    answers = 0
    async with Client(endpoint) as client:
        while True:
            status, body = await client.post({"model": "m", "messages": [user(f"part {answers}")]})
            if status != 200:
                assert (status, body["error"]["code"]) == (400, FULL)
                return float(answers)
            answers += 1


@agent
async def raises_at_its_limit(endpoint: Endpoint) -> float:
    client = openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key)
    async with client:
        for part in range(9):
            messages: list[Any] = [user(f"part {part}")]
            await client.chat.completions.create(model="m", messages=messages)
    return 1.0


def test_max_calls_counts_the_calls_of_all_conversations(stage: Stage) -> None:
    rollout = play_agents(stage, asks_for_ever, max_calls=4).one
    assert (rollout.reward, rollout.stop_reason, rollout.error) == (4.0, "max_calls", None)
    assert len(rollout.branches) == 3


def test_max_rollout_tokens_counts_the_tokens_of_all_conversations(stage: Stage) -> None:
    sampler = says(stage, "a b c")
    each = len(stage.tokenizer.encode("a b c")) + 1
    played = play_agents(
        stage, asks_for_ever, sampler=sampler, max_rollout_tokens=2 * each + each // 2
    )
    rollout = played.one
    assert (rollout.reward, rollout.stop_reason) == (3.0, "max_rollout_tokens")
    sampled = [len(sample.ids) for _, sample in sampler.calls]
    assert sampled == [each, each, each // 2], "the last answer is cut there"


@pytest.mark.parametrize(
    ("limit", "stop_reason"), [("max_calls", "max_calls"), ("max_rollout_tokens",) * 2]
)
def test_an_agent_that_raises_at_a_limit_of_its_rollout_is_truncated(
    stage: Stage, limit: str, stop_reason: str
) -> None:
    rollout = play_agents(stage, raises_at_its_limit, retries=0, **{limit: 3}).one
    assert (rollout.failed, rollout.reward, rollout.stop_reason) == (False, None, stop_reason)


def test_an_agent_that_raises_at_an_answer_cut_by_its_rollout_s_limit_is_truncated(
    stage: Stage,
) -> None:
    @agent
    async def wants_a_whole_answer(endpoint: Endpoint) -> float:
        async with Client(endpoint) as client:
            _, body = await client.post({"model": "m", "messages": [user("hi")]})
            if body["choices"][0]["finish_reason"] == "length":
                raise ValueError("cut")
        return 1.0

    sampler = says(stage, "a rather long answer")
    rollout = play_agents(
        stage, wants_a_whole_answer, sampler=sampler, retries=0, max_rollout_tokens=2
    ).one
    assert (rollout.failed, rollout.reward) == (False, None)
    assert rollout.stop_reason == "max_rollout_tokens"


def test_an_agent_that_stays_within_its_limits_is_not_truncated(stage: Stage) -> None:
    @agent
    async def asks_twice(endpoint: Endpoint) -> float:
        async with Client(endpoint) as client:
            for part in range(2):
                await client.ask([user(f"part {part}")])
        return 1.0

    rollout = play_agents(stage, asks_twice, max_calls=2, max_rollout_tokens=1000).one
    assert (rollout.reward, rollout.stop_reason) == (1.0, "env_done")


def test_calls_at_the_same_time_share_the_limit(stage: Stage) -> None:
    statuses: list[int] = []

    @agent
    async def asks_at_once(endpoint: Endpoint) -> float:
        async with Client(endpoint) as client:
            asked = (client.post({"model": "m", "messages": [user(f"{k}")]}) for k in range(8))
            statuses.extend(status for status, _ in await asyncio.gather(*asked))
        return 1.0

    rollout = play_agents(stage, asks_at_once, max_calls=5).one
    assert sorted(statuses) == [200] * 5 + [400] * 3
    assert rollout.stop_reason == "max_calls"


def test_a_retry_is_not_a_call(stage: Stage, hf_tokenizer: Any) -> None:
    """An equal body that says it is one gets the first one's sample, also at the limit."""
    body = {"model": "m", "messages": [user("hi")]}
    with serving(says(stage), hf_tokenizer, config={"max_calls": 1}) as gateway:
        url = f"{gateway.endpoint('a').base_url}/chat/completions"
        first = post(url, gateway.key, body)
        again = post(url, gateway.key, body, **{"x-stainless-retry-count": "1"})
        assert first[0] == again[0] == 200
        assert first[1]["id"] == again[1]["id"]
        status, answer, _ = post(url, gateway.key, body)
        assert (status, answer["error"]["code"]) == (400, FULL)
        assert "the rollout has used up max_calls" in answer["error"]["message"]
        assert gateway.end("a").stop_reason == "max_calls"


@pytest.mark.parametrize("name", ["max_calls", "max_rollout_tokens"])
def test_a_limit_is_at_least_one(name: str) -> None:
    with pytest.raises(ValueError, match=f"RolloutConfig.{name}=0: must be at least 1, or None"):
        RolloutConfig(**{name: 0})
