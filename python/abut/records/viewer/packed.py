"""Rollouts as a page holds them: facts as JSON, tokens as columns of bytes, all compressed.

A block is a little-endian uint32, that many bytes of JSON, then columns, gzipped; in a
file it is written in base64. A chunk of rollouts with N tokens, S of them sampled and D of these
scored by a teacher, has these columns:

    N low bytes, N middle bytes, N high bytes    numbers of pieces
    S low bytes, S high bytes                    surprisals, in thousandths of a nat; 65535: or more
    D low bytes, D high bytes                    logprobs less the teacher's, likewise, int16

Bytes of one significance stand together, because they compress a third better than whole numbers.
"""

import gzip
import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abut._native import Merge, Tokenizer
from abut.errors import AbutError
from abut.messages import json_copy
from abut.parts import PROVENANCE
from abut.records.scores import advantages_of, reverse_kl_of, total_of
from abut.records.viewer.packed_messages import forks, packed_messages, plain
from abut.records.viewer.seams import merges, seam_offsets
from abut.rollout.failures import kind_of_error

_CHUNK_TOKENS = 65_536
_CHUNK_ROLLOUTS = 256
_CHUNK_CHARS = 1_000_000
_SAMPLED = PROVENANCE.index("sampled")
_MASK = 8  # in a run's code: the mask, beside who wrote it
_LATER = (
    *("columns", "traceback", "attempt_errors", "attempt_tracebacks", "extras"),
    *("control_spellings", "client_rewrites", "name", "session", "images", "dropped_images"),
    *("usage", "row_reward", "row_trained"),
)
"""Fields that are copied into a chunk unchanged."""

_OF_BRANCH = (
    *("cause", "delivered", "followed", "name", "session", "reward", "trained", "auxiliary"),
    "images",
)
"""Fields of a branch that are copied into a chunk unchanged."""


class Pieces:
    """The table of one tokenizer: the bytes of each token of a page, and the token's number in it.

    A token gets its number when it is first met. Frequent tokens are met early, so the high bytes
    of most numbers are 0 and take no room once they are compressed.

    Args:
        source: the tokenizer as the records name it; None if they name none.
        tokenizer: None if it could not be loaded: then ids have no text.
        trouble: why there is no tokenizer.
    """

    def __init__(
        self, source: str | None, tokenizer: Tokenizer | None, trouble: str | None = None
    ) -> None:
        self.source = source
        self.tokenizer = tokenizer
        self.trouble = trouble
        self.texts: list[bytes] = []
        self.control_ids = _control_ids(tokenizer)
        self._ids: list[int] = []
        self._numbers = np.full(1024, -1, np.int32)

    def numbers(self, ids: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the tokens' numbers, `(T,)` int32; new tokens are added to the table.

        Args:
            ids: `(T,)` int64.
        """
        if not len(ids):
            return np.zeros(0, np.int32)
        self._reserve(int(ids.max()))
        numbers = self._numbers[ids]
        if (numbers < 0).any():
            for id_ in dict.fromkeys(ids[numbers < 0].tolist()):
                self._numbers[id_] = len(self._ids)
                self._ids.append(id_)
                self.texts.append(self._text(id_))
            numbers = self._numbers[ids]
        return numbers

    def text(self, numbers: NDArray[np.int32]) -> bytes:
        """Return the bytes of these tokens."""
        return b"".join([self.texts[number] for number in numbers.tolist()])

    def packed(self) -> tuple[dict[str, Any], bytes]:
        """Return the table for the page: facts, and the bytes of all pieces, joined."""
        controls = [k for k, id_ in enumerate(self._ids) if id_ in self.control_ids]
        facts = {
            "source": self.source,
            "trouble": self.trouble,
            "ids": self._ids,
            "lengths": [len(text) for text in self.texts],
            "controls": controls,
        }
        return facts, b"".join(self.texts)

    def _text(self, id_: int) -> bytes:
        if self.tokenizer is None:
            return b""
        try:
            return self.tokenizer.decode_bytes([id_])
        except AbutError:  # an id outside the vocabulary, which the page shows as a number
            return b""

    def _reserve(self, id_: int) -> None:
        if id_ >= len(self._numbers):
            grown = np.full(max(id_ + 1, 2 * len(self._numbers)), -1, np.int32)
            grown[: len(self._numbers)] = self._numbers
            self._numbers = grown


class Chunk:
    """Rollouts that the page inflates together, as soon as one of them is opened."""

    def __init__(self) -> None:
        self._rollouts: list[dict[str, Any]] = []
        self._numbers: list[NDArray[np.int32]] = []
        self._surprisals: list[NDArray[np.uint16]] = []
        self._divergences: list[NDArray[np.uint16]] = []
        self._tools: dict[str, int] = {}
        self._tokens = self._chars = 0

    @property
    def is_full(self) -> bool:
        """True if the next rollout must go into a new chunk."""
        return (
            self._tokens >= _CHUNK_TOKENS
            or len(self._rollouts) >= _CHUNK_ROLLOUTS
            or self._chars >= _CHUNK_CHARS
        )

    def __len__(self) -> int:
        return len(self._rollouts)

    def add(self, record: Mapping[str, Any], pieces: Pieces) -> None:
        """Add a rollout, and its tokens to the table."""
        ids, row = self._columns(record, pieces)
        offsets = seam_offsets(record, len(ids))
        details = {name: json_copy(record.get(name)) for name in _LATER}
        details |= row | {"advantages": list(advantages_of(record, None))}
        details["seams"] = _seams(record, ids, offsets, pieces)
        text = pieces.text(pieces.numbers(ids))
        details |= self._conversation(record, text)
        branches = record.get("branches") or ()
        all_ids, details["branches"] = [ids], []
        for number, branch in enumerate(branches):
            branch_ids, packed = self._columns(branch, pieces)
            text = pieces.text(pieces.numbers(branch_ids))
            packed |= {name: json_copy(branch.get(name)) for name in _OF_BRANCH}
            packed |= self._conversation(branch, text)
            packed["advantages"] = list(advantages_of(record, number))
            details["branches"].append(packed)
            all_ids.append(branch_ids)
        found = forks([record, *branches], all_ids)
        for of, fork in zip([details, *details["branches"]], found, strict=True):
            of["fork"] = fork
        self._rollouts.append(details)

    def _conversation(self, of: Mapping[str, Any], text: bytes) -> dict[str, Any]:
        """Return the messages, and the number of the tools in the chunk's table."""
        messages = list(packed_messages(of, text))
        # A call's arguments count as they are in its message, so twice where that is no token.
        self._chars += sum(
            len(message.get("content") or "") + len(message.get("extra") or "")
            for message in messages
        )
        tools = json.dumps(json_copy(of.get("tools") or []))
        return {
            "messages": messages,
            "turns": [{**json_copy(turn), "spoken": None} for turn in of.get("turns") or ()],
            "tools": self._tools.setdefault(tools, len(self._tools)),
        }

    def packed(self) -> bytes:
        """Return the chunk as a block."""
        numbers = np.concatenate([*self._numbers, np.zeros(0, np.int32)]).astype(np.uint32)
        of_sampled = (
            np.concatenate([*numbers, np.zeros(0, np.uint16)])
            for numbers in (self._surprisals, self._divergences)
        )
        columns = [
            *((numbers >> shift & 255).astype(np.uint8).tobytes() for shift in (0, 8, 16)),
            *(
                (thousandths >> shift & 255).astype(np.uint8).tobytes()
                for thousandths in of_sampled
                for shift in (0, 8)
            ),
        ]
        tools = [json.loads(tools) for tools in self._tools]
        return block({"rollouts": self._rollouts, "tools": tools}, b"".join(columns))

    def _columns(
        self, of: Mapping[str, Any], pieces: Pieces
    ) -> tuple[NDArray[np.int64], dict[str, Any]]:
        """Add the tokens of a row or a branch; return them, and facts that describe them."""
        prompt, completion = (
            np.asarray(of.get(name) if of.get(name) is not None else (), np.int64)
            for name in ("prompt_ids", "completion_ids")
        )
        ids = np.concatenate([prompt, completion])
        mask = np.concatenate(
            [np.zeros(len(prompt), np.uint8), np.asarray(of.get("env_mask") or (), "u1")]
        )
        codes = _provenance(of.get("provenance"), mask, len(prompt)) | mask * _MASK
        logprobs = of.get("logprobs")
        row = {
            "prompt": len(prompt),
            "tokens": len(ids),
            "runs": [n for code, run in groupby(codes.tolist()) for n in (code, len(list(run)))],
            "has_logprobs": bool(logprobs is not None and len(logprobs)),
            "has_teacher": (divergence := reverse_kl_of(of)) is not None,
        }
        self._numbers.append(pieces.numbers(ids))
        self._tokens += len(ids)
        if row["has_logprobs"]:
            self._surprisals.append(_surprisals(logprobs, mask[len(prompt) :]))
        if divergence is not None:
            self._divergences.append(_divergences(divergence[mask[len(prompt) :] != 0]))
        return ids, row


def block(facts: Mapping[str, Any], columns: bytes = b"") -> bytes:
    """Return JSON and columns as a block."""
    said = json.dumps(facts, allow_nan=False, separators=(",", ":")).encode("ascii")
    raw = len(said).to_bytes(4, "little") + said + columns
    return gzip.compress(raw, 6, mtime=0)


def row_of_list(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a record that the page's list, filter and curves need."""
    seams = record.get("seams") or ()
    prompt, mask = record.get("prompt_ids"), record.get("env_mask") or ()
    row = {
        name: plain(record.get(name))
        for name in (
            *("rollout_id", "run_id", "step", "mode", "group", "place", "rank", "seed"),
            *("episode_seed", "reward", "stop_reason", "error", "attempts"),
            *("seconds", "time", "teacher"),
        )
    }
    error = record.get("error")
    return (
        row
        | {
            "failure": None if error is None else kind_of_error(error),
            "turns": len(record.get("turns") or ()),
            "prompt_tokens": 0 if prompt is None else len(prompt),
            "completion_tokens": len(record.get("completion_ids") or ()),
            "sampled_tokens": int(np.asarray(mask, np.int64).sum()),
            "branches": len(record.get("branches") or ()),
            "seams": len(seams),
            "inexact_seams": sum(not seam["exact"] for seam in seams),
        }
        | scores_in_list(record)
    )


def scores_in_list(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the list that scores change, which are known after the rollout."""
    rewards = record.get("rewards") or {}
    return {
        "total": plain(total_of(record)),
        "advantage": plain(record.get("advantage")),
        "rewards": {str(name): plain(value) for name, value in rewards.items()},
    }


def add_row(columns: dict[str, list[Any]], row: Mapping[str, Any]) -> None:
    """Append a row to columns, one list for each name, which compress a fifth better than rows."""
    for name, value in row.items():
        columns.setdefault(name, []).append(value)


def _provenance(codes: Any, mask: NDArray[np.uint8], prompt: int) -> NDArray[np.uint8]:
    """Return the provenance of each token; a guess from the mask if the record has none."""
    if codes is not None and len(codes) == len(mask):
        return np.asarray(codes, np.uint8)
    guessed = np.where(mask, _SAMPLED, PROVENANCE.index("env")).astype(np.uint8)
    guessed[:prompt] = PROVENANCE.index("prompt")
    return guessed


def _surprisals(logprobs: Any, mask: NDArray[np.uint8]) -> NDArray[np.uint16]:
    nats = -np.asarray(logprobs, np.float64)[mask != 0]
    thousandths = np.rint(np.nan_to_num(nats, nan=np.inf) * 1000)
    surprisals: NDArray[np.uint16] = np.clip(thousandths, 0, 65_535).astype(np.uint16)
    return surprisals


def _divergences(nats: NDArray[np.float64]) -> NDArray[np.uint16]:
    thousandths = np.clip(np.rint(nats * 1000), -32_767, 32_767).astype(np.int16)
    return thousandths.view(np.uint16)


def _seams(
    record: Mapping[str, Any],
    ids: NDArray[np.int64],
    offsets: Sequence[int | None],
    pieces: Pieces,
) -> list[dict[str, Any]]:
    merged: dict[int, Merge | None] = {}
    if record.get("seams"):
        merged = merges(record, ids, offsets, pieces.tokenizer, pieces.control_ids)
    said: list[dict[str, Any]] = []
    for number, (seam, offset) in enumerate(zip(record.get("seams") or (), offsets, strict=True)):
        said.append({"kind": seam["kind"], "exact": seam["exact"], "token": offset})
        if number in merged:
            merge = merged[number]
            said[-1]["merge"] = merge and [
                pieces.numbers(np.asarray(side, np.int64)).tolist()
                for side in (merge.left_ids, merge.right_ids, merge.merged_ids)
            ]
    return said


def _control_ids(tokenizer: Tokenizer | None) -> set[int]:
    if tokenizer is None:
        return set()
    controls: Sequence[str] = tokenizer.profile()["control_tokens"]
    ids = (tokenizer.token_to_id(token) for token in controls)
    return {id_ for id_ in ids if id_ is not None}
