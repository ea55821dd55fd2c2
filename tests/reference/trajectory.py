"""A trajectory from scratch: after every append, everything since the frozen edge anew.

Invariant: what `request()` gave out or the policy sampled never changes; text that nobody has
seen yet is encoded as the whole text that it is, in whatever pieces it arrived.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from abut.errors import TrajectoryError
from abut.parts import Content, Part, Scaffold
from tests.reference.edge import Edge
from tests.reference.encode import Token
from tests.reference.seam import Seam, after_frozen, between_texts
from tests.reference.tokenizer import AddedMode, Tokenizer

PROVENANCE = ("prompt", "env", "scaffold", "sampled", "close")


@dataclass(frozen=True)
class Columns:
    """One row for a trainer; `logprobs` (0.0 where not sampled) and `env_mask` are aligned."""

    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float]
    env_mask: list[int]


@dataclass(frozen=True)
class Entry:
    """One token of a trajectory. `hard`: a hard token that was cut out of text, or sampled.

    The id alone does not tell: a model answers unknown text with the id of `<unk>`, which may be a
    hard token, but nothing was cut there and the text goes on.
    """

    id: int
    logprob: float
    provenance: str
    hard: bool


@dataclass
class Trajectory:
    """Frozen tokens, and the parts that have arrived since, each with its provenance."""

    tokenizer: Tokenizer
    _frozen: list[Entry] = field(default_factory=list)
    _open: list[tuple[Part, str]] = field(default_factory=list)
    _open_tokens: list[Token] = field(default_factory=list)
    _edge: Edge = Edge.START
    _open_is_merged: bool = False
    _requested: bool = False
    turns: list[tuple[int, int]] = field(default_factory=list)

    def append_text(self, text: str, *, added: AddedMode = "text", provenance: str = "env") -> Seam:
        """Append context: content, or scaffold with `added="parse"`."""
        if added == "raise":
            self.tokenizer.encode(text, added="raise")
        part: Part = Scaffold(text) if added == "parse" else Content(text)
        return self.append_parts([part], provenance=provenance)

    def append_parts(self, parts: Sequence[Part], *, provenance: str = "env") -> Seam:
        """Append context; it joins the open text, and never changes a frozen token."""
        parts = [part for part in parts if part]
        if not parts:
            return Seam("barrier", exact=True, drop=0, ids=[])
        open_parts = self._open + [(part, provenance) for part in parts]
        before = self._open_tokens
        after = self.tokenizer.tokens([part for part, _ in open_parts], self._edge)
        boundary = sum(len(part) for part, _ in self._open)
        self._open, self._open_tokens, self._requested = open_parts, after, False
        is_hard = self.tokenizer.is_hard
        touches_frozen = self._edge is Edge.CONTINUE and not any(
            is_hard(token) for token in [*before, *(t for t in after if t.start == 0)]
        )
        if touches_frozen and boundary == 0:
            seam = self._seam_after_frozen(parts, [token.id for token in after])
            self._open_is_merged = not seam.exact
            return seam
        begins_hard = any(token.start == boundary and is_hard(token) for token in after)
        ends_hard = any(token.end == boundary and is_hard(token) for token in before)
        barrier = boundary == 0 or ends_hard or begins_hard
        seam = between_texts(self.tokenizer, before, after, barrier, parts)
        if touches_frozen and not self._open_is_merged:
            frozen = self._seam_after_frozen([part for part, _ in open_parts], [])
            self._open_is_merged = not frozen.exact
            if not frozen.exact:
                seam = replace(frozen, drop=seam.drop, ids=seam.ids)
        return seam

    def request(self) -> list[int]:
        """All ids so far, for the engine; they are frozen from here on."""
        self._freeze(self._open_entries())
        self._requested = True
        return self.ids

    def append_sampled(self, ids: Sequence[int], logprobs: Sequence[float]) -> Seam:
        """Append what the engine sampled, verbatim.

        Raises:
            TrajectoryError: no `request()` directly before, a length that differs, or a logprob
                that is not finite, above 0, or the -9999 of an engine that has none.
            TokenizerError: an id outside the vocabulary.
        """
        if not self._requested:
            raise TrajectoryError("append_sampled needs a request() directly before it")
        if not self._frozen:
            raise TrajectoryError("append_sampled: the request was empty")
        if len(ids) != len(logprobs):
            raise TrajectoryError(f"{len(ids)} sampled ids but {len(logprobs)} logprobs")
        for index, logprob in enumerate(logprobs):
            if not math.isfinite(logprob) or not -9999 < logprob <= 1e-3:
                raise TrajectoryError(f"sampled token {index} (id {ids[index]}): {logprob}")
        self.tokenizer.decode_bytes(ids)
        seam = self._seam_before_sample(list(ids))
        self.turns.append((len(self._frozen), len(self._frozen) + len(ids)))
        hard = self.tokenizer.hard_ids
        pairs = zip(ids, logprobs, strict=True)
        self._freeze([Entry(id, logprob, "sampled", id in hard) for id, logprob in pairs])
        self._requested = False
        return seam

    def fork(self, at: int) -> Self:
        """What stood here when there were `at` tokens, with the turns that start before `at`.

        The first of these that `at` is decides what the fork may do next. 0: it is empty. The start
        of a turn: it is requested, so that another sample may follow at once, also where a turn
        ends there too or sampled nothing there. The length: it is as this one is; a request without
        an answer may be answered in both, and open text stays open. The end of a turn: it is as
        `append_sampled` left this one.

        Raises:
            TrajectoryError: any other place.
        """
        if at not in self._places():
            raise TrajectoryError(self._no_place(at))
        starts = [start for start, _ in self.turns]
        turns = [turn for turn in self.turns if turn[0] < at]
        if at == len(self) and at not in [0, *starts]:
            frozen, parts, tokens = self._frozen[:], self._open[:], self._open_tokens[:]
            return replace(self, _frozen=frozen, _open=parts, _open_tokens=tokens, turns=turns)
        fork = type(self)(self.tokenizer, turns=turns)
        fork._freeze(self._frozen[:at])
        fork._requested = at in starts
        return fork

    def _places(self) -> dict[int, str]:
        """Where it can be forked, and what counts where a place is several things."""
        ends = {end: f"the end of turn {k}" for k, (_, end) in enumerate(self.turns)}
        # Of the turns that start at one place, the first.
        numbered = list(enumerate(self.turns))
        starts = {start: f"the start of turn {k}" for k, (start, _) in reversed(numbered)}
        return ends | {len(self): "the length"} | starts | {0: "the beginning"}

    def _no_place(self, at: int) -> str:
        places = self._places()
        below = [place for place in places if place < at]
        above = [place for place in places if place > at]
        nearest = [*([max(below)] if below else []), *([min(above)] if above else [])]
        named = " and ".join(f"{place} ({places[place]})" for place in nearest)
        are = "place is" if len(nearest) == 1 else "places are"
        return (
            f"a trajectory of {len(self)} tokens cannot be forked at {at}: "
            f"the nearest {are} {named}\n"
            "hint: fork at 0, at the start or end of a turn, or at the length; a token elsewhere "
            "may be one of a longer text"
        )

    @property
    def ids(self) -> list[int]:
        """All ids."""
        return [entry.id for entry in self._entries()]

    @property
    def logprobs(self) -> list[float]:
        """One for each token, in nats; NaN where it was not sampled."""
        return [entry.logprob for entry in self._entries()]

    @property
    def provenance(self) -> list[str]:
        """Who wrote each token."""
        return [entry.provenance for entry in self._entries()]

    @property
    def sampled_mask(self) -> list[int]:
        """1 where the policy sampled the token."""
        return [int(provenance == "sampled") for provenance in self.provenance]

    def __len__(self) -> int:
        return len(self._entries())

    def columns(self) -> Columns:
        """The prompt up to the first sampled token, and the rest up to the last one, aligned.

        Context after the last sampled token trains nothing, and trainers judge by the last token
        whether a row was cut.

        Raises:
            TrajectoryError: nothing was sampled.
        """
        mask = self.sampled_mask
        if 1 not in mask:
            raise TrajectoryError("no sampled token, so there is nothing to train")
        start, end = mask.index(1), len(mask) - mask[::-1].index(1)
        logprobs = [0.0 if math.isnan(logprob) else logprob for logprob in self.logprobs]
        ids = self.ids
        return Columns(ids[:start], ids[start:end], logprobs[start:end], mask[start:end])

    def _entries(self) -> list[Entry]:
        return self._frozen + self._open_entries()

    def _open_entries(self) -> list[Entry]:
        return [
            Entry(token.id, math.nan, self._written_by(token), self.tokenizer.is_hard(token))
            for token in self._open_tokens
        ]

    def _written_by(self, token: Token) -> str:
        """The first content that the token touches, else scaffold; in a close, all is close."""
        touched = []
        end = 0
        # A token of no characters at all counts with the character after it, or the last one.
        first = min(token.start, sum(len(part) for part, _ in self._open) - 1)
        last = max(token.end - 1, first)
        for part, provenance in self._open:
            start, end = end, end + len(part)
            if start <= last and first < end:
                touched.append((isinstance(part, Content), provenance))
        writers = [provenance for is_content, provenance in touched if is_content]
        if writers:
            return writers[0]
        return "close" if touched[0][1] == "close" else "scaffold"

    def _freeze(self, entries: list[Entry]) -> None:
        self._frozen += entries
        self._open, self._open_tokens, self._open_is_merged = [], [], False
        if self._frozen:
            self._edge = Edge.SEGMENT if self._frozen[-1].hard else Edge.CONTINUE

    def _frozen_tail(self) -> list[int]:
        """The frozen ids since the last hard token."""
        after_hard = max((i + 1 for i, entry in enumerate(self._frozen) if entry.hard), default=0)
        return [entry.id for entry in self._frozen[after_hard:]]

    def _seam_before_sample(self, ids: list[int]) -> Seam:
        hard = [i for i, id in enumerate(ids) if id in self.tokenizer.hard_ids]
        right = ids[: hard[0]] if hard else ids
        if not right or not self._frozen_tail():
            return Seam("barrier", exact=True, drop=0, ids=ids)
        return self._seam_after_frozen(_whole_start(self.tokenizer, right), ids)

    def _seam_after_frozen(self, right: Sequence[Part], written: list[int]) -> Seam:
        """The seam with the text of the ids since the last hard token."""
        left = _whole_end(self.tokenizer, self._frozen_tail())
        return after_frozen(self.tokenizer, left, right, written)


def _whole_start(tokenizer: Tokenizer, ids: Sequence[int]) -> list[Part]:
    """The text of the ids up to the first byte that is no whole character."""
    parts: list[Part] = []
    for kind, encoded in tokenizer.parts_of_ids(ids):
        text = encoded.decode(errors="surrogateescape")
        whole = text[: next((i for i, c in enumerate(text) if _is_stray(c)), len(text))]
        parts.append(kind(whole))
        if whole != text:
            break
    return parts if any(parts) else []


def _whole_end(tokenizer: Tokenizer, ids: Sequence[int]) -> list[Part]:
    """The text of the ids after the last byte that is no whole character."""
    parts: list[Part] = []
    for kind, encoded in reversed(tokenizer.parts_of_ids(ids)):
        text = encoded.decode(errors="surrogateescape")
        whole = text[max((i + 1 for i, c in enumerate(text) if _is_stray(c)), default=0) :]
        parts.insert(0, kind(whole))
        if whole != text:
            break
    return parts if any(parts) else []


def _is_stray(char: str) -> bool:
    """Whether this stands for a byte that is not part of a character."""
    return "\udc80" <= char <= "\udcff"


def collate(columns: Sequence[Any], pad_id: int) -> dict[str, np.ndarray]:
    """Prompts padded on the left, completions on the right; masks are 1 where it is no padding."""
    width_p = max((len(row.prompt_ids) for row in columns), default=0)
    width_c = max((len(row.completion_ids) for row in columns), default=0)

    def left(rows: list[list[int]], pad: int, dtype: type) -> np.ndarray:
        padded = [[pad] * (width_p - len(row)) + list(row) for row in rows]
        return np.array(padded, dtype=dtype).reshape(len(columns), width_p)

    def right(rows: list[Any], pad: float, dtype: type) -> np.ndarray:
        padded = [list(row) + [pad] * (width_c - len(row)) for row in rows]
        return np.array(padded, dtype=dtype).reshape(len(columns), width_c)

    prompts = [row.prompt_ids for row in columns]
    completions = [row.completion_ids for row in columns]
    return {
        "prompt_ids": left(prompts, pad_id, np.int64),
        "prompt_mask": left([[1] * len(ids) for ids in prompts], 0, np.uint8),
        "completion_ids": right(completions, pad_id, np.int64),
        "completion_mask": right([[1] * len(ids) for ids in completions], 0, np.uint8),
        "logprobs": right([row.logprobs for row in columns], 0.0, np.float32),
        "env_mask": right([row.env_mask for row in columns], 0, np.uint8),
    }
