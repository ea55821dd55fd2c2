"""The pattern that finds where calls begin and end, with one group for each kind of text."""

import re

import pytest

from abut.tool_calls.patterns import core, grouped

GROUPS = {
    "tags": {"begin": [core("<a> {")], "open": [core("<b>")], "stray": ["<c>", "<d="]},
    "other begins": {"begin": [re.escape("[A]")], "open": ["<b>"]},
    "brackets": {"begin": [re.escape("[A]")], "end": [re.escape("[/A]")]},
    "one character": {"begin": ["<"], "end": [re.escape("</")]},
    "a letter": {"open": ["to=[a-z]+"], "end": ["to,"]},
    "whitespace": {"begin": [r"\s*+x"], "end": [r"\sy"]},
    "repeated": {"begin": ["a*b"], "end": ["ac"]},
    "empty ones": {"begin": [""], "open": ["<b>"], "stray": []},
}
TEXTS = ["", "<", "[A] <a>\n{ </a>", "x <b><c> <d=1>", "[/A][A] to=abc to,", "  x\ty aab ac b"]


@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize("text", TEXTS)
def test_it_finds_what_its_alternatives_find(name: str, text: str) -> None:
    groups = {group: [p for p in patterns if p] for group, patterns in GROUPS[name].items()}
    plain = "|".join(f"(?P<{group}>{'|'.join(ps)})" for group, ps in groups.items() if ps)
    found = [(m.span(), m.lastgroup) for m in re.finditer(grouped(GROUPS[name]), text)]
    assert found == [(m.span(), m.lastgroup) for m in re.finditer(plain, text)]


def test_a_character_that_all_share_stands_before_the_groups() -> None:
    assert grouped(GROUPS["tags"]).startswith("<(?:")
    assert grouped(GROUPS["brackets"]).startswith(r"\[(?:")
    for name in ("other begins", "whitespace", "repeated"):
        assert grouped(GROUPS[name]).startswith("(?:")


def test_nothing_is_found_without_alternatives() -> None:
    assert re.search(grouped({"begin": [""], "stray": []}), "<a>") is None
