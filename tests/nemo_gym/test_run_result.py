"""What counts of an answer: recorded ones, and what none should be."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abut.errors import EnvError
from abut.nemo_gym.run_result import RunResult, inner_error, read_result

NAMES = (
    *("reward", "mask_sample", "truncated", "response", "output", "incomplete_details"),
    *("reward_components", "_ng_failure_class", "_ng_failure_terminal", "_ng_failure_message"),
    *("episode_id", "result", "failure", "prompt_token_ids", "generation_token_ids", "x"),
)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
JSON = st.recursive(
    LEAVES | st.just(10**400),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=6)
    ),
    max_leaves=12,
)


def answered(status: int, said: Any) -> Any:
    return read_result("agent", status, json.dumps(said).encode())


def failure(status: int, said: Any) -> EnvError:
    with pytest.raises(EnvError) as raised:
        answered(status, said)
    return raised.value


@pytest.mark.parametrize("version", ["0.4.0", "0.7.0"])
def test_each_recorded_failure_is_one_and_only_5xx_may_pass(runs: Path, version: str) -> None:
    cases = json.loads((runs / version / "failures.json").read_text(encoding="utf-8"))
    assert len(cases) >= 31
    kinds = set()
    for name, case in cases.items():
        if case["status"] == 200:
            continue
        error = failure(case["status"], case["reply"])
        lacks_field = "Field required" in str(error)
        assert error.may_pass == (case["status"] >= 500 and not lacks_field), name
        assert len(str(error)) < 700, name
        assert "\\\\" not in str(error), name
        kinds.add(case["status"])
    assert kinds == {422, 500}


def test_the_innermost_error_is_what_one_reads(runs: Path) -> None:
    cases = json.loads((runs / "0.4.0" / "failures.json").read_text(encoding="utf-8"))
    error = failure(500, cases["200_not_json"]["reply"])
    assert str(error) == "agent agent answered with status 500: KeyError('choices')"
    error = failure(500, cases["verifier_field_missing"]["reply"])
    assert "Field required" in str(error)
    assert str(error).endswith("hint: add the field to the row; its resources server needs it")
    error = failure(422, cases["null_tools"]["reply"])
    assert "Input should be a valid list" in str(error)
    assert not error.may_pass


def test_environment_servers_fail_with_200(runs: Path) -> None:
    cases = json.loads((runs / "0.7.0" / "environment_server.json").read_text(encoding="utf-8"))
    error = failure(200, cases["typed_upstream_500"]["reply"])
    assert "environment_server_failed in stage agent" in str(error)
    assert error.may_pass
    assert not failure(
        200, cases["typed_upstream_500"]["reply"] | {"_ng_failure_terminal": True}
    ).may_pass
    assert answered(200, cases["typed_ok"]["reply"]).reward == 1.0
    assert len(answered(200, cases["typed_ok"]["reply"]).calls) == 2


def test_a_typed_answer_is_a_result_or_a_failure() -> None:
    ids = {"episode_id": {"rollout_id": "r"}, "task_id": {"taskset": "t", "task_id": "0"}}
    assert answered(200, {**ids, "result": {"reward": 0.5}, "failure": None}).reward == 0.5
    failed = {"failure_reason": "no sandbox", "terminal": True, "stage": "seed"}
    error = failure(200, {**ids, "result": None, "failure": failed})
    assert "in stage seed: no sandbox" in str(error)
    assert not error.may_pass
    assert "neither a result nor a failure" in str(failure(200, {**ids, "result": None}))


@pytest.mark.parametrize(
    "said", [[], "text", {}, {"reward": None}, {"reward": "1"}, {"reward": True}]
)
def test_200_without_a_reward_is_a_failure(said: Any) -> None:
    assert failure(200, said).may_pass


def test_no_json_is_a_failure() -> None:
    with pytest.raises(EnvError, match="without a JSON object"):
        read_result("agent", 200, b"<html>\xff")
    with pytest.raises(EnvError, match="agent answered with status 502: <html>"):
        read_result("agent", 502, b"<html>")


def test_a_masked_rollout_has_no_reward() -> None:
    reply = answered(200, {"reward": 1.0, "mask_sample": True, "failure_kind": "judge"})
    assert reply.masked
    assert reply.reward is None
    assert answered(200, {"reward": 1.0, "mask_sample": False}).reward == 1.0


@pytest.mark.parametrize(
    ("said", "truncated"),
    [
        ({"response": {"incomplete_details": {"reason": "max_output_tokens"}}}, True),
        ({"truncated": True}, True),
        ({"response": {"incomplete_details": None}, "truncated": False}, False),
        ({"response": None}, False),
    ],
)
def test_a_limit_of_any_kind_truncates(said: Any, truncated: bool) -> None:
    assert answered(200, {"reward": 0.0, **said}).truncated == truncated


def test_components_are_numbers_by_name() -> None:
    parts = {"format": 1, "length": 0.5, "note": "text", "nan": float("nan"), "none": None}
    reply = answered(200, {"reward": 1.5, "reward_components": parts})
    assert reply.components == {"format": 1.0, "length": 0.5}


def test_calls_are_the_items_that_carry_tokens() -> None:
    output = [
        {"type": "reasoning"},
        {"prompt_token_ids": [1, 2], "generation_token_ids": [3], "type": "function_call"},
        {"type": "function_call_output", "output": "{}"},
        {"prompt_token_ids": [1, "x"], "generation_token_ids": [3]},
        {"prompt_token_ids": None, "generation_token_ids": [3]},
    ]
    calls = answered(200, {"reward": 0.0, "response": {"output": output}}).calls
    assert [ids.tolist() for ids, _ in calls] == [[1, 2, 3], [-1]]
    assert calls[0][0].dtype == np.int64
    assert calls[0][1] == 2


def test_an_error_is_cut_and_unescaped() -> None:
    nested = json.dumps(json.dumps("calling an inner server: b'boom \\\\n'"))
    assert inner_error(nested) == "boom n"
    assert len(inner_error("x" * 5000)) == 401


@given(said=JSON, status=st.sampled_from([200, 200, 200, 422, 500]))
def test_whatever_is_answered_is_a_reply_or_a_failure(said: Any, status: int) -> None:
    error: EnvError | None = None
    try:
        reply = answered(status, said)
    except EnvError as raised:
        error = raised
    if error is not None:
        assert len(str(error)) < 1000
        return
    assert isinstance(reply, RunResult)
    assert reply.reward is None or np.isfinite(reply.reward)
    assert (reply.reward is None) == reply.masked


def test_json_without_an_end_is_a_failure() -> None:
    with pytest.raises(EnvError, match="without a JSON object"):
        read_result("agent", 200, b"[" * 100_000)


def test_a_hint_that_went_through_gym_begins_its_line_again() -> None:
    """Each hop escapes the newline before it once more."""
    said = f"the request is wrong{'x' * 500}\nhint: send another one"
    text = f"calling an inner server: {said}"
    for _ in range(4):
        text = json.dumps(text)
    with pytest.raises(EnvError) as raised:
        read_result("a", 500, text.encode())
    assert str(raised.value).endswith("…\nhint: send another one")
    assert "nhint" not in str(raised.value)
    assert inner_error("\\nabla f is wrong") == "nabla f is wrong"
