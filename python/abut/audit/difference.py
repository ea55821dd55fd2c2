"""Two lists of ids that should be equal: where they part, with the text on both sides."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os.path import commonprefix

from abut._native import Tokenizer

_BEFORE, _AFTER = 3, 4  # tokens shown around the first that differs


@dataclass(frozen=True)
class Difference:
    """The first token that differs.

    Attributes:
        token: its index from 0; the length of the shorter list where that is a prefix.
        left: the tokens around it on the left side, the first that differs in `»«`.
        right: the same on the right side.
        left_id: its id; None where the left side ends.
        right_id: its id; None where the right side ends.
    """

    token: int
    left: str
    right: str
    left_id: int | None
    right_id: int | None

    def lines(self, left: str, right: str) -> list[str]:
        """Two lines, one for each side, under these names."""
        width = max(len(left), len(right))
        rows = ((left, self.left_id, self.left), (right, self.right_id, self.right))
        return [
            f"  {name:<{width}}  {'ends' if i is None else i:<7}  {shown}"
            for name, i, shown in rows
        ]


def difference(
    left: Sequence[int], right: Sequence[int], text_of: Callable[[int], str]
) -> Difference | None:
    """Compare two lists of ids; None where they are equal.

    Args:
        left: ids.
        right: ids.
        text_of: the text of one id, to show it.
    """
    left, right = list(map(int, left)), list(map(int, right))
    if left == right:
        return None
    token = len(commonprefix([left, right]))
    return Difference(
        token,
        _shown(left, token, text_of),
        _shown(right, token, text_of),
        left[token] if token < len(left) else None,
        right[token] if token < len(right) else None,
    )


def token_text(tokenizer: Tokenizer) -> Callable[[int], str]:
    """The text of one id; U+FFFD for a part of a character."""
    return lambda i: tokenizer.decode([i])


def _shown(ids: list[int], token: int, text_of: Callable[[int], str]) -> str:
    start, end = max(0, token - _BEFORE), min(len(ids), token + _AFTER)
    shown = [
        f"»{text_of(ids[i])!r}«" if i == token else repr(text_of(ids[i])) for i in range(start, end)
    ]
    if token >= len(ids):
        shown.append("»the end«")
    elif end < len(ids):
        shown.append("…")
    return " ".join((["…"] if start else []) + shown)
