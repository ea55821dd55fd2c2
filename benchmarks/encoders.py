"""The encoders of one tokenizer.json: abut, and each peer that can read the file.

Invariant: all sides are made from the same file, and a side returns token ids without special
tokens around them. If a peer cannot read a file, the page prints the reason.
"""

import itertools
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
    """A kind of tokenizer that many models have, and the file that it is measured with."""

    name: str
    folder: str
    """Its folder in $ABUT_TOKENIZERS."""
    models: str
    """The model that has this tokenizer.json."""
    pattern: str | None = None
    """The regular expression that splits words; None: words are not split by one expression."""
    ignore_merges: bool = False
    """True if a word in the vocabulary is always one token, without merges."""

    def file(self) -> Path:
        """Return its tokenizer.json.

        Raises:
            PeerMissing: the file is missing; the message says where to copy it from.
        """
        root = os.environ.get("ABUT_TOKENIZERS")
        file = Path(root or "") / self.folder / "tokenizer.json"
        if root is None or not file.is_file():
            named = f"$ABUT_TOKENIZERS/{self.folder}/tokenizer.json"
            raise PeerMissing(f"{named} is missing: copy it from {self.models}")
        return file

    def on_vocabulary_of(self, file: Path, folder: Path) -> Path:
        """Write a tokenizer that splits words like this shape, to use if its own file is missing.

        Args:
            file: a tokenizer.json whose model merges bytes.
            folder: the folder for the new file.

        Raises:
            PeerMissing: this shape has no pattern, or the file has a different model.
        """
        source = json.loads(file.read_bytes())
        if self.pattern is None:
            raise PeerMissing(f"{self.name} does not split words with a pattern")
        if source["model"]["type"] != "BPE" or "ByteLevel" not in json.dumps(source["decoder"]):
            raise PeerMissing(f"{file.parent.name} is not a byte-level BPE tokenizer")
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
    """Return cl100k's pattern: an optional punctuation character before letters."""
    signs = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
    return rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}|{signs}|{_SPACES}"


def _by_case(digits: str, contractions: str) -> str:
    """Return o200k's pattern: words end where the case changes."""
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    sign, signs = r"[^\r\n\p{L}\p{N}]?", r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
    small, capitals = f"{upper}*{lower}+{contractions}", f"{upper}+{lower}*{contractions}"
    return f"{sign}{small}|{sign}{capitals}|{digits}|{signs}|{_SPACES}"


SHAPES = (
    Shape(
        "Llama 3",
        "llama3",
        "meta-llama/Llama-3.1-8B or a fine-tune of it",
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
"""The shapes besides the tokenizer of the other rows, which is Qwen3's by default."""


_copies = itertools.count(1)


def new_tokenizer(file: Path) -> Tokenizer:
    """Return abut's tokenizer of a file, without the words that another row or side has encoded.

    As long as a tokenizer exists, abut returns it again for the same text of a file, with the words
    that it remembers. So the text gets spaces at its end, a different number each time.
    """
    return Tokenizer.from_str(file.read_text(encoding="utf-8") + " " * next(_copies))


def peers_of(
    workbench: Workbench,
    file: Path,
    tokenizer: Tokenizer,
    wanted: Collection[str] = (GIGATOKEN, TIKTOKEN),
) -> tuple[dict[str, Encode], dict[str, str]]:
    """Return the peers that can encode with a file, without `tokenizers`.

    Args:
        workbench: has the peers.
        file: the tokenizer.json.
        tokenizer: abut's tokenizer of the same file.
        wanted: the sides to make.

    Returns:
        The encoders by side, and the reasons of the sides that cannot encode.
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
    except Exception as error:  # it raises any exception for a file that it does not support
        raise PeerMissing(f"gigatoken cannot read this tokenizer: {error}") from error
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
    """Return the pattern that splits words."""
    pre_tokenizer = source["pre_tokenizer"] or {}
    steps = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    patterns = [step["pattern"]["Regex"] for step in steps if "Regex" in step.get("pattern", {})]
    if len(patterns) != 1 or steps[-1]["type"] != "ByteLevel":
        raise PeerMissing(
            "tiktoken needs a byte-level tokenizer with one pattern, and this one is different"
        )
    (pattern,) = patterns
    assert isinstance(pattern, str)
    return pattern


def _ranks(source: dict[str, Any], tokenizer: Tokenizer) -> dict[bytes, int]:
    """Return the bytes of each token and its rank, if ids are ranks, as in tiktoken's vocabularies.

    Raises:
        PeerMissing: the ids are not ranks.
    """
    vocabulary, added = source["model"]["vocab"], {one["content"] for one in source["added_tokens"]}
    last = -1
    for merge in source["model"]["merges"]:
        merged = vocabulary["".join(merge.split(" ") if isinstance(merge, str) else merge)]
        if merged < last:  # equal is fine: several pairs in a row can make the same token
            raise PeerMissing("tiktoken needs ids in the order of merges, and these are not")
        last = merged
    ids = (id for token, id in vocabulary.items() if token not in added)
    return {tokenizer.decode_bytes([id]): id for id in ids}
