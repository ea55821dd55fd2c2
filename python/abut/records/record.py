"""A rollout as a record, with everything that is needed to replay it, and the schema of records.

Invariant: `prompt_ids + completion_ids` are the tokens that the engine saw and sampled, and
`env_mask`, `logprobs` and `completion_ids` are aligned. Every record has every field, each always
of the same type or null, so a reader never has to guess; `docs/reference/records.md` explains each
field.
"""

import base64
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from abut._native import Columns
from abut.errors import MissingExtraError
from abut.images import ImageSpan
from abut.records.recorded_messages import (
    MESSAGE,
    TURN,
    json_of,
    portable,
    recorded_conversation,
    recorded_turns,
)
from abut.rollout.rollout import TEACHER_LOGPROBS, Rollout
from abut.samplers.sampler import VERSIONS

SCHEMA_VERSION = 3

Type: TypeAlias = "str | list[Any] | dict[str, Any]"
"""The name of an Arrow type, a list of one, or a struct."""

_COLUMNS: dict[str, Type] = {
    "prompt_ids": ["int32"],
    "completion_ids": ["int32"],
    "env_mask": ["uint8"],
    "logprobs": ["float32"],
    "provenance": ["uint8"],
    "versions": ["int32"],
    "teacher_logprobs": ["float32"],
    "streams": [{"name": "string", "dtype": "string", "shape": ["int32"], "data": "string"}],
}

_IMAGE: dict[str, Type] = {
    "hash": "string",
    "width": "int32",
    "height": "int32",
    "start": "int32",
    "end": "int32",
}

_DROPPED: dict[str, Type] = {
    "cause": "string",
    "hashes": ["string"],
    "image_tokens": "int32",
    "reread_tokens": "int32",
}

_BRANCH: dict[str, Type] = {
    **_COLUMNS,
    "cause": "string",
    "delivered": "bool_",
    "followed": "bool_",
    "name": "string",
    "session": "string",
    "reward": "float64",
    "trained": "bool_",
    "auxiliary": "bool_",
    "turns": [dict(TURN)],
    "before": ["float64"],
    "images": [_IMAGE],
    "messages": [dict(MESSAGE)],
    "tools": "string",
}

ROLLOUT: Mapping[str, Type] = {
    "schema_version": "int32",
    "run_id": "string",
    "rollout_id": "string",
    "time": "float64",
    "rank": "int32",
    "step": "int64",
    "mode": "string",
    "group": "int64",
    "place": "int32",
    "seed": "string",
    "episode_seed": "int64",
    "columns": "string",
    "tokenizer": "string",
    **_COLUMNS,
    "images": [_IMAGE],
    "turns": [dict(TURN)],
    "branches": [_BRANCH],
    "dropped_images": [_DROPPED],
    "teacher": "string",
    "name": "string",
    "session": "string",
    "row_reward": "float64",
    "row_trained": "bool_",
    "names": [{"session": "string", "name": "string"}],
    "given_rewards": [{"key": "string", "value": "float64"}],
    "seams": [{"kind": "string", "exact": "bool_"}],
    "messages": [dict(MESSAGE)],
    "tools": "string",
    "control_spellings": [{"token": "string", "count": "int64"}],
    "reward": "float64",
    "stop_reason": "string",
    "error": "string",
    "traceback": "string",
    "attempts": "int32",
    "attempt_errors": ["string"],
    "attempt_tracebacks": ["string"],
    "seconds": "float64",
    "extras": "string",
    "usage": [{"name": "string", "count": "int64"}],
    "client_rewrites": [{"rule": "string", "count": "int64"}],
}
"""The fields of a rollout."""

SCORES: Mapping[str, Type] = {
    "schema_version": "int32",
    "run_id": "string",
    "rollout_id": "string",
    "time": "float64",
    "rewards": [{"name": "string", "value": "float64"}],
    "total": "float64",
    "advantage": "float64",
    "rows": [{"row": "int32", "branch": "int32", "weight": "float64", "advantages": ["float64"]}],
    "padding_rows": "int32",
}
"""The fields of the scores that reward functions and the trainer gave to a rollout."""

TOGETHER = {"traceback": ("traceback", "attempt_tracebacks")}
"""Fields that `without=` leaves out together, under the name that it is given."""


def to_record(rollout: Rollout, **extra: Any) -> dict[str, Any]:
    """Return the rollout as plain JSON values, every field of `ROLLOUT` among them.

    Args:
        rollout: the rollout.
        **extra: fields that say where it belongs: `run_id`, `step`, `mode`, `group`, …; `columns`
            is the dataset's row, a mapping.

    Raises:
        TypeError: a name in `extra` is not a field of a record.
    """
    record = with_arrays(rollout, **extra)
    for of_branch in (record, *record["branches"]):
        of_branch |= {
            "prompt_ids": _list(of_branch["prompt_ids"]),
            "completion_ids": _list(of_branch["completion_ids"]),
            "env_mask": _list(of_branch["env_mask"]),
            "logprobs": _rounded(of_branch["logprobs"]),
            "teacher_logprobs": _rounded(of_branch["teacher_logprobs"]),
            "provenance": _list(of_branch["provenance"]),
            "versions": _list(of_branch["versions"]),
        }
    return record


def with_arrays(rollout: Rollout, **extra: Any) -> dict[str, Any]:
    """As `to_record`, but with the rollout's own arrays instead of lists of numbers."""
    if strange := sorted(extra.keys() - ROLLOUT.keys()):
        raise TypeError(
            f"{strange[0]!r} is not a field of a record\n"
            "hint: docs/reference/records.md lists the fields"
        )
    columns, row = rollout.columns, extra.pop("columns", None)
    traces = rollout.attempt_tracebacks
    of_branch = _columns(columns, rollout.provenance, rollout.streams)
    if columns is None:
        of_branch["prompt_ids"] = rollout.prompt_ids
    return dict.fromkeys(ROLLOUT) | {
        "schema_version": SCHEMA_VERSION,
        "rollout_id": rollout.rollout_id,
        "time": round(time.time(), 3),
        **extra,
        "columns": None if row is None else json_of(row),
        **of_branch,
        "images": _images(rollout.images),
        "turns": recorded_turns(rollout.turns, rollout.messages),
        "branches": [
            {
                **_columns(branch.columns, branch.provenance, branch.streams),
                "cause": branch.cause,
                "delivered": branch.delivered,
                "followed": branch.followed,
                "name": branch.name,
                "session": branch.session,
                "reward": branch.reward,
                "trained": branch.trained,
                "auxiliary": branch.auxiliary,
                "before": branch.before,
                "images": _images(branch.images),
                **recorded_conversation(branch, rollout.tools),
            }
            for branch in rollout.branches
        ],
        "dropped_images": [
            {
                "cause": dropped.cause,
                "hashes": [image.hash for image in dropped.images],
                "image_tokens": dropped.image_tokens,
                "reread_tokens": dropped.reread_tokens,
            }
            for dropped in rollout.dropped_images
        ],
        "teacher": rollout.teacher,
        "name": rollout.name,
        "session": rollout.session,
        "row_reward": rollout.row_reward,
        "row_trained": rollout.row_trained,
        "names": [{"session": session, "name": name} for session, name in rollout.names.items()],
        "given_rewards": [{"key": key, "value": value} for key, value in rollout.rewards.items()],
        "seams": _seams(rollout.seams),
        "messages": [portable(message) for message in rollout.messages],
        "tools": json_of(list(rollout.tools)) if rollout.tools else None,
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
        "extras": json_of(rollout.extras) if rollout.extras else None,
        "usage": [{"name": name, "count": count} for name, count in rollout.usage.items()],
        "client_rewrites": [
            {"rule": rule, "count": count} for rule, count in rollout.client_rewrites.items()
        ],
    }


def _seams(seams: Sequence[tuple[str, bool]]) -> list[dict[str, Any]]:
    # Records wait in a queue, and most of their seams are equal: these share one dict.
    made = {seam: {"kind": seam[0], "exact": seam[1]} for seam in seams}
    return [made[seam] for seam in seams]


def _images(images: Sequence[ImageSpan]) -> list[dict[str, Any]]:
    return [
        {
            "hash": span.image.hash,
            "width": span.image.width,
            "height": span.image.height,
            "start": span.start,
            "end": span.end,
        }
        for span in images
    ]


def _columns(
    columns: Columns | None, provenance: Any, streams: Mapping[str, NDArray[Any]]
) -> dict[str, Any]:
    """Return the columns of a branch; empty ones if nothing was sampled."""
    of_teacher = streams.get(TEACHER_LOGPROBS)
    return {
        "prompt_ids": columns.prompt_ids if columns else None,
        "completion_ids": columns.completion_ids if columns else [],
        "env_mask": columns.env_mask if columns else [],
        "logprobs": columns.logprobs if columns else [],
        "provenance": provenance,
        "versions": streams.get(VERSIONS),
        # JSON has no NaN, and `logprobs` has 0 there too.
        "teacher_logprobs": None if of_teacher is None else np.nan_to_num(of_teacher, nan=0.0),
        "streams": [
            _stream(name, values[columns.env_mask == 1])
            for name, values in streams.items()
            if columns is not None and name not in (VERSIONS, TEACHER_LOGPROBS)
        ],
    }


def _stream(name: str, values: NDArray[Any]) -> dict[str, Any]:
    """Return the values of the sampled tokens, which is all that a stream has."""
    little = values.astype(values.dtype.newbyteorder("<"), copy=False)
    return {
        "name": name,
        "dtype": little.dtype.str,
        "shape": list(values.shape),
        "data": base64.b64encode(little.tobytes()).decode("ascii"),
    }


def _rounded(logprobs: Any) -> list[float] | None:
    """Return logprobs as a line of JSON has them, half as long as with all their digits.

    Most float32 logprobs are less precise than six decimals.
    """
    return None if logprobs is None else np.asarray(logprobs, np.float64).round(6).tolist()


def _list(numbers: Sequence[int] | Any) -> list[int] | None:
    return None if numbers is None else np.asarray(numbers).tolist()


def arrow_schema(fields: Mapping[str, Type]) -> Any:
    """Return the schema of a Parquet file (`pyarrow.Schema`), for `datasets` and for pyarrow.

    Raises:
        MissingExtraError: pyarrow is not installed.
    """
    pyarrow = import_pyarrow()

    def of(type_: Type) -> Any:
        if isinstance(type_, str):
            return getattr(pyarrow, type_)()
        if isinstance(type_, list):
            return pyarrow.list_(of(type_[0]))
        return pyarrow.struct([(name, of(inner)) for name, inner in type_.items()])

    return pyarrow.schema([(name, of(type_)) for name, type_ in fields.items()])


def import_pyarrow() -> Any:
    """Return pyarrow, which `datasets` brings.

    Raises:
        MissingExtraError: pyarrow is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError(
            "records in Parquet need pyarrow: pip install 'abut[parquet]'\n"
            "hint: a path that ends in .jsonl does not need pyarrow"
        ) from error
    return pyarrow
