"""A `tokenizer.json` as a function from typed text to ids, and back.

Invariant: `encode(text)` is what `tokenizers` gives with `add_special_tokens=False`.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, Literal, Self, TypeAlias

from abut.errors import ControlTokenError
from abut.parts import Content, Part, Scaffold
from tests.reference.byte_table import is_own
from tests.reference.edge import Edge
from tests.reference.encode import Encoder
from tests.reference.file import File
from tests.reference.seam import Seam, between_texts

AddedMode: TypeAlias = Literal["parse", "text", "raise"]


class Tokenizer(Encoder):
    """The encoder of a file, and what is asked of it."""

    def __init__(self, source: str, *, control: Iterable[str] = (), textual: Iterable[str] = ()):
        """Read the text of a `tokenizer.json`; `control` and `textual` move tokens between classes.

        Raises:
            TokenizerError: it cannot be read, or its tokens are drawn at random.
        """
        super().__init__(File.read(source, control, textual))

    @classmethod
    def from_str(cls, source: str, **overrides: Iterable[str]) -> Self:
        """As the constructor, under the name that the native class has."""
        return cls(source, **overrides)

    # --- text to ids

    def encode(self, text: str, *, added: AddedMode = "parse") -> list[int]:
        """The ids of `text`, which begins the conversation."""
        return [token.id for token in self.tokens([self._part(text, added)], Edge.START)]

    def encode_parts(self, parts: Sequence[Part], *, at_start: bool = True) -> list[int]:
        """The ids of the parts as one text; only scaffold becomes control tokens."""
        return [t.id for t in self.tokens(parts, Edge.START if at_start else Edge.SEGMENT)]

    def _part(self, text: str, added: AddedMode) -> Part:
        if added == "parse":
            return Scaffold(text)
        if added == "raise" and (spelled := self.control_spellings(text)):
            at, content = spelled[0]
            raise ControlTokenError(
                f"the text spells the control token {content!r} at character {at}"
            )
        return Content(text)

    # --- two texts

    def seam(self, a: str, b: str, *, added: AddedMode = "parse") -> Seam:
        """What became of the tokens of `a` when `b` followed."""
        if added == "raise":
            self._part(a + b, added)
        part = Scaffold if added == "parse" else Content
        left = self.tokens([part(a)], Edge.START)
        joined = self.tokens([part(a), part(b)], Edge.START)
        at_edge = (not a) or (not b) or (left and left[-1].end == len(a) and self.is_hard(left[-1]))
        barrier = at_edge or any(t.start == len(a) and self.is_hard(t) for t in joined)
        return between_texts(self, left, joined, bool(barrier), [part(b)])

    def is_additive(self, a: str, b: str) -> bool:
        """The literal equation, on three independent encodes."""
        return self.encode(a + b) == self.encode(a) + self.encode(b)

    def profile(self) -> dict[str, Any]:
        """What is known statically; each list in the order of ids."""
        return {
            "hard_tokens": [token.content for token in self.hard],
            "control_tokens": [token.content for token in self.added if token.control],
            "textual_tokens": [token.content for token in self.added if not token.control],
        }

    # --- ids to text

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        """The bytes of the ids, one after the other, by table.

        Raises:
            TokenizerError: an id is outside the vocabulary.
        """
        return self.file.decode_bytes(ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The bytes as text; what is not UTF-8 becomes U+FFFD."""
        return self.file.decode(ids)

    def parts_of_ids(self, ids: Sequence[int]) -> list[tuple[type[Scaffold | Content], bytes]]:
        """Runs of added tokens as scaffold, runs of all others as content, in bytes."""
        added = {token.id for token in self.added if not is_own(token, self.file.model)}
        return [
            (Scaffold if is_added else Content, self.decode_bytes(list(run)))
            for is_added, run in groupby(ids, key=added.__contains__)
        ]
