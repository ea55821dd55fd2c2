"""What the tests compare: the native module, its reference in Python, and `tokenizers`.

`outcome(call)` makes an answer of either side comparable: arrays become lists, NaN becomes None,
and an error is its class and, for control tokens, the place that it names.
"""

import math
import os
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

import abut
from abut.errors import AbutError
from tests import reference

Outcome = tuple[str, Any]


class Trio:
    """One tokenizer.json, read by all three. `hf` is `tokenizers` itself."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.native = abut.Tokenizer.from_str(source)
        self.reference = reference.Tokenizer(source)
        self.hf = tokenizers.Tokenizer.from_str(source)

    def __repr__(self) -> str:  # what Hypothesis prints for a failure; small ones can be pasted
        source = self.source if len(self.source) < 50_000 else f"{self.source[:60]}…"
        return f"Trio({source!r})"


@cache
def real(name: str) -> Trio:
    folder = os.environ.get("ABUT_TOKENIZERS")
    if not folder:
        pytest.skip("ABUT_TOKENIZERS is not set: it is the folder with qwen3/ and mistral_v3/")
    return Trio((Path(folder) / name / "tokenizer.json").read_text(encoding="utf-8"))


def outcome(call: Callable[[], Any]) -> Outcome:
    try:
        return "value", plain(call())
    except AbutError as error:
        place = re.search(r"at character (\d+)", str(error))
        return type(error).__name__, place and int(place[1])


def plain(value: Any) -> Any:
    if hasattr(value, "canonical_ids"):
        fields = ("kind", "exact", "drop", "ids", "canonical_ids", "merge")
        # The reference has no windows: it encodes everything again.
        return {name: plain(getattr(value, name)) for name in fields} | {
            "kind": value.kind.replace("window", "opaque")
        }
    if hasattr(value, "merged_ids"):
        fields = ("left_ids", "right_ids", "merged_ids", "left_text", "right_text")
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
