"""Texts to measure with: source code, prose, Chinese, Japanese and Korean, and JSON.

Invariant: a `Corpus` never repeats a passage, and all texts of a `Replies` differ, so that
caches do not help. Code and prose come from Python's standard library; prose is its documentation
and docstrings, which are removed from the code. The other two are generated at random, from
frequent and rare words.
"""

import ast
import json
import random
import sysconfig
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import TypeAlias

from benchmarks.words import SYLLABLES, WORDS

Writer: TypeAlias = Callable[[random.Random, int], str]

SHARES = {"code": 0.4, "prose": 0.2, "cjk": 0.2, "json": 0.2}
"""The bytes of each kind in mixed text."""
_PASSAGE = (300, 3_000)


class Corpus:
    """Passages of every kind, each given once. The same seed gives the same texts."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"abut bench {seed}")
        self._library = _Library(self._random)
        self._passages = {
            "code": self._library.code(),
            "prose": self._library.prose(),
            "cjk": self._written(_sentences),
            "json": self._written(_records),
        }

    def mixed(self, size: int) -> str:
        """Return text of all kinds in turn, of `size` bytes or up to three fewer.

        Raises:
            ValueError: the standard library has no unused text left.
        """
        owed = dict.fromkeys(SHARES, 0.0)
        pieces: list[str] = []
        length = 0
        while length < size:
            kind = max(owed, key=lambda kind: owed[kind])
            piece = self._next(kind)
            taken = len(piece.encode())
            owed[kind] -= taken
            owed = {other: owed[other] + share * taken for other, share in SHARES.items()}
            pieces.append(piece)
            length += taken
        return cut("".join(pieces), size)

    def code(self, size: int) -> str:
        """Return only code, of `size` bytes or up to three fewer.

        Raises:
            ValueError: the standard library has no unused text left.
        """
        pieces: list[str] = []
        length = 0
        while length < size:
            pieces.append(self._next("code"))
            length += len(pieces[-1].encode())
        return cut("".join(pieces), size)

    def ordinary(self, size: int) -> str:
        """Return code and prose in ASCII, of `size` bytes.

        Raises:
            ValueError: the standard library has no unused text left.
        """
        pieces: list[str] = []
        length = 0
        while length < size:
            piece = self._next("prose" if len(pieces) % 4 == 0 else "code")
            if piece.isascii():
                pieces.append(piece)
                length += len(piece)
        return "".join(pieces)[:size]

    def _next(self, kind: str) -> str:
        piece = next(self._passages[kind], None)
        if piece is None:
            raise ValueError(
                f"the standard library of this Python has no unused {kind} left"
                "\nhint: use a Python that has the sources and documentation of its library"
            )
        return piece

    def _written(self, write: Writer) -> Iterator[str]:
        while True:
            yield write(self._random, self._random.randint(*_PASSAGE))


class Replies:
    """Replies of environments: random slices of mixed text, all different.

    They do not begin or end with whitespace.
    """

    def __init__(self, seed: int, size: int, *, pool_bytes: int = 2_000_000) -> None:
        self._random = random.Random(f"abut bench replies {seed}")
        self._pool = Corpus(seed).mixed(pool_bytes)
        self._size = size
        self._given: set[str] = set()

    def take(self, count: int) -> list[str]:
        """Return `count` texts of `size` bytes or a few fewer."""
        found: list[str] = []
        while len(found) < count:
            begin = self._random.randrange(len(self._pool) - self._size)
            text = self._pool[begin : begin + self._size].strip()
            text = cut(text, self._size).strip()
            if text not in self._given:
                self._given.add(text)
                found.append(text)
        return found


class _Library:
    """The standard library, split into prose (its documentation) and code."""

    def __init__(self, rng: random.Random) -> None:
        self._random = rng
        root = Path(sysconfig.get_paths()["stdlib"])
        left_out = {"site-packages", "dist-packages", "test", "tests", "idle_test", "pydoc_data"}
        self._files = [file for file in sorted(root.rglob("*.py")) if not left_out & {*file.parts}]
        rng.shuffle(self._files)
        self._code: list[str] = []
        self._prose = _topics()
        rng.shuffle(self._prose)

    def code(self) -> Iterator[str]:
        yield from self._drain(self._code)

    def prose(self) -> Iterator[str]:
        yield from self._drain(self._prose)

    def _drain(self, passages: list[str]) -> Iterator[str]:
        while passages or self._read():
            if passages and (passage := passages.pop()):
                yield passage

    def _read(self) -> bool:
        """Split one more file; return False if there is none left."""
        if not self._files:
            return False
        try:
            text = self._files.pop().read_text(encoding="utf-8")
            docs = _docstrings(ast.parse(text))
        except (SyntaxError, UnicodeDecodeError):
            return True  # some files are broken on purpose
        self._prose += [doc + "\n" for doc, _, _ in docs]
        lines = text.splitlines(keepends=True)
        for _, first, last in docs:
            lines[first - 1 : last] = [""] * (last - first + 1)
        passage, size = "", 0
        for line in lines:
            if len(passage) >= size:
                self._code.append(passage)
                passage, size = "", self._random.randint(*_PASSAGE)
            passage += line
        self._code.append(passage)
        return True


def pieces(text: str, count: int) -> list[str]:
    """Return `count` pieces of `text` with the same number of characters; drop the rest."""
    length = len(text) // count
    return [text[length * index :][:length] for index in range(count)]


def cut(text: str, size: int) -> str:
    """Return the beginning of `text`, at most `size` bytes, without partial characters."""
    return text.encode()[:size].decode(errors="ignore")


def _topics() -> list[str]:
    """Return the paragraphs of the language reference, as `help()` shows them."""
    from pydoc_data.topics import topics

    return [
        paragraph + "\n\n"
        for topic in sorted(topics)
        for paragraph in topics[topic].split("\n\n")
        if len(paragraph) >= 200
    ]


def _docstrings(tree: ast.Module) -> list[tuple[str, int, int]]:
    """Return the long docstrings, each with its first and last line."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    found = []
    for node in ast.walk(tree):
        if isinstance(node, kinds) and (doc := ast.get_docstring(node)) and len(doc) >= 200:
            where = node.body[0]
            found.append((doc, where.lineno, where.end_lineno or where.lineno))
    return found


def _sentences(rng: random.Random, size: int) -> str:
    """Return sentences in one of the languages; every tenth word has random characters."""
    language = rng.choice(list(WORDS))
    words = WORDS[language]
    weights = list(accumulate(1 / (rank + 3) for rank in range(len(words))))
    first, last = (0xAC00, 0xD7A3) if language == "ko" else (0x4E00, 0x9FA5)
    text = ""
    while len(text.encode()) < size:
        chosen = rng.choices(words, cum_weights=weights, k=rng.randint(5, 18))
        for index in range(len(chosen)):
            if rng.random() < 0.1:
                chosen[index] = "".join(chr(rng.randint(first, last)) for _ in range(2))
        if rng.random() < 0.2:
            chosen.insert(rng.randrange(len(chosen)), str(rng.randint(1, 9999)))
        text += (" " if language == "ko" else "").join(chosen)
        text += {"zh": "。", "ja": "。", "ko": ". "}[language]
        if rng.random() < 0.2:
            text += "\n"
    return text + "\n"


def _records(rng: random.Random, size: int) -> str:
    """Return a list of records like a web service's reply, indented or on one line."""
    records: list[object] = []
    while len(json.dumps(records)) < size:
        records.append(
            {
                "id": f"{rng.getrandbits(64):016x}",
                word(rng): rng.randint(0, 100_000),
                "created_at": f"20{rng.randint(10, 29)}-{rng.randint(1, 12):02}-"
                f"{rng.randint(1, 28):02}T{rng.randint(0, 23):02}:{rng.randint(0, 59):02}:00Z",
                word(rng): {word(rng): round(rng.gauss(0, 50), rng.randint(1, 6))},
                "path": "/".join(word(rng) for _ in range(rng.randint(1, 5))),
                "tags": [word(rng) for _ in range(rng.randint(0, 4))],
                word(rng): rng.choice((None, True, False)),
                "text": " ".join(word(rng) for _ in range(rng.randint(2, 12))) + "\n",
            }
        )
    return json.dumps(records, indent=rng.choice((None, 2, 4)), ensure_ascii=False) + "\n"


def word(rng: random.Random) -> str:
    """Return a made-up word of one to four syllables."""
    return "".join(rng.choices(SYLLABLES, k=rng.randint(1, 4)))
