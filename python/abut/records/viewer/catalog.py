"""The rollouts of records that grow: their list in batches, and each of them when it is asked for.

Invariant: a rollout keeps its number, and a batch what it says, as long as the epoch is the same.
Each look reads only what was written since the last one; if a file was replaced, everything is read
again and the epoch is another one.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from abut.errors import AbutError
from abut.records.export import export
from abut.records.filter import parse_filter
from abut.records.read import Path_, Source, find_sources, from_record, scores_of
from abut.records.recorder import scores_path
from abut.records.tail import (
    JsonlTail,
    Location,
    ParquetTail,
    ReplacedError,
    rows_at,
    tail_of,
)
from abut.records.viewer.packed import (
    Chunk,
    Pieces,
    add_row,
    block,
    row_of_list,
    scores_in_list,
)
from abut.records.viewer.page import pieces_of, source_names
from abut.records.viewer.pictures import Pictures

_BATCH_ROWS = 2048
_SENT_BYTES = 2_000_000
"""A browser draws the first of a long list while it waits for the rest."""

_TOKENIZERS = 8


@dataclass
class _Tails:
    """A source and what is new in it."""

    source: Source
    rollouts: JsonlTail | ParquetTail
    scores: JsonlTail | ParquetTail


@dataclass
class _Epoch:
    """The state of the catalog since a file was replaced the last time."""

    number: int
    tails: list[_Tails] = field(default_factory=list)
    batches: list[bytes] = field(default_factory=list)
    locations: list[Location] = field(default_factory=list)
    scored: dict[int, Location] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    early: dict[str, tuple[Location, Mapping[str, Any]]] = field(default_factory=dict)
    """The scores of rollouts that have not been read yet."""


class Catalog:
    """The rollouts of files and folders that others write.

    Args:
        paths: files, folders of one run, or of several.
        without: fields that no page gets.
        tokenizer: None: the one that each record names.
        images: the folder of `record_images`; None: no pictures are shown.
    """

    def __init__(
        self,
        paths: Sequence[Path_],
        *,
        without: Sequence[str] = (),
        tokenizer: str | None = None,
        images: Path | None = None,
    ) -> None:
        self._paths = paths
        self._without = without
        self._asked = tokenizer
        self._images = images
        self._tables: dict[str | None, Pieces] = {}
        self._changed = threading.Condition()
        self._epoch = _Epoch(1)
        self._version = 0
        self._share = 0.0
        self._troubles: list[str] = []
        self._closed = False
        self._loading = threading.Lock()
        self._shown({})  # an unknown field is an error at once
        if tokenizer is not None:  # one that cannot be loaded is an error at once
            self._pieces(tokenizer)

    # ---- looking

    def look(self) -> Sequence[str]:
        """Read what was written since the last look; return why files could not be read."""
        try:
            self._look(self._epoch)
        except ReplacedError:
            with self._changed:
                self._epoch = _Epoch(self._epoch.number + 1)
                self._share = 0.0
            with suppress(ReplacedError):  # again already: the next look sees to it
                self._look(self._epoch)
        return self._troubles

    def _look(self, epoch: _Epoch) -> None:
        troubles: list[str] = []
        try:
            self._find(epoch)
        except (AbutError, OSError) as error:
            troubles.append(str(error))
        whole = sum(tails.rollouts.waiting_bytes() for tails in epoch.tails)
        for number, tails in enumerate(epoch.tails):
            for batches in self._rollouts(epoch, number), self._scores(epoch, tails):
                try:
                    for batch in batches:
                        if self._share < 1:
                            rest = sum(other.rollouts.waiting_bytes() for other in epoch.tails)
                            self._share = min(max(0.0, 1 - rest / (whole or 1)), 0.99)
                        self._publish(epoch, batch)
                except (AbutError, ValueError, OSError) as error:
                    troubles.append(str(error))
        if (self._share, self._troubles) != (1.0, troubles):
            self._share, self._troubles = 1.0, troubles
            self._publish(epoch)

    def _find(self, epoch: _Epoch) -> None:
        known = {tails.source.path for tails in epoch.tails}
        sources = list(find_sources(self._paths, known=known))
        if known - {source.path for source in sources}:
            raise ReplacedError
        for source in sources:
            if source.path not in known:
                scores = tail_of(scores_path(source.path), scores=True)
                epoch.tails.append(_Tails(source, tail_of(source.path), scores))

    def _publish(self, epoch: _Epoch, *batches: bytes) -> None:
        with self._changed:
            epoch.batches += batches
            self._version += 1
            self._changed.notify_all()

    def _rollouts(self, epoch: _Epoch, number: int) -> Iterator[bytes]:
        columns: dict[str, list[Any]] = {}
        scored: dict[int, tuple[Location, Mapping[str, Any]]] = {}
        unread: Exception | None = None
        try:
            for location, row in epoch.tails[number].rollouts.rows():
                if "completion_ids" not in row:
                    raise ValueError(f"{location.path} holds scores, not rollouts")
                record = self._shown(from_record(row))
                add_row(columns, row_of_list(record) | {"source": number})
                id_ = record["rollout_id"]
                epoch.numbers[id_] = len(epoch.locations)
                if id_ in epoch.early:
                    scored[len(epoch.locations)] = epoch.early.pop(id_)
                epoch.locations.append(location)
                if len(columns["rollout_id"]) >= _BATCH_ROWS:
                    yield block({"rollouts": columns})
                    columns = {}
        except (AbutError, ValueError, OSError) as error:  # what came before it is shown
            unread = error
        if columns:
            yield block({"rollouts": columns})
        if scored:
            yield self._scored(epoch, scored)
        if unread is not None:
            raise unread

    def _scores(self, epoch: _Epoch, tails: _Tails) -> Iterator[bytes]:
        found: dict[int, tuple[Location, Mapping[str, Any]]] = {}
        for location, row in tails.scores.rows():
            number = epoch.numbers.get(row["rollout_id"])
            if number is None:
                epoch.early[row["rollout_id"]] = location, row
            else:
                found[number] = location, row
        if found:
            yield self._scored(epoch, found)

    def _scored(
        self, epoch: _Epoch, found: Mapping[int, tuple[Location, Mapping[str, Any]]]
    ) -> bytes:
        columns: dict[str, list[Any]] = {}
        for number, (location, row) in found.items():
            epoch.scored[number] = location
            scores = self._shown(scores_of(row))
            known = scores_in_list(scores)
            if "rewards" not in scores:  # left out: the total is still the environment's reward
                known = {"advantage": known["advantage"]}
            add_row(columns, {"index": number} | known)
        return block({"scored": columns})

    def _shown(self, record: Mapping[str, Any]) -> dict[str, Any]:
        return next(export([record], "records", without=self._without))

    # ---- answering

    def changes(self, epoch: int, after: int, version: int, wait_s: float) -> list[bytes]:
        """Return the news for a page: a block of facts, and batches of the list.

        Args:
            epoch: the one that the page knows, 0 for none; of another one it gets everything.
            after: how many batches the page has.
            version: of the last answer; if nothing is new since, this one waits.
            wait_s: how long to wait at most.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._version != version, wait_s)
            now = self._epoch
            behind = now.batches[after if now.number == epoch else 0 :]
            size = 0
            sent: list[bytes] = []
            for batch in behind:
                if sent and size + len(batch) > _SENT_BYTES:
                    break
                sent.append(batch)
                size += len(batch)
            facts = {
                "epoch": now.number,
                "sources": source_names([tails.source for tails in now.tails]),
                "share": self._share,
                # One that is not the last is asked again without a wait.
                "version": self._version if len(sent) == len(behind) else -1,
                "troubles": self._troubles,
            }
        return [block(facts), *sent]

    def rollout(self, epoch: int, index: int) -> list[bytes]:
        """Return the blocks of one rollout: the table of its tokens, the tokens, its pictures.

        Raises:
            LookupError: there is no such rollout, or not in this epoch.
            ValueError: the file no longer has it.
            OSError: the file cannot be read.
        """
        now = self._of(epoch)
        (record,) = self._records(now, [index])
        source = self._asked or record.get("tokenizer")
        known = self._pieces(source)
        pieces = Pieces(source, known.tokenizer, known.trouble)
        chunk, pictures = Chunk(), Pictures(self._images)
        chunk.add(record, pieces)
        pictures.add(record)
        return [block(*pieces.packed()), chunk.packed(), pictures.together()]

    def search(
        self, epoch: int, first: int, last: int, where: str, wanted: Callable[[], bool]
    ) -> list[int]:
        """Return which of the rollouts from `first` to `last` pass a filter.

        Args:
            epoch: as of `rollout`.
            first: the number of the first.
            last: the number after the last.
            where: the filter.
            wanted: is asked now and then whether somebody still waits for the answer.

        Raises:
            LookupError: the epoch is another one.
            ValueError: `where` is not a filter, or a file no longer has a rollout.
            OSError: a file cannot be read.
        """
        passes = parse_filter(where)
        now = self._of(epoch)
        numbers = range(max(0, first), min(last, len(now.locations)))
        found = []
        for number, record in zip(numbers, self._records(now, numbers), strict=True):
            if number % 64 == 0 and not wanted():
                break
            if passes(record):
                found.append(number)
        return found

    def close(self) -> None:
        """End the waits of `changes`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _of(self, epoch: int) -> _Epoch:
        now = self._epoch
        if now.number != epoch:
            raise LookupError(f"epoch {epoch} is over")
        return now

    def _records(self, epoch: _Epoch, numbers: Sequence[int]) -> Iterator[dict[str, Any]]:
        if any(not 0 <= number < len(epoch.locations) for number in numbers):
            raise LookupError("no such rollout")
        scored = {n: epoch.scored[n] for n in numbers if n in epoch.scored}  # more may come
        scores = rows_at(scored.values())
        rows = rows_at(epoch.locations[number] for number in numbers)
        for number, row in zip(numbers, rows, strict=True):
            record = from_record(row)
            if number in scored:
                record |= scores_of(next(scores))
            yield self._shown(record)

    def _pieces(self, source: str | None) -> Pieces:
        with self._loading:
            if source not in self._tables:
                while len(self._tables) >= _TOKENIZERS:
                    self._tables.pop(next(iter(self._tables)))
                self._tables[source] = pieces_of(source, self._asked)
            return self._tables[source]
