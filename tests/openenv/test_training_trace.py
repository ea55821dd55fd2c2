"""Recordings of OpenEnv: what `calls_of` takes, `stitch` trains; the rest is an error by name."""

import json
import os
import subprocess
from typing import Any

import numpy as np
import pytest

import abut
from abut.openenv import calls_of
from tests.kit.checkout import ROOT

PYTHON = os.environ.get("ABUT_OPENENV_PYTHON", "")


def turn(node_id: str, prompt: list[int], sampled: list[int], trained: int = 1) -> dict[str, Any]:
    return {
        "node_id": node_id,
        "prompt_token_ids": prompt,
        "completion_token_ids": sampled,
        "per_token_logps": [-0.5 - token / 64 for token in sampled],
        "loss_mask": [0] * len(prompt) + [trained] * len(sampled),
        "request": {"messages": []},
        "response": {},
        "metadata": {"finish_reason": "stop"},
    }


def trace(*turns: dict[str, Any]) -> dict[str, Any]:
    return {"schema_version": 1, "turns": list(turns)}


CONVERSATION = trace(
    turn("a", [1, 2], [3, 4]),
    turn("title", [1, 9], [8], trained=0),
    turn("b", [1, 2, 3, 4, 5], [6], trained=0),
    turn("c", [1, 2, 3, 4, 5, 6, 7], [8, 9]),
)


def test_a_trace_becomes_calls() -> None:
    calls = calls_of(CONVERSATION)
    assert [(p.tolist(), c.tolist(), x.tolist()) for p, c, x in calls] == [
        ([1, 2], [3, 4], [-0.546875, -0.5625]),
        ([1, 2, 3, 4, 5, 6, 7], [8, 9], [-0.625, -0.640625]),
    ]
    assert [[a.dtype.name for a in call] for call in calls] == [["int64", "int64", "float32"]] * 2


def test_a_masked_turn_is_context_of_the_row() -> None:
    stitched = abut.stitch(calls_of(CONVERSATION))
    (row,) = stitched.chains
    assert (row.prompt_ids.tolist(), row.completion_ids.tolist()) == ([1, 2], [3, 4, 5, 6, 7, 8, 9])
    assert row.env_mask.tolist() == [1, 1, 0, 0, 0, 1, 1]
    assert [t.kind for t in stitched.transitions] == ["clean", "clean"]


@pytest.mark.parametrize("form", [json.dumps, lambda t: json.dumps(t).encode()])
def test_json_is_the_same_trace(form: Any) -> None:
    for got, expected in zip(calls_of(form(CONVERSATION)), calls_of(CONVERSATION), strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(got, expected, strict=True))


def test_an_empty_completion_is_counted_by_stitch() -> None:
    stitched = abut.stitch(calls_of(trace(turn("a", [1], []), turn("b", [1], [2]))))
    assert (len(stitched.chains), stitched.dropped["empty"]) == (1, 1)


def test_a_trace_without_trained_turns_has_no_calls() -> None:
    assert calls_of(trace(turn("a", [1], [2], trained=0))) == calls_of(trace()) == []


ONE = turn("n-7", [1, 2], [3, 4])
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "mask of a part": (
        {"loss_mask": [0, 0, 1, 0]},
        "turn 'n-7' has a loss_mask that is 1 on 1 of 2 sampled tokens, but stitch trains "
        "either all tokens of a sample or none\nhint: set the whole mask of the completion to "
        "1, or to 0 to keep the turn as context",
    ),
    "mask of the prompt": (
        {"loss_mask": [0, 1, 1, 1]},
        "turn 'n-7' has a loss_mask that is 1 in the prompt, whose tokens were not sampled",
    ),
    "mask of the prompt of a masked turn": (
        {"loss_mask": [1, 0, 0, 0]},
        "turn 'n-7' has a loss_mask that is 1 in the prompt, whose tokens were not sampled",
    ),
    "mask of the completion alone": (
        {"loss_mask": [1, 1]},
        "turn 'n-7' has a loss_mask of 2 numbers, but its prompt and completion have 4 tokens",
    ),
    "mask that weighs": (
        {"loss_mask": [0, 0, 2, 2]},
        "turn 'n-7' has a loss_mask with numbers other than 0 and 1",
    ),
    "mask of booleans": (
        {"loss_mask": [False, False, True, True]},
        "turn 'n-7': loss_mask must be a list of whole numbers",
    ),
    "no mask": (
        {"loss_mask": None},
        "turn 'n-7': loss_mask must be a list of whole numbers",
    ),
    "logprobs too few": (
        {"per_token_logps": [-1.0]},
        "turn 'n-7' has 2 completion_token_ids but 1 per_token_logps",
    ),
    "logprobs of null": (
        {"per_token_logps": [-1.0, None]},
        "turn 'n-7': per_token_logps must be a list of numbers",
    ),
    "logprob above 0": (
        {"per_token_logps": [-1.0, 0.5]},
        "turn 'n-7': sampled token 1 (id 4) has logprob 0.5, which is above 0\nhint: ask the "
        "engine for the logprob of each sampled token, after temperature and filters",
    ),
    "logprob that is not finite": (
        {"per_token_logps": [float("nan"), -1.0]},
        "turn 'n-7': sampled token 0 (id 3) has logprob NaN, which is not finite\nhint: ask the "
        "engine for the logprob of each sampled token, after temperature and filters",
    ),
    "empty prompt": (
        {"prompt_token_ids": [], "loss_mask": [1, 1]},
        "turn 'n-7' has an empty prompt\nhint: pass the ids that the engine received, the "
        "generation prompt included",
    ),
    "negative id": (
        {"completion_token_ids": [3, -1]},
        "turn 'n-7': token 3 has id -1, which is negative\nhint: remove padding such as -1 or "
        "-100; pass the ids that the engine received and sampled",
    ),
    "id of a float": (
        {"prompt_token_ids": [1, 2.0]},
        "turn 'n-7': prompt_token_ids must be a list of whole numbers",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_turn_that_cannot_be_trained_is_an_error_with_its_node_id(case: str) -> None:
    change, message = WRONG[case]
    with pytest.raises(ValueError, match=r"n-7") as raised:
        calls_of(trace(turn("a", [1], [2]), ONE | change))
    assert str(raised.value) == message


def test_an_id_of_more_than_64_bits() -> None:
    with pytest.raises(ValueError, match=r"^turn 'n-7' has a token id that does not fit into 64"):
        calls_of(trace(ONE | {"completion_token_ids": [3, 2**63]}))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"schema_version": 2, "turns": []}, "the trace has schema_version 2, but this version"),
        ([turn("a", [1], [2])], "expected a TrainingTrace of OpenEnv, an object with a list"),
        ("{", "Expecting property name"),
        (trace({"node_id": ""}), "turn 0 of the trace (counted from 0) has no node_id"),
        (trace(turn("a", [1], [2]), turn("a", [1], [3])), "two turns have the node_id 'a'"),
    ],
)
def test_what_is_not_a_trace(given: Any, message: str) -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011  # the message is compared below
        calls_of(given)
    assert str(raised.value).startswith(message)


# In OpenEnv's Python: a rollout that its own capture records and exports, and what its own model
# says of each wrong turn above. What it refuses it cannot give us, but JSON may have been edited.
SCRIPT = """
import json, sys
from openenv.core.harness.capture.contract import to_training_trace, to_turn_records
from openenv.core.harness.capture.export import export_session
from openenv.core.harness.capture.graph import TurnNode
from openenv.core.harness.capture.sessions import Session
from openenv.core.harness.training import TrainingTrace
from abut.openenv import calls_of

def takes(turn):
    try:
        TrainingTrace.model_validate({"turns": [turn]})
    except ValueError:
        return False
    return True

session, given = Session("s"), json.load(sys.stdin)
graph = session.graph
for turn in given["trace"]["turns"]:
    graph.add_turn(TurnNode(
        turn["node_id"], turn["prompt_token_ids"], turn["completion_token_ids"],
        turn["per_token_logps"], n_tools=turn["node_id"] != "title",
    ))
document = export_session(session)
for row in document["sequences"]:  # a reconciler takes one turn of three out of training
    for node in map(graph.get, row["node_ids"]):
        if node.node_id == "b":
            start = len(node.prompt_ids)
            row["loss_mask"][start : start + len(node.sampled_ids)] = [0] * len(node.sampled_ids)
trace = to_training_trace(graph, document)
listed = lambda calls: [[part.tolist() for part in call] for call in calls]
json.dump({
    "turns": [[turn.node_id, turn.loss_mask] for turn in trace.turns],
    "records": to_turn_records(graph, document),
    "object": listed(calls_of(trace)),
    "dict": listed(calls_of(trace.model_dump())),
    "json": listed(calls_of(trace.model_dump_json())),
    "takes": [takes(turn) for turn in given["turns"]],
}, sys.stdout)
"""


@pytest.mark.openenv
@pytest.mark.skipif(not PYTHON, reason="ABUT_OPENENV_PYTHON is unset: make test-openenv sets it")
def test_what_openenv_captures_becomes_the_calls_that_it_would_train() -> None:
    given = {"trace": CONVERSATION, "turns": [ONE, *(ONE | change for change, _ in WRONG.values())]}
    done = subprocess.run(
        [PYTHON, "-c", SCRIPT],
        input=json.dumps(given),
        env=os.environ | {"PYTHONPATH": str(ROOT / "python")},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    told = json.loads(done.stdout)
    assert [node_id for node_id, _ in told["turns"]] == ["a", "b", "c"]  # the title is auxiliary
    assert told["turns"][1] == ["b", [0] * 6]
    assert told["object"] == told["dict"] == told["json"] == told["records"]
    assert told["records"] == [[part.tolist() for part in call] for call in calls_of(CONVERSATION)]
    refused = [
        case for case, takes in zip(["right", *WRONG], told["takes"], strict=True) if not takes
    ]
    assert refused == [case for case in WRONG if case != "mask of a part"]
