"""A row of the benchmark: its figures, and the requirements on them.

A figure keeps the values of all runs. A need is a ratio of two medians, or one median, and its
bound; whether it is met is computed, never stored.
"""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from abut import AbutError

Unit: TypeAlias = Literal["s", "B", "B/token", "/s", "rows", "tokens"]
Numbers: TypeAlias = Sequence[Any] | NDArray[Any]
Bound: TypeAlias = Literal["at least", "at most"]


class ResultsDiffer(AbutError, ValueError):
    """Two sides of a row gave different results, so their times mean nothing."""


@dataclass(frozen=True)
class Figure:
    """The values of one side in one case, one for each run."""

    side: str
    case: str
    values: tuple[float, ...]
    unit: Unit = "s"
    tokens: int | None = None
    """Length of the conversation, if the case has one: the x axis of the chart."""

    @property
    def median(self) -> float:
        """The median of the values."""
        return statistics.median(self.values)


@dataclass(frozen=True)
class Need:
    """A requirement: a ratio of medians, or with `unit` a median itself, and its bound."""

    what: str
    value: float
    how: Bound
    bound: float
    unit: Unit | None = None

    @property
    def met(self) -> bool:
        """Return whether the value is within its bound."""
        return self.value >= self.bound if self.how == "at least" else self.value <= self.bound


@dataclass
class Row:
    """One kind of work, measured."""

    name: str
    work: str
    equal: str = ""
    """The results that had to be equal."""
    figures: list[Figure] = field(default_factory=list)
    needs: list[Need] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    """Peers that were not measured, each with the reason."""
    error: str | None = None
    """Why there are no figures; None if there are."""

    def add(
        self,
        case: str,
        taken: dict[str, list[float]],
        *,
        unit: Unit = "s",
        tokens: int | None = None,
    ) -> None:
        """Add the figures of one case, by side."""
        for side, values in taken.items():
            self.figures.append(Figure(side, case, tuple(values), unit, tokens))

    def median(self, side: str, case: str) -> float | None:
        """Return the median of one side in one case; None if that side was not measured."""
        for figure in self.figures:
            if (figure.side, figure.case) == (side, case):
                return figure.median
        return None

    def need_ratio(
        self, what: str, over: tuple[str, str], under: tuple[str, str], how: Bound, bound: float
    ) -> None:
        """Require a ratio of the medians of two (side, case); does nothing if one is missing."""
        numerator, denominator = self.median(*over), self.median(*under)
        if numerator is not None and denominator is not None:
            self.needs.append(Need(what, numerator / denominator, how, bound))

    def need_faster(
        self, peer: str, case: str, times: float, *, side: str = "abut", what: str | None = None
    ) -> None:
        """Require `side` to be so many times faster than `peer` in the same case."""
        what = what or f"{peer} ÷ {side}, {case}"
        self.need_ratio(what, (peer, case), (side, case), "at least", times)

    def as_dict(self) -> dict[str, Any]:
        """Return the row as JSON values, with medians and whether each requirement is met."""
        found = dataclasses.asdict(self)
        for figure, values in zip(self.figures, found["figures"], strict=True):
            values["values"] = [float(f"{value:.5g}") for value in figure.values]
            values["median"] = figure.median
        for need, values in zip(self.needs, found["needs"], strict=True):
            values["met"] = need.met
        return found

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> "Row":
        """Return the row that `as_dict` wrote."""
        figures = [{**values, "values": tuple(values["values"])} for values in found["figures"]]
        return cls(
            **{
                **found,
                "figures": [Figure(**_without(values, "median")) for values in figures],
                "needs": [Need(**_without(values, "met")) for values in found["needs"]],
            }
        )


def _without(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != key}


def require_same(what: str, peer: str, ours: Numbers, theirs: Numbers) -> None:
    """Require two sequences of numbers to be equal.

    Raises:
        ResultsDiffer: they differ; the message has the first index that does.
    """
    left, right = np.asarray(ours), np.asarray(theirs)
    if left.shape == right.shape and bool((left == right).all()):
        return
    short = min(len(left), len(right))
    unequal = np.flatnonzero(left[:short] != right[:short])
    first = int(unequal[0]) if len(unequal) else short
    raise ResultsDiffer(
        f"{what}: abut and {peer} differ, first at index {first}: {_at(left, first)} and "
        f"{_at(right, first)} (lengths {len(left)} and {len(right)})\n"
        "hint: times are not compared if the results differ, so this row has none; look at the "
        "text at that index, and report it if abut is wrong"
    )


def _at(values: Any, index: int) -> str:
    return str(values[index]) if index < len(values) else "nothing"
