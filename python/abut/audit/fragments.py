"""Pieces of text that tokenizers treat apart: what the fuzz and the strategies are made of.

None is younger than Unicode 13: notions of class and normal form agree on them everywhere.
"""

from collections.abc import Iterable

WORDS = ("a", "ab", "abc", "x", "Hello", "hello", "the", "end", "im", "12", "2024", "'t", "don't")
SPACES = (" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n", "\u00a0", "\u3000", "▁")
SIGNS = ("<", ">", "|", "_", ".", ",", "'", '"', "{", "}", "[", "(", "-", "#", "`", "*", "/", "\\")
COMBINING = ("\u0301", "e\u0301", "é", "É", "\u0302\u0323", "\u1100\u1161", "ก\u0e33", "क\u094d")
SCRIPTS = ("한국", "中文", "ひらがな", "слово", "שלום", "مرحبا", "नमस्ते", "ไทย")
EMOJI = ("🙂", "👩\u200d👩\u200d👧", "👍🏽", "🇩🇪", "❤\ufe0f", "\u200d")
# Where notions of space, word, letter and digit differ.
LOOKALIKES = ("\x1c", "\x85", "ⓐ", "ﬁ", "İ", "ß", "½", "²", "\u2028", "\ufeff", "\ufffd")

FRAGMENTS = (*WORDS, *SPACES, *SIGNS, *COMBINING, *SCRIPTS, *EMOJI, *LOOKALIKES)


def spellings(tokens: Iterable[str]) -> list[str]:
    """The tokens and their two halves, which meet again where texts are joined."""
    halves = [half for t in tokens for half in (t, t[: len(t) // 2], t[len(t) // 2 :])]
    return list(dict.fromkeys(half for half in halves if half))
