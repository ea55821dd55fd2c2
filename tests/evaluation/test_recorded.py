"""Recorded evaluations: rows are known by their columns, and differences by their rows."""

import random
from typing import Any

import numpy as np
import pytest

from abut.evaluation.recorded import compare, row_key, row_means


def record(prompt: str, reward: float | None, error: str | None = None) -> dict[str, Any]:
    return {"columns": {"prompt": prompt}, "reward": reward, "error": error}


def test_a_row_is_its_columns_in_any_order() -> None:
    assert row_key({"a": 1, "b": [2.0, None]}) == row_key({"b": [2.0, None], "a": 1})
    assert row_key({"a": 1}) != row_key({"a": "1"})


def test_means_are_of_rollouts_with_a_score() -> None:
    records = [record("a", 1.0), record("a", 0.0), record("b", None), record("c", 0.0, "EnvError")]
    assert row_means(records) == {row_key({"prompt": "a"}): 0.5}


def test_the_interval_holds_the_mean_as_often_as_it_says() -> None:
    """Of 200 samples of 40 rows whose true difference is 0.1, about 95 % of intervals hold it."""
    draw = random.Random(0)
    held = 0
    for _ in range(200):
        ours = {str(k): draw.gauss(0.6, 0.3) for k in range(40)}
        theirs = {key: value - draw.gauss(0.1, 0.2) for key, value in ours.items()}
        low, high = compare(ours, theirs).interval
        held += low <= 0.1 <= high
    assert 0.90 <= held / 200 <= 0.99


def test_only_shared_rows_count() -> None:
    one = compare({"a": 1.0, "b": 0.5, "c": 9.0}, {"b": 0.25, "a": 0.25, "d": -9.0})
    assert one.difference == pytest.approx(np.mean([0.75, 0.25]))
    assert (one.paired, one.unpaired) == (2, 2)
    assert one == compare({"b": 0.5, "a": 1.0, "c": 0.0}, {"a": 0.25, "b": 0.25, "d": 1.0})
    with pytest.raises(ValueError, match="no row in common: 1 and 1"):
        compare({"a": 1.0}, {"b": 1.0})
