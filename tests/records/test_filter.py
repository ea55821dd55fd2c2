"""The filter language: `filter_cases.json` is its table, which the page's filter passes too."""

import json
from pathlib import Path
from typing import Any

import pytest

from abut.records.filter import parse_filter

CASES: dict[str, Any] = json.loads(Path(__file__).with_name("filter_cases.json").read_text("utf-8"))


@pytest.mark.parametrize("words", CASES["pass"])
def test_conditions_that_hold(words: str) -> None:
    assert parse_filter(words)(CASES["record"])


@pytest.mark.parametrize("words", CASES["fail"])
def test_conditions_that_do_not(words: str) -> None:
    assert not parse_filter(words)(CASES["record"])


@pytest.mark.parametrize(("words", "said"), CASES["refused"])
def test_what_is_no_condition_is_named(words: str, said: str) -> None:
    with pytest.raises(ValueError, match="hint") as raised:
        parse_filter(words)
    assert str(raised.value).startswith(said)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_json_cannot_express_is_none(value: float) -> None:
    """Parquet can hold it; on the page it is none, because JSON has no such number."""
    record = {**CASES["record"], "reward": value, "rewards": {"f": value}}
    assert parse_filter("reward=none reward!=0 rewards.f:none")(record)
    assert not parse_filter("reward<1")(record)
    assert not parse_filter("reward>1")(record)
