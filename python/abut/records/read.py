"""Reading records, JSON lines and Parquet, files and folders, with the scores beside them."""

import base64
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abut.messages import Message
from abut.records.record import ROLLOUT, SCHEMA_VERSION, import_pyarrow
from abut.records.recorder import scores_path

_HINT = "hint: pass a .jsonl file that JsonlRecorder wrote, or a folder of ParquetRecorder"


def read_records(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
) -> Iterator[Mapping[str, Any]]:
    """Yield the records of a file, a folder, or several of them.

    Each has the fields of `docs/how-to/records.md`; messages, `columns` and `control_spellings` are
    the
    values that were recorded, not text. `rewards`, `total`, `advantage`, `rows` and `padding_rows`
    come from the scores beside the records and are None if there are none. Scores among the paths
    are skipped, and so is the part of a last line that a killed process left.

    Raises:
        ValueError: a line or file does not hold records; names it.
        FileNotFoundError: a path does not exist.
        MissingExtraError: a path is a folder, and pyarrow is not installed.
    """
    several = list(map(Path, [path] if isinstance(path, str | os.PathLike) else path))
    beside = {scores_path(one) for one in several}
    for one in several:
        if one in beside:  # `runs/*` names records and their scores
            continue
        scores = _scores(scores_path(one))
        for record in _rows(one):
            if "completion_ids" not in record:
                raise ValueError(
                    f"{one}: holds scores, which are read with their rollouts\n{_HINT}"
                )
            yield from_record(record) | scores.get(record["rollout_id"], {})


def _scores(path: Path) -> dict[str, dict[str, Any]]:
    """Return the scores by rollout; the last ones if a rollout was scored several times."""
    if not path.exists():
        return {}
    return {row["rollout_id"]: _scores_of(row) for row in _rows(path)}


def _scores_of(row: Mapping[str, Any]) -> dict[str, Any]:
    rewards = {entry["name"]: entry["value"] for entry in row["rewards"]}
    known = [value for value in rewards.values() if value is not None]
    total = row.get("total")
    # Older records have no total. TRL weighs all reward functions the same by default.
    if total is None and known:
        total = sum(known)
    # Older scores have no rows.
    return {
        "rewards": rewards,
        "total": total,
        "advantage": row["advantage"],
        "rows": row.get("rows"),
        "padding_rows": row.get("padding_rows"),
    }


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    if path.is_dir() or path.suffix == ".parquet":
        yield from _parquet_rows(path)
    else:
        yield from _json_rows(path)


def _parquet_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    pyarrow = import_pyarrow()
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not files:
        raise ValueError(f"{path}: no records, the folder has no Parquet file\n{_HINT}")
    for file in files:
        try:
            parquet = pyarrow.parquet.ParquetFile(file)
        except pyarrow.ArrowInvalid as error:
            raise ValueError(f"{file}: not a file of records: {error}\n{_HINT}") from None
        with parquet:
            if "schema_version" not in parquet.schema_arrow.names:
                raise ValueError(f"{file}: not a file of records\n{_HINT}")
            for batch in parquet.iter_batches(batch_size=64):
                for row in batch.to_pylist():
                    _check_version(row["schema_version"], str(file))
                    yield row


def _json_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line)
                version = row["schema_version"]
            except (ValueError, KeyError, TypeError):
                if number > 1 and not line.endswith("\n"):
                    return  # a process was killed while it wrote, or still writes
                raise ValueError(f"{path}:{number}: not a record of a rollout\n{_HINT}") from None
            _check_version(version, f"{path}:{number}")
            yield row


def _check_version(version: Any, where: str) -> None:
    if version not in range(1, SCHEMA_VERSION + 1):
        raise ValueError(
            f"{where}: schema_version {version!r}, this abut reads 1 to {SCHEMA_VERSION}\n"
            "hint: pip install --upgrade abut"
        )


def from_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record as `read_records` yields it: messages, columns and spellings as they were."""
    read = {**_UNNAMED_ROW, **record}
    read["streams"] = read["streams"] or []
    read |= {"rewards": None, "total": None, "advantage": None, "rows": None, "padding_rows": None}
    read["names"] = {one["session"]: one["name"] for one in record.get("names") or ()}
    read["given_rewards"] = {one["key"]: one["value"] for one in record.get("given_rewards") or ()}
    read["usage"] = {one["name"]: one["count"] for one in record.get("usage") or ()}
    if read["schema_version"] == 1:
        read = dict.fromkeys(ROLLOUT) | read
        read["branches"], read["attempt_tracebacks"] = [], read["attempt_tracebacks"] or []
        return read
    read["messages"] = [_message(message) for message in record["messages"] or ()]
    read["columns"] = None if record["columns"] is None else json.loads(record["columns"])
    spelled = record["control_spellings"] or ()
    read["extras"] = json.loads(record.get("extras") or "{}")
    read["turns"] = [{"answer_id": None} | turn for turn in record["turns"] or ()]
    read["branches"] = [_UNNAMED | branch for branch in record["branches"] or ()]
    for branch in read["branches"]:
        branch["streams"] = branch["streams"] or []
    rewrites = record.get("client_rewrites") or ()
    read["tools"] = json.loads(record.get("tools") or "[]")
    read["client_rewrites"] = {entry["rule"]: entry["count"] for entry in rewrites}
    read["control_spellings"] = {entry["token"]: entry["count"] for entry in spelled}
    return read


# Records of version 2 have no names, images and streams, and of other branches no turns.
_UNSTREAMED: dict[str, Any] = {"versions": None, "teacher_logprobs": None, "streams": None}
_UNNAMED_ROW: dict[str, Any] = {
    **_UNSTREAMED,
    "teacher": None,
    "name": None,
    "session": None,
    "row_reward": None,
    "row_trained": True,
    "images": [],
    "dropped_images": [],
}
_UNNAMED: dict[str, Any] = {
    **_UNSTREAMED,
    "followed": None,
    "name": None,
    "session": None,
    "reward": None,
    "trained": True,
    "auxiliary": False,
    "turns": [],
    "before": [],
    "images": [],
}


def _message(portable: Mapping[str, Any]) -> Message:
    message: Message = {"role": portable["role"]}
    if portable["content"] is not None:
        message["content"] = portable["content"]
    return message | (json.loads(portable["extra"]) if portable["extra"] else {})


def recorded_streams(of: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Return the arrays in the field `streams` of a record, or of one of its branches, by name.

    Each is `(S, …)`: the values of the S tokens that were sampled, those where `env_mask` is 1.
    """
    return {
        stream["name"]: np.frombuffer(
            base64.b64decode(stream["data"]), np.dtype(stream["dtype"])
        ).reshape(stream["shape"])
        for stream in of["streams"]
    }
