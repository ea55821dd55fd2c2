"""Records of rollouts: one JSON object per line, everything that is needed to replay it.

Invariant: `prompt_ids + completion_ids` are the tokens that the engine saw and sampled, and
`env_mask`, `logprobs` and `completion_ids` are aligned.
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from abut.messages import json_copy
from abut.rollout.rollout import Rollout

SCHEMA_VERSION = 1


class Recorder(Protocol):
    """What keeps rollouts."""

    def write(self, rollout: Rollout, /, **extra: Any) -> None:
        """Keep one rollout; `extra` says which step and mode it belongs to."""
        ...


def to_record(rollout: Rollout, **extra: Any) -> dict[str, Any]:
    """Return the rollout as plain JSON values."""
    columns = rollout.columns
    return {
        "schema_version": SCHEMA_VERSION,
        "rollout_id": rollout.rollout_id,
        **extra,
        "prompt_ids": _list(columns.prompt_ids if columns else rollout.prompt_ids),
        "completion_ids": _list(columns.completion_ids) if columns else [],
        "env_mask": _list(columns.env_mask) if columns else [],
        "logprobs": [round(p, 6) for p in columns.logprobs.tolist()] if columns else [],
        "provenance": _list(rollout.provenance),
        "turns": [
            {
                "start": turn.start,
                "end": turn.end,
                "finish_reason": turn.finish_reason,
                "generate_s": round(turn.generate_s, 6),
                "env_s": round(turn.env_s, 6),
                "reward": turn.reward,
                "stop_token": turn.stop_token,
                "stop_string": turn.stop_string,
                "stop_inside": turn.stop_inside,
            }
            for turn in rollout.turns
        ],
        "seams": [{"kind": kind, "exact": exact} for kind, exact in rollout.seams],
        "messages": [json_copy(message) for message in rollout.messages],
        "control_spellings": rollout.control_spellings,
        "reward": rollout.reward,
        "stop_reason": rollout.stop_reason.value,
        "error": rollout.error,
        "attempts": rollout.attempts,
        "attempt_errors": rollout.attempt_errors,
        "attempt_tracebacks": rollout.attempt_tracebacks,
        "seconds": round(rollout.seconds, 6),
    }


class JsonlRecorder:
    """Appends one line per rollout to a file; its folder is made where it is missing.

    Each line is written with one call and flushed, so a record is whole or absent.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, rollout: Rollout, /, **extra: Any) -> None:
        """Append one rollout."""
        # JSON has no NaN or infinity: a record that holds one is a defect, not a value.
        line = json.dumps(
            to_record(rollout, **extra), ensure_ascii=False, allow_nan=False, default=str
        )
        with self.path.open("a", encoding="utf-8", errors="replace") as file:
            file.write(line + "\n")


def read_records(path: str | os.PathLike[str]) -> Iterator[Mapping[str, Any]]:
    """Yield the records of a file.

    Raises:
        ValueError: a line is no record; names the file and the line.
    """
    with Path(path).open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            try:
                record = json.loads(line)
                version = record["schema_version"]
            except (ValueError, KeyError, TypeError):
                raise ValueError(
                    f"{path}:{number}: not a record of a rollout\n"
                    "hint: pass a .jsonl file that JsonlRecorder wrote"
                ) from None
            if version != SCHEMA_VERSION:
                raise ValueError(
                    f"{path}:{number}: schema_version {version}, this abut reads {SCHEMA_VERSION}"
                )
            yield record


def _list(numbers: Any) -> list[int] | None:
    return None if numbers is None else np.asarray(numbers).tolist()
