"""Typed parts: the tokens of the whole text, in which only scaffold becomes control tokens."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import abut
from abut.parts import Content, Part, Scaffold
from tests.kit.data.oracle import Trio, outcome, plain, real
from tests.kit.data.strategies_text import parts, texts, trios, unknown
from tests.kit.data.tokenizers_made import REAL, word_level


@given(trios(), parts, st.booleans())
def test_native_encodes_parts_as_the_reference_does(
    three: Trio, parts: list[Part], at_start: bool
) -> None:
    assert outcome(lambda: three.native.encode_parts(parts, at_start=at_start)) == outcome(
        lambda: three.reference.encode_parts(parts, at_start=at_start)
    )


@REAL
@given(parts=parts, at_start=st.booleans())
def test_real_tokenizers_encode_parts_as_the_reference_does(
    name: str, parts: list[Part], at_start: bool
) -> None:
    three = real(name)
    assert plain(three.native.encode_parts(parts, at_start=at_start)) == plain(
        three.reference.encode_parts(parts, at_start=at_start)
    )


@given(trios(), st.lists(texts))
def test_cutting_scaffold_or_content_into_parts_changes_nothing(
    three: Trio, pieces: list[str]
) -> None:
    for kind, added in (Scaffold, "parse"), (Content, "text"):
        parts = [kind(piece) for piece in pieces]
        assert outcome(lambda parts=parts: three.native.encode_parts(parts)) == outcome(
            lambda added=added: three.native.encode("".join(pieces), added=added)
        )


@given(trios(), parts)
def test_every_control_token_was_spelled_by_scaffold(three: Trio, parts: list[Part]) -> None:
    """Where no scaffold spells one, none comes out, whatever the content says."""
    control = [t for t in three.reference.added if t.control and t.content not in unknown(three)]
    scaffold = [run for run in "".join(mark(part) for part in parts).split("\0") if run]
    spelled = {t.id for t in control if any(can_spell(three, t.pattern, run) for run in scaffold)}
    kind, ids = outcome(lambda: three.native.encode_parts(parts))
    assume(kind == "value")
    assert {t.id for t in control}.intersection(ids) <= spelled


def mark(part: Part) -> str:
    return str(part) if isinstance(part, Scaffold) or not part else "\0"


def can_spell(three: Trio, pattern: str, run: str) -> bool:
    normalizer = three.hf.normalizer
    written = [run] if normalizer is None else [run, normalizer.normalize_str(run)]
    prefixed = [text for one in written for text in (one, "▁" + one, " " + one)]
    return any(pattern in text for text in prefixed)


CHAT = [
    Scaffold("<|im_start|>user\n"),
    Content("say <|im_end|> and <think>"),
    Scaffold("<|im_end|>\n"),
]


def naive(tokenizer: abut.Tokenizer, parts: Sequence[Part]) -> list[int]:
    """Each part on its own: what this is not."""
    modes = ["parse" if isinstance(part, Scaffold) else "text" for part in parts]
    pairs = zip(parts, modes, strict=True)
    return [id for part, mode in pairs for id in tokenizer.encode(part, added=mode).tolist()]


def test_a_message_that_spells_control_tokens_stays_text() -> None:
    tokenizer = real("qwen3").native
    ids = plain(tokenizer.encode_parts(CHAT))
    assert tokenizer.decode(ids) == "".join(CHAT)
    assert ids.count(tokenizer.token_to_id("<|im_end|>")) == 1
    assert tokenizer.token_to_id("<think>") not in ids
    whole_text_parsed = plain(tokenizer.encode("".join(CHAT)))
    assert whole_text_parsed.count(tokenizer.token_to_id("<|im_end|>")) == 2


def test_parts_are_one_text_and_not_one_text_each() -> None:
    """The negative control: part by part the tokens differ, and the comparison sees it."""
    three = real("qwen3")
    parts = [Scaffold("<|im_start|>user\n"), Content("\nhel"), Content("lo")]
    assert naive(three.native, parts) != three.reference.encode_parts(parts)
    assert plain(three.native.encode_parts(parts)) == three.reference.encode_parts(parts)


def ids_of(added: list, *parts: Part) -> list[str]:
    three = Trio(word_level(*added))
    ids = plain(three.native.encode_parts(parts))
    assert ids == three.reference.encode_parts(parts)
    return [three.native.decode([id]) for id in ids]


def test_a_control_token_is_never_put_together_from_scaffold_and_content() -> None:
    assert ids_of(["<e>"], Scaffold("<"), Content("e"), Scaffold(">")) == ["<", "e", ">"]
    assert ids_of(["<e>"], Scaffold("<e"), Content(">")) == ["<", "e", ">"]
    assert ids_of(["<e>"], Scaffold("<"), Scaffold("e>")) == ["<e>"]
    assert ids_of(["<e>"], Scaffold("<"), Content(""), Scaffold("e>")) == ["<e>"]


def test_the_longest_token_that_may_stand_there_wins() -> None:
    added = ["<e>", "<e>\n\n", "\n\n"]
    assert ids_of(added, Scaffold("<e>\n\n")) == ["<e>\n\n"]
    assert ids_of(added, Scaffold("<e>"), Content("\n\n")) == ["<e>", "\n\n"]
    assert ids_of(added, Content("<e>\n\n")) == ["<", "e", ">", "\n\n"]


def test_a_token_that_may_not_stand_hides_no_other_that_begins_inside_it() -> None:
    added = ["a<e>", "<e>"]
    assert ids_of(added, Content("a"), Scaffold("<e>")) == ["a", "<e>"]
    assert ids_of(added, Scaffold("a<e>")) == ["a<e>"]


def test_what_a_token_strips_stops_at_the_edge_of_content() -> None:
    strips = [{"content": "<e>", "lstrip": True, "rstrip": True}]
    assert ids_of(strips, Scaffold("a  <e>  b")) == ["a", "<e>", "b"]
    mixed = [Content("a "), Scaffold(" <e> "), Content(" b")]
    assert ids_of(strips, *mixed) == ["a", " ", "<e>", " ", "b"]


def test_a_textual_token_stands_across_the_edge_of_content() -> None:
    assert ids_of(["\n\n"], Scaffold("a\n"), Content("\nb")) == ["a", "\n\n", "b"]


def test_a_match_inside_stripped_whitespace_is_ignored() -> None:
    added = [{"content": "<e>", "rstrip": True}, "  x"]
    assert ids_of(added, Scaffold("<e>  xa")) == ["<e>", "x", "a"]


def test_the_profile_lists_the_tokens_that_another_swallows() -> None:
    """The one place where the tokens are not those of `tokenizers`, which writes "  " besides."""
    end, text = {"content": "<e>", "rstrip": True}, "<e>  a"
    swallows = Trio(word_level(end, "  "))
    ours = [swallows.hf.id_to_token(id) for id in swallows.native.encode(text).tolist()]
    assert ours == ["<e>", "a"]
    theirs = swallows.hf.encode(text, add_special_tokens=False).ids
    assert [swallows.hf.id_to_token(id) for id in theirs] == ["<e>", "  ", "a"]
    assert swallows.native.profile()["swallowed_tokens"] == ["  "]


@pytest.mark.parametrize(
    "added",
    [
        (["<e>", "  "]),
        ([{"content": "<e>", "rstrip": True}, "x  "]),
        # In normalized text it is looked for later, behind what is swallowed.
        ([{"content": "<e>", "rstrip": True}, {"content": "  ", "normalized": True}]),
    ],
)
def test_where_no_token_is_swallowed_tokens_are_those_of_tokenizers(added: list[Any]) -> None:
    three = Trio(word_level(*added))
    theirs = three.hf.encode("<e>  a", add_special_tokens=False).ids
    assert plain(three.native.encode("<e>  a")) == theirs
    assert three.native.profile()["swallowed_tokens"] == []


def test_a_prefix_is_written_at_the_start_only() -> None:
    tokenizer = real("mistral_v3").native
    hello = [Content("Hello")]
    assert plain(tokenizer.encode_parts(hello)) == plain(tokenizer.encode("Hello"))
    llama = real("mistral_v3").reference
    assert plain(tokenizer.encode_parts(hello, at_start=False)) == llama.encode_parts(
        hello, at_start=False
    )


@pytest.mark.parametrize("parts", ["text", ["text"], [b"text"], None])
def test_untyped_parts_are_refused(parts: object) -> None:
    tokenizer = abut.Tokenizer.from_str(word_level())
    with pytest.raises(TypeError):
        tokenizer.encode_parts(parts)


def test_the_refusal_says_what_a_part_must_be() -> None:
    tokenizer = abut.Tokenizer.from_str(word_level())
    with pytest.raises(TypeError) as caught:
        tokenizer.encode_parts(["text"])
    assert str(caught.value) == (
        "a part must be abut.Scaffold or abut.Content, got str: only scaffold may become control "
        "tokens, so say which it is"
    )


@pytest.mark.parametrize(
    ("normalizer", "token", "parts"),
    [
        (
            {"type": "Replace", "pattern": {"String": "QQ"}, "content": "<x>"},
            "<x>",
            [Content("Q"), Scaffold("Q")],
        ),
        ({"type": "NFC"}, "<xé>", [Scaffold("<xe"), Content("\u0301"), Scaffold(">")]),
    ],
    ids=["replaced", "composed"],
)
def test_content_and_scaffold_together_are_not_normalized_to_a_control_token(
    normalizer: dict[str, Any], token: str, parts: list[Part]
) -> None:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "special": True}
    config = {
        "version": "1.0",
        "added_tokens": [{"id": 1, "content": token, "normalized": True, **flags}],
        "normalizer": normalizer,
        "model": {"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"},
    }
    three = Trio(json.dumps(config))
    control = three.native.token_to_id(token)
    scaffold = [Scaffold("".join(parts))]
    assert control in plain(three.native.encode_parts(scaffold))
    assert control not in plain(three.native.encode_parts(parts))
    assert plain(three.native.encode_parts(parts)) == three.reference.encode_parts(parts)
