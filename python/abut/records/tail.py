"""Reading records while others write them: what is new in files that grow.

Invariant: a row is given out once, whole, with the location where it can be read again. A line that
has no newline yet waits for the next look.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from abut.records.read import parquet_rows, parse_line
from abut.records.record import ROLLOUT

_LIST_COLUMNS = sorted(
    ROLLOUT.keys()
    - {"messages", "tools", "columns", "logprobs", "provenance", "streams", "versions"}
    - {"teacher_logprobs", "traceback", "attempt_tracebacks", "images", "control_spellings"}
)
"""The columns that the list of a page needs; others of a Parquet file are not decompressed."""

_BEGINNING_BYTES = 512


class Location(NamedTuple):
    """The position of a row: a line of a JSONL file, or a row of a Parquet file."""

    path: Path
    at: int
    """The offset of the line in bytes, or the number of the row."""
    length: int
    """The bytes of the line; 0: the file is Parquet."""


class ReplacedError(Exception):
    """A file does not continue what was read of it: it was rotated, replaced or removed."""


class JsonlTail:
    """A file, and how far it has been read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._lines = 0
        self._id: tuple[int, int] | None = None
        self._seen: tuple[int, int] | None = None
        self._beginning = b""

    def waiting_bytes(self) -> int:
        """Return how many bytes were written since the last look.

        Raises:
            ReplacedError: the file is another one.
        """
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            if self._id is not None:
                raise ReplacedError from None
            return 0
        id_, seen = (stat.st_dev, stat.st_ino), (stat.st_size, stat.st_mtime_ns)
        if self._id not in (None, id_) or stat.st_size < self._read:
            raise ReplacedError
        if seen != self._seen and self._beginning:
            with self._path.open("rb") as file:
                if file.read(len(self._beginning)) != self._beginning:
                    raise ReplacedError
        self._id, self._seen = id_, seen
        return stat.st_size - self._read

    def rows(self) -> Iterator[tuple[Location, Mapping[str, Any]]]:
        """Yield the new rows.

        Raises:
            ValueError: a line holds no record; the next look begins at that line again.
            ReplacedError: the file is another one.
        """
        if not self.waiting_bytes():
            return
        with self._path.open("rb") as file:
            if not self._beginning:
                self._beginning = file.readline(_BEGINNING_BYTES)
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                row = parse_line(line, f"{self._path}:{self._lines + 1}")
                location = Location(self._path, self._read, len(line))
                self._read += len(line)
                self._lines += 1
                yield location, row


class ParquetTail:
    """A folder, and which of its files have been read."""

    def __init__(self, folder: Path, columns: Sequence[str] | None) -> None:
        self._folder = folder
        self._columns = columns
        self._done: dict[str, tuple[int, int]] = {}
        self._waiting: dict[str, tuple[int, int]] = {}

    def waiting_bytes(self) -> int:
        """Return how many bytes the new files have.

        Raises:
            ReplacedError: a file that was read is another one, or gone.
        """
        found: dict[str, tuple[int, int]] = {}
        if self._folder.is_file():  # one file that somebody named
            stat = self._folder.stat()
            found[""] = (stat.st_size, stat.st_mtime_ns)
        elif self._folder.is_dir():
            with os.scandir(self._folder) as entries:
                for entry in entries:
                    if entry.name.endswith(".parquet") and not entry.name.startswith("."):
                        stat = entry.stat()
                        found[entry.name] = (stat.st_size, stat.st_mtime_ns)
        if any(found.get(name) != seen for name, seen in self._done.items()):
            raise ReplacedError
        names = sorted(found.keys() - self._done.keys())
        self._waiting = {name: found[name] for name in names}
        return sum(size for size, _ in self._waiting.values())

    def rows(self) -> Iterator[tuple[Location, Mapping[str, Any]]]:
        """Yield the rows of new files, without the columns that nobody asked for.

        Raises:
            ValueError: a file holds no records; the next look begins at that file again.
            ReplacedError: a file that was read is another one, or gone.
        """
        self.waiting_bytes()
        for name, seen in self._waiting.items():
            path = self._folder / name
            _, rows = parquet_rows(path, columns=self._columns)
            # Noted before its rows are given out, so that none of them is given out twice.
            self._done[name] = seen
            for number, row in enumerate(rows):
                yield Location(path, number, 0), {**dict.fromkeys(ROLLOUT), **row}


def tail_of(path: Path, *, scores: bool = False) -> JsonlTail | ParquetTail:
    """Return the tail of a source, or of its scores."""
    if path.suffix == ".jsonl":
        return JsonlTail(path)
    return ParquetTail(path, None if scores else _LIST_COLUMNS)


def rows_at(locations: Iterable[Location]) -> Iterator[Mapping[str, Any]]:
    """Yield the whole rows at these locations; fastest if those of one file are in order.

    Raises:
        ValueError: there is no such row any more.
        FileNotFoundError: there is no such file any more.
    """
    with ExitStack() as opened:
        path: Path | None = None
        number = -1
        for location in locations:
            if location.path != path or (not location.length and location.at <= number):
                opened.close()
                path, number = location.path, -1
                if location.length:
                    file = opened.enter_context(path.open("rb"))
                else:
                    rows = parquet_rows(path)[1]
                    opened.callback(rows.close)
            if location.length:
                file.seek(location.at)
                line = file.read(location.length)
                yield parse_line(line, f"{path}, byte {location.at}")
                continue
            row = next(islice(rows, location.at - number - 1, None), None)
            if row is None:
                raise ValueError(f"{path} no longer has row {location.at}")
            number = location.at
            yield row
