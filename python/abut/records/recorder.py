"""Recorders: they write rollouts as JSON lines or as a folder of Parquet files.

Invariant: whenever the writing process is killed, a reader sees whole lines and whole files, and at
most one last line without its newline.
"""

import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from abut.pickling import stays
from abut.records.record import (
    ROLLOUT,
    SCORES,
    Type,
    arrow_schema,
    import_pyarrow,
    to_record,
    with_arrays,
)
from abut.rollout.rollout import Rollout

Path_ = str | os.PathLike[str]


class Recorder(Protocol):
    """Keeps rollouts. One may do more: see `FlushingRecorder` and `ScoreRecorder`."""

    def write(self, rollout: Rollout, /, **extra: Any) -> None:
        """Keep one rollout; `extra` says where it belongs, in fields of a record."""
        ...


@runtime_checkable
class FlushingRecorder(Protocol):
    """A recorder that writes rollouts together."""

    def flush(self) -> None:
        """Write what waits: a batch is over."""
        ...


@runtime_checkable
class ScoreRecorder(Protocol):
    """A recorder that keeps scores as well, which are known later than their rollouts."""

    def write_scores(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Keep scores of rollouts that were written before.

        docs/reference/records.md lists their fields.
        """
        ...


def recorder_at(path: Path_) -> "JsonlRecorder | ParquetRecorder":
    """Return the recorder for a path: JSON lines if it ends in `.jsonl`, else a folder of Parquet.

    Raises:
        MissingExtraError: the path is a folder, and pyarrow is not installed.
    """
    return JsonlRecorder(path) if Path(path).suffix == ".jsonl" else ParquetRecorder(path)


def scores_path(path: Path_) -> Path:
    """Return the path of the scores that belong to the records at `path`."""
    path = Path(path)
    if path.suffix == ".jsonl":
        return path.with_suffix(".scores.jsonl")
    return path.with_name(f"{path.name}.scores")


class JsonlRecorder:
    """Appends one line for each rollout to a file; creates the file's folder if needed.

    Several processes may share the file. The part of a line that a killed process left is cut off
    before the next line is written.
    """

    def __init__(self, path: Path_) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, rollout: Rollout, /, **extra: Any) -> None:
        """Append one rollout.

        Raises:
            TypeError: a name in `extra` is not a field of a record.
            ValueError: a number of the rollout is NaN or infinite, which JSON cannot express.
        """
        _append(self.path, [to_record(rollout, **extra)])

    def write_scores(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Append scores to the file of scores."""
        _append(scores_path(self.path), records)


@stays("it holds unwritten rollouts", hint="create one with the same path in the other process")
class ParquetRecorder:
    """Writes a folder of Parquet files: one for each batch that is flushed, whole or absent.

    Rollouts that belong to no step are also written without a flush, as soon as
    `rollouts_per_file` of them wait or the first has waited for `seconds_per_file`.
    """

    def __init__(
        self, path: Path_, *, rollouts_per_file: int = 256, seconds_per_file: float = 60.0
    ) -> None:
        """Create the folder if it is missing.

        Args:
            path: the folder.
            rollouts_per_file: how many rollouts without a step are written together.
            seconds_per_file: how long a rollout without a step may wait for others.

        Raises:
            MissingExtraError: pyarrow is not installed.
            ValueError: `path` is a file, or a limit is not above 0.
        """
        import_pyarrow()
        if rollouts_per_file < 1 or not seconds_per_file > 0:
            raise ValueError(
                f"rollouts_per_file={rollouts_per_file!r}, seconds_per_file={seconds_per_file!r}: "
                "expected at least 1 rollout, and more than 0 seconds"
            )
        self.path = Path(path)
        if self.path.is_file():
            raise ValueError(
                f"{self.path} is a file, but Parquet records need a folder\n"
                "hint: name a folder, or a file that ends in .jsonl for JSON lines"
            )
        self.path.mkdir(parents=True, exist_ok=True)
        self._rollouts_per_file = rollouts_per_file
        self._seconds_per_file = seconds_per_file
        self._lock = threading.Lock()
        self._waiting: list[dict[str, Any]] = []
        self._files = 0
        self._timer: threading.Timer | None = None

    def write(self, rollout: Rollout, /, **extra: Any) -> None:
        """Keep one rollout for the next file.

        Raises:
            TypeError: a name in `extra` is not a field of a record.
            FileExistsError: as `flush`.
        """
        record = with_arrays(rollout, **extra)
        with self._lock:
            self._waiting.append(record)
            if record["step"] is not None:
                return
            full = len(self._waiting) >= self._rollouts_per_file
            if not full and self._timer is None:
                self._timer = threading.Timer(self._seconds_per_file, self.flush)
                self._timer.daemon = True
                self._timer.start()
        if full:
            self.flush()

    def flush(self) -> None:
        """Write the rollouts that wait to a new file.

        Raises:
            FileExistsError: a file of that name exists.
        """
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._waiting:
                path = self.path / self._name(self._waiting[0])
                _write_file(path, self._waiting, ROLLOUT)
                self._waiting = []  # only now, so that a failed write is tried again

    def write_scores(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Write a file of scores, in a folder next to this one.

        Raises:
            FileExistsError: a file of that name exists.
        """
        if not records:
            return
        with self._lock:
            folder = scores_path(self.path)
            folder.mkdir(exist_ok=True)
            name = f"{_slug(records[0]['rollout_id'])}.parquet"
            _write_file(folder / name, records, SCORES)

    def _name(self, first: Mapping[str, Any]) -> str:
        """Return a file name that sorts by step, or by time if the rollouts have no step."""
        self._files += 1
        when = f"{int(first['time']):012d}" if first["step"] is None else f"{first['step']:08d}"
        rank = first["rank"] or 0
        run = _slug(first["run_id"] or f"pid{os.getpid()}")
        return f"{when}-{first['mode'] or 'play'}-{run}-rank{rank:04d}-{self._files:06d}.parquet"


@stays("it writes on a thread of this process", hint="make one there, of the same path")
class BackgroundRecorder:
    """Writes with a recorder on a thread of its own, so that training does not wait for the disk.

    Records are written in the order in which they were handed over, before the process ends. If a
    write fails, the next call raises the error.
    """

    def __init__(self, recorder: JsonlRecorder | ParquetRecorder) -> None:
        self._recorder = recorder
        # At exit the interpreter waits for the threads of a pool, so nothing is lost.
        self._pool = ThreadPoolExecutor(1, "abut-records")
        self._batch: list[tuple[Rollout, dict[str, Any]]] = []
        self._last: Future[None] | None = None

    def write(self, rollout: Rollout, /, **extra: Any) -> None:
        """Keep one rollout of the batch; the caller must not change it any more."""
        self._batch.append((rollout, extra))

    def flush(self) -> None:
        """Write the batch in the background.

        Raises:
            OSError: an earlier batch could not be written.
        """
        batch, self._batch = self._batch, []
        self._then(lambda: self._write(batch))

    def write_scores(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Write scores in the background.

        Raises:
            OSError: an earlier batch could not be written.
        """
        self._then(lambda: self._recorder.write_scores(records))

    def wait(self) -> None:
        """Wait until everything is written.

        Raises:
            OSError: something could not be written.
        """
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def _write(self, batch: Sequence[tuple[Rollout, dict[str, Any]]]) -> None:
        errors: list[Exception] = []
        for rollout, extra in batch:
            try:
                self._recorder.write(rollout, **extra)
            except (TypeError, ValueError) as error:  # only of this rollout: go on with the rest
                errors.append(error)
        if isinstance(self._recorder, ParquetRecorder):
            self._recorder.flush()
        if errors:
            raise errors[0]

    def _then(self, write: Callable[[], None]) -> None:
        before = self._last
        if before is not None and before.done():
            self._last = None
            before.result()
            before = None

        def after() -> None:
            if before is not None:
                before.result()  # raises its error, which this write then hands on
            write()

        self._last = self._pool.submit(after)


def _slug(text: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in text)


def _append(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Append whole lines to a file that ends in a whole line."""
    # JSON has no NaN or infinity, and a record that holds one is a bug to report.
    lines = [json.dumps(r, ensure_ascii=False, allow_nan=False, default=str) for r in records]
    data = "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")
    with path.open("a+b", buffering=0) as file, _locked(file):
        end = file.seek(0, os.SEEK_END)
        if end and _byte_before(file, end) != b"\n":
            file.truncate(_last_line(file, end))
        # One call writes everything unless the disk is full; then the next call raises.
        while data:
            data = data[file.write(data) :]


def _last_line(file: Any, end: int) -> int:
    """Return the offset at which the last line begins."""
    while end > 0:
        begin = max(0, end - 65536)
        file.seek(begin)
        if (found := file.read(end - begin).rfind(b"\n")) >= 0:
            return int(begin + found + 1)
        end = begin
    return 0


def _byte_before(file: Any, end: int) -> bytes:
    file.seek(end - 1)
    return bytes(file.read(1))


class _locked:
    """Holds the lock of a file that processes share; does nothing where there are no locks."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def __enter__(self) -> None:
        self._do("LOCK_EX")

    def __exit__(self, *_: object) -> None:
        self._do("LOCK_UN")

    def _do(self, what: str) -> None:
        with suppress(ImportError, OSError):  # Windows, and file systems without locks
            import fcntl

            fcntl.flock(self._file, getattr(fcntl, what))


def _write_file(
    path: Path, records: Sequence[Mapping[str, Any]], fields: Mapping[str, Type]
) -> None:
    pyarrow = import_pyarrow()
    schema = arrow_schema(fields)
    try:
        table = _table(records, schema)
    except UnicodeEncodeError:  # half a surrogate pair
        table = _table(_each_text(list(records), _whole), schema)
    # Under a hidden name, so that a reader of the folder skips it until it is complete.
    begun = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with begun.open("xb") as file:
            pyarrow.parquet.write_table(table, file, compression="zstd")
        _publish(begun, path)
    finally:
        begun.unlink(missing_ok=True)


def _table(records: Sequence[Mapping[str, Any]], schema: Any) -> Any:
    pyarrow = import_pyarrow()
    columns = []
    for field in schema:
        values = [record.get(field.name) for record in records]
        if any(isinstance(value, np.ndarray) for value in values):
            columns.append(_list_column(values, field.type))
        else:
            columns.append(pyarrow.array(values, type=field.type))
    return pyarrow.Table.from_arrays(columns, schema=schema)


def _list_column(values: Sequence[Any], type_: Any) -> Any:
    """Return a column of lists of numbers, without a Python object for each number."""
    pyarrow = import_pyarrow()
    lengths = [0 if value is None else len(value) for value in values]
    ends = np.cumsum([0, *lengths]).tolist()
    # Arrow marks a list as null by a null offset.
    begins = [None if value is None else end for value, end in zip(values, ends, strict=False)]
    arrays = [np.asarray(value) for value in values if value is not None and len(value)]
    numbers = pyarrow.array(np.concatenate(arrays), type=type_.value_type)
    offsets = pyarrow.array([*begins, ends[-1]], type=pyarrow.int32())
    return pyarrow.ListArray.from_arrays(offsets, numbers, type=type_)


def _publish(begun: Path, path: Path) -> None:
    """Give a file its final name, unless a file of that name exists."""
    try:
        os.link(begun, path)
    except FileExistsError:
        raise FileExistsError(
            f"{path} already exists; abut has not changed it\n"
            "hint: let each run write into a separate folder"
        ) from None
    except OSError:  # a file system without links
        if path.exists():
            raise FileExistsError(f"{path} already exists; abut has not changed it") from None
        begun.rename(path)


def _whole(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_each_text(item, change) for item in value]
    if isinstance(value, dict):
        return {key: _each_text(item, change) for key, item in value.items()}
    return value
