"""The glossary has each word once, in a sentence, and every word that contributors are held to."""

import re

from tests.kit.checkout import ROOT

GLOSSARY = (ROOT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")
ENTRIES = dict(re.findall(r"^\*\*(.+?)\.\*\* (.+?)\n(?=\n|\Z)", GLOSSARY, re.M | re.S))


def test_the_words_are_sorted_and_each_is_there_once() -> None:
    words = re.findall(r"^\*\*(.+?)\.\*\*", GLOSSARY, re.M)
    assert words == sorted({*words}, key=str.lower)
    assert list(ENTRIES) == words


def test_an_entry_is_a_sentence_about_its_word() -> None:
    for word, text in ENTRIES.items():
        sentence = text.partition(". ")[0].lower()
        assert text.endswith("."), word
        assert word.lower().split()[0][:6] in sentence, f"{word}: {text}"
        assert re.search(r"\b(is|are|has|have|holds|says|means|keeps|reaches|runs|draws|writes|"
                         r"answers|ends|lies|was|were)\b", sentence), f"{word}: {text}"  # fmt: skip


def test_the_words_of_contributing_are_there() -> None:
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = contributing.partition("## Words")[2].partition("\n## ")[0]
    words = [word.capitalize() for word in re.findall(r"^\| \*(.+?)\* \|", table, re.M)]
    assert len(words) > 8
    assert set(words) <= set(ENTRIES)
