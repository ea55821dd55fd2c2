"""Rollouts as a page holds them: facts as JSON, tokens as columns of bytes, all compressed.

A block is a little-endian uint32, so many bytes of JSON, and columns behind it, gzipped and written
in base64. The columns of a chunk of rollouts, of which N tokens and S sampled ones:

    N low bytes, N middle bytes, N high bytes    numbers of pieces
    S low bytes, S high bytes                    surprisals, in thousandths of a nat; 65535: or more

The bytes of one significance stand together, since they compress to a third less than numbers do.
"""

import base64
import gzip
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abut.messages import json_copy
from abut.parts import PROVENANCE
from abut.records.record import total_of
from abut.records.viewer.pieces import Pieces
from abut.records.viewer.seams import merges, placed_seams

_CHUNK_TOKENS = 65_536
_CHUNK_ROLLOUTS = 256
_CHUNK_CHARS = 1_000_000
_SAMPLED = PROVENANCE.index("sampled")
_MASK = 8  # in a run's code: the mask, beside who wrote it
_SHORTEST_PLACE = 12
"""Bytes of a message from which on its place among the tokens is shorter than itself."""

_LATER = (
    *("turns", "columns", "traceback", "attempt_errors", "attempt_tracebacks", "extras"),
    *("control_spellings", "client_rewrites"),
)
"""Fields that go into a chunk as they are."""


class Chunk:
    """Rollouts that are inflated together: what the page needs once one of them is opened."""

    def __init__(self) -> None:
        self._rollouts: list[dict[str, Any]] = []
        self._numbers: list[NDArray[np.int32]] = []
        self._surprisals: list[NDArray[np.uint16]] = []
        self._tokens = self._chars = 0

    @property
    def is_full(self) -> bool:
        """Whether the next rollout belongs into another one."""
        return (
            self._tokens >= _CHUNK_TOKENS
            or len(self._rollouts) >= _CHUNK_ROLLOUTS
            or self._chars >= _CHUNK_CHARS
        )

    def __len__(self) -> int:
        return len(self._rollouts)

    def add(self, record: Mapping[str, Any], pieces: Pieces) -> None:
        """Add a rollout, and its pieces to their table."""
        ids, row = self._columns(record, pieces)
        places = placed_seams(record, len(ids))
        details = {name: json_copy(record.get(name)) for name in _LATER}
        details |= row
        details["seams"] = _seams(record, ids, places, pieces)
        text = pieces.text(pieces.numbers(ids))
        details["messages"] = list(_messages(record.get("messages") or (), text))
        details["branches"] = [
            self._columns(branch, pieces)[1]
            | {"cause": branch.get("cause"), "delivered": branch.get("delivered")}
            for branch in record.get("branches") or ()
        ]
        self._rollouts.append(details)
        self._chars += sum(
            len(message.get("content") or "") + len(message.get("extra") or "")
            for message in details["messages"]
        )

    def packed(self) -> str:
        """The chunk as the page holds it."""
        numbers = np.concatenate([*self._numbers, np.zeros(0, np.int32)]).astype(np.uint32)
        surprisals = np.concatenate([*self._surprisals, np.zeros(0, np.uint16)])
        columns = [
            *((numbers >> shift & 255).astype(np.uint8).tobytes() for shift in (0, 8, 16)),
            *((surprisals >> shift & 255).astype(np.uint8).tobytes() for shift in (0, 8)),
        ]
        return block({"rollouts": self._rollouts}, b"".join(columns))

    def _columns(
        self, of: Mapping[str, Any], pieces: Pieces
    ) -> tuple[NDArray[np.int64], dict[str, Any]]:
        """Add the tokens of a row or a branch; returns them, and what says which they are."""
        prompt, completion = (
            np.asarray(of.get(name) if of.get(name) is not None else (), np.int64)
            for name in ("prompt_ids", "completion_ids")
        )
        ids = np.concatenate([prompt, completion])
        mask = np.concatenate([np.zeros(len(prompt), np.uint8), np.asarray(of["env_mask"], "u1")])
        codes = _provenance(of.get("provenance"), mask, len(prompt)) | mask * _MASK
        logprobs = of.get("logprobs")
        row = {
            "prompt": len(prompt),
            "tokens": len(ids),
            "runs": [n for code, run in groupby(codes.tolist()) for n in (code, len(list(run)))],
            "has_logprobs": bool(logprobs is not None and len(logprobs)),
        }
        self._numbers.append(pieces.numbers(ids))
        self._tokens += len(ids)
        if row["has_logprobs"]:
            self._surprisals.append(_surprisals(logprobs, mask[len(prompt) :]))
        return ids, row


def block(facts: Mapping[str, Any], columns: bytes = b"") -> str:
    """JSON and columns as the page holds them."""
    said = json.dumps(facts, allow_nan=False, separators=(",", ":")).encode("ascii")
    raw = len(said).to_bytes(4, "little") + said + columns
    return base64.b64encode(gzip.compress(raw, 6, mtime=0)).decode("ascii")


def row_of_list(record: Mapping[str, Any]) -> dict[str, Any]:
    """What the list of rollouts, the filter and the curves need of a record."""
    seams = record.get("seams") or ()
    prompt, mask = record["prompt_ids"], record["env_mask"]
    row = {
        name: _plain(record.get(name))
        for name in (
            *("rollout_id", "run_id", "step", "mode", "group", "place", "rank", "seed"),
            *("episode_seed", "reward", "advantage", "stop_reason", "error", "attempts"),
            *("seconds", "time"),
        )
    }
    rewards = record.get("rewards") or {}
    return row | {
        "total": _plain(total_of(record)),
        "turns": len(record.get("turns") or ()),
        "prompt_tokens": 0 if prompt is None else len(prompt),
        "completion_tokens": len(record["completion_ids"]),
        "sampled_tokens": int(np.asarray(mask, np.int64).sum()),
        "branches": len(record.get("branches") or ()),
        "seams": len(seams),
        "inexact_seams": sum(not seam["exact"] for seam in seams),
        "rewards": {str(name): _plain(value) for name, value in rewards.items()},
    }


def as_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Rows of the same names as one list for each name, which compresses to a fifth less."""
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}


def _provenance(codes: Any, mask: NDArray[np.uint8], prompt: int) -> NDArray[np.uint8]:
    """Who wrote each token, as far as is known."""
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


def _seams(
    record: Mapping[str, Any],
    ids: NDArray[np.int64],
    places: Sequence[int | None],
    pieces: Pieces,
) -> list[dict[str, Any]]:
    merged = merges(record, ids, places, pieces) if record.get("seams") else {}
    said: list[dict[str, Any]] = []
    for number, (seam, place) in enumerate(zip(record.get("seams") or (), places, strict=True)):
        said.append({"kind": seam["kind"], "exact": seam["exact"], "token": place})
        if number in merged:
            merge = merged[number]
            said[-1]["merge"] = merge and [
                pieces.numbers(np.asarray(side, np.int64)).tolist()
                for side in (merge.left_ids, merge.right_ids, merge.merged_ids)
            ]
    return said


def _messages(messages: Iterable[Mapping[str, Any]], text: bytes) -> Iterator[Mapping[str, Any]]:
    """Messages; where the tokens say what one says, its place in their bytes: `at`."""
    behind = 0
    for message in messages:
        rest = {k: v for k, v in message.items() if k not in ("role", "content")}
        said: dict[str, Any] = {"role": _plain(message.get("role"))}
        if rest:
            said["extra"] = json.dumps(json_copy(rest))
        content = message.get("content")
        if not isinstance(content, str):
            if content is not None:
                said["blocks"] = json_copy(content)
            yield said
            continue
        try:
            spoken = content.encode()
        except UnicodeEncodeError:  # half a surrogate pair
            spoken = b""
        at = text.find(spoken, behind) if len(spoken) >= _SHORTEST_PLACE else -1
        if at < 0:
            yield said | {"content": content}
        else:
            behind = at + len(spoken)
            yield said | {"at": [at, len(spoken)]}


def _plain(value: Any) -> Any:
    """A value of JSON; NaN and infinity are as good as unknown."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return json_copy(value)
