"""Who encodes by one tokenizer.json: abut, and each peer that can read it.

Invariant: all sides are made from the same file, and a side gives token ids and nothing around
them. What a peer cannot read has a reason, which the table prints.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from abut._native import Tokenizer
from abut.bench.figures import Numbers
from abut.bench.peers import PeerMissing
from abut.bench.workbench import Workbench

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


SHAPES = (
    Shape("Llama 3", "llama3", "meta-llama/Llama-3.1-8B, or of a tune of it,"),
    Shape("o200k", "o200k", "openai/gpt-oss-20b"),
    Shape("Mistral Tekken", "tekken", "mistralai/Mistral-Nemo-Instruct-2407"),
    Shape("Mistral SentencePiece", "mistral_v3", "mistralai/Mistral-7B-Instruct-v0.3"),
)
"""Beside the tokenizer of the other rows, which is Qwen3's unless another one is given."""


def peers_of(
    workbench: Workbench, file: Path, tokenizer: Tokenizer
) -> tuple[dict[str, Encode], dict[str, str]]:
    """The peers beside `tokenizers` that can encode by a file.

    Args:
        workbench: has the peers.
        file: the tokenizer.json.
        tokenizer: the same in abut.

    Returns:
        Each by its side's name, and of each that cannot the reason.
    """
    found: dict[str, Encode] = {}
    missing: dict[str, str] = {}
    for side, make in ((GIGATOKEN, _gigatoken), (TIKTOKEN, _tiktoken)):
        try:
            found[side] = make(workbench, file, tokenizer)
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
        if merged <= last:
            raise PeerMissing("its vocabularies are in the order of merges; this one is not")
        last = merged
    ids = (id for token, id in vocabulary.items() if token not in added)
    return {tokenizer.decode_bytes([id]): id for id in ids}
