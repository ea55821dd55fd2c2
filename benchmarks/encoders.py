"""Who encodes by one tokenizer.json: abut, and each peer that can read it.

Invariant: all sides are made from the same file, and a side gives token ids and nothing around
them. What a peer cannot read has a reason, which the table prints.
"""

import json
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from abut import Tokenizer
from benchmarks.figures import Numbers
from benchmarks.peers import PeerMissing
from benchmarks.workbench import Workbench

ABUT, TOKENIZERS, FAST = "abut", "tokenizers encode", "tokenizers encode_batch_fast"
GIGATOKEN, TIKTOKEN = "gigatoken encode", "tiktoken encode_ordinary"

Encode: TypeAlias = Callable[[str], Numbers]


@dataclass(frozen=True)
class Shape:
    """A kind of tokenizer that many models have, and whose file it is measured with."""

    name: str
    folder: str
    """In $ABUT_TOKENIZERS."""
    models: str
    """Whose tokenizer.json it is."""
    pattern: str | None = None
    """The expression that cuts words, where one does."""
    ignore_merges: bool = False
    """Whether a word of the vocabulary is one token whatever the merges make of it."""

    def file(self) -> Path:
        """Its tokenizer.json.

        Raises:
            PeerMissing: it is not there; says what to put where.
        """
        root = os.environ.get("ABUT_TOKENIZERS")
        file = Path(root or "") / self.folder / "tokenizer.json"
        if root is None or not file.is_file():
            named = f"$ABUT_TOKENIZERS/{self.folder}/tokenizer.json"
            raise PeerMissing(f"there is no {named}: put the one of {self.models} there")
        return file

    def on_vocabulary_of(self, file: Path, folder: Path) -> Path:
        """Another tokenizer that cuts words as this shape does, for where its own is not there.

        Args:
            file: a tokenizer.json whose model merges bytes.
            folder: where the new one is written.

        Raises:
            PeerMissing: no pattern cuts this shape's words, or the file has another model.
        """
        source = json.loads(file.read_bytes())
        if self.pattern is None:
            raise PeerMissing(f"no pattern cuts the words of {self.name}")
        if source["model"]["type"] != "BPE" or "ByteLevel" not in json.dumps(source["decoder"]):
            raise PeerMissing(f"{file.parent.name} has no vocabulary of bytes")
        split = {
            "type": "Split",
            "pattern": {"Regex": self.pattern},
            "behavior": "Isolated",
            "invert": False,
        }
        spell = {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": False,
            "use_regex": False,
        }
        source["normalizer"] = None
        source["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, spell]}
        source["model"]["ignore_merges"] = self.ignore_merges
        written = folder / f"{self.folder}.json"
        written.write_text(json.dumps(source), encoding="utf-8")
        return written


_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _by_letters(digits: str) -> str:
    """cl100k's pattern: an optional sign before letters."""
    signs = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
    return rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}|{signs}|{_SPACES}"


def _by_case(digits: str, contractions: str) -> str:
    """o200k's pattern: words end where the case changes."""
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    sign, signs = r"[^\r\n\p{L}\p{N}]?", r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
    small, capitals = f"{upper}*{lower}+{contractions}", f"{upper}+{lower}*{contractions}"
    return f"{sign}{small}|{sign}{capitals}|{digits}|{signs}|{_SPACES}"


SHAPES = (
    Shape(
        "Llama 3",
        "llama3",
        "meta-llama/Llama-3.1-8B, or of a tune of it,",
        _by_letters(r"\p{N}{1,3}"),
        ignore_merges=True,
    ),
    Shape(
        "o200k",
        "o200k",
        "openai/gpt-oss-20b",
        _by_case(r"\p{N}{1,3}", f"{_CONTRACTIONS}?"),
        ignore_merges=True,
    ),
    Shape(
        "Mistral Tekken",
        "tekken",
        "mistralai/Mistral-Nemo-Instruct-2407",
        _by_case(r"\p{N}", ""),
        ignore_merges=True,
    ),
    Shape("Mistral SentencePiece", "mistral_v3", "mistralai/Mistral-7B-Instruct-v0.3"),
)
"""Beside the tokenizer of the other rows, which is Qwen3's unless another one is given."""


def peers_of(
    workbench: Workbench,
    file: Path,
    tokenizer: Tokenizer,
    wanted: Collection[str] = (GIGATOKEN, TIKTOKEN),
) -> tuple[dict[str, Encode], dict[str, str]]:
    """The peers beside `tokenizers` that can encode by a file.

    Args:
        workbench: has the peers.
        file: the tokenizer.json.
        tokenizer: the same in abut.
        wanted: their sides' names; no other one is made.

    Returns:
        Each by its side's name, and of each that cannot the reason.
    """
    found: dict[str, Encode] = {}
    missing: dict[str, str] = {}
    makes = {GIGATOKEN: _gigatoken, TIKTOKEN: _tiktoken}
    for side in wanted:
        try:
            found[side] = makes[side](workbench, file, tokenizer)
        except PeerMissing as reason:
            missing[side] = str(reason)
    return found, missing


def _gigatoken(workbench: Workbench, file: Path, tokenizer: Tokenizer) -> Encode:
    module = workbench.peer("gigatoken")
    try:
        encode: Encode = module.Tokenizer(file).encode
    except Exception as error:  # it raises what it likes for a file that it does not know
        raise PeerMissing(f"it cannot read this one: {error}") from error
    return encode


def _tiktoken(workbench: Workbench, file: Path, tokenizer: Tokenizer) -> Encode:
    module = workbench.peer("tiktoken")
    source = json.loads(file.read_bytes())
    encoding = module.Encoding(
        name=file.parent.name,
        pat_str=_pattern(source),
        mergeable_ranks=_ranks(source, tokenizer),
        special_tokens={},
    )
    encode: Encode = encoding.encode_ordinary
    return encode


def _pattern(source: dict[str, Any]) -> str:
    """The pattern that cuts words, where one does."""
    pre_tokenizer = source["pre_tokenizer"] or {}
    steps = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    patterns = [step["pattern"]["Regex"] for step in steps if "Regex" in step.get("pattern", {})]
    if len(patterns) != 1 or steps[-1]["type"] != "ByteLevel":
        raise PeerMissing("it cuts words by one pattern and merges bytes; this one does not")
    (pattern,) = patterns
    assert isinstance(pattern, str)
    return pattern


def _ranks(source: dict[str, Any], tokenizer: Tokenizer) -> dict[bytes, int]:
    """The bytes of each token and its rank, where the ids are ranks, as in its own vocabularies.

    Raises:
        PeerMissing: they are not.
    """
    vocabulary, added = source["model"]["vocab"], {one["content"] for one in source["added_tokens"]}
    last = -1
    for merge in source["model"]["merges"]:
        merged = vocabulary["".join(merge.split(" ") if isinstance(merge, str) else merge)]
        if merged < last:  # a token can be merged of several pairs, one after the other
            raise PeerMissing("its vocabularies are in the order of merges; this one is not")
        last = merged
    ids = (id for token, id in vocabulary.items() if token not in added)
    return {tokenizer.decode_bytes([id]): id for id in ids}
