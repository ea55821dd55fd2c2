"""Regular expressions for what templates write around calls."""

import re
from collections.abc import Collection, Iterable

# Control tokens look so, and so do the tags that are none. One that a name or a key cuts is a tag
# up to there: `<function=`.
TAG = re.compile(r"<[^<>\s][^<>]*>?|\[/?[A-Z][A-Z_]+\]")
_PIECES = re.compile(rf"({TAG.pattern})|\s+")

NAME = r"[^\s<>{}()\[\]\"'`|=,;]+"
"""The name of a function where no quotes stand around it."""
SLOTS = {"name": NAME, "id": r"[^\s<>{}()\[\]\"'|=,;]+", "number": r"\d+"}


def core(text: str) -> str:
    """Matches a text without the whitespace around it, whatever stands in it and between tags."""
    pieces = [piece for piece in _PIECES.split(text.strip()) if piece and piece.strip()]
    return r"\s*+".join(map(re.escape, pieces))


def loose(text: str) -> str:
    """The same, with whitespace before it."""
    return r"\s*+" + core(text)


def tags(text: str, ordinary: Collection[str] = ()) -> list[str]:
    """The tags in a text, but for those that stand in turns without calls as well."""
    return [tag.rstrip() for tag in TAG.findall(text) if tag not in ordinary]


def up_to_tag(text: str, ordinary: Collection[str] = ()) -> str:
    """The text up to and with its first such tag; without one, all of it."""
    for match in TAG.finditer(text):
        if match[0] not in ordinary:
            return text[: match.end()]
    return text


def missing(text: str, at: int, wanted: str) -> tuple[int, str]:
    """Where in the text a wanted one stops standing, and which tag of it should stand there."""
    left = wanted.strip()
    while piece := up_to_tag(left):
        match = re.compile(loose(piece)).match(text, at)
        if match is None:
            break
        at, left = match.end(), left.removeprefix(piece).strip()
    return at + len(text[at : at + 64]) - len(text[at : at + 64].lstrip()), piece.strip()


def any_of(patterns: Iterable[str]) -> str:
    """Matches one of these patterns, the longest first; those that are empty are left out."""
    given = sorted({p for p in patterns if p}, key=len, reverse=True)
    return "(?:" + "|".join(given) + ")" if given else "(?!)"


class Finder:
    """Where a pattern is found next; each character of the text is searched once."""

    def __init__(self, pattern: re.Pattern[str], text: str) -> None:
        self._pattern = pattern
        self._text = text
        self._from = self._to = -1
        self._found: re.Match[str] | None = None

    def find(self, at: int) -> re.Match[str] | None:
        """The first match from `at` on."""
        if not self._from <= at <= self._to:
            self._found = self._pattern.search(self._text, at)
            self._from = at
            self._to = len(self._text) if self._found is None else self._found.start()
        return self._found
