"""Numbers in: an array, a list or another sequence of the same numbers is the same argument."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import abut
from tests.kit.data.tokenizers_made import word_level

TOKENIZER = abut.Tokenizer.from_str(word_level())
IDS = [5, 0, 7, 96, 1]
LIST = type("OwnList", (list,), {})


@pytest.mark.parametrize(
    "same",
    [
        IDS,
        tuple(IDS),
        LIST(IDS),
        [np.int64(id) for id in IDS],
        np.array(IDS),
        np.array(IDS, dtype=np.int32),
        np.array(IDS, dtype=np.uint8),
        np.array(IDS, dtype=np.uint64),
        np.array(IDS, dtype=">i8"),
        np.array(IDS, dtype=object),
        np.repeat(IDS, 3)[::3],
        np.array(IDS[::-1])[::-1],
        np.array(IDS[::-1], dtype=np.int16)[::-1],
        np.array([IDS, IDS]).T[:, 0],
    ],
    ids=lambda same: f"{type(same).__name__}-{getattr(same, 'dtype', '')}",
)
def test_the_same_ids_in_any_form_are_the_same(same: Any) -> None:
    assert TOKENIZER.decode(same) == TOKENIZER.decode(IDS)
    logprobs = [-0.5] * len(IDS)
    (chain,) = abut.stitch([(same, same, logprobs)]).chains
    assert (chain.prompt_ids.tolist(), chain.completion_ids.tolist()) == (IDS, IDS)
    row = abut.Columns(
        prompt_ids=same, completion_ids=same, logprobs=[0.0] * len(IDS), env_mask=np.zeros_like(IDS)
    )
    assert row.prompt_ids.tolist() == row.completion_ids.tolist() == IDS


LOGPROBS = [-0.5, -0.25, 0.0]


@pytest.mark.parametrize(
    "same",
    [
        LOGPROBS,
        tuple(LOGPROBS),
        [-0.5, np.float32(-0.25), 0],
        np.array(LOGPROBS, dtype=np.float32),
        np.array(LOGPROBS),
        np.array(LOGPROBS, dtype=np.float16),
        np.array(LOGPROBS, dtype=object),
        np.repeat(np.array(LOGPROBS, dtype=np.float32), 2)[::2],
    ],
    ids=lambda same: f"{type(same).__name__}-{getattr(same, 'dtype', '')}",
)
def test_the_same_logprobs_in_any_form_are_the_same(same: Any) -> None:
    (chain,) = abut.stitch([([1], [2, 3, 4], same)]).chains
    assert chain.logprobs.tolist() == LOGPROBS


@given(st.lists(st.integers(-(2**70), 2**70) | st.integers(-3, 100)))
def test_an_id_that_no_tokenizer_has_is_named_as_in_an_array(ids: list[int]) -> None:
    outside = [i for i, id in enumerate(ids) if not 0 <= id < TOKENIZER.vocab_size]
    try:
        whole = np.array(ids, dtype=np.int64)
    except OverflowError:  # no int64, so no id at all
        with pytest.raises(TypeError, match="got a list with int at index"):
            TOKENIZER.decode_bytes(ids)
        return
    if not outside:
        assert TOKENIZER.decode_bytes(ids) == TOKENIZER.decode_bytes(whole)
        return
    errors = []
    for same in (ids, whole):
        with pytest.raises(abut.TokenizerError) as raised:
            TOKENIZER.decode_bytes(same)
        errors.append(str(raised.value))
    assert errors[0] == errors[1]
    assert int(errors[0].split()[1]) in outside


@pytest.mark.parametrize(
    ("ids", "got"),
    [
        (np.array([1.0]), "an array of shape [1] and dtype float64"),
        (np.array([True]), "an array of shape [1] and dtype bool"),
        (np.array([[1]]), "an array of shape [1, 1] and dtype int64"),
        (np.array(1), "an array of shape [] and dtype int64"),
        (np.array([2**63], dtype=np.uint64), "an array of shape [1] and dtype uint64"),
        (memoryview(b"ab"), "memoryview"),
        ({1: 2}, "dict"),
        ({1}, "set"),
        (iter([1]), "list_iterator"),
        (None, "NoneType"),
        ([1, 2.0], "a list with float at index 1"),
        ([1, "2"], "a list with str at index 1"),
        ([2**63], "a list with int at index 0"),
    ],
)
def test_what_are_no_ids_is_said(ids: Any, got: str) -> None:
    with pytest.raises(TypeError) as raised:
        TOKENIZER.decode(ids)
    expected = f"ids must be a one-dimensional array or list of ints, got {got}"
    assert str(raised.value) == expected


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("prompt_ids", "ab", "prompt_ids must be a one-dimensional array or list of ints, got str"),
        ("env_mask", [None], "of ints, got a list with NoneType at index 0"),
        ("logprobs", [0.5, "x"], "of floats, got a list with str at index 1"),
        ("logprobs", [True], "of floats, got a list with bool at index 0"),
    ],
)
def test_an_argument_is_named(name: str, value: Any, text: str) -> None:
    columns: dict[str, Any] = {
        "prompt_ids": [1],
        "completion_ids": [],
        "logprobs": [],
        "env_mask": [],
    }
    with pytest.raises(TypeError) as raised:
        abut.Columns(**columns | {name: value})
    assert str(raised.value).startswith(f"{name} must be a one-dimensional array or list of")
    assert str(raised.value).endswith(text)


def test_an_item_that_shortens_its_list_is_refused() -> None:
    class Shortens:
        def __index__(self) -> int:
            ids.clear()
            return 1

    ids = [1, Shortens(), 2, 3]
    with pytest.raises(TypeError, match="must be a one-dimensional array or list of ints"):
        TOKENIZER.decode(ids)
    assert TOKENIZER.decode([1]) == "a"  # no error of the list is left over


def test_a_batch_for_which_there_is_no_memory_is_a_memory_error() -> None:
    short, long = (
        abut.Columns(
            prompt_ids=np.zeros(length, dtype=np.int64),
            completion_ids=[1],
            logprobs=[-1.0],
            env_mask=[1],
        )
        for length in (1, 10_000_000)
    )
    with pytest.raises(MemoryError):
        abut.collate([long, *[short] * 1_000_000], pad_id=0)
