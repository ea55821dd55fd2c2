"""Texts of one kind each, which mixed text has little of and an encoder may be slow at.

A function for each kind writes a piece from random numbers; the same seed gives the same text.
Words are made of syllables, like names and identifiers.
"""

import json
import random
import string
from collections.abc import Callable
from typing import TypeAlias

from benchmarks.texts import Corpus, cut, word
from benchmarks.words import SYLLABLES, WORDS

Writer: TypeAlias = Callable[[random.Random], str]


def text_of(kind: str, seed: int, size: int) -> str:
    """Return text of one of `KINDS`, of `size` bytes or up to three fewer."""
    if kind == "code":
        return Corpus(seed).code(size)
    rng, write = random.Random(f"abut bench {kind} {seed}"), _WRITERS[kind]
    pieces: list[str] = []
    length = 0
    while length < size:
        pieces.append(write(rng))
        length += len(pieces[-1].encode())
    return cut("".join(pieces), size)


def _words(rng: random.Random, least: int, most: int) -> list[str]:
    return [word(rng) for _ in range(rng.randint(least, most))]


def _of(characters: str, least: int, most: int) -> Writer:
    """Return a writer of `least` to `most` of these characters."""
    return lambda rng: "".join(rng.choices(characters, k=rng.randint(least, most)))


def _between(first: int, last: int, least: int, most: int) -> Writer:
    """Return a writer of characters with code points from `first` to `last`."""
    return _of("".join(map(chr, range(first, last + 1))), least, most)


def _then(write: Writer, *ends: str) -> Writer:
    """Return a writer that adds one of these endings to each piece."""
    return lambda rng: write(rng) + rng.choice(ends)


def _hexadecimal(rng: random.Random, digits: int) -> str:
    return f"{rng.getrandbits(4 * digits):0{digits}x}"


def _uuid(rng: random.Random) -> str:
    return "-".join(_hexadecimal(rng, digits) for digits in (8, 4, 4, 4, 12)) + "\n"


def _record(rng: random.Random) -> str:
    values = [rng.random(), rng.randint(0, 99)]
    record = {
        "id": rng.randint(0, 10**6),
        "name": word(rng),
        "v": values,
        "ok": rng.random() < 0.5,
    }
    return json.dumps(record) + "\n"


def _log_line(rng: random.Random) -> str:
    day, hour, minute, second = (rng.randint(1, most) for most in (30, 23, 59, 59))
    return (
        f"2026-11-{day:02}T{hour:02}:{minute:02}:{second:02}.{rng.randint(0, 999):03}Z INFO "
        f"[{word(rng)}.{word(rng)}] {word(rng)} {word(rng)}={rng.randint(0, 9999)}\n"
    )


def _address(rng: random.Random) -> str:
    host, *path = _words(rng, 3, 3)
    return f"https://{host}.com/{'/'.join(path)}?id={rng.randint(0, 99_999)}&q={word(rng)}\n"


def _table_line(rng: random.Random) -> str:
    return f"{word(rng)},{rng.randint(0, 9999)},{rng.random():.3f},{word(rng)}\n"


def _markdown(rng: random.Random) -> str:
    a, b, c, d, e, f = _words(rng, 6, 6)
    return f"## {a} {b}\n\n- **{c}**: `{d}_{e}` ({f})\n"


def _camel(rng: random.Random) -> str:
    name = "".join(part.capitalize() for part in _words(rng, 2, 4))
    return f"{name}({word(rng)}{word(rng).capitalize()});\n"


def _quotations(rng: random.Random) -> str:
    a, b, c, d, e = _words(rng, 5, 5)
    return f"“{a} {b}’s {c}” — {d}… {e} "


def _french(rng: random.Random) -> str:
    syllables = [
        rng.choice("éèàêç") if rng.random() < 0.05 else rng.choice(SYLLABLES)
        for _ in range(rng.randint(1, 4))
    ]
    return "".join(syllables)


def _chinese(rng: random.Random) -> str:
    return "".join(rng.choices(WORDS["zh"], k=rng.randint(3, 12)))


def _japanese(rng: random.Random) -> str:
    return "".join(rng.choices(WORDS["ja"], k=rng.randint(3, 12)))


_SENTENCE = (" ",) * 9 + (". ",)
_ACCENTS = "aeiounrstlàâçéèêëîïôùûüÿœæßäöñ"
_WRITERS: dict[str, Writer] = {
    "prose": _then(word, *_SENTENCE),
    "capital letters": _then(lambda rng: word(rng).upper(), " "),
    "camel case": _camel,
    "snake case": lambda rng: f"{'_'.join(_words(rng, 2, 4))} = {word(rng)}\n",
    "random letters": _then(_of(string.ascii_lowercase, 2, 10), " "),
    "digits": _then(lambda rng: str(rng.randint(0, 10 ** rng.randint(1, 8))), " "),
    "long numbers": _then(lambda rng: str(rng.randint(0, 10**60)), "\n"),
    "hexadecimal numbers": _then(lambda rng: _hexadecimal(rng, 16), " "),
    "UUIDs": _uuid,
    "base64": _then(_of(string.ascii_letters + string.digits + "+/", 76, 76), "\n"),
    "punctuation": _then(_of(string.punctuation, 1, 6), "", "", " "),
    "tabs": lambda rng: "\t" * rng.randint(1, 4) + word(rng) + "\n",
    "indented lines": lambda rng: " " * rng.randint(1, 40) + word(rng) + "\n",
    "JSON": _record,
    "log lines": _log_line,
    "URLs": _address,
    "comma-separated values": _table_line,
    "Markdown": _markdown,
    "typographic quotes": _quotations,
    "French": _then(_french, *_SENTENCE),
    "accented letters": _then(_of(_ACCENTS, 2, 9), " "),
    "Greek": _then(_between(0x3B1, 0x3C9, 2, 9), " "),
    "Cyrillic": _then(_between(0x430, 0x44F, 2, 9), " "),
    "Arabic": _then(_between(0x627, 0x64A, 2, 8), " "),
    "Chinese": _then(_chinese, "，", "。"),
    "rare Chinese characters": _then(_between(0x4E00, 0x9FA5, 3, 15), "，", "。"),
    "Japanese": _then(_japanese, "、", "。"),
    "Korean": _then(_between(0xAC00, 0xD7A3, 1, 5), " "),
    "emoji": _then(_between(0x1F600, 0x1F64F, 1, 1), "", "", " "),
}
KINDS = ("code", *_WRITERS)
"""The names of all kinds."""
