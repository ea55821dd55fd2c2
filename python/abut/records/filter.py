"""The filter language of records: `reward<0.5 step:100 error:timeout turns>3`.

A record passes if every word holds. `:` means "equals" for a number and "contains" for a string;
`none` stands for a missing value; a value in double quotes may contain spaces. The page of
`abut view` has the same language in `filter.js`, and one table of cases tests both.
"""

import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from abut.messages import texts_of
from abut.records.scores import total_of
from abut.rollout.failures import kind_of_error

Record: TypeAlias = Mapping[str, Any]
Filter: TypeAlias = Callable[[Record], bool]

_NUMBERS: dict[str, Callable[[Record], Any]] = {
    **{
        name: operator.itemgetter(name)
        for name in (
            *("reward", "advantage", "step", "group", "place", "rank", "attempts", "seconds"),
            *("episode_seed", "time"),
        )
    },
    "total": total_of,
    "turns": lambda record: len(record["turns"]),
    "seams": lambda record: len(record["seams"]),
    "inexact_seams": lambda record: sum(not seam["exact"] for seam in record["seams"]),
    "branches": lambda record: len(record["branches"]),
    "tokens": lambda record: len(record["prompt_ids"] or ()) + len(record["completion_ids"]),
    "completion_tokens": lambda record: len(record["completion_ids"]),
    "sampled_tokens": lambda record: sum(record["env_mask"]),
}
_TEXTS: dict[str, Callable[[Record], Any]] = {
    **{
        name: operator.itemgetter(name)
        for name in ("error", "mode", "stop_reason", "rollout_id", "run_id", "seed", "traceback")
    },
    "failure": lambda record: None if record["error"] is None else kind_of_error(record["error"]),
    "text": lambda record: "\n".join(
        t for message in record["messages"] for t in texts_of(message)
    ),
}
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
    "=": operator.eq,
    "!=": operator.ne,
    ":": operator.eq,
}
# A quote opens only at the start of a value, so `text:5"` searches for the quote itself.
_WORDS = re.compile(r'[^\s"]*[<>=!:]"(?:[^"]|"")*"(?!\S)|\S+')
_WORD = re.compile(r"([a-z_]+(?:\.[^<>=!:]+)?)(<=|>=|!=|<|>|=|:)(.*)", re.DOTALL)
_HINT = (
    "hint: write NAME, one of : = != < <= > >=, and a value; names are "
    f"{', '.join([*_NUMBERS, *_TEXTS])}, rewards.FUNCTION and columns.COLUMN"
)


def parse_filter(words: str) -> Filter:
    """Return the filter for words that are separated by spaces; no words let every record pass.

    In quotes a value may contain spaces, and `""` stands for a quote: `failure="EnvError: late"`.

    Raises:
        ValueError: a word is not a condition; names it, and the conditions that exist.
    """
    tests = [_test(word) for word in _WORDS.findall(words)]
    return lambda record: all(test(record) for test in tests)


def _test(word: str) -> Filter:
    match = _WORD.fullmatch(word)
    if match is None:
        raise ValueError(f"{word!r} is not a condition on a record\n{_HINT}")
    name, sign, wanted = match.groups()
    of, is_number = _getter(name, word)
    if len(wanted) > 1 and wanted[0] == wanted[-1] == '"':
        wanted = wanted[1:-1].replace('""', '"')
        is_number = is_number or False  # a quoted value of a column is a text
    elif wanted == "none":
        if sign in ("=", ":", "!="):
            return lambda record: (of(record) is None) is (sign != "!=")
        raise ValueError(
            f"{word!r}: none cannot be compared by size\nhint: {name}:none or {name}!=none"
        )
    if is_number is None:
        is_number = _number(wanted) is not None
    if not is_number:
        return _text_test(of, sign, wanted, word)
    number = _number(wanted)
    if number is None:
        raise ValueError(f"{word!r}: {name} is a number, but {wanted!r} is not\n{_HINT}")
    compare = _COMPARE[sign]

    def test(record: Record) -> bool:
        value = of(record)
        if isinstance(value, int | float):
            return compare(value, number)
        return sign == "!="

    return test


def _text_test(of: Callable[[Record], Any], sign: str, wanted: str, word: str) -> Filter:
    if sign == ":":
        return lambda record: wanted.casefold() in str(_or_empty(of(record))).casefold()
    if sign not in ("=", "!="):
        raise ValueError(f"{word!r}: text cannot be compared by size\nhint: use : = or != for text")
    return lambda record: (str(_or_empty(of(record))) == wanted) is (sign == "=")


def _getter(name: str, word: str) -> tuple[Callable[[Record], Any], bool | None]:
    """Return what reads a name, and whether it is a number; None if that depends on the record."""
    if name in _NUMBERS:
        return _finite(_NUMBERS[name]), True
    if name in _TEXTS:
        return _TEXTS[name], False
    field, _, key = name.partition(".")
    if field == "rewards" and key:
        return _finite(lambda record: (record["rewards"] or {}).get(key)), True
    if field == "columns" and key:
        return lambda record: (record["columns"] or {}).get(key), None
    raise ValueError(f"{word!r}: records do not have {name!r}\n{_HINT}")


def _finite(of: Callable[[Record], Any]) -> Callable[[Record], Any]:
    """Return a getter that gives None for NaN and infinity, as on the page: JSON has neither."""

    def known(record: Record) -> Any:
        value = of(record)
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return known


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _or_empty(value: Any) -> Any:
    return "" if value is None else value
