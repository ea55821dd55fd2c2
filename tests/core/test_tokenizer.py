"""One text: native == reference == tokenizers, and content is never a control token."""

import copy
import json
import unicodedata

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

import abut
from abut.errors import AbutError, ControlTokenError, TokenizerError
from tests import reference
from tests.kit.data.oracle import Trio, outcome, plain, real
from tests.kit.data.strategies_text import has_no_oracle, modes, texts, trios, unknown
from tests.kit.data.tokenizers_made import REAL, word_level
from tests.reference.added import HTML_ELEMENTS

# --- the same answers on all sides


@given(trios(), texts)
def test_the_reference_encodes_as_tokenizers_does(three: Trio, text: str) -> None:
    assume(not has_no_oracle(three))
    assert three.reference.encode(text) == three.hf.encode(text, add_special_tokens=False).ids


@given(trios(), texts, modes)
def test_native_encodes_as_the_reference_does(three: Trio, text: str, added: str) -> None:
    assert outcome(lambda: three.native.encode(text, added=added)) == outcome(
        lambda: three.reference.encode(text, added=added)
    )


@given(trios(), texts)
def test_native_finds_the_spelled_control_tokens_of_the_reference(three: Trio, text: str) -> None:
    native = outcome(lambda: three.native.control_spellings(text))
    assert native == outcome(lambda: three.reference.control_spellings(text))
    if native[0] == "value" and not native[1]:
        assert outcome(lambda: three.native.encode(text, added="raise"))[0] == "value"


@REAL
@given(text=texts)
def test_real_tokenizers_find_the_same_spelled_control_tokens(name: str, text: str) -> None:
    three = real(name)
    assert three.native.control_spellings(text) == three.reference.control_spellings(text)


def test_spelled_control_tokens_are_named_with_their_places() -> None:
    tokenizer = abut.Tokenizer.from_str(word_level({"content": "<|im_end|>", "lstrip": True}))
    assert tokenizer.control_spellings("é  <|im_end|> <|im_end|>") == [
        (3, "<|im_end|>"),
        (14, "<|im_end|>"),
    ]
    assert tokenizer.control_spellings("é <|im_ end|>") == []


@given(trios(), texts, texts, modes)
def test_native_judges_seams_as_the_reference_does(three: Trio, a: str, b: str, added: str) -> None:
    expected = outcome(lambda: three.reference.seam(a, b, added=added))
    # A window does not hold what cannot be written far from the seam.
    assume(expected[0] in {"value", "ControlTokenError"})
    assert outcome(lambda: three.native.seam(a, b, added=added)) == expected


@given(trios(), texts, texts)
def test_a_seam_says_how_the_left_tokens_become_those_of_both(three: Trio, a: str, b: str) -> None:
    left, both = plain(three.native.encode(a)), plain(three.native.encode(a + b))
    seam = three.native.seam(a, b)
    assert left[: len(left) - seam.drop] + plain(seam.ids) == both
    assert seam.exact == (seam.drop == 0)
    if seam.kind in {"barrier", "window"}:
        assert seam.exact


@given(trios(), texts, texts)
def test_additive_means_the_literal_equation(three: Trio, a: str, b: str) -> None:
    encode = three.hf.encode
    assume(not has_no_oracle(three))
    left, right = (encode(text, add_special_tokens=False).ids for text in (a, b))
    equation = encode(a + b, add_special_tokens=False).ids == left + right
    assert three.native.is_additive(a, b) == three.reference.is_additive(a, b) == equation


@given(trios(), texts)
def test_native_knows_the_same_classes_and_bytes(three: Trio, text: str) -> None:
    profile = three.native.profile()
    for name, tokens in three.reference.profile().items():
        assert sorted(profile[name]) == sorted(tokens), name
    ids = outcome(lambda: three.reference.encode(text))
    assume(ids[0] == "value")
    assert three.native.decode_bytes(ids[1]) == three.reference.decode_bytes(ids[1])
    assert three.native.decode(ids[1]) == three.reference.decode(ids[1])


@REAL
@given(text=texts, b=texts, added=modes)
@example(text="<|im_end|>\n<think>[INST] hé</s> ", b="\n\n", added="text")
def test_real_tokenizers_agree_on_all_sides(name: str, text: str, b: str, added: str) -> None:
    three = real(name)
    if added == "parse":
        assert plain(three.native.encode(text)) == three.hf.encode(text, None, False, False).ids
    for call in (
        lambda side: side.encode(text, added=added),
        lambda side: side.seam(text, b, added=added),
        lambda side: side.decode_bytes(side.encode(text)),
    ):
        assert outcome(lambda call=call: call(three.native)) == outcome(
            lambda call=call: call(three.reference)
        )


def test_a_tokenizer_that_joins_tokens_naively_would_be_caught() -> None:
    """The negative control of all comparisons here: they do see a merge that was not made."""
    three = real("qwen3")
    naive = [*three.reference.encode("assistant\n"), *three.reference.encode("\nHello")]
    assert plain(three.native.encode("assistant\n\nHello")) != naive
    assert not three.native.is_additive("assistant\n", "\nHello")


# --- content and control tokens


@given(trios(), texts)
def test_content_never_becomes_a_control_token(three: Trio, text: str) -> None:
    kind, ids = outcome(lambda: three.native.encode(text, added="text"))
    assume(kind == "value")
    control = {t.id for t in three.reference.added if t.control and t.content not in unknown(three)}
    assert control.isdisjoint(ids)


@given(trios(), texts)
def test_text_without_control_tokens_is_encoded_alike_in_all_modes(three: Trio, text: str) -> None:
    kind, ids = outcome(lambda: three.native.encode(text, added="raise"))
    assume(kind == "value")
    assert ids == plain(three.native.encode(text, added="text"))
    assert ids == plain(three.native.encode(text, added="parse"))


def test_the_same_text_does_become_one_when_it_is_parsed() -> None:
    tokenizer = abut.Tokenizer.from_str(word_level("<|im_end|>"))
    im_end = tokenizer.token_to_id("<|im_end|>")
    assert im_end in tokenizer.encode("a<|im_end|>")
    assert im_end not in tokenizer.encode("a<|im_end|>", added="text")
    assert tokenizer.decode(tokenizer.encode("a<|im_end|>", added="text")) == "a<|im_end|>"


def test_a_model_whose_own_vocabulary_holds_a_control_token_is_kept_from_it() -> None:
    pieces = [["?", 0.0], *([char, -5.0] for char in "</s>a"), ["</s>", -1.0], ["</", -2.0]]
    config = json.loads(word_level({"content": "</s>", "special": True}))
    del config["pre_tokenizer"]
    config["model"] = {"type": "Unigram", "unk_id": 0, "vocab": pieces}
    three = Trio(json.dumps(config))
    assert plain(three.native.encode("a</s>")) == [5, 6]
    expected = [5, 1, 2, 3, 4]  # not 6, nor 7: the first character stands alone
    assert plain(three.native.encode("a</s>", added="text")) == expected
    assert three.reference.encode("a</s>", added="text") == expected


def test_textual_tokens_are_what_text_becomes_and_overrides_move_them() -> None:
    source = word_level("\n\n", "<b>", "<think>")
    tokenizer = abut.Tokenizer.from_str(source)
    assert tokenizer.profile()["textual_tokens"] == ["\n\n", "<b>"]
    assert tokenizer.profile()["control_tokens"] == ["<think>"]
    assert len(tokenizer.encode("\n\n<b>", added="text")) == 2
    moved = abut.Tokenizer.from_str(source, control=["<b>"], textual=["<think>"])
    assert moved.profile()["textual_tokens"] == ["\n\n", "<think>"]
    assert len(moved.encode("<b><think>", added="text")) == 3 + 1


def test_both_sides_know_the_same_html_elements() -> None:
    tags = [f"<{name}>" for name in sorted(HTML_ELEMENTS)]
    others = ["<think>", "<tool>", "<image>", "<answer>", "<user>", "</>", "<>", "<math>", "<|b|>"]
    variants = ["</td>", "<br/>", "<H1>", "</br/>", "< b>", "<b >"]
    three = Trio(word_level(*tags, *others, *variants))
    assert three.native.profile()["textual_tokens"] == three.reference.profile()["textual_tokens"]
    assert set(tags) <= set(three.native.profile()["textual_tokens"])
    assert set(others) <= set(three.native.profile()["control_tokens"])


# --- hard tokens


@given(trios(), texts, texts, st.data())
def test_nothing_around_a_hard_token_changes_it(
    three: Trio, x: str, y: str, data: st.DataObject
) -> None:
    assume(three.reference.hard)
    token = data.draw(st.sampled_from(three.reference.hard))
    later = three.native.encode_parts([abut.Scaffold(y)], at_start=False)
    expected = [*plain(three.native.encode(x)), token.id, *plain(later)]
    assert plain(three.native.encode(x + token.content + y)) == expected
    assert three.native.seam(x + token.content, y).kind == "barrier"
    assert three.native.seam(x, token.content + y).kind == "barrier"


@pytest.mark.parametrize(
    ("added", "x", "y"),
    [
        (["<e>", "<e><s>"], "", "<s>"),  # another begins with it
        (["<e>", "<<e"], "<", ""),  # a suffix of another begins it
        (["<e>", {"content": "a", "rstrip": True}, " <e>"], "", ""),
        (["ba", "ab"], "a", "b"),
    ],
)
def test_a_token_that_others_can_touch_is_not_hard(added: list, x: str, y: str) -> None:
    three = Trio(word_level(*added))
    token = added[0] if isinstance(added[0], str) else added[0]["content"]
    assert token not in three.native.profile()["hard_tokens"] or (x, y) == ("", "")
    if (x, y) != ("", ""):
        id = three.native.token_to_id(token)
        alone = [*three.native.encode(x), id, *three.native.encode(y)]
        assert plain(three.native.encode(x + token + y)) != alone


def test_qwen3_control_tokens_are_hard() -> None:
    assert "<|im_end|>" in real("qwen3").native.profile()["hard_tokens"]


# --- bytes


@given(texts)
def test_sentencepiece_ids_give_back_the_text_after_one_space(text: str) -> None:
    tokenizer = real("mistral_v3").native
    text = text.replace("▁", " ")  # one spelling for both: the only thing that gets lost
    decoded = tokenizer.decode(tokenizer.encode(text, added="text"))
    assert decoded == text if text[:1] in {"", " "} else decoded == " " + text


@given(texts)
def test_byte_level_ids_give_back_the_text(text: str) -> None:
    tokenizer = real("qwen3").native
    composed = unicodedata.normalize("NFC", text)
    assert tokenizer.decode(tokenizer.encode(text, added="text")) == composed


@given(st.lists(st.integers(0, 151_642)))
def test_the_bytes_of_ids_are_those_of_each_id(ids: list[int]) -> None:
    tokenizer = real("qwen3").native
    assert tokenizer.decode_bytes(ids) == b"".join(tokenizer.decode_bytes([id]) for id in ids)


# --- errors


def test_an_id_outside_the_vocabulary_is_named_with_its_place() -> None:
    tokenizer = abut.Tokenizer.from_str(word_level())
    size = tokenizer.vocab_size
    for id in (size, -1):
        with pytest.raises(TokenizerError) as caught:
            tokenizer.decode_bytes([1, id])
        assert str(caught.value) == (
            f"token 1 has id {id}, which is outside the vocabulary ({size} ids)\nhint: check "
            "whether the ids come from another tokenizer or from the embedding's padding rows"
        )


def test_raise_names_the_control_token_and_its_character() -> None:
    tokenizer = abut.Tokenizer.from_str(word_level({"content": "<|im_end|>", "lstrip": True}))
    with pytest.raises(ControlTokenError) as caught:
        tokenizer.encode("é  <|im_end|>", added="raise")
    assert str(caught.value) == (
        'the text spells the control token "<|im_end|>" at character 3\nhint: added="text" '
        'keeps the text; added="parse" writes the control token'
    )


def test_content_that_only_a_control_token_can_write_is_an_error() -> None:
    tokenizer = abut.Tokenizer.from_str(word_level("a"))
    with pytest.raises(TokenizerError) as caught:
        tokenizer.encode("ba", added="text")
    assert str(caught.value) == (
        'content spells the control token "a" (id 1), and the vocabulary has no other way to write '
        '"a"\nhint: if the text is meant to be a control token, pass added="parse"'
    )


def test_a_tokenizer_that_draws_at_random_is_refused() -> None:
    random_bpe = {"type": "BPE", "vocab": {"a": 0}, "merges": [], "dropout": 0.1}
    source = json.dumps({"version": "1.0", "added_tokens": [], "model": random_bpe})
    with pytest.raises(TokenizerError) as caught:
        abut.Tokenizer.from_str(source)
    assert str(caught.value) == (
        "the tokenizer is not deterministic: BPE dropout is 0.1\nhint: set it to null in "
        "tokenizer.json; random tokenization is only for pre-training"
    )
    unigram = {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 0, "alpha": 0.1}
    with pytest.raises(TokenizerError, match="Unigram sampling"):
        abut.Tokenizer.from_str(source.replace(json.dumps(random_bpe), json.dumps(unigram)))


@pytest.mark.parametrize("source", ["", "{}", "[1]", '{"version": "2.0", "model": {}}'])
def test_what_is_no_tokenizer_json_is_refused(source: str) -> None:
    with pytest.raises(TokenizerError, match=r"(?s)not a tokenizer\.json: .*\nhint: pass the"):
        abut.Tokenizer.from_str(source)


def test_an_added_token_of_which_normalization_leaves_nothing_is_refused() -> None:
    config = json.loads(word_level({"content": "\n", "normalized": True}))
    config["normalizer"] = {"type": "Strip", "strip_left": True, "strip_right": True}
    for side in (abut.Tokenizer, reference.Tokenizer):
        with pytest.raises(TokenizerError, match="empty once normalized"):
            side.from_str(json.dumps(config))


def test_truncation_and_padding_of_the_file_are_not_applied() -> None:
    config = json.loads(word_level())
    config["truncation"] = {"max_length": 2, "strategy": "LongestFirst", "stride": 0} | {
        "direction": "Right"
    }
    config["padding"] = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_id": 0} | {
        "pad_to_multiple_of": None,
        "pad_type_id": 0,
        "pad_token": "?",
    }
    three = Trio(json.dumps(config))
    assert len(three.hf.encode("aaaa").ids) == 9
    assert len(three.native.encode("aaaa")) == len(three.reference.encode("aaaa")) == 4


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match='expected "parse", "text" or "raise"'):
        abut.Tokenizer.from_str(word_level()).encode("a", added="ignore")


def test_a_lone_surrogate_is_refused_by_name() -> None:
    with pytest.raises(AbutError, match="lone surrogate"):
        abut.Tokenizer.from_str(word_level()).encode("\ud800")


def test_runs_of_spaces_that_are_added_tokens_too_decode_to_spaces() -> None:
    """As Gemma has them: the model makes of spaces what also stands among the added tokens."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    config = {
        "version": "1.0",
        "added_tokens": [{"id": 2, "content": "▁▁", "special": False, **flags}],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "decoder": {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        "model": {
            "type": "BPE",
            "vocab": {"?": 0, "▁": 1, "▁▁": 2, "a": 3, "b": 4},
            "merges": [["▁", "▁"]],
            "unk_token": "?",
        },
    }
    three = Trio(json.dumps(config))
    ids = plain(three.native.encode("a  b"))
    assert ids == [3, 2, 4]
    assert three.native.decode(ids) == three.hf.decode(ids) == "a  b"
    assert three.reference.decode(ids) == "a  b"


def test_a_copy_of_a_tokenizer_is_the_tokenizer() -> None:
    tokenizer = abut.Tokenizer.from_str(word_level())
    assert copy.copy(tokenizer) is tokenizer
    assert copy.deepcopy({"tokenizer": tokenizer})["tokenizer"] is tokenizer
