"""Where added tokens are cut out of a text, and which cuts never move.

Invariant: in text that is all scaffold the cuts are those of `tokenizers`; in mixed text a control
token is cut out only where all of it comes from one run of scaffold.

One deliberate difference: a match that begins inside whitespace that an earlier rstrip token has
already swallowed is ignored (and the search goes on after it). `tokenizers` duplicates text or
panics there.
"""

import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from abut.parts import Part, Scaffold
from tests.reference.added import AddedToken, is_space

Span: TypeAlias = tuple[int, int]


def is_word(char: str) -> bool:
    r"""`\w` of the Rust regex engine: alphabetic, marks, decimal digits, connectors, joiners."""
    category = unicodedata.category(char)
    if category[0] in "LM" or category in {"Nd", "Nl", "Pc"} or char in "\u200c\u200d":
        return True
    circled_letters = ("\u24b6", "\u24e9"), ("\U0001f130", "\U0001f149")
    squared_letters = ("\U0001f150", "\U0001f169"), ("\U0001f170", "\U0001f189")
    return any(low <= char <= high for low, high in (*circled_letters, *squared_letters))


@dataclass(frozen=True)
class Cut:
    """Where an added token stands. `start`, `end` include the whitespace that it swallows."""

    token: AddedToken
    start: int
    end: int


def cut(
    text: str,
    origin: Sequence[Span],
    tokens: Iterable[AddedToken],
    runs: Sequence[Span],
    owned: Callable[[int, int], bool] = lambda _, __: True,
) -> list[Cut]:
    """The added tokens in `text`, left to right.

    `origin[i]` is the range of the original text that character i came from; `runs` are the
    maximal runs of scaffold there. At each position the longest admissible token wins, textual
    ones anywhere, control ones only inside one run. Where none is admissible the search goes on
    one character later.
    """
    longest_first: dict[str, list[AddedToken]] = defaultdict(list)
    for token in sorted(tokens, key=lambda token: -len(token.pattern)):
        longest_first[token.pattern[0]].append(token)
    cuts: list[Cut] = []
    at = free = 0  # the search goes on here; everything before `free` belongs to the last cut
    while at < len(text):
        for token in longest_first.get(text[at], []):
            start, end = at, at + len(token.pattern)
            if not text.startswith(token.pattern, start):
                continue
            span = origin[start][0], origin[end - 1][1]
            may_cover = _coverable(token, span, origin, runs)
            if may_cover is not None and (not token.control or owned(start, end)):
                break
        else:
            at += 1
            continue
        at = end
        glued_left = start > 0 and is_word(text[start - 1])
        glued_right = end < len(text) and is_word(text[end])
        if (token.single_word and (glued_left or glued_right)) or start < free:
            continue
        while token.lstrip and start > free and is_space(text[start - 1]) and may_cover(start - 1):
            start -= 1
        while token.rstrip and end < len(text) and is_space(text[end]) and may_cover(end):
            end += 1
        cuts.append(Cut(token, start, end))
        free = end
    return cuts


def _coverable(
    token: AddedToken, span: Span, origin: Sequence[Span], runs: Sequence[Span]
) -> Callable[[int], bool] | None:
    """Which characters the token may swallow beside itself; `None` where it must not stand."""
    if not token.control:
        return lambda _: True
    run = run_around(span, runs)
    return None if run is None else lambda i: run_around(origin[i], [run]) is not None


def scaffold_runs(parts: Sequence[Part]) -> list[Span]:
    """The maximal runs of adjacent scaffold in the joined text; empty parts separate nothing."""
    runs: list[Span] = []
    end = 0
    for part in parts:
        start, end = end, end + len(part)
        if isinstance(part, Scaffold) and part:
            runs.append((runs.pop()[0] if runs and runs[-1][1] == start else start, end))
    return runs


def run_around(span: Span, runs: Iterable[Span]) -> Span | None:
    """The run that holds all of `span`."""
    return next((run for run in runs if run[0] <= span[0] and span[1] <= run[1]), None)


def hard_tokens(tokens: Iterable[AddedToken]) -> list[AddedToken]:
    """Tokens that are cut out wherever they stand, whatever is around them (THEORY.md §2).

    Then `tok(x+T+y) = tok(x) + [T] + tok(y as a later segment)` for all x and y.
    """
    raw = [token for token in tokens if not token.normalized]
    return [token for token in raw if all(_cannot_touch(other, token) for other in raw)]


def _cannot_touch(other: AddedToken, token: AddedToken) -> bool:
    text, spelled = token.content, other.content
    suffixes = [spelled[i:] for i in range(1, len(spelled))]
    return (
        not (token.lstrip or token.rstrip or token.single_word)
        and (spelled == text or not spelled.startswith(text))
        and not any(text.startswith(suffix) or suffix.startswith(text) for suffix in suffixes)
        and not (other.rstrip and is_space(text[0]))
        and not (other.single_word and (is_word(text[0]) or is_word(text[-1])))
    )
