"""Stop strings for a model in this process, separate for each row.

Invariant: a row ends with the token that completes one of its own strings in the text of all its
sampled tokens. The stop strings of other rows do not end it.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from abut._native import Tokenizer
from abut.errors import TokenizerError


class Spelled(NamedTuple):
    """A stop string that a row has spelled."""

    stop: str
    tokens: int
    """How many tokens the row had sampled by then."""


class StopStrings:
    """A stopping criterion of `transformers`: called after each token of a batch.

    Args:
        tokenizer: knows the bytes of tokens.
        stops: the stop strings of each row; may be empty.

    Attributes:
        spelled: the stop string that ended each row; None while the row has not ended.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[Sequence[str]]) -> None:
        self.spelled: list[Spelled | None] = [None] * len(stops)
        self._tokenizer = tokenizer
        self._rows = [_Row(strings) for strings in stops]

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        """Return which rows have ended, `(B,)`, for ids `(B, T)`."""
        import torch

        for row, id_ in enumerate(input_ids[:, -1].tolist()):
            if self._rows[row].stops and self.spelled[row] is None:
                self.spelled[row] = self._rows[row].add(self._tokenizer, id_)
        ended = [spelled is not None for spelled in self.spelled]
        return torch.tensor(ended, dtype=torch.bool, device=input_ids.device)


class _Row:
    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = [(stop, stop.encode()) for stop in stops]
        self._longest = max((len(spelling) for _, spelling in self.stops), default=0)
        self._ids: list[int] = []
        self._tail = b""

    def add(self, tokenizer: Tokenizer, id_: int) -> Spelled | None:
        """Add one token; return the stop string that it completes, if any."""
        try:
            spelled = tokenizer.decode_bytes([id_])
        except TokenizerError:
            # A padded embedding has ids that no token has. This row's rollout fails of it when
            # the sample is read; an error here would fail the whole batch.
            self.stops = []
            return None
        self._ids.append(id_)
        # What is older than the longest string can be no part of one that this token completes.
        self._tail = self._tail[-self._longest :] + spelled
        for stop, spelling in self.stops:
            # Some tokenizers write a token otherwise where it is the first: all decides.
            if spelling in self._tail and spelling in tokenizer.decode_bytes(self._ids):
                return Spelled(stop, len(self._ids))
        return None
