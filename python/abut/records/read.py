"""Reading records, JSON lines and Parquet, files and folders, with the scores beside them."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from abut.records.record import SCHEMA_VERSION, from_record, import_pyarrow
from abut.records.recorder import scores_path

_HINT = "hint: pass a .jsonl file that JsonlRecorder wrote, or a folder of ParquetRecorder"


def read_records(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
) -> Iterator[Mapping[str, Any]]:
    """Yield the records of a file, a folder, or several of them.

    Each has the fields of `docs/records.md`; messages, `columns` and `control_spellings` are the
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
