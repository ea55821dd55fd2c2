"""Columns and batches: what the trainer gets, aligned, with zeros where nothing was sampled."""

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import abut
from abut.errors import TrajectoryError
from tests import reference
from tests.kit.data.tokenizers_made import word_level

ids = st.lists(st.integers(0, 99), max_size=5)
sampled = st.tuples(st.integers(0, 99), st.floats(-9, 0, width=32), st.just(1))
token = sampled | st.tuples(st.integers(0, 99), st.just(0.0), st.just(0))
rows = st.lists(st.tuples(ids, st.lists(token, max_size=5)), max_size=4)


def two_turns() -> abut.Trajectory:
    trajectory = abut.Trajectory(abut.Tokenizer.from_str(word_level()))
    trajectory.append_text("ab", provenance="prompt")
    for sampled, reply in ([1, 2], "a"), ([2], "b"):
        trajectory.request()
        trajectory.append_sampled(sampled, [-0.5] * len(sampled))
        trajectory.append_text(reply)
    return trajectory


def test_a_row_is_the_prompt_and_what_follows_up_to_the_last_sampled_token() -> None:
    trajectory = two_turns()
    columns = trajectory.columns()
    assert columns.prompt_ids.tolist() == [1, 2]
    assert columns.completion_ids.tolist() == [1, 2, 1, 2]
    assert columns.logprobs.tolist() == [-0.5, -0.5, 0.0, -0.5]
    assert columns.env_mask.tolist() == [1, 1, 0, 1]
    last_observation = [2]
    joined = [*columns.prompt_ids, *columns.completion_ids, *last_observation]
    assert joined == trajectory.ids.tolist()


def test_columns_have_the_documented_types() -> None:
    columns = two_turns().columns()
    names = ("prompt_ids", "completion_ids", "logprobs", "env_mask")
    dtypes = [getattr(columns, name).dtype for name in names]
    assert dtypes == [np.int64, np.int64, np.float32, np.uint8]


def test_a_trajectory_without_samples_has_no_columns() -> None:
    trajectory = abut.Trajectory(abut.Tokenizer.from_str(word_level()))
    trajectory.append_text("abc")
    trajectory.request()
    with pytest.raises(TrajectoryError) as caught:
        trajectory.columns()
    assert str(caught.value) == (
        "the trajectory of 3 tokens has no sampled token, so there is nothing to train\nhint: "
        "call append_sampled before columns()"
    )


def test_columns_that_are_not_aligned_are_refused() -> None:
    with pytest.raises(TrajectoryError) as caught:
        abut.Columns(prompt_ids=[1], completion_ids=[2, 3], logprobs=[0.0], env_mask=[1, 1])
    assert str(caught.value) == (
        "columns 0: logprobs has 1 entries but completion_ids has 2\nhint: each array of a row "
        "must be as long as its completion_ids"
    )


@given(rows, st.sampled_from([0, 7, -100]))
def test_native_pads_as_the_reference_does(rows: list[Any], pad_id: int) -> None:
    tables: dict[Any, list[Any]] = {abut.Columns: [], reference.Columns: []}
    for prompt, completion in rows:
        completion_ids, logprobs, mask = ([t[i] for t in completion] for i in range(3))
        for kind, columns in tables.items():
            columns.append(
                kind(
                    prompt_ids=prompt,
                    completion_ids=completion_ids,
                    logprobs=logprobs,
                    env_mask=mask,
                )
            )
    native = abut.collate(tables[abut.Columns], pad_id=pad_id)
    expected = reference.collate(tables[reference.Columns], pad_id=pad_id)
    assert native.keys() == expected.keys()
    for name, array in expected.items():
        assert native[name].dtype == array.dtype, name
        np.testing.assert_array_equal(native[name], array, err_msg=name)


def test_a_batch_of_megabytes_is_padded_as_a_small_one() -> None:
    """Its arrays lie in large pages, which begin elsewhere in each block of memory."""
    rng = np.random.default_rng(1)
    tables: dict[Any, list[Any]] = {abut.Columns: [], reference.Columns: []}
    for length in rng.integers(1, 9_000, 64).tolist():
        mask = rng.integers(0, 2, length)
        row = {
            "prompt_ids": rng.integers(0, 99, length // 8),
            "completion_ids": rng.integers(0, 99, length),
            "logprobs": np.where(mask, -rng.random(length), 0).astype(np.float32),
            "env_mask": mask,
        }
        for kind, columns in tables.items():
            columns.append(kind(**row))
    expected = reference.collate(tables[reference.Columns], pad_id=-100)
    assert sum(array.nbytes for array in expected.values()) > 6_000_000
    for _ in range(3):
        batch = abut.collate(tables[abut.Columns], pad_id=-100)
        for name, array in expected.items():
            assert batch[name].flags.c_contiguous, name
            assert batch[name].flags.aligned, name
            np.testing.assert_array_equal(batch[name], array, err_msg=name)


def test_an_array_of_a_batch_stays_when_the_others_are_gone_and_is_its_own() -> None:
    rows = [two_turns().columns()] * 3
    batch = abut.collate(rows, pad_id=0)
    names = list(batch)
    for name in names:
        batch[name][...] = 7
    for name in names:
        assert (batch[name] == 7).all(), "no array reaches into another one"
        for other in names:
            assert other == name or not np.shares_memory(batch[name], batch[other])
    kept = batch.pop("env_mask")
    del batch
    again = abut.collate(rows, pad_id=0)
    assert (kept == 7).all()
    assert again["env_mask"].tolist() == [[1, 1, 0, 1]] * 3


def test_prompts_end_and_completions_begin_at_the_same_column() -> None:
    long = two_turns().columns()
    short = abut.Columns(prompt_ids=[5], completion_ids=[6], logprobs=[-1.0], env_mask=[1])
    batch = abut.collate([long, short], pad_id=0)
    assert batch["prompt_ids"].tolist() == [[1, 2], [0, 5]]
    assert batch["prompt_mask"].tolist() == [[1, 1], [0, 1]]
    assert batch["completion_ids"].tolist() == [[1, 2, 1, 2], [6, 0, 0, 0]]
    assert batch["completion_mask"].tolist() == [[1, 1, 1, 1], [1, 0, 0, 0]]
    assert batch["env_mask"].tolist() == [[1, 1, 0, 1], [1, 0, 0, 0]]
    padded_right = [[1, 2], [5, 0]]
    assert batch["prompt_ids"].tolist() != padded_right  # the negative control: sides matter


@pytest.mark.parametrize(
    ("mask", "logprob", "message"),
    [
        (0, -1.0, "columns 0: completion token 0 has env_mask 0 and logprob -1"),
        (1, float("nan"), "columns 0: completion token 0 has env_mask 1 and logprob NaN"),
        (7, 0.0, "columns 0: completion token 0 has env_mask 7"),
    ],
)
def test_columns_that_contradict_themselves_are_refused(
    mask: int, logprob: float, message: str
) -> None:
    with pytest.raises(TrajectoryError) as caught:
        abut.Columns(prompt_ids=[1], completion_ids=[2], logprobs=[logprob], env_mask=[mask])
    assert str(caught.value) == (
        f"{message}\nhint: for a sampled token env_mask is 1 and the logprob finite; for "
        "others both are 0"
    )


def test_collate_refuses_what_was_changed_afterwards() -> None:
    columns = two_turns().columns()
    columns.logprobs[0] = np.nan
    with pytest.raises(TrajectoryError, match="columns 0: completion token 0 has env_mask 1"):
        abut.collate([columns], pad_id=0)


def test_columns_travel_by_pickle() -> None:
    columns = two_turns().columns()
    copy = pickle.loads(pickle.dumps(columns))
    for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask"):
        assert getattr(copy, name).tolist() == getattr(columns, name).tolist()


def test_an_id_below_zero_is_named() -> None:
    with pytest.raises(TrajectoryError) as caught:
        abut.Columns(prompt_ids=[1, -5], completion_ids=[], logprobs=[], env_mask=[])
    assert str(caught.value) == (
        "prompt_ids[1] is -5: an id must not be negative\nhint: leave padding out of a row"
    )
