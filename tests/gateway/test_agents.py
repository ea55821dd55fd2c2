"""Agents behind the gateway: what they say becomes one row, exact to the token."""

import re
import signal
import threading
from typing import Any

import openai
import pytest
from pydantic import BaseModel

import abut
from abut import AgentResult, agent
from tests.kit.stage.agents import LOOKUP, Client, a_call, check_tree, play_agents, user
from tests.kit.stage.rollouts import Recording, Stage, check_exact


def str_of(reward: object) -> str:
    return str(reward)[:8]


def by_turn(stage: Stage, *texts: str) -> Recording:
    """A sampler that says each text in its turn, the last one again and again."""

    def script(request: Any) -> list[int]:
        text = texts[min(request.turn, len(texts) - 1)]
        return [*stage.tokenizer.encode(text, added="parse"), stage.processor.close_token_id]

    return Recording(script)


@agent
async def looks_up(endpoint: Any) -> float:
    """Calls a tool as long as the policy asks for it."""
    async with Client(endpoint) as client:
        messages = [user("What?")]
        for _ in range(5):
            message = await client.ask(messages, tools=[LOOKUP])
            messages.append(message)
            for call in message.get("tool_calls", ()):
                result = f"found {call['function']['arguments']}"
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
            if not message.get("tool_calls"):
                return 1.0
    return 0.0


def test_a_conversation_with_a_tool_is_one_row(stage: Stage) -> None:
    sampler = by_turn(stage, a_call(a="x"), a_call(a="y", text="Let me see.\n"), "It is x.")
    played = play_agents(stage, looks_up, sampler=sampler)
    rollout = played.one
    assert (rollout.error, rollout.reward, rollout.branches) == (None, 1.0, [])
    assert len(rollout.turns) == 3
    check_exact(rollout.columns, sampler.calls)
    check_tree(rollout, sampler.calls)


def test_a_call_is_sampled_on_the_loop_of_the_gateway(stage: Stage) -> None:
    names: list[str] = []
    sampler = by_turn(stage, "It is x.")
    sample = sampler.sample

    async def noted(request: Any) -> Any:
        names.append(threading.current_thread().name)
        return await sample(request)

    sampler.sample = noted  # type: ignore[method-assign]
    assert play_agents(stage, looks_up, sampler=sampler).one.error is None
    assert names == ["abut-gateway"]


def test_the_row_is_that_of_an_environment_with_the_same_conversation(
    stage: Stage, hf_tokenizer: Any
) -> None:
    def lookup(a: str) -> str:
        """Look up.

        Args:
            a: what.
        """
        return f'found {{"a": "{a}"}}'

    env = abut.tool_env([lookup], reward=lambda messages: 1.0)
    texts = (a_call(a="x"), a_call(a="y", text="Let me see.\n"), "It is x.")
    processor = stage.processor.with_tools(env.tools)
    make = env.bind(processor)
    (task,) = stage.tasks([make], processor=processor, columns={"prompt": "What?"})
    by_env = stage.engine(by_turn(stage, *texts)).run([make.complete(task)])[0]

    @agent
    async def same(endpoint: Any) -> float:
        async with Client(endpoint) as client:
            messages = [user("What?")]
            while True:
                message = await client.ask(messages, tools=list(env.tools))
                messages.append(message)
                if not message.get("tool_calls"):
                    return 1.0
                for call in message["tool_calls"]:
                    result = lookup("x" if len(messages) == 2 else "y")
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})

    by_agent = play_agents(stage, same, sampler=by_turn(stage, *texts)).one
    assert by_env.columns is not None
    assert by_agent.columns is not None
    for name in ("prompt_ids", "completion_ids", "env_mask", "logprobs"):
        ours, theirs = getattr(by_agent.columns, name), getattr(by_env.columns, name)
        assert ours.tolist() == theirs.tolist(), name


def test_a_result_may_say_more_than_a_reward(stage: Stage) -> None:
    @agent
    async def tells(endpoint: Any, question: str, episode_seed: int) -> AgentResult:
        async with Client(endpoint) as client:
            await client.ask([user(question)])
        return AgentResult(0.5, {"seed": episode_seed}, [user("told")])

    rollout = play_agents(stage, tells, columns=[{"question": "How?", "unused": 1}]).one
    assert (rollout.reward, rollout.extras, rollout.messages) == (0.5, {"seed": 7}, [user("told")])
    assert "How?" in stage.row_text(rollout)


@pytest.mark.parametrize("reward", [None, float("nan"), float("inf"), 10**400], ids=str_of)
def test_a_reward_that_is_not_finite_is_no_score(stage: Stage, reward: Any) -> None:
    @agent
    async def scores(endpoint: Any) -> Any:
        async with Client(endpoint) as client:
            await client.ask([user("hi")])
        return reward

    rollout = play_agents(stage, scores).one
    assert (rollout.failed, rollout.reward) == (False, None)


def test_two_samples_of_one_point_are_two_branches(stage: Stage) -> None:
    said = iter(range(100))

    def script(request: Any) -> list[int]:
        text = f"number {next(said)}"
        return [*stage.tokenizer.encode(text), stage.processor.close_token_id]

    @agent
    async def best_of_three(endpoint: Any) -> float:
        async with Client(endpoint) as client:
            first = [await client.ask([user("pick")]) for _ in range(3)]
            await client.ask([user("pick"), first[1], user("why?")])
        return 1.0

    sampler = Recording(script)
    rollout = play_agents(stage, best_of_three, sampler=sampler).one
    assert [branch.cause for branch in rollout.branches] == ["repeated", "repeated"]
    assert "number 1" in stage.row_text(rollout)
    assert "number 3" in stage.row_text(rollout)
    check_tree(rollout, sampler.calls)


def test_an_edited_history_is_a_branch(stage: Stage) -> None:
    @agent
    async def edits(endpoint: Any) -> float:
        async with Client(endpoint) as client:
            one = await client.ask([user("one")])
            two = await client.ask([user("one"), one, user("two")])
            history = [user("one"), one, user("two, but other"), two, user("three")]
            await client.ask(history)
            await client.ask([user("one"), {**one, "content": "no"}, user("two")])
        return 1.0

    sampler = by_turn(stage, "yes")
    rollout = play_agents(stage, edits, sampler=sampler).one
    check_tree(rollout, sampler.calls)
    assert rollout.error is None
    assert {branch.cause for branch in rollout.branches} <= {None, "rewritten", "template"}
    assert len(rollout.branches) == 2


def test_an_agent_that_made_no_call_failed(stage: Stage) -> None:
    @agent
    async def silent(endpoint: Any) -> float:
        return 1.0

    rollout = play_agents(stage, silent, retries=0, max_failed_frac=1.0).one
    assert rollout.error is not None
    assert "silent made no call" in rollout.error


def test_an_agent_that_raises_costs_its_rollout(stage: Stage) -> None:
    @agent
    async def breaks(endpoint: Any) -> float:
        async with Client(endpoint) as client:
            await client.ask([user("hi")])
        raise ValueError("broken")

    played = play_agents(stage, breaks, looks_up, retries=1, max_failed_frac=1.0)
    bad, good = played.rollouts
    assert (bad.attempts, bad.reward, good.error) == (2, None, None)
    assert "breaks raised ValueError: broken (after 1 calls)" in (bad.error or "")
    assert "raise ValueError" in bad.attempt_tracebacks[-1]


def test_an_agent_that_asks_for_signals_is_told_what_bounds_it(stage: Stage) -> None:
    @agent
    def alarmed(endpoint: Any) -> float:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        raise AssertionError

    played = play_agents(stage, alarmed, max_failed_frac=1.0, retries=0)
    assert (played.one.error or "").endswith(
        "hint: an agent does not run on the main thread, so it cannot use signals; "
        "RolloutConfig.rollout_timeout_s limits a rollout"
    )


def test_an_agent_that_raises_at_its_budget_keeps_its_row(stage: Stage) -> None:
    @agent
    async def goes_on(endpoint: Any) -> float:
        async with Client(endpoint) as client:
            messages = [user("hi")]
            while True:
                messages += [await client.ask(messages), user("and now? " * 10)]

    rollout = play_agents(stage, goes_on, completion=200, retries=1).one
    assert (rollout.failed, rollout.reward, rollout.attempts) == (False, None, 1)
    assert rollout.stop_reason == "max_completion_tokens"
    assert len(rollout.turns) > 1


def cut_off(stage: Stage) -> Recording:
    """A sampler whose answers are as long as they may be, and never end."""
    ids = stage.tokenizer.encode("word ").tolist()
    return Recording(lambda request: (ids * request.max_tokens)[: request.max_tokens])


class Answer(BaseModel):
    word: str


async def parsed(endpoint: Any, max_tokens: int | None = None) -> float:
    """Ask with the real client's `.parse()`, which raises where the answer was cut."""
    address = {"base_url": endpoint.base_url, "api_key": endpoint.api_key}
    async with openai.AsyncOpenAI(**address, max_retries=0) as client:
        await client.chat.completions.parse(
            model=endpoint.model, messages=[user("Say a word.")], max_tokens=max_tokens
        )
    return 1.0


@pytest.mark.parametrize("limit", ["completion", "context"])
def test_an_agent_that_raises_at_an_answer_cut_by_its_budget_is_truncated(
    stage: Stage, limit: str
) -> None:
    played = play_agents(
        stage, agent(parsed), sampler=cut_off(stage), retries=1, **{"completion": None, limit: 100}
    )
    rollout = played.one
    assert (rollout.failed, rollout.reward, rollout.attempts) == (False, None, 1), rollout.error
    assert rollout.stop_reason == f"max_{limit}_tokens"
    check_exact(rollout.columns, played.sampler.calls)


def test_an_answer_that_its_agent_or_a_turn_limit_cut_is_no_excuse(stage: Stage) -> None:
    """Something was left: another answer would have been sampled."""

    @agent
    async def cuts(endpoint: Any) -> float:
        return await parsed(endpoint, max_tokens=8)

    for limits in ({}, {"max_turn_tokens": 8}):
        options = {"retries": 0, "max_failed_frac": 1.0, **limits}
        asks = agent(parsed) if limits else cuts
        rollout = play_agents(stage, asks, sampler=cut_off(stage), completion=100, **options).one
        assert "LengthFinishReasonError" in (rollout.error or "")


def test_a_cut_answer_is_no_excuse_once_the_agent_went_on(stage: Stage) -> None:
    @agent
    async def goes_on(endpoint: Any) -> float:
        async with Client(endpoint) as client:
            await client.ask([user("hi")])
            await client.ask([user("something else")], max_tokens=3)
        raise ValueError("broken")

    played = play_agents(
        stage, goes_on, sampler=cut_off(stage), completion=50, retries=0, max_failed_frac=1.0
    )
    assert "ValueError: broken" in (played.one.error or "")


def test_an_agent_that_returns_after_a_cut_answer_was_ended_by_the_budget(stage: Stage) -> None:
    @agent
    async def returns(endpoint: Any) -> float:
        async with Client(endpoint) as client:
            await client.ask([user("hi")])
        return 0.5

    rollout = play_agents(stage, returns, sampler=cut_off(stage), completion=50).one
    assert (rollout.stop_reason, rollout.reward) == ("max_completion_tokens", 0.5)


@pytest.mark.parametrize(("more", "warned"), [(1, True), (0, False)])
def test_one_warning_where_much_that_was_sampled_trains_nothing(
    stage: Stage, caplog: pytest.LogCaptureFixture, more: int, warned: bool
) -> None:
    """Another sample at the same point, or none."""

    @agent
    async def tries_again(endpoint: Any) -> float:
        async with Client(endpoint) as client:
            for _ in range(1 + more):
                await client.ask([user("go")])
        return 1.0

    played = play_agents(stage, tries_again, tries_again)
    play_agents(stage, tries_again)
    texts = [record.getMessage() for record in caplog.records]
    texts = [text for text in texts if "are not trained" in text]
    assert len(played.rollouts[0].branches) == more
    assert len(texts) == 2 * warned  # of each engine
    for text in texts:
        assert re.sub(r"the \d+ tokens", "the … tokens", text) == (
            "50% of the … tokens that agents sampled in a batch are not trained, because this "
            "trainer trains only one conversation of each rollout. Most of them (100%) are in "
            "conversations that an agent started because it requests several samples of the same "
            "turn\n"
            "hint: to train every conversation, use abut.trl.GRPOTrainer, which takes the same "
            "arguments as TRL's, or the worker of an asynchronous trainer; "
            "docs/integrations/agents.md lists what starts a new conversation"
        )


def test_no_warning_where_only_what_was_thrown_away_trains_nothing(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    @agent
    async def best_of_three(endpoint: Any) -> float:
        async with Client(endpoint) as client:
            first = [await client.ask([user("go")]) for _ in range(3)]
            await client.ask([user("go"), first[0], user("on")])
        return 1.0

    played = play_agents(stage, best_of_three)
    assert played.one.dropped_tokens == played.one.sampled_tokens
    assert not [record for record in caplog.records if "are not trained" in record.getMessage()]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format is not enforced"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "data: URL"),
        ({"n": 2}, "n=2: the gateway draws one sample per request"),
    ],
)
def test_an_agent_whose_calls_are_all_refused_fails_with_the_last_refusal(
    stage: Stage, fields: dict[str, Any], why: str
) -> None:
    @agent
    async def goes_on(endpoint: Any) -> float:
        async with Client(endpoint) as client:
            await client.post({"messages": [user("hi")], **fields})
        return 1.0

    error = play_agents(stage, goes_on, retries=0, max_failed_frac=1.0).one.error or ""
    assert "every call of goes_on was refused; the last one: " in error
    assert why in error
    assert "point its client at" not in error


def example(number: int) -> list[dict[str, Any]]:
    said = {"role": "assistant", "content": "an example"}
    return [user("how?"), said, user(f"question {number}")]


@pytest.mark.parametrize(
    ("first", "second", "cause"),
    [
        (example(1), example(2), "new"),  # as aider opens
        ([user("task")], [user("task"), user("call a tool")], "rewritten"),  # as mini-swe-agent
        ([user("task")], [user("task"), "other", user("go on")], "rewritten"),
        ([user("task")], [user("summary"), "yes", user("go on")], "rewritten"),
        ([user("task")], [user("summary of it")], "new"),
    ],
)
def test_a_conversation_is_rewritten_where_an_answer_of_ours_was(
    stage: Stage, first: list[Any], second: list[Any], cause: str
) -> None:
    second = [{"role": "assistant", "content": m} if isinstance(m, str) else m for m in second]

    @agent
    async def asks_twice(endpoint: Any) -> float:
        async with Client(endpoint) as client:
            await client.ask(first)
            await client.ask(second)
        return 1.0

    rollout = play_agents(stage, asks_twice).one
    assert (rollout.error, len(rollout.branches)) == (None, 1)
    assert rollout.branches[0].cause == cause
