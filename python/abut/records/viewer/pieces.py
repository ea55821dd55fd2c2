"""The tokens of a page as numbers into a table of the bytes that they are.

Invariant: a piece is in the table once, at the place at which it was first met; what is met early
is met often, so the high bytes of most numbers are 0 and take no room once compressed.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abut._native import Tokenizer
from abut.errors import AbutError


class Pieces:
    """The table of one tokenizer.

    Args:
        source: what the records call it; None where they name none.
        tokenizer: None: ids have no text.
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
        """`(T,)` int32: the places in the table; what is new goes into it.

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
        """The bytes of these tokens."""
        return b"".join([self.texts[number] for number in numbers.tolist()])

    def packed(self) -> tuple[dict[str, Any], bytes]:
        """What the page gets: facts, and the bytes of all pieces behind each other."""
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
        except AbutError:  # an id outside the vocabulary: shown as a number
            return b""

    def _reserve(self, id_: int) -> None:
        if id_ >= len(self._numbers):
            grown = np.full(max(id_ + 1, 2 * len(self._numbers)), -1, np.int32)
            grown[: len(self._numbers)] = self._numbers
            self._numbers = grown


def _control_ids(tokenizer: Tokenizer | None) -> set[int]:
    if tokenizer is None:
        return set()
    controls: Sequence[str] = tokenizer.profile()["control_tokens"]
    ids = (tokenizer.token_to_id(token) for token in controls)
    return {id_ for id_ in ids if id_ is not None}
