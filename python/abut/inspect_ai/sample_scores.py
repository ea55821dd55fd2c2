"""The scores of a sample as numbers.

Invariant: a score that is not a number is None, never 0.0.
"""

from collections.abc import Mapping
from typing import Any

from abut.agents.dataset_agent import finite

# The values of Inspect's own `value_to_float`, which turns any other text into 0.0.
_LETTERS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
_WORDS = {"yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}


def scores_of(
    scores: Mapping[str, Any] | None, values: Mapping[str, float]
) -> dict[str, float | None]:
    """Return a sample's scores by name; the parts of a dict are `SCORER/PART`.

    Args:
        scores: Inspect's scores by scorer, or None if no scorer ran.
        values: the user's numbers for text scores.
    """
    found: dict[str, float | None] = {}
    for name, score in (scores or {}).items():
        if isinstance(score.value, Mapping):
            parts = score.value.items()
            found |= {f"{name}/{part}": _number(value, values) for part, value in parts}
        else:
            found[name] = _number(score.value, values)
    return found


def _number(value: Any, values: Mapping[str, float]) -> float | None:
    if not isinstance(value, str):
        return finite(value)
    if value in values:
        return float(values[value])
    if (known := _LETTERS.get(value, _WORDS.get(value.lower()))) is not None:
        return known
    try:
        return finite(float(value))
    except ValueError:
        return None
