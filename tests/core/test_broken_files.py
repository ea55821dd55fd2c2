"""A `tokenizer.json` that is broken or made to harm: an error that names the place, or loaded fast.

Nothing here aborts the process, and no panic of the `tokenizers` crate comes out as one. What was
quadratic once took hours for these files: the timeout of the suite is what would notice.
"""

import base64
import json
import struct
from pathlib import Path
from typing import Any

import pytest
import tokenizers

import abut
from abut.errors import TokenizerError

LETTERS = {letter: id for id, letter in enumerate("?abc")}
FOREIGN = (
    "hint: pass the tokenizer.json that transformers' save_pretrained writes, "
    "not tokenizer_config.json, vocab.json or tokenizer.model"
)
ALL_IDS = (
    "hint: number the tokens from 0: tables that are indexed by id have room for all ids up to "
    "the highest"
)


def file(model: Any = None, *added: dict[str, Any], **rest: Any) -> str:
    """The text of a file; `model` may be a vocabulary of words."""
    if model is None or "type" not in model:
        vocab = {"?": 0, "a": 1} if model is None else model
        model = {"type": "WordLevel", "vocab": vocab, "unk_token": "?"}
    flags = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized", "special"], False)
    tokens = [{"id": 0, **flags, **token} for token in added]
    return json.dumps({"version": "1.0", "added_tokens": tokens, "model": model, **rest})


def bpe(vocab: dict[str, int], *merges: list[str], **rest: Any) -> dict[str, Any]:
    return {"type": "BPE", "vocab": LETTERS | vocab, "merges": merges, **rest}


def unigram(*pieces: str) -> dict[str, Any]:
    return {"type": "Unigram", "unk_id": 0, "vocab": [[piece, -1.0] for piece in ("?", *pieces)]}


def charsmap(*trie: int, trie_bytes: int | None = None, text: bytes = b"") -> dict[str, Any]:
    size = 4 * len(trie) if trie_bytes is None else trie_bytes
    packed = struct.pack(f"<{1 + len(trie)}I", size, *trie) + text
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(packed).decode()}


def nested(stage: dict[str, Any], key: str, depth: int) -> dict[str, Any]:
    for _ in range(depth):
        stage = {"type": "Sequence", key: [stage]}
    return stage


OUT_OF_BOUNDS = charsmap(0xFFFFFF00, 5, 6)
"""A trie whose root points behind its end: it can be read, but not used."""


@pytest.mark.parametrize(
    ("json", "reason"),
    [
        (
            file({"?": 0, "a": 2**32 - 1}),
            f'the token "a" has id 4294967295, in a vocabulary of 2\n{ALL_IDS}',
        ),
        (
            file(bpe({"ab": 2**20}, ["a", "b"])),
            f'the token "ab" has id 1048576, in a vocabulary of 5\n{ALL_IDS}',
        ),
        (
            file({"?": 0, "a": 1, "b": 1}),
            'the tokens "a" and "b" both have id 1\nhint: give each token a different id: a '
            "sampled id must mean one text",
        ),
        (
            file(unigram("a", "b" * 5000)),
            f'piece 2 of the model has 5000 bytes: "{"b" * 40}"…\nhint: SentencePiece models '
            "do not have such pieces; check whether the file is damaged",
        ),
        (
            file(bpe({"éa": 9}, ["a", "éa"], continuing_subword_prefix="#")),
            'model: merge 0 has "éa" for its second half, from which the '
            f'continuing_subword_prefix "#" cannot be taken\n{FOREIGN}',
        ),
        (
            file(normalizer=charsmap(1, trie_bytes=2**32 - 1)),
            "normalizer: precompiled_charsmap says that 4294967295 bytes of a trie follow, "
            f"but there are 5\n{FOREIGN}",
        ),
        (
            file(normalizer={"type": "Precompiled", "precompiled_charsmap": "!"}),
            "normalizer: the tokenizers crate panicked while it read this part: Precompiled: "
            f'Error("Invalid byte 33, offset 0.", line: 1, column: 27)\n{FOREIGN}',
        ),
        (
            file(None, {"content": "b", "normalized": True}, normalizer=OUT_OF_BOUNDS),
            "normalizer: the tokenizers crate panicked while it read this part: index out of "
            f"bounds: the len is 3 but the index is 1073741666\n{FOREIGN}",
        ),
        (
            file(bpe({}, ["a", "b"])),
            f"model: the vocabulary and the merges contradict each other\n{FOREIGN}",
        ),
    ],
)
def test_a_broken_file_is_an_error_that_names_the_place(json: str, reason: str) -> None:
    with pytest.raises(TokenizerError) as raised:
        abut.Tokenizer.from_str(json)
    assert str(raised.value) == f"not a tokenizer.json: {reason}"


@pytest.mark.parametrize(
    ("json", "place"),
    [
        (file({"?": 0, "a": -1}), "model: invalid value: integer `-1`, expected u32 at line 1"),
        (file(None, {"id": -1, "content": "b"}), "integer `-1`, expected u32 at line 1"),
        (file(None, {"content": 5}), "integer `5`, expected a string at line 1"),
        (file(None, {"content": None}), "null, expected a string at line 1"),
        (file(normalizer=charsmap(1, text=b"\xff")), "normalizer: the tokenizers crate panicked"),
        (file(normalizer=charsmap(trie_bytes=8)), "normalizer: precompiled_charsmap says"),
        (
            file(normalizer={**charsmap(1, trie_bytes=2**32 - 1), "normalizers": []}),
            "normalizer: precompiled_charsmap says",
        ),
        (
            file(normalizer=nested(charsmap(1, trie_bytes=2**32 - 1), "normalizers", 50)),
            "normalizer: precompiled_charsmap says",
        ),
        (file(normalizer=nested({"type": "no"}, "normalizers", 50)), "normalizer: "),
        (file(pre_tokenizer=nested({"type": "no"}, "pretokenizers", 50)), "pre_tokenizer: "),
        (file(normalizer=nested({"type": "NFC"}, "normalizers", 200)), "recursion limit exceeded"),
        (file(unigram("a" * 10**6)), "piece 1 of the model has 1000000 bytes"),
    ],
)
def test_whatever_is_broken_is_an_error_of_the_file(json: str, place: str) -> None:
    with pytest.raises(TokenizerError, match=f"^not a tokenizer.json: .*{place}"):
        abut.Tokenizer.from_str(json)


@pytest.mark.parametrize(
    ("rest", "stage"),
    [
        ({"normalizer": charsmap()}, "normalizer"),
        ({"normalizer": OUT_OF_BOUNDS}, "normalizer"),
        ({"pre_tokenizer": {"type": "FixedLength", "length": 0}}, "pre-tokenizer"),
    ],
)
def test_a_stage_that_panics_costs_the_text_alone(rest: dict[str, Any], stage: str) -> None:
    tokenizer = abut.Tokenizer.from_str(file(None, {"content": "<b>"}, **rest))
    with pytest.raises(TokenizerError, match=f'cannot encode "a": its {stage} panicked: .*\nhint'):
        tokenizer.encode("a")
    trajectory = abut.Trajectory(tokenizer)
    with pytest.raises(TokenizerError, match=f"its {stage} panicked"):
        trajectory.append_text("a")
    assert tokenizer.encode("<b>").tolist() == [2]


def test_ids_may_have_holes() -> None:
    tokenizer = abut.Tokenizer.from_str(file({"?": 0, "a": 2**20 - 1}))
    trajectory = abut.Trajectory(tokenizer)
    trajectory.append_text("a")
    trajectory.request()
    trajectory.append_sampled([2**20 - 1], [-0.5])
    assert tokenizer.decode([2**20 - 1]) == "a"


@pytest.mark.parametrize("normalized", [False, True])
def test_an_added_token_of_megabytes_is_loaded(normalized: bool) -> None:
    content = "<" + "ab" * 1_500_000 + ">"
    lower = {"type": "Lowercase"}
    text = file(None, {"content": content, "normalized": normalized}, normalizer=lower)
    tokenizer = abut.Tokenizer.from_str(text)
    assert tokenizer.encode(content).tolist() == [2]


MANY = 200_000
MADE: dict[str, list[dict[str, Any]]] = {
    "beginnings of each other": [{"content": f"x{index}"} for index in range(MANY)],
    "apart": [{"content": f"<x{index}>"} for index in range(MANY)],
    "with every flag": [
        {"content": f"x{index}", "lstrip": True, "rstrip": True, "single_word": True}
        for index in range(MANY)
    ],
    "nested": [{"content": "x" * length} for length in range(1, 1500)],
}


@pytest.mark.skipif(
    tokenizers.__version__.startswith("0.22."), reason="this tokenizers takes minutes for so many"
)
@pytest.mark.parametrize("added", MADE.values(), ids=MADE)
def test_very_many_added_tokens_are_found_as_tokenizers_finds_them(added: Any) -> None:
    text = file(
        None, *added, normalizer={"type": "Lowercase"}, pre_tokenizer={"type": "Whitespace"}
    )
    native, oracle = abut.Tokenizer.from_str(text), tokenizers.Tokenizer.from_str(text)
    for spelled in ("x0 x199999 x200000 x", "<x7><x199999> <x200000>", "xx" * 99):
        expected = oracle.encode(spelled, add_special_tokens=False).ids
        assert native.encode(spelled).tolist() == expected
        assert native.encode(spelled, added="text").max() < 2


def test_of_tokens_that_normalize_to_the_same_the_first_is_found() -> None:
    # Which one `tokenizers` finds is chance.
    def spelled(index: int) -> str:
        return "".join(
            c.upper() if index >> bit & 1 else c for bit, c in enumerate("abcdefghijklmnopqr")
        )

    added = [{"content": spelled(index), "normalized": True} for index in range(MANY)]
    tokenizer = abut.Tokenizer.from_str(file(None, *added, normalizer={"type": "Lowercase"}))
    assert tokenizer.encode(spelled(9)).tolist() == [2]


@pytest.mark.parametrize(
    ("json", "reason"),
    [
        (file({"?": 0, "a": 2**32 - 1}), 'the token "a" has id 4294967295'),
        (file(unigram("a" * 10**6)), "piece 1 of the model has 1000000 bytes"),
        (file(bpe({}, ["a", "b"])), "model: the vocabulary and the merges contradict"),
    ],
)
def test_transformers_never_sees_a_broken_file(json: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json)
    (tmp_path / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast"}'
    )
    with pytest.raises(TokenizerError) as raised:
        abut.Tokenizer.from_pretrained(tmp_path)
    assert str(raised.value).startswith(
        f"{tmp_path}/tokenizer.json: not a tokenizer.json: {reason}"
    )


def test_a_panic_of_the_tokenizers_package_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    panicking = file(normalizer={"type": "Precompiled", "precompiled_charsmap": "!"})

    def load(name: str, **_: Any) -> Any:
        return tokenizers.Tokenizer.from_str(panicking)

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", load)
    with pytest.raises(TokenizerError, match=r"^owner/model: the tokenizers package crashed while"):
        abut.Tokenizer.from_pretrained("owner/model")
