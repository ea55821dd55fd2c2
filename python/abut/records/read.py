"""Reading records: JSON lines and Parquet, files and folders, each joined with its scores."""

import base64
import json
import os
from collections.abc import Container, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from abut.records.record import ROLLOUT, SCHEMA_VERSION, import_pyarrow
from abut.records.recorded_messages import read_message, read_turns
from abut.records.recorder import scores_path

_HINT = "hint: pass a .jsonl file written by JsonlRecorder, or a folder written by ParquetRecorder"

Path_: TypeAlias = str | os.PathLike[str]


class Source(NamedTuple):
    """Where one recorder wrote: a JSONL file, or a folder of Parquet files."""

    path: Path
    name: str
    """Its path below the folder that was passed, without `.jsonl`."""


def read_records(path: Path_ | Sequence[Path_]) -> Iterator[Mapping[str, Any]]:
    """Yield the records of a file, a folder, or several of them.

    A folder without Parquet files is searched for the records of several runs, at any depth. Each
    record has the fields of `docs/reference/records.md`; messages, `columns` and
    `control_spellings` are the values that were recorded, not text. `rewards`, `total`,
    `advantage`, `rows` and `padding_rows` come from the scores of the records and are None if
    there are none. Scores among the paths are skipped, and so is the part of a last line that a
    killed process left.

    Raises:
        ValueError: a line or file does not hold records; names it.
        FileNotFoundError: a path does not exist.
        MissingExtraError: a path is a folder of Parquet, and pyarrow is not installed.
    """
    return iter(RecordReader(path))


class RecordReader:
    """The records of a file, a folder, or several of them, one after the other.

    Attributes:
        sources: found so far; a record is of the last one.
    """

    def __init__(self, path: Path_ | Sequence[Path_]) -> None:
        self._paths = [path] if isinstance(path, str | os.PathLike) else list(path)
        self.sources: list[Source] = []
        self._bytes = self._read = 0.0

    @property
    def share(self) -> float:
        """The share of all bytes that has been read, from 0 to 1."""
        return self._read / self._bytes if self._bytes else 1.0

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        sources = list(find_sources(self._paths))
        self._bytes = sum(_size(file) for source in sources for file in _files(source.path))
        for source in sources:
            self.sources.append(source)
            scores = _scores(scores_path(source.path))
            for record, size in _rows(source.path):
                self._read += size
                if "completion_ids" not in record:
                    raise ValueError(
                        f"{source.path} holds scores, which abut reads together with their "
                        f"rollouts\n{_HINT}"
                    )
                yield from_record(record) | scores.get(record["rollout_id"], {})


def find_sources(
    paths: Sequence[Path_], *, known: Container[Path] | None = None
) -> Iterator[Source]:
    """Yield what holds the records of these paths; scores among the paths are skipped.

    Args:
        paths: files and folders.
        known: found before, so not opened again; what does not exist may then come later.

    Raises:
        ValueError: a folder holds no records.
    """
    several = list(map(named, paths))
    beside = {scores_path(one) for one in several}
    for one in several:
        # `runs/*` names records and their scores.
        if one in beside or (known is not None and not one.exists()):
            continue
        if not one.is_dir() or any(one.glob("*.parquet")):
            yield Source(one, one.name.removesuffix(".jsonl"))
            continue
        found = sorted(_sources_below(one, known or ()))
        if not found and known is None:
            raise ValueError(f"{one}: the folder has no records\n{_HINT}")
        for path in found:
            yield Source(path, path.relative_to(one).as_posix().removesuffix(".jsonl"))


def named(path: Path_) -> Path:
    """Return a path that ends in a name; `.` and `..` do not."""
    path = Path(path)
    return path.resolve() if path.name in ("", "..") else path


def _sources_below(folder: Path, known: Container[Path]) -> Iterator[Path]:
    """Yield the records below a folder; other files of these types are left out.

    Links to folders are not followed: a link such as `latest` would show its run twice.
    """
    with os.scandir(folder) as entries:
        for entry in entries:
            path = Path(entry.path)
            if entry.name.startswith(".") or entry.name.endswith((".scores", ".scores.jsonl")):
                continue
            if path in known:
                yield path
            elif entry.is_dir(follow_symlinks=False):
                if (file := next(path.glob("*.parquet"), None)) is None:
                    yield from _sources_below(path, known)
                elif "env_mask" in _columns(file):
                    yield path
            elif path.suffix == ".jsonl" and _begins_with_record(path):
                yield path


def _begins_with_record(path: Path) -> bool:
    with path.open("rb") as file:
        line = file.readline()
    try:
        return line.endswith(b"\n") and {"schema_version", "env_mask"} <= {*json.loads(line)}
    except (ValueError, TypeError):
        return False


def _columns(file: Path) -> Sequence[str]:
    pyarrow = import_pyarrow()
    try:
        names: Sequence[str] = pyarrow.parquet.read_schema(file).names
    except pyarrow.ArrowInvalid:
        return ()
    return names


def _scores(path: Path) -> dict[str, dict[str, Any]]:
    """Return the scores by rollout; the last ones if a rollout was scored several times."""
    if not path.exists():
        return {}
    return {row["rollout_id"]: scores_of(row) for row, _ in _rows(path)}


def scores_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that a record of scores adds to its rollout."""
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


def _rows(path: Path) -> Iterator[tuple[Mapping[str, Any], float]]:
    """Yield the rows of a source or of its scores, and how many bytes of it each takes."""
    if path.is_dir() or path.suffix == ".parquet":
        for file in _files(path):
            count, rows = parquet_rows(file)
            for row in rows:
                yield row, _size(file) / count
        return
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                yield parse_line(line, f"{path}:{number}"), len(line)
            except ValueError:
                if number > 1 and not line.endswith(b"\n"):
                    return  # a process was killed while it wrote, or still writes
                raise


def parquet_rows(
    file: Path, *, columns: Sequence[str] | None = None
) -> tuple[int, Generator[Mapping[str, Any]]]:
    """Return how many rows a file has, and the rows; only these columns of them.

    Raises:
        ValueError: the file holds no records.
    """
    pyarrow = import_pyarrow()
    try:
        parquet = pyarrow.parquet.ParquetFile(file)
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{file}: not a file of records: {error}\n{_HINT}") from None
    if "schema_version" not in (names := parquet.schema_arrow.names):
        parquet.close()
        raise ValueError(f"{file}: not a file of records\n{_HINT}")
    if columns is not None:
        columns = [name for name in columns if name in names]

    def rows() -> Generator[Mapping[str, Any]]:
        with parquet:
            for batch in parquet.iter_batches(batch_size=64, columns=columns):
                for row in batch.to_pylist():
                    _check_version(row["schema_version"], str(file))
                    yield row

    return parquet.metadata.num_rows, rows()


def parse_line(line: bytes, where: str) -> Mapping[str, Any]:
    """Return the row of a line of a JSONL file.

    Raises:
        ValueError: the line holds no record; names `where`.
    """
    try:
        row: Mapping[str, Any] = json.loads(line.decode("utf-8", "replace"))
        version = row["schema_version"]
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{where}: not a record of a rollout\n{_HINT}") from None
    _check_version(version, where)
    return row


def _files(path: Path) -> Sequence[Path]:
    return sorted(path.glob("*.parquet")) if path.is_dir() else [path]


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _check_version(version: Any, where: str) -> None:
    if version not in range(1, SCHEMA_VERSION + 1):
        raise ValueError(
            f"{where}: this version of abut reads schema_version 1 to {SCHEMA_VERSION}, not "
            f"{version!r}\nhint: pip install --upgrade abut"
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
    read["messages"] = [read_message(message) for message in record["messages"] or ()]
    read["columns"] = None if record["columns"] is None else json.loads(record["columns"])
    spelled = record["control_spellings"] or ()
    read["extras"] = json.loads(record.get("extras") or "{}")
    read["turns"] = read_turns(record["turns"], read["messages"])
    read["branches"] = [_UNNAMED | branch for branch in record["branches"] or ()]
    rewrites = record.get("client_rewrites") or ()
    read["tools"] = json.loads(record.get("tools") or "[]")
    for branch in read["branches"]:
        branch["streams"] = branch["streams"] or []
        branch["messages"] = [read_message(message) for message in branch["messages"] or ()]
        branch["turns"] = read_turns(branch["turns"], branch["messages"])
        tools = branch["tools"]
        branch["tools"] = read["tools"] if tools is None else json.loads(tools)
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
    "messages": [],
    "tools": None,
}


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
