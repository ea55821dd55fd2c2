"""Veils the control tokens that definitions of tools spell.

Invariant: nothing that a definition says becomes a control token, because definitions come from
anywhere (MCP servers write them). The template gets a word of abut's in the place of each control
token, and of each piece that could become one together with the text next to it. The text around
the definitions stays scaffold.
"""

import re
import secrets
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from abut.parts import Content, Part, Scaffold
from abut.template.mask import replace_strings


class VeiledTools:
    """The tools that a template gets, and the texts that it must not take for its own.

    Attributes:
        tools: the definitions, with a word in the place of each control token that they spell.
        spelled: how often the definitions spell each control token.
        stem: the beginning of every such word.
    """

    def __init__(self, tools: Sequence[Any] | None, control: Iterable[str]) -> None:
        self.spelled: Counter[str] = Counter()
        self._texts: dict[str, str] = {}
        # Random, so that no definition can spell such a word itself.
        self.stem = f"abut{secrets.token_hex(8)}x"
        tokens = sorted(control, key=len, reverse=True)
        whole = "|".join(map(re.escape, tokens)) or "(?!)"
        self._whole = re.compile(whole)
        self._edges = _edges(tokens)
        veiled = None if tools is None else [replace_strings(tool, self._veil) for tool in tools]
        self.tools = veiled if self._texts else tools
        self._words = re.compile("|".join(map(re.escape, self._texts)) or "(?!)")

    def __bool__(self) -> bool:
        """True if anything is veiled."""
        return bool(self._texts)

    def typed(self, parts: Sequence[Part]) -> list[Part]:
        """Return the parts with veiled texts as content, and the rest as scaffold."""
        if not self:
            return list(parts)
        typed: list[Part] = []
        for part in parts:
            if not isinstance(part, Scaffold):
                typed.append(part)
                continue
            at = 0
            for word in self._words.finditer(part):
                typed += [Scaffold(part[at : word.start()]), Content(self._texts[word[0]])]
                at = word.end()
            typed.append(Scaffold(part[at:]))
        return [part for part in typed if part]

    def _veil(self, text: str) -> str:
        self.spelled.update(self._whole.findall(text))
        pieces = re.split(f"({self._whole.pattern})", text)
        pieces[0] = self._edges[0].sub(self._word, pieces[0])
        pieces[-1] = self._edges[1].sub(self._word, pieces[-1])
        pieces[1::2] = [self._word_of(token) for token in pieces[1::2]]
        return "".join(pieces)

    def _word(self, found: "re.Match[str]") -> str:
        return self._word_of(found[0])

    def _word_of(self, text: str) -> str:
        # All of one length: none is the beginning of another.
        word = f"{self.stem}{len(self._texts):06d}x"
        self._texts[word] = text
        return word


def _edges(tokens: Sequence[str]) -> "tuple[re.Pattern[str], re.Pattern[str]]":
    """Return patterns for a string's beginning that ends a token, and its end that begins one.

    Letters and digits alone are left: templates read words such as `string`.
    """
    ends = {token[k:] for token in tokens for k in range(1, len(token))}
    begins = {token[:k] for token in tokens for k in range(1, len(token))}
    first, last = (
        "|".join(map(re.escape, sorted(filter(_has_sign, texts), key=len, reverse=True))) or "(?!)"
        for texts in (ends, begins)
    )
    return re.compile(rf"\A(?:{first})"), re.compile(rf"(?:{last})\Z")


def _has_sign(text: str) -> bool:
    return not text.replace("_", "").isalnum()
