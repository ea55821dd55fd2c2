"""A rollout as a record, and a record as it is read: everything that is needed to replay it.

Invariant: `prompt_ids + completion_ids` are the tokens that the engine saw and sampled, and
`env_mask`, `logprobs` and `completion_ids` are aligned.
"""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from abut._native import Columns
from abut.messages import Message, json_copy
from abut.records.schema import ROLLOUT, SCHEMA_VERSION
from abut.rollout.rollout import Rollout


def to_record(rollout: Rollout, **extra: Any) -> dict[str, Any]:
    """Return the rollout as plain JSON values, every field of `ROLLOUT` among them.

    Args:
        rollout: what came of it.
        **extra: fields that say where it belongs: `run_id`, `step`, `mode`, `group`, …; `columns`
            is the dataset's row, a mapping.

    Raises:
        TypeError: `extra` holds what is no field of a record.
    """
    record = with_arrays(rollout, **extra)
    for of_branch in (record, *record["branches"]):
        of_branch |= {
            "prompt_ids": _list(of_branch["prompt_ids"]),
            "completion_ids": _list(of_branch["completion_ids"]),
            "env_mask": _list(of_branch["env_mask"]),
            # Six decimals of nats are more than float32 has of most.
            "logprobs": np.asarray(of_branch["logprobs"], np.float64).round(6).tolist(),
            "provenance": _list(of_branch["provenance"]),
            "versions": _list(of_branch["versions"]),
        }
    return record


def with_arrays(rollout: Rollout, **extra: Any) -> dict[str, Any]:
    """As `to_record`, with the rollout's own arrays in the place of lists of numbers."""
    if strange := sorted(extra.keys() - ROLLOUT.keys()):
        raise TypeError(
            f"{strange[0]!r} is no field of a record\nhint: docs/records.md has those that are"
        )
    columns, row = rollout.columns, extra.pop("columns", None)
    traces = rollout.attempt_tracebacks
    of_branch = _columns(columns, rollout.provenance, rollout.versions)
    if columns is None:
        of_branch["prompt_ids"] = rollout.prompt_ids
    return dict.fromkeys(ROLLOUT) | {
        "schema_version": SCHEMA_VERSION,
        "rollout_id": rollout.rollout_id,
        "time": round(time.time(), 3),
        **extra,
        "columns": None if row is None else _json(row),
        **of_branch,
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
                "model_version": turn.model_version,
                "newest_version": turn.newest_version,
            }
            for turn in rollout.turns
        ],
        "branches": [
            {
                **_columns(branch.columns, branch.provenance, branch.versions),
                "cause": branch.cause,
                "delivered": branch.delivered,
            }
            for branch in rollout.branches
        ],
        "seams": [{"kind": kind, "exact": exact} for kind, exact in rollout.seams],
        "messages": [_portable(message) for message in rollout.messages],
        "tools": _json(list(rollout.tools)) if rollout.tools else None,
        "control_spellings": [
            {"token": token, "count": count} for token, count in rollout.control_spellings.items()
        ],
        "reward": rollout.reward,
        "stop_reason": rollout.stop_reason.value,
        "error": rollout.error,
        "traceback": traces[-1] if rollout.failed and traces else None,
        "attempts": rollout.attempts,
        "attempt_errors": rollout.attempt_errors,
        "attempt_tracebacks": traces,
        "seconds": round(rollout.seconds, 6),
        "extras": _json(rollout.extras) if rollout.extras else None,
        "client_rewrites": [
            {"rule": rule, "count": count} for rule, count in rollout.client_rewrites.items()
        ],
    }


def score_record(
    run_id: str,
    rollout_id: str,
    rewards: Mapping[str, float | None],
    *,
    total: float | None,
    advantage: float | None = None,
) -> dict[str, Any]:
    """Return the record of the scores of one rollout.

    Args:
        run_id: of the run that the rollout belongs to.
        rollout_id: of the rollout.
        rewards: of each reward function, by name; None: it gave none.
        total: their sum as the trainer weighs them; None: no function gave a reward.
        advantage: None where the trainer made none of it.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": run_id,
        "rollout_id": rollout_id,
        "time": round(time.time(), 3),
        "rewards": [{"name": name, "value": value} for name, value in rewards.items()],
        "total": total,
        "advantage": advantage,
    }


def total_of(record: Mapping[str, Any]) -> float | None:
    """The reward that the trainer took of a record, or the environment's if nothing is scored."""
    total: float | None = record["reward"] if record.get("rewards") is None else record.get("total")
    return total


def from_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record as `read_records` yields it: messages, columns and spellings as they were."""
    read = {**record, "rewards": None, "total": None, "advantage": None}
    if read["schema_version"] == 1:
        read = dict.fromkeys(ROLLOUT) | read
        read["branches"], read["attempt_tracebacks"] = [], read["attempt_tracebacks"] or []
        return read
    read["messages"] = [_message(message) for message in record["messages"] or ()]
    read["columns"] = None if record["columns"] is None else json.loads(record["columns"])
    spelled = record["control_spellings"] or ()
    read["extras"] = json.loads(record.get("extras") or "{}")
    rewrites = record.get("client_rewrites") or ()
    read["tools"] = json.loads(record.get("tools") or "[]")
    read.setdefault("versions", None)
    read["client_rewrites"] = {entry["rule"]: entry["count"] for entry in rewrites}
    read["control_spellings"] = {entry["token"]: entry["count"] for entry in spelled}
    return read


def _columns(columns: Columns | None, provenance: Any, versions: Any) -> dict[str, Any]:
    """The columns of a branch; empty ones where nothing was sampled."""
    return {
        "prompt_ids": columns.prompt_ids if columns else None,
        "completion_ids": columns.completion_ids if columns else [],
        "env_mask": columns.env_mask if columns else [],
        "logprobs": columns.logprobs if columns else [],
        "provenance": provenance,
        "versions": versions if len(versions) else None,
    }


_ROLE_AND_TEXT = {"role", "content"}


def _portable(message: Message) -> dict[str, Any]:
    """A message in three texts, whatever it holds: so all messages have one type."""
    if message.keys() == _ROLE_AND_TEXT and isinstance(message["content"], str):
        return {**message, "extra": None}
    rest = json_copy(message)
    role, content = rest.pop("role", None), rest.get("content")
    if isinstance(content, str):
        del rest["content"]
    return {
        "role": role,
        "content": content if isinstance(content, str) else None,
        "extra": _json(rest) if rest else None,
    }


def _message(portable: Mapping[str, Any]) -> Message:
    message: Message = {"role": portable["role"]}
    if portable["content"] is not None:
        message["content"] = portable["content"]
    return message | (json.loads(portable["extra"]) if portable["extra"] else {})


def _json(value: Any) -> str:
    """As JSON; ASCII, so that half a surrogate pair survives as well."""
    return json.dumps(json_copy(value), allow_nan=False)


def _list(numbers: Sequence[int] | Any) -> list[int] | None:
    return None if numbers is None else np.asarray(numbers).tolist()
