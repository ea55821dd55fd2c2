"""Hypothesis strategies: small tokenizers of every kind, and texts that are made to hurt.

The vocabularies are built from the same fragments as the texts, so that merges, added tokens and
control tokens in the model's own vocabulary meet all the time instead of by luck.
"""

import json
import string
from collections.abc import Callable
from itertools import chain
from typing import Any

from hypothesis import reject
from hypothesis import strategies as st

from abut import strategies
from abut.audit.fuzz import FRAGMENTS as KNOWN
from abut.audit.fuzz import WORDS
from abut.errors import TokenizerError
from tests import reference
from tests.kit.data.oracle import Trio
from tests.reference.byte_table import BYTE_OF_CHAR

Config = dict[str, Any]
CHAR_OF_BYTE = {byte: char for char, byte in BYTE_OF_CHAR.items()}

CONTROL = ["<|im_end|>", "<|im_start|>", "<think>", "</think>", "[INST]", "<s>", "</s>", "<unk>"]
TEXTUAL = ["  ", "\n\n", "\n", "\t", "▁▁", "<b>", "</td>"]
# Added tokens that overlap others, begin or end on words or spaces, or change when normalized.
AWKWARD = ["<|", "|>", "<|im_end|><", "end|><s", "a", "ab", " x", "x ", "É", "e\u0301", "Hello"]
HALVES = ["<|im_", "</thi", "nk>", "[IN", "ST]"]
SPELLED = [*CONTROL, *TEXTUAL, *AWKWARD, *HALVES]
FRAGMENTS = [*SPELLED, *KNOWN]
ALPHABET = sorted(set("".join(FRAGMENTS) + string.ascii_letters + "▁") - set(" \n\r\t\u3000\u00a0"))

QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

texts = strategies.texts(also=SPELLED)
parts = strategies.parts(also=SPELLED)


@st.composite
def added_tokens(draw: st.DrawFn, contents: list[str] | None = None) -> list[Config]:
    flag = st.sampled_from([False, False, False, True])
    chosen = st.lists(
        st.sampled_from(contents or [*CONTROL, *TEXTUAL, *AWKWARD]), max_size=8, unique=True
    )
    return [
        {
            "id": 0,  # tokenizers counts for itself
            "content": content,
            "single_word": draw(flag),
            "lstrip": draw(flag),
            "rstrip": draw(flag),
            "normalized": draw(flag),
            "special": draw(st.booleans()),
        }
        for content in draw(chosen)
    ]


@st.composite
def merges_of(draw: st.DrawFn, words: list[str]) -> list[list[str]]:
    """Merges that spell some of these words, put together in any order."""
    merges: list[list[str]] = []

    def spell(word: str) -> None:
        if len(word) > 1:
            at = draw(st.integers(1, len(word) - 1))
            spell(word[:at])
            spell(word[at:])
            if [word[:at], word[at:]] not in merges:
                merges.append([word[:at], word[at:]])

    for word in draw(st.lists(st.sampled_from(words), max_size=6)):
        spell(word)
    return merges


def byte_level(text: str) -> str:
    return "".join(CHAR_OF_BYTE[byte] for byte in text.encode())


def vocabulary(*lists: list[str]) -> dict[str, int]:
    return {token: id for id, token in enumerate(dict.fromkeys(chain(*lists)))}


@st.composite
def byte_level_bpe(draw: st.DrawFn) -> Config:
    merges = draw(merges_of([byte_level(text) for text in [*FRAGMENTS, " a", " hello"]]))
    regex = {"type": "Split", "pattern": {"Regex": QWEN2_PATTERN}, "behavior": "Isolated"}
    last = {
        "type": "ByteLevel",
        "add_prefix_space": draw(st.booleans()),
        "trim_offsets": False,
        "use_regex": draw(st.booleans()),
    }
    sequence = {"type": "Sequence", "pretokenizers": [regex | {"invert": False}, last]}
    whole_words = [
        byte_level(word) for word in draw(st.lists(st.sampled_from(CONTROL), max_size=2))
    ]
    return {
        "normalizer": draw(st.none() | normalizers()),
        "pre_tokenizer": draw(st.sampled_from([last, sequence])),
        "decoder": {"type": "ByteLevel"},
        "model": {
            "type": "BPE",
            "ignore_merges": draw(st.booleans()),
            "vocab": vocabulary(list(BYTE_OF_CHAR), ["".join(m) for m in merges], whole_words),
            "merges": merges,
        },
    }


@st.composite
def normalizers(draw: st.DrawFn) -> Config:
    simple = ["NFC", "NFD", "NFKC", "Lowercase"]
    strip = {"type": "Strip", "strip_left": draw(st.booleans()), "strip_right": True}
    replaced, content = draw(
        st.sampled_from([("ab", "a"), ("ab", "<s>"), ("\n", ""), ("  ", " "), ("e", "\u0301")])
    )
    replace = {"type": "Replace", "pattern": {"String": replaced}, "content": content}
    kinds = [*({"type": kind} for kind in simple), strip, replace]
    several = {"type": "Sequence", "normalizers": draw(st.lists(st.sampled_from(kinds)))}
    return draw(st.sampled_from([*kinds, several]))


@st.composite
def metaspace_stages(draw: st.DrawFn) -> Config:
    """Where `▁` comes from: the pre-tokenizer, or (Llama-2) the normalizer."""
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    prepend = {"type": "Prepend", "prepend": "▁"}
    metaspace = {
        "type": "Metaspace",
        "replacement": "▁",
        "prepend_scheme": draw(st.sampled_from(["first", "always", "never"])),
        "split": draw(st.booleans()),
    }
    bare = {"normalizer": replace, "pre_tokenizer": None}
    llama = {
        "normalizer": {"type": "Sequence", "normalizers": [prepend, replace]},
        "pre_tokenizer": None,
    }
    mistral = {"normalizer": draw(st.none() | normalizers()), "pre_tokenizer": metaspace}
    t5 = {
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace],
        },
    }
    return draw(st.sampled_from([bare, llama, mistral, t5]))


@st.composite
def sentencepiece_bpe(draw: st.DrawFn) -> Config:
    words = [text.replace(" ", "▁") for text in [*FRAGMENTS, " a", " hello", "   "]]
    merges = draw(merges_of([word for word in words if set(word) <= set(ALPHABET)]))
    fallback = [f"<0x{byte:02X}>" for byte in range(256)] if draw(st.booleans()) else []
    spelled = ["".join(merge) for merge in merges]
    return {
        **draw(metaspace_stages()),
        "decoder": {"type": "Metaspace", "replacement": "▁"},
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": draw(st.booleans()),
            "byte_fallback": bool(fallback),
            "vocab": vocabulary(["<unk>", "<s>", "</s>"], fallback, ALPHABET, spelled),
            "merges": merges,
        },
    }


@st.composite
def unigram(draw: st.DrawFn) -> Config:
    words = [text.replace(" ", "▁") for text in [*FRAGMENTS, " a", " hello"]]
    fallback = [f"<0x{byte:02X}>" for byte in range(256)] if draw(st.booleans()) else []
    chosen = draw(st.lists(st.sampled_from(words), max_size=12))
    pieces = vocabulary(["<unk>"], fallback, ALPHABET, chosen)
    long = st.sampled_from([-1.0, -2.0, -30.0])
    scores = {piece: -8.0 if len(piece) == 1 else draw(long) for piece in chosen}
    return {
        **draw(metaspace_stages()),
        "decoder": {"type": "Metaspace", "replacement": "▁"},
        "model": {
            "type": "Unigram",
            "unk_id": 0,
            "byte_fallback": bool(fallback),
            "vocab": [[piece, scores.get(piece, -10.0)] for piece in pieces],
        },
    }


@st.composite
def wordpiece(draw: st.DrawFn) -> Config:
    words = draw(st.lists(st.sampled_from([*WORDS, *CONTROL, "[UNK]"]), max_size=8))
    splitters = ["BertPreTokenizer", "Whitespace", "WhitespaceSplit"]
    letters = draw(st.sampled_from([string.ascii_lowercase, "".join(ALPHABET)]))
    return {
        "normalizer": draw(st.none() | normalizers()),
        "pre_tokenizer": {"type": draw(st.sampled_from(splitters))},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": False},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocabulary(["[UNK]"], list(letters), [f"##{c}" for c in letters], words),
        },
    }


@st.composite
def trios(draw: st.DrawFn, model: Callable[[], st.SearchStrategy[Config]] | None = None) -> Trio:
    """A small tokenizer, as the native module, the reference and `tokenizers` read it."""
    models = [byte_level_bpe, sentencepiece_bpe, unigram, wordpiece]
    config = draw((model or draw(st.sampled_from(models)))())
    config |= {"version": "1.0", "added_tokens": draw(added_tokens())}
    source = json.dumps(config, ensure_ascii=False)
    try:
        reference.Tokenizer(source)
    except TokenizerError:  # an added token of which normalization leaves nothing
        reject()
    return Trio(source)


def has_no_oracle(trio: Trio) -> bool:
    """Where `tokenizers` itself has no answer.

    Beside an rstrip token, one that begins with whitespace makes it duplicate text or panic. Of two
    added tokens with one pattern it takes either, by chance.
    """
    added = trio.reference.added
    begins_with_space = any(token.pattern[:1].isspace() for token in added)
    patterns = {(token.normalized, token.pattern) for token in added}
    duplicates = len(patterns) < len(added)
    return duplicates or (begins_with_space and any(token.rstrip for token in added))


modes = st.sampled_from(["parse", "text", "raise"])


def unknown(three: Trio) -> set[str]:
    model = json.loads(three.source)["model"]
    return {model.get("unk_token"), "<unk>" if "unk_id" in model else None} - {None}
