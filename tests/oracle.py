"""What the tests compare: the native module, its reference in Python, and `tokenizers`.

`outcome(call)` makes an answer of either side comparable: arrays become lists, NaN becomes None,
and an error is its class and, for control tokens, the place that it names.
"""

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

import abut
from abut import _reference as reference
from abut.errors import AbutError

Outcome = tuple[str, Any]


@dataclass(frozen=True)
class Trio:
    """One tokenizer.json, read by all three. `hf` is `tokenizers` itself."""

    source: str
    native: Any
    reference: reference.Tokenizer
    hf: tokenizers.Tokenizer

    def __repr__(self) -> str:  # what Hypothesis prints for a failure: short, and it can be pasted
        source = self.source if len(self.source) < 20_000 else f"{self.source[:200]}…"
        return f"trio({source!r})"


def trio(source: str, **overrides: set[str]) -> Trio:
    return Trio(
        source,
        abut.Tokenizer.from_str(source, **overrides),
        reference.Tokenizer(source, **overrides),
        tokenizers.Tokenizer.from_str(source),
    )


@cache
def real(name: str) -> Trio:
    folder = os.environ.get("ABUT_TOKENIZERS")
    if folder is None:
        pytest.skip("ABUT_TOKENIZERS is not set: it is the folder with qwen3/ and mistral_v3/")
    return trio((Path(folder) / name / "tokenizer.json").read_text(encoding="utf-8"))


def outcome(call: Callable[[], Any]) -> Outcome:
    try:
        return "value", plain(call())
    except AbutError as error:
        place = re.search(r"at character (\d+)", str(error))
        return type(error).__name__, place and int(place[1])


def plain(value: Any) -> Any:
    if hasattr(value, "canonical_ids"):
        fields = ("kind", "exact", "drop", "ids", "canonical_ids")
        return {name: plain(getattr(value, name)) for name in fields}
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, float) and math.isnan(value):
        return None
    return value


def tokens_of(trajectory: Any) -> dict[str, Any]:
    """Everything that a trajectory of either side says about its tokens."""
    provenance = plain(trajectory.provenance)
    if isinstance(trajectory, abut.Trajectory):
        provenance = [reference.trajectory.PROVENANCE[code] for code in provenance]
        turns = [(turn.start, turn.end) for turn in trajectory.turns]
    else:
        turns = trajectory.turns
    return {
        "ids": plain(trajectory.ids),
        "sampled_mask": plain(trajectory.sampled_mask),
        "logprobs": plain(trajectory.logprobs),
        "provenance": provenance,
        "turns": turns,
        "len": len(trajectory),
    }
