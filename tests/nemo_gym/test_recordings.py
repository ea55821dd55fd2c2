"""Recorded rollouts of real servers, 0.4.0 and 0.7.0, played again by our client and gateway.

The agent sends what the recorded one sent, message for message, and answers what it answered; the
policy samples what was sampled then.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import abut
from abut.gateway import Gateway
from abut.nemo_gym import NemoGym
from abut.rollout.rollout import Rollout
from tests.kit.servers.fake_gym import Answer, FakeGym, Policy, carrier
from tests.kit.stage.agents import check_tree, play_agents
from tests.kit.stage.rollouts import Recording

NOT_ROLLOUTS = {
    "environment_server",
    "failures",
    "head_discovery",
    "model_server",
    "reply_variants",
    "request_variants",
}
AGENT = "recorded_agent"
DRIFTS = {
    "counter_plain_drift",
    "counter_plain_thinking_stripped",
    "user_turns_plain_thinking_stripped",
}
"""Whose model server had the prompts tokenized anew, and got others than the sampler followed."""
SPELLED = {"counter_inline_noncanonical", "counter_plain_drift"}
"""In which the policy spelled the tag of a call with other tokens."""
ELSEWHERE = {
    "counter_inline_noncanonical",
    "user_turns_400_context_length",
    "user_turns_empty_turn",
    "counter_thinking_only_turn",
}
"""Whose tokens a gateway has otherwise than the upstream of the recording; each has its test."""


def recorded(runs: Path) -> dict[str, dict[str, Any]]:
    """All recorded rollouts, by version and name."""
    found = {}
    for path in sorted(runs.glob("0.*/*.json")):
        if path.stem not in NOT_ROLLOUTS:
            found[f"{path.parent.name}/{path.stem}"] = json.loads(path.read_text(encoding="utf-8"))
    return found


def chats(run: dict[str, Any]) -> list[dict[str, Any]]:
    return [r["body"] for r in run["upstream_requests"] if r["path"].endswith("/chat/completions")]


def samples(run: dict[str, Any]) -> list[list[int]]:
    """What the recorded policy drew in each call that had an answer."""
    found = []
    for reply in run["upstream_replies"]:
        choice = (reply.get("choices") or [{}])[0]
        message = choice.get("message") or {}
        if ids := message.get("generation_token_ids") or choice.get("token_ids"):
            found.append(ids)
        elif logprobs := (choice.get("logprobs") or {}).get("content"):
            found.append([int(one["token"].removeprefix("token_id:")) for one in logprobs])
    return found


def as_upstream(chat: dict[str, Any]) -> dict[str, Any]:
    """A request as the upstream of the recording took it.

    It gave two calls where one was wanted, which nobody in Gym enforces, and wrote what a developer
    said as a system message.
    """
    messages = [
        {**message, "role": "system"} if message["role"] == "developer" else message
        for message in chat["messages"]
    ]
    return {**{k: v for k, v in chat.items() if k != "parallel_tool_calls"}, "messages": messages}


class Replay:
    """One recorded rollout, played again.

    Args:
        run: it.
        own_tokens: the reply has what our gateway said of tokens, not what was recorded.
    """

    def __init__(self, run: dict[str, Any], *, own_tokens: bool = True) -> None:
        self.run, self.own_tokens = run, own_tokens
        self.statuses: list[int] = []
        self.answers: list[dict[str, Any]] = []

    async def __call__(self, policy: Policy, body: dict[str, Any]) -> Answer:
        for chat in chats(self.run):
            status, said = await policy.post(as_upstream(chat))
            self.statuses.append(status)
            if status == 200:
                self.answers.append(said["choices"][0]["message"])
        reply = self.run["run_reply"]
        if self.own_tokens:
            said = [item for item in reply["response"]["output"] if "prompt_token_ids" not in item]
            output = [*said, *map(carrier, self.answers)]
            reply = {**reply, "response": {**reply["response"], "output": output}}
        return self.run["run_status"], reply

    def played(self, stage: Any, **options: Any) -> tuple[Rollout, Recording, FakeGym]:
        drawn = iter(samples(self.run))
        sampler = Recording(lambda request: next(drawn))
        gateway = Gateway()
        gateway.start()
        row = {k: v for k, v in self.run["run_request"].items() if k != "agent_ref"}
        text = json.dumps({**row, "agent_ref": {"name": AGENT}})
        with FakeGym({AGENT: self}, base_url=gateway.base_url, key=gateway.key) as gym:
            try:
                played = play_agents(
                    stage,
                    NemoGym(gym.url, check=None),
                    sampler=sampler,
                    gateway=gateway,
                    columns=[{"nemo_gym_row": text}],
                    retries=0,
                    max_failed_frac=1.0,
                    completion=4000,
                    **options,
                )
            finally:
                gateway.stop()
        return played.one, sampler, gym


def outcome(rollout: Rollout) -> Any:
    return rollout.extras["nemo_gym_outcome"]


def test_the_recordings_are_all_there(runs: Path) -> None:
    assert len(recorded(runs)) == len(json.loads((runs / "expected_stitch.json").read_text())) == 25


def test_each_rollout_is_exact_and_has_the_recorded_reward(stage: Any, runs: Path) -> None:
    for name, run in recorded(runs).items():
        if name.partition("/")[2] in ELSEWHERE | SPELLED:
            continue
        replay = Replay(run)
        rollout, sampler, gym = replay.played(stage)
        assert rollout.error is None, name
        assert outcome(rollout) == "ok", name
        assert rollout.reward == run["run_reply"]["reward"], name
        assert rollout.branches == [], name
        assert len(rollout.turns) == len(samples(run)), name
        check_tree(rollout, sampler.calls)
        (body,) = gym.bodies
        assert (
            body["responses_create_params"]["input"]
            == (run["run_request"]["responses_create_params"]["input"])
        )


def test_inline_prompts_are_those_of_the_recording_to_the_token(stage: Any, runs: Path) -> None:
    compared = 0
    for name, run in recorded(runs).items():
        if run["mode"] != "inline" or name.partition("/")[2] in ELSEWHERE:
            continue
        replay = Replay(run)
        replay.played(stage)
        theirs = [reply["choices"][0]["message"] for reply in run["upstream_replies"]]
        for ours, message in zip(replay.answers, theirs, strict=True):
            for key in ("prompt_token_ids", "generation_token_ids"):
                assert ours[key] == message[key], name
                compared += 1
    assert compared > 30


def test_tokens_that_are_not_the_ledgers_are_drift_and_have_no_reward(
    stage: Any, runs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = set()
    for name, run in recorded(runs).items():
        if name.partition("/")[2] in ELSEWHERE:
            continue
        rollout, _, _ = Replay(run, own_tokens=False).played(stage)
        if outcome(rollout) == "drift":
            found.add(name.partition("/")[2])
            assert rollout.reward is None
            assert rollout.columns is not None  # the row stays, without weight
        else:
            assert outcome(rollout) == "ok", name
    assert found == DRIFTS
    assert "answered with tokens that this gateway did not sample" in caplog.text


@pytest.mark.parametrize("name", sorted(SPELLED))
def test_a_call_whose_tag_is_spelled_is_none(stage: Any, runs: Path, name: str) -> None:
    """The upstream parsed text; so what the recorded agent says of it is a history of its own."""
    run = recorded(runs)[f"0.4.0/{name}"]
    replay = Replay(run)
    rollout, sampler, _ = replay.played(stage)
    theirs = run["upstream_replies"][0]["choices"][0]["message"]
    assert [len(said["tool_calls"]) for said in (theirs, replay.answers[0])] == [2, 1]
    assert "<tool_call>" in replay.answers[0]["content"]
    assert outcome(rollout) == "ok"
    assert len(rollout.branches) == 1
    check_tree(rollout, sampler.calls)


@pytest.mark.parametrize("version", ["0.4.0", "0.7.0"])
def test_a_turn_without_text_is_kept_though_0_4_0_loses_it(
    stage: Any, runs: Path, version: str
) -> None:
    run = recorded(runs)[f"{version}/user_turns_empty_turn"]
    rollout, sampler, _ = Replay(run).played(stage)
    assert outcome(rollout) == "ok"
    assert len(rollout.turns) == 3
    assert rollout.branches == []
    check_tree(rollout, sampler.calls)
    lost = {"empty_turn_left_out": 1} if version == "0.4.0" else {}
    assert rollout.client_rewrites == lost


@pytest.mark.parametrize("version", ["0.4.0", "0.7.0"])
def test_a_turn_of_thinking_alone_is_trained(stage: Any, runs: Path, version: str) -> None:
    """0.4.0 asks again behind it, and then makes one message of both; 0.7.0 stops."""
    run = recorded(runs)[f"{version}/counter_thinking_only_turn"]
    replay = Replay(run)
    rollout, sampler, _ = replay.played(stage)
    assert set(replay.statuses) == {200}
    assert outcome(rollout) == "ok"
    check_tree(rollout, sampler.calls)
    assert len(sampler.calls) == len(chats(run)) == (4 if version == "0.4.0" else 1)


@pytest.mark.parametrize("version", ["0.4.0", "0.7.0"])
def test_a_policy_that_refuses_its_budget_truncates(stage: Any, runs: Path, version: str) -> None:
    run = recorded(runs)[f"{version}/user_turns_400_context_length"]
    replay = Replay(run)
    rollout, sampler, _ = replay.played(stage, max_turns=1)
    assert replay.statuses == [200, 400, 400]
    assert outcome(rollout) == "truncated"
    assert rollout.reward == run["run_reply"]["reward"]
    check_tree(rollout, sampler.calls)


def test_stale_ids_of_0_4_0_are_ignored(stage: Any, runs: Path) -> None:
    """An answer comes back with the ids of the one before it."""
    path = runs / "0.4.0" / "request_variants.json"
    shape = json.loads(path.read_text(encoding="utf-8"))["stale_ids"]["chat_request_1"]["messages"]
    assert shape[1]["generation_token_ids"] == shape[3]["generation_token_ids"]  # the bug

    async def play(policy: Policy, body: dict[str, Any]) -> Answer:
        said: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
        for text in ("more", "add 1"):
            said += [await policy.ask(said), {"role": "user", "content": text}]
        for name in ("prompt_token_ids", "generation_token_ids", "generation_log_probs"):
            said[3] = {**said[3], name: said[1][name]}
        await policy.ask(said)
        return 200, {"response": {"output": list(map(carrier, policy.answers))}, "reward": 1.0}

    run = {"run_request": {"responses_create_params": {"input": "hi"}}, "upstream_replies": []}
    replay = Replay(run)
    replay.__class__ = type("Stale", (Replay,), {"__call__": lambda self, *a: play(*a)})
    texts = iter(["Hello.", "Another one.", "Done."])
    close = stage.processor.close_token_id
    run["upstream_replies"] = [
        {"choices": [{"message": {"generation_token_ids": [*stage.tokenizer.encode(t), close]}}]}
        for t in texts
    ]
    rollout, sampler, _ = replay.played(stage)
    assert outcome(rollout) == "ok"
    assert len(rollout.turns) == 3
    assert rollout.branches == []
    check_tree(rollout, sampler.calls)


def test_what_stitch_says_of_the_recorded_tokens_holds(tokenizer: Any, runs: Path) -> None:
    expected = json.loads((runs / "expected_stitch.json").read_text(encoding="utf-8"))
    for name, run in recorded(runs).items():
        calls = [
            (
                np.asarray(item["prompt_token_ids"]),
                np.asarray(item["generation_token_ids"]),
                np.asarray(item["generation_log_probs"], dtype=np.float32),
            )
            for item in run["run_reply"]["response"]["output"]
            if item.get("generation_token_ids")
        ]
        said = abut.stitch(calls, on_drift="realign", tokenizer=tokenizer)
        found = [[t.kind, t.token, t.cause] for t in said.transitions]
        assert found == expected[f"{name}.json"]["transitions"], name
        assert len(said.chains) == expected[f"{name}.json"]["chains"], name
        assert run["run_reply"]["reward"] == expected[f"{name}.json"]["reward"], name
