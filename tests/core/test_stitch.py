"""Recorded calls to chains: each row of the table of docs/background/stitch.md, and a naive oracle.

The oracle compares every call with every other one, token by token, and knows no tree.
"""

import json
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import abut
from abut.strategies import recorded_calls
from tests.kit.checkout import DEMO_ASSETS

POLICIES = ("error", "truncate", "split", "realign")
LENIENT = POLICIES[1:]
Ids = list[int]
Recorded = tuple[Ids, Ids, list[float]]
every_policy = pytest.mark.parametrize("policy", POLICIES)


def recording(*pairs: tuple[Sequence[int], Sequence[int]]) -> list[Recorded]:
    """Calls in which each sampled token has a logprob of its own."""
    count = 0
    calls = []
    for prompt, completion in pairs:
        logprobs = [-(count + index + 1) / 64 for index in range(len(completion))]
        count += len(completion)
        calls.append((list(prompt), list(completion), logprobs))
    return calls


def rows(stitched: abut.Stitched) -> list[tuple[Ids, Ids, Ids]]:
    """Each chain as its prompt, its completion and its mask."""
    return [
        (chain.prompt_ids.tolist(), chain.completion_ids.tolist(), chain.env_mask.tolist())
        for chain in stitched.chains
    ]


def verdicts(stitched: abut.Stitched) -> list[tuple[int, int | None, int | None, str, int | None]]:
    return [(t.call, t.parent, t.chain, t.kind, t.token) for t in stitched.transitions]


def kinds(stitched: abut.Stitched) -> list[str]:
    return [transition.kind for transition in stitched.transitions]


def dropped(empty: int = 0, truncated: int = 0, quarantined: int = 0) -> dict[str, int]:
    return {"empty": empty, "truncated": truncated, "quarantined": quarantined}


# Row 1: the next call extends a chain.


@every_policy
def test_calls_that_extend_each_other_become_one_row(policy: Any) -> None:
    calls = recording(([1, 2], [3, 4]), ([1, 2, 3, 4, 5], [6]), ([1, 2, 3, 4, 5, 6], [7]))
    stitched = abut.stitch(calls, on_drift=policy)
    assert rows(stitched) == [([1, 2], [3, 4, 5, 6, 7], [1, 1, 0, 1, 1])]
    (chain,) = stitched.chains
    assert chain.logprobs.tolist() == [-1 / 64, -2 / 64, 0.0, -3 / 64, -4 / 64]
    assert verdicts(stitched) == [
        (0, None, 0, "clean", None),
        (1, 0, 0, "clean", None),
        (2, 1, 0, "clean", None),
    ]
    assert stitched.dropped == dropped()


@every_policy
def test_the_order_of_the_recording_does_not_matter_to_a_conversation(policy: Any) -> None:
    prompt, calls = [1, 2], []
    for turn in range(9):
        calls.extend(recording((prompt, [turn, 9])))
        prompt = [*prompt, turn, 9, 7]
    expected = rows(abut.stitch(calls, on_drift=policy))
    for seed in range(20):
        random.Random(seed).shuffle(calls)
        assert rows(abut.stitch(calls, on_drift=policy)) == expected


# Row 2: an empty completion.


@every_policy
def test_an_empty_completion_is_dropped_and_counted(policy: Any) -> None:
    calls = recording(([1], []), ([1], [2]), ([1, 2, 3], []))
    stitched = abut.stitch(calls, on_drift=policy)
    assert rows(stitched) == [([1], [2], [1])]
    assert verdicts(stitched) == [(1, None, 0, "clean", None)]
    assert stitched.dropped == dropped(empty=2)


# Row 3: malformed.

IMPOSSIBLE = (
    "call 1: sampled token 1 (id 3) has logprob {}, which is {}\n"
    "hint: ask the engine for the logprob of each sampled token, after temperature and filters"
)
NEGATIVE = (
    "call 1: token {} has id {}, which is negative\nhint: remove padding such as -1 or -100; "
    "pass the ids that the engine received and sampled"
)


@every_policy
@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            ([1], [2, 3], [-0.5]),
            "call 1 has 2 sampled ids but 1 logprobs\nhint: pass one logprob per sampled id, "
            "the stop token included",
        ),
        (([1], [2, 3], [-0.5, float("nan")]), IMPOSSIBLE.format("NaN", "not finite")),
        (([1], [2, 3], [-0.5, None]), IMPOSSIBLE.format("NaN", "not finite")),
        (([1], [2, 3], [-0.5, 0.5]), IMPOSSIBLE.format("0.5", "above 0")),
        (
            ([1], [2, 3], [-0.5, -9999.0]),
            IMPOSSIBLE.format("-9999", "vLLM's placeholder for a missing logprob"),
        ),
        (([1], [2, 3], [-0.5, -float("inf")]), IMPOSSIBLE.format("-inf", "not finite")),
        (
            ([], [2], [-0.5]),
            "call 1 has an empty prompt\nhint: pass the ids that the engine received, the "
            "generation prompt included",
        ),
        (([1, -100], [2], [-0.5]), NEGATIVE.format(1, -100)),
        (([1, 5], [2, -1], [-0.5, -0.5]), NEGATIVE.format(3, -1)),
        (([1, -5], [], []), NEGATIVE.format(1, -5)),
    ],
)
def test_a_malformed_call_is_named(policy: Any, call: Any, text: str) -> None:
    with pytest.raises(ValueError, match="call 1") as raised:
        abut.stitch([([1], [2], [-0.5]), call], on_drift=policy)
    assert type(raised.value) is abut.errors.TrajectoryError
    assert str(raised.value) == text


@every_policy
def test_an_empty_completion_with_logprobs_is_malformed(policy: Any) -> None:
    with pytest.raises(
        abut.errors.TrajectoryError, match="call 0 has 0 sampled ids but 1 logprobs"
    ):
        abut.stitch([([1], [], [-0.5])], on_drift=policy)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            ([1], [2]),
            "call 0 must be (prompt_ids, completion_ids, logprobs), got tuple",
        ),
        (5, "call 0 must be (prompt_ids, completion_ids, logprobs), got int"),
        (
            ("ab", [2], [-0.5]),
            "call 0: prompt_ids must be a one-dimensional array or list of ints, got str",
        ),
        (
            ([1], [[2]], [-0.5]),
            "call 0: completion_ids must be a one-dimensional array or list of ints, "
            "got a list with list at index 0",
        ),
        (
            ([1], [2, True], [-0.5, -0.5]),
            "call 0: completion_ids must be a one-dimensional array or list of ints, "
            "got a list with bool at index 1",
        ),
        (
            ([1], [2], -0.5),
            "call 0: logprobs must be a one-dimensional array or list of floats, got float",
        ),
    ],
)
def test_what_is_no_call_is_a_type_error(call: Any, text: str) -> None:
    with pytest.raises(TypeError) as raised:
        abut.stitch([call])
    assert str(raised.value) == text


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="on_drift") as raised:
        abut.stitch([], on_drift="merge")
    expected = 'on_drift="merge": expected "error", "truncate", "split" or "realign"'
    assert str(raised.value) == expected


# Row 4: another root, a sibling with the same prompt.


@every_policy
def test_a_conversation_with_another_beginning_is_a_chain_of_its_own(policy: Any) -> None:
    # A sub-agent: the same first token, as every ChatML prompt has, and no turn of the other.
    calls = recording(([1, 2], [3]), ([1, 8], [9]), ([1, 2, 3, 4], [5]), ([1, 8, 9, 7], [6]))
    stitched = abut.stitch(calls, on_drift=policy)
    assert rows(stitched) == [([1, 2], [3, 4, 5], [1, 0, 1]), ([1, 8], [9, 7, 6], [1, 0, 1])]
    assert kinds(stitched) == ["clean"] * 4


@every_policy
def test_a_retry_of_the_first_prompt_is_a_chain_of_its_own(policy: Any) -> None:
    stitched = abut.stitch(recording(([1], [2]), ([1], [2]), ([1], [3])), on_drift=policy)
    assert rows(stitched) == [([1], [2], [1]), ([1], [2], [1]), ([1], [3], [1])]
    assert verdicts(stitched) == [
        (0, None, 0, "clean", None),
        (1, None, 1, "forked", None),
        (2, None, 2, "forked", None),
    ]


@every_policy
def test_a_retry_of_a_later_prompt_has_the_history_as_its_prompt(policy: Any) -> None:
    calls = recording(([1], [2]), ([1, 2, 3], [4]), ([1, 2, 3], [5]), ([1, 2, 3, 5, 6], [7]))
    stitched = abut.stitch(calls, on_drift=policy)
    assert rows(stitched) == [([1], [2, 3, 4], [1, 0, 1]), ([1, 2, 3], [5, 6, 7], [1, 0, 1])]
    assert verdicts(stitched)[2:] == [(2, 0, 1, "forked", None), (3, 2, 1, "clean", None)]


# Row 5: divergence inside a sampled span.

IN_SAMPLE = recording(([1, 2], [3, 4, 5]), ([1, 2, 3, 9, 7], [6]), ([1, 2, 3, 9, 7, 6, 8], [10]))


def test_drift_in_a_sample_is_an_error_that_says_where_and_what() -> None:
    with pytest.raises(abut.SeamError) as raised:
        abut.stitch(IN_SAMPLE)
    assert str(raised.value) == (
        "call 1 does not extend call 0: token 3 is 9 in its prompt but 4 was sampled\n"
        'hint: pass tokenizer= to see both texts; or use on_drift="split"'
    )


def test_drift_in_a_sample_ends_the_chain_and_drops_what_follows() -> None:
    stitched = abut.stitch(IN_SAMPLE, on_drift="truncate")
    assert rows(stitched) == [([1, 2], [3, 4, 5], [1, 1, 1])]
    assert verdicts(stitched) == [
        (0, None, 0, "clean", None),
        (1, 0, None, "forked", 3),
        (2, 1, None, "forked", None),
    ]
    assert stitched.dropped == dropped(truncated=2)


def test_drift_in_a_sample_begins_a_chain() -> None:
    stitched = abut.stitch(IN_SAMPLE, on_drift="split")
    assert rows(stitched) == [
        ([1, 2], [3, 4, 5], [1, 1, 1]),
        ([1, 2, 3, 9, 7], [6, 8, 10], [1, 0, 1]),
    ]
    assert verdicts(stitched)[1:] == [(1, 0, 1, "forked", 3), (2, 1, 1, "clean", None)]


def test_drift_in_a_sample_is_realigned_and_what_stands_before_it_stays_trained() -> None:
    stitched = abut.stitch(IN_SAMPLE, on_drift="realign")
    assert rows(stitched) == [([1, 2], [3, 9, 7, 6, 8, 10], [1, 0, 0, 1, 0, 1])]
    assert stitched.chains[0].logprobs[0] == np.float32(-1 / 64)
    assert verdicts(stitched)[1:] == [(1, 0, 0, "realigned", 3), (2, 1, 0, "clean", None)]


def test_drift_at_the_first_sampled_token_leaves_nothing_of_that_turn() -> None:
    stitched = abut.stitch(recording(([1], [2, 3]), ([1, 3, 4], [5])), on_drift="realign")
    assert rows(stitched) == [([1, 3, 4], [5], [1])]
    assert verdicts(stitched) == [(0, None, 0, "clean", None), (1, 0, 0, "realigned", 1)]


def test_a_prompt_that_ends_inside_a_sample_differs_at_its_end() -> None:
    calls = recording(([1], [2, 3, 4]), ([1, 2], [9]))
    stitched = abut.stitch(calls, on_drift="realign")
    assert rows(stitched) == [([1], [2, 9], [1, 1])]
    assert stitched.transitions[1].token == 2
    with pytest.raises(abut.SeamError) as raised:
        abut.stitch(calls)
    assert str(raised.value).startswith(
        "call 1 does not extend call 0: token 2 is missing in its prompt but 3 was sampled\n"
    )


def test_a_call_that_extends_exactly_goes_before_one_that_drifts() -> None:
    calls = recording(([1], [2, 3]), ([1, 2, 9], [4]), ([1, 2, 3, 5], [6]))
    stitched = abut.stitch(calls, on_drift="realign")
    assert rows(stitched) == [([1], [2, 3, 5, 6], [1, 1, 0, 1]), ([1, 2, 9], [4], [1])]
    assert verdicts(stitched)[1:] == [(1, 0, 1, "forked", 2), (2, 0, 0, "clean", None)]


def test_a_chain_is_realigned_by_one_call_only() -> None:
    calls = recording(([1], [2, 3]), ([1, 2, 9], [4]), ([1, 8], [6]), ([1, 2, 9], [5]))
    stitched = abut.stitch(calls, on_drift="realign")
    assert rows(stitched) == [
        ([1], [2, 9, 4], [1, 0, 1]),
        ([1, 8], [6], [1]),
        ([1, 2, 9], [5], [1]),
    ]
    assert kinds(stitched) == ["clean", "realigned", "forked", "forked"]


# Row 6: divergence inside the first prompt or other context.

IN_CONTEXT = recording(([1], [2]), ([1, 2, 3], [4]), ([1, 2, 5], [6]), ([1, 2, 5, 6, 7], [8]))
HISTORY = [*range(20, 50), 1, 2]
IN_PROMPT = recording(
    (HISTORY, [3, 4]), ([9, *HISTORY[1:], 3, 4, 5], [6]), ([9, *HISTORY[1:], 3, 4, 5, 6, 7], [8])
)


def test_drift_in_context_is_an_error_that_names_both_calls() -> None:
    with pytest.raises(abut.SeamError) as raised:
        abut.stitch(IN_CONTEXT)
    assert str(raised.value) == (
        "call 2 does not extend call 0: token 2 is 5 in its prompt but 3 in the prompt of call "
        '1\nhint: pass tokenizer= to see both texts; or use on_drift="split"'
    )


def test_drift_in_context_is_truncated() -> None:
    stitched = abut.stitch(IN_CONTEXT, on_drift="truncate")
    assert rows(stitched) == [([1], [2, 3, 4], [1, 0, 1])]
    assert verdicts(stitched)[2:] == [(2, 0, None, "forked", 2), (3, 2, None, "forked", None)]
    assert stitched.dropped == dropped(truncated=2)


@pytest.mark.parametrize("policy", ["split", "realign"])
def test_drift_in_context_begins_a_chain(policy: Any) -> None:
    stitched = abut.stitch(IN_CONTEXT, on_drift=policy)
    assert rows(stitched) == [([1], [2, 3, 4], [1, 0, 1]), ([1, 2, 5], [6, 7, 8], [1, 0, 1])]
    assert verdicts(stitched)[2:] == [(2, 0, 1, "forked", 2), (3, 2, 1, "clean", None)]


def test_of_two_continuations_the_one_recorded_first_goes_on() -> None:
    calls = [IN_CONTEXT[index] for index in (3, 2, 1, 0)]
    stitched = abut.stitch(calls, on_drift="split")
    assert rows(stitched) == [([1, 2, 3], [4], [1]), ([1], [2, 5, 6, 7, 8], [1, 0, 1, 0, 1])]


def test_a_rewritten_first_prompt_is_an_error() -> None:
    with pytest.raises(abut.SeamError) as raised:
        abut.stitch(IN_PROMPT)
    assert str(raised.value) == (
        "call 1 does not extend call 0: token 0 is 9 in its prompt but 20 in the prompt of "
        'call 0\nhint: the history was rewritten; pass token ids; or use on_drift="split"'
    )


def test_a_rewritten_first_prompt_is_truncated() -> None:
    stitched = abut.stitch(IN_PROMPT, on_drift="truncate")
    assert rows(stitched) == [(HISTORY, [3, 4], [1, 1])]
    assert stitched.dropped == dropped(truncated=2)


@pytest.mark.parametrize("policy", ["split", "realign"])
def test_a_rewritten_first_prompt_begins_a_chain(policy: Any) -> None:
    stitched = abut.stitch(IN_PROMPT, on_drift=policy)
    assert [row[1:] for row in rows(stitched)] == [([3, 4], [1, 1]), ([6, 7, 8], [1, 0, 1])]
    assert verdicts(stitched)[1:] == [(1, 0, 1, "forked", 0), (2, 1, 1, "clean", None)]
    assert stitched.transitions[1].cause == "rewritten"


@every_policy
def test_a_quoted_sample_is_no_rewritten_history(policy: Any) -> None:
    # A judge reads what was sampled, but not behind the generation prompt.
    calls = recording((HISTORY, [3, 4, 5]), ([50, 51, 3, 4, 5, 52], [6]))
    assert kinds(abut.stitch(calls, on_drift=policy)) == ["clean", "clean"]


# Row 7: extends more than one call exactly.

TWINS = recording(([1], [2]), ([1], [2]), ([1, 2, 3], [4]), ([1, 2, 3, 4, 5], [6]))


def test_a_call_that_extends_two_is_an_error() -> None:
    with pytest.raises(abut.SeamError) as raised:
        abut.stitch(TWINS)
    assert str(raised.value) == (
        "call 2 has more than one possible parent: its prompt is the same as call 0 and call 1 "
        'up to token 2\nhint: stitch each conversation separately; or use on_drift="split", '
        "which leaves the call out"
    )


@pytest.mark.parametrize("policy", LENIENT)
def test_a_call_that_extends_two_is_quarantined_with_what_extends_it(policy: Any) -> None:
    stitched = abut.stitch(TWINS, on_drift=policy)
    assert rows(stitched) == [([1], [2], [1]), ([1], [2], [1])]
    assert verdicts(stitched)[2:] == [
        (2, None, None, "quarantined", None),
        (3, 2, None, "quarantined", None),
    ]
    assert stitched.dropped == dropped(quarantined=2)


# Row 8: only leaves several calls at one token.

RETRIED = recording(([1], [2]), ([1], [3]), ([1, 9, 4], [5]), ([1, 9, 4, 5, 6], [7]))
LEFT_QUARANTINED = recording(
    ([1], [2]), ([1], [2]), ([1, 2, 3], [4, 8]), ([1, 2, 3, 4, 9], [5]), ([1, 2, 3, 4, 9, 5], [6])
)


def test_a_call_that_leaves_two_is_an_error() -> None:
    with pytest.raises(abut.SeamError) as raised:
        abut.stitch(RETRIED)
    assert str(raised.value) == (
        "call 2 has more than one possible parent: its prompt is the same as call 0 and call 1 "
        'up to token 1\nhint: stitch each conversation separately; or use on_drift="split", '
        "which begins a chain with the call"
    )


def test_a_call_that_leaves_two_is_truncated() -> None:
    stitched = abut.stitch(RETRIED, on_drift="truncate")
    assert rows(stitched) == [([1], [2], [1]), ([1], [3], [1])]
    assert verdicts(stitched)[2:] == [(2, None, None, "forked", 1), (3, 2, None, "forked", None)]
    assert stitched.dropped == dropped(truncated=2)


@pytest.mark.parametrize("policy", ["split", "realign"])
def test_one_retried_first_turn_costs_nothing_of_what_comes_after_it(policy: Any) -> None:
    stitched = abut.stitch(RETRIED, on_drift=policy)
    assert rows(stitched) == [
        ([1], [2], [1]),
        ([1], [3], [1]),
        ([1, 9, 4], [5, 6, 7], [1, 0, 1]),
    ]
    assert verdicts(stitched)[2:] == [(2, None, 2, "forked", 1), (3, 2, 2, "clean", None)]
    assert stitched.dropped == dropped()


@pytest.mark.parametrize("policy", ["split", "realign"])
def test_what_only_leaves_a_quarantined_call_begins_a_chain(policy: Any) -> None:
    stitched = abut.stitch(LEFT_QUARANTINED, on_drift=policy)
    assert rows(stitched)[2:] == [([1, 2, 3, 4, 9], [5, 6], [1, 1])]
    assert verdicts(stitched)[2:] == [
        (2, None, None, "quarantined", None),
        (3, 2, 2, "forked", 4),
        (4, 3, 2, "clean", None),
    ]
    assert stitched.dropped == dropped(quarantined=1)


def test_what_leaves_a_quarantined_call_is_truncated() -> None:
    stitched = abut.stitch(LEFT_QUARANTINED, on_drift="truncate")
    assert stitched.dropped == dropped(truncated=2, quarantined=1)


# What goes in and comes out.


def test_arrays_and_lists_give_the_same() -> None:
    as_arrays = [
        (np.array(prompt), np.array(completion), np.array(logprobs, np.float32))
        for prompt, completion, logprobs in IN_SAMPLE
    ]
    strided = [(np.repeat(p, 2)[::2], np.array(c, np.int32), lp) for p, c, lp in IN_SAMPLE]
    expected = rows(abut.stitch(IN_SAMPLE, on_drift="realign"))
    assert rows(abut.stitch(as_arrays, on_drift="realign")) == expected
    assert rows(abut.stitch(strided, on_drift="realign")) == expected
    assert rows(abut.stitch(iter(map(list, IN_SAMPLE)), on_drift="realign")) == expected


def test_chains_are_columns_and_can_be_collated() -> None:
    stitched = abut.stitch(IN_SAMPLE, on_drift="split")
    batch = abut.collate(stitched.chains, pad_id=0)
    assert batch["env_mask"].tolist() == [[1, 1, 1], [1, 0, 1]]


def test_no_calls_are_no_chains() -> None:
    stitched = abut.stitch([])
    assert (stitched.chains, stitched.transitions, stitched.dropped) == ([], [], dropped())


def test_representations_say_what_was_found() -> None:
    stitched = abut.stitch(IN_SAMPLE, on_drift="realign")
    assert repr(stitched) == (
        "Stitched(1 chains, 3 calls, dropped: 0 empty, 0 truncated, 0 quarantined)"
    )
    assert repr(stitched.transitions[1]) == (
        'Transition(call=1, parent=0, chain=0, kind="realigned", token=3, cause="unknown")'
    )


# Causes.


@pytest.fixture(scope="module")
def demo() -> abut.Tokenizer:
    return abut.Tokenizer.from_file(DEMO_ASSETS / "tokenizer.json")


USER = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
NEXT = "\n<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\n"
CALL = '<tool_call>\n{"name": "f", "x": 1}\n</tool_call><|im_end|>'


@pytest.mark.parametrize(
    ("cause", "sampled", "rendered"),
    [
        ("thinking", "<think>\nso\n</think>\n\nyes<|im_end|>", "yes<|im_end|>"),
        (
            "thinking",
            "<think>\nso\n</think>\n\nno<|im_end|>",
            "<think>\n\n</think>\n\nno<|im_end|>",
        ),
        ("tool_call", CALL, CALL.replace(": ", ":")),
        ("separator", "yes\n\n<|im_end|>", "yes<|im_end|>"),
        ("separator", "yes<|endoftext|>", "yes<|im_end|>"),
        ("rewritten", "yes<|im_end|>", "no<|im_end|>"),
    ],
)
def test_the_cause_is_guessed_from_the_text(
    demo: abut.Tokenizer, cause: str, sampled: str, rendered: str
) -> None:
    prompt, sample = demo.encode(USER), demo.encode(sampled)
    logprobs = [-0.5] * len(sample)
    calls = [(prompt, sample, logprobs), (demo.encode(USER + rendered + NEXT), [5], [-0.5])]
    drift = abut.stitch(calls, on_drift="split", tokenizer=demo).transitions[1]
    assert (drift.kind, drift.cause) == ("forked", cause)
    assert drift.left != drift.right


def test_text_that_was_tokenized_again_is_a_merge(demo: abut.Tokenizer) -> None:
    prompt = demo.encode(USER)
    sample = [*(int(demo.encode(letter)[0]) for letter in "hello"), *demo.encode("<|im_end|>")]
    again = demo.encode(USER + "hello<|im_end|>" + NEXT)
    calls = [(prompt, sample, [-0.5] * len(sample)), (again, [5], [-0.5])]
    drift = abut.stitch(calls, on_drift="realign", tokenizer=demo).transitions[1]
    assert (drift.kind, drift.cause) == ("realigned", "bpe_merge")


@pytest.mark.parametrize("twice", [False, True])
def test_a_bos_that_only_one_side_has_is_found_without_a_tokenizer(twice: bool) -> None:
    first, second = ([0, *HISTORY], [0, 0, *HISTORY]) if twice else (HISTORY, [0, *HISTORY])
    calls = recording((first, [3, 4]), ([*second, 3, 4, 5], [6]))
    with pytest.raises(abut.SeamError, match="hint: write BOS once, by the template or by"):
        abut.stitch(calls)
    drift = abut.stitch(calls, on_drift="split").transitions[1]
    assert (drift.cause, drift.token) == ("bos", int(twice))


def test_the_error_shows_the_text_on_both_sides(demo: abut.Tokenizer) -> None:
    prompt, sample = demo.encode(USER), demo.encode("<think>\nso\n</think>\n\nyes<|im_end|>")
    second = demo.encode(USER + "yes<|im_end|>" + NEXT)
    calls = [(prompt, sample, [-0.5] * len(sample)), (second, [5], [-0.5])]
    with pytest.raises(abut.SeamError) as raised:
        abut.stitch(calls, tokenizer=demo)
    at = len(prompt)
    assert str(raised.value) == (
        f"call 1 does not extend call 0: token {at} is {second[at]} in its prompt but {sample[0]} "
        "was sampled\n"
        f"  call 0: {shown([*prompt, *sample], at, demo)}\n"
        f"  call 1: {shown(second, at, demo)}\n"
        'hint: the chat template removed thinking; pass token ids; or use on_drift="split"'
    )


def shown(ids: Any, at: int, tokenizer: abut.Tokenizer) -> str:
    return json.dumps(tokenizer.decode(list(ids[at - 8 : at + 8])))


def test_ids_that_the_tokenizer_does_not_have_are_shown_as_such(demo: abut.Tokenizer) -> None:
    calls = recording(([1], [2, 10**6]), ([1, 2, 10**12], [3]))
    drift = abut.stitch(calls, on_drift="split", tokenizer=demo).transitions[1]
    assert drift.left is not None
    assert drift.left.endswith("\ufffd")


# The oracle.


class Oracle:
    """The rules of docs/background/stitch.md, read aloud: every call against every other."""

    def __init__(self, calls: Sequence[Recorded], policy: str) -> None:
        self.calls, self.policy = calls, policy
        self.kept = [call for call, (_, sampled, _) in enumerate(calls) if sampled]
        self.heads = [call for call in self.kept if self.head(call) == call]
        self.places = {call: self.place(self.head(call)) for call in self.kept}

    def prompt(self, call: int) -> Ids:
        return self.calls[call][0]

    def whole(self, call: int) -> Ids:
        return self.calls[call][0] + self.calls[call][1]

    def head(self, call: int) -> int:
        return min(other for other in self.kept if self.prompt(other) == self.prompt(call))

    def place(self, call: int) -> tuple[str, list[int], int]:
        prompt = self.prompt(call)
        extended, left = {}, {}
        for other in self.kept:
            shared = common(prompt, self.whole(other))
            if shared == len(self.whole(other)):
                extended[other] = shared
            elif len(self.prompt(other)) <= shared and self.prompt(other) != prompt:
                left[other] = shared
        for name, shared_by in ("extends", extended), ("leaves", left):
            longest = max([*extended.values(), *left.values()], default=-1)
            found = [other for other, shared in shared_by.items() if shared == longest]
            if found:
                return name, found, longest
        repeated = [
            (end, end - start, -len(self.prompt(other)), -other)
            for other in self.kept
            if len(self.prompt(other)) < len(prompt)
            for window in [self.window(other)]
            for start in range(len(prompt) - len(window) + 1)
            for end in [start + len(window)]
            if prompt[start:end] == window
        ]
        if repeated:
            other = -max(repeated)[3]
            return "rewritten", [other], common(prompt, self.whole(other))
        return "root", [], 0

    def window(self, call: int) -> Ids:
        end = len(self.prompt(call)) + min(12, len(self.calls[call][1]))
        return self.whole(call)[max(0, end - 24) : end]

    def next(self, parent: int) -> int | None:
        for name in ["extends", "leaves"] if self.policy == "realign" else ["extends"]:
            for call in self.heads:
                if self.places[call][:2] == (name, [parent]):
                    return call
        return None

    def token(self, call: int) -> int | None:
        name, parents, shared = self.places[call]
        if name != "extends":
            return shared if parents else None
        if len(parents) > 1:
            return None
        other = self.next(parents[0])
        assert other is not None
        return None if other == self.head(call) else common(self.prompt(call), self.whole(other))

    def drifts(self) -> list[int]:
        bad = [len(self.places[call][1]) > 1 or self.token(call) is not None for call in self.kept]
        return [call for call, is_bad in zip(self.kept, bad, strict=True) if is_bad]

    def lost(self, call: int) -> str | None:
        name, parents, _ = self.places[call]
        if name == "extends" and len(parents) > 1:
            return "quarantined"
        inherited = self.lost(parents[0]) if name == "extends" else None
        cut = self.policy == "truncate" and self.token(call) is not None
        return inherited or ("forked" if cut else None)

    def goes_on(self, call: int) -> bool:
        parents = self.places[call][1]
        return len(parents) == 1 and not self.lost(parents[0]) and self.next(parents[0]) == call

    def run(self) -> Any:
        starts = [c for c in self.kept if not self.lost(c) and not self.goes_on(c)]
        chain_of: dict[int, int] = {}
        written = []
        for chain, start in enumerate(starts):
            ids, mask, logprobs = [], [], []
            call: int | None = start
            while call is not None:
                chain_of[call] = chain
                keep = min(len(ids), common(ids, self.prompt(call)))
                context = self.prompt(call)[keep:]
                _, sampled, own = self.calls[call]
                ids = ids[:keep] + context + sampled
                mask = mask[:keep] + [0] * len(context) + [1] * len(sampled)
                logprobs = logprobs[:keep] + [0.0] * len(context) + own
                call = self.next(call)
            first = mask.index(1)
            written.append((ids[:first], ids[first:], mask[first:], logprobs[first:]))
        transitions = []
        for call in self.kept:
            name, parents, _ = self.places[call]
            kind = self.lost(call) or "forked"
            if not self.lost(call) and self.goes_on(call):
                kind = "realigned" if name == "leaves" else "clean"
            elif name == "root" and self.head(call) == call:
                kind = "clean"
            parent = parents[0] if len(parents) == 1 else None
            transitions.append((call, parent, chain_of.get(call), kind, self.token(call)))
        return transitions, written


def common(a: Ids, b: Ids) -> int:
    same = (x == y for x, y in zip(a, b, strict=False))
    return next((index for index, equal in enumerate(same) if not equal), min(len(a), len(b)))


def check_trained_once(calls: Sequence[Recorded], chains: Sequence[abut.Columns]) -> int:
    """How many tokens are trained: each sampled, once, in the context in which it was sampled."""
    of_logprob = {
        np.float32(logprob): (prompt + sampled[:index], token)
        for prompt, sampled, logprobs in calls
        for index, (token, logprob) in enumerate(zip(sampled, logprobs, strict=True))
    }
    trained = 0
    for chain in chains:
        ids = [*chain.prompt_ids.tolist(), *chain.completion_ids.tolist()]
        assert chain.env_mask[0] == chain.env_mask[-1] == 1
        for index in np.flatnonzero(chain.env_mask):
            at = len(chain.prompt_ids) + int(index)
            context, token = of_logprob.pop(chain.logprobs[index])
            assert ids[:at] == context
            assert ids[at] == token
            trained += 1
        assert not chain.logprobs[chain.env_mask == 0].any()
    return trained


@given(recorded_calls(), st.sampled_from(LENIENT))
@settings(max_examples=int(os.environ.get("ABUT_STITCH_EXAMPLES", "1000")), deadline=None)
def test_stitch_equals_the_oracle(calls: list[Recorded], policy: Any) -> None:
    stitched = abut.stitch(calls, on_drift=policy)
    transitions, written = Oracle(calls, policy).run()
    assert verdicts(stitched) == transitions
    found = [
        (*row, chain.logprobs.tolist())
        for row, chain in zip(rows(stitched), stitched.chains, strict=True)
    ]
    assert found == written
    trained = check_trained_once(calls, stitched.chains)
    sampled = sum(len(completion) for _, completion, _ in calls)
    assert trained <= sampled
    if policy == "split" and not stitched.dropped["quarantined"]:
        assert trained == sampled
    lost = stitched.dropped["truncated"] + stitched.dropped["quarantined"]
    assert lost == sum(transition.chain is None for transition in stitched.transitions)


@given(recorded_calls())
@settings(max_examples=500, deadline=None)
def test_error_names_the_first_call_that_the_oracle_objects_to(calls: list[Recorded]) -> None:
    drifts = Oracle(calls, "error").drifts()
    if drifts:
        with pytest.raises(abut.SeamError, match=f"^call {drifts[0]} "):
            abut.stitch(calls)
    else:
        assert verdicts(abut.stitch(calls)) == Oracle(calls, "error").run()[0]


def test_the_oracle_sees_another_policy() -> None:
    transitions, written = Oracle(IN_SAMPLE, "split").run()
    stitched = abut.stitch(IN_SAMPLE, on_drift="realign")
    assert verdicts(stitched) != transitions
    assert len(stitched.chains) != len(written)


def twice(chain: abut.Columns) -> list[abut.Columns]:
    return [chain, chain]


def all_trained(chain: abut.Columns) -> list[abut.Columns]:
    mask = [1] * len(chain.completion_ids)
    return [changed(chain, env_mask=mask)]


def shifted(chain: abut.Columns) -> list[abut.Columns]:
    return [changed(chain, logprobs=np.roll(chain.logprobs, 1))]


def other_context(chain: abut.Columns) -> list[abut.Columns]:
    return [changed(chain, prompt_ids=[9, *chain.prompt_ids[1:]])]


def changed(chain: abut.Columns, **arrays: Any) -> Any:
    names = ("prompt_ids", "completion_ids", "logprobs", "env_mask")
    # `Columns` would refuse it.
    arrays = {name: getattr(chain, name) for name in names} | arrays
    return SimpleNamespace(**{name: np.asarray(array) for name, array in arrays.items()})


@pytest.mark.parametrize("spoil", [twice, all_trained, shifted, other_context])
def test_the_check_notices_what_must_not_be(
    spoil: Callable[[abut.Columns], list[abut.Columns]],
) -> None:
    calls = recording(([1], [2, 3]), ([1, 2, 3, 4], [5]))
    (chain,) = abut.stitch(calls).chains
    assert check_trained_once(calls, [chain]) == 3
    with pytest.raises((AssertionError, KeyError)):
        check_trained_once(calls, spoil(chain))


# Real recordings.


@pytest.fixture(scope="module")
def recorded() -> Callable[[str], list[Recorded]]:
    folder = os.environ.get("ABUT_RECORDINGS")
    if not folder:
        pytest.skip("ABUT_RECORDINGS is unset: it names a folder of NeMo Gym replies")

    def read(name: str) -> list[Recorded]:
        reply = json.loads((Path(folder) / f"{name}.json").read_text())
        reply = reply.get("response", reply)
        items = reply.get("response", reply)["output"]
        return [
            (item["prompt_token_ids"], item["generation_token_ids"], item["generation_log_probs"])
            for item in items
            if "generation_token_ids" in item
        ]

    return read


@pytest.mark.parametrize(
    ("name", "at"),
    [
        ("plain_example_multi_step_simple_agent_drift", 3216),
        ("plain_workplace_assistant_simple_agent_drift", 4381),
    ],
)
def test_the_drift_of_an_agent_is_found_where_it_was_recorded(
    recorded: Callable[[str], list[Recorded]], name: str, at: int
) -> None:
    calls = recorded(name)
    with pytest.raises(abut.SeamError, match=f"call 1 does not extend call 0: token {at} is "):
        abut.stitch(calls)
    stitched = abut.stitch(calls, on_drift="realign")
    assert [t.token for t in stitched.transitions][:2] == [None, at]
    assert len(stitched.chains) == 1
    assert verdicts(stitched) == Oracle(calls, "realign").run()[0]
    assert count_trained(calls, "realign") > 0


@pytest.mark.parametrize(
    "name",
    [
        "corrected_example_multi_step_simple_agent_response",
        "inline_example_multi_step_simple_agent_response",
        "plain_mcqa_simple_agent_response",
    ],
)
def test_an_agent_that_keeps_its_prefix_is_one_chain_in_any_order(
    recorded: Callable[[str], list[Recorded]], name: str
) -> None:
    calls = recorded(name)
    stitched = abut.stitch(calls[::-1])
    assert set(kinds(stitched)) == {"clean"}
    assert len(stitched.chains) == 1
    assert count_trained(calls, "error") == sum(len(completion) for _, completion, _ in calls)


def count_trained(calls: Sequence[Recorded], policy: Any) -> int:
    """As `check_trained_once`, for ids of which the logprobs are not told apart."""
    distinct = recording(*((prompt, completion) for prompt, completion, _ in calls))
    return check_trained_once(distinct, abut.stitch(distinct, on_drift=policy).chains)
