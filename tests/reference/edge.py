"""What stands to the left of a text, and the stages of a tokenizer there.

Invariant: what `tokenizers` writes or takes away at the beginning of a segment, a prefix or
whitespace, happens where one begins, and nowhere else.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import tokenizers

from tests.reference.cut import Span


class Edge(Enum):
    """What stands to the left of a segment."""

    START = "nothing: it begins the conversation"
    SEGMENT = "an added token: a later segment"
    CONTINUE = "tokens of the same text that must not change: no prefix of any kind"


@dataclass(frozen=True)
class Stages:
    """Normalizer and pre-tokenizer as they act on a segment with one edge."""

    normalizer: Any
    pre_tokenizer: Any
    before_prefix: Any = None
    """The stages before one that writes a prefix before each of its words, not each segment."""
    without_prefix: Any = None

    def words(
        self, piece: Callable[[], tokenizers.PreTokenizedString]
    ) -> Iterator[tuple[str, list[Span]]]:
        """The words of a piece, each with the characters that its own ones came from."""
        if self.without_prefix is None:
            yield from _words(piece(), self.pre_tokenizer)
            return
        begun = piece()
        self.before_prefix.pre_tokenize(begun)
        (_, (start, end), _), *_ = begun.get_splits("original", "char") or [("", (-1, -1), None)]
        edge = end if start == 0 else 0
        for word, origins in _words(piece(), self.without_prefix):
            if origins[0][0] < edge:
                yield word, origins
        for word, origins in _words(piece(), self.pre_tokenizer):
            if origins[0][0] >= edge:
                yield word, origins


def _words(
    string: tokenizers.PreTokenizedString, pre_tokenizer: Any
) -> Iterator[tuple[str, list[Span]]]:
    if pre_tokenizer is not None:
        pre_tokenizer.pre_tokenize(string)
    words = [word for word, _, _ in string.get_splits() if word]
    origins = iter(origin_of(string))
    for word in words:
        yield word, [next(origins) for _ in word]


def stages_at(config: dict[str, Any], edge: Edge) -> Stages:
    normalizers = _unrolled(config.get("normalizer"), "normalizers")
    pre_tokenizers = _unrolled(config.get("pre_tokenizer"), "pretokenizers")
    continues = edge is Edge.CONTINUE
    normalizer = _build("normalizers", [_inside(n) if continues else n for n in normalizers])

    def prefixed(scheme: str, first: int) -> Any:
        """Metaspace and ByteLevel without a prefix from stage `first` on."""
        inner = [
            _unprefixed(stage, scheme) if index >= first else stage
            for index, stage in enumerate(pre_tokenizers)
        ]
        return _build("pretokenizers", inner)

    if edge is Edge.START:
        return Stages(normalizer, prefixed("", 0))
    if edge is Edge.SEGMENT:
        return Stages(normalizer, prefixed("first", 0))
    later = [
        i for i, stage in enumerate(pre_tokenizers) if i and stage != _unprefixed(stage, "any")
    ]
    if not later:
        return Stages(normalizer, prefixed("any", 0))
    bare = [_unprefixed(stage, "any") for stage in pre_tokenizers]
    inside = [_unprefixed(stage, "first") for stage in pre_tokenizers]
    return Stages(
        normalizer,
        _build("pretokenizers", [bare[0], *inside[1:]]),
        _build("pretokenizers", bare[: later[0]]),
        _build("pretokenizers", bare),
    )


def _unrolled(stage: dict[str, Any] | None, inner: str) -> list[dict[str, Any]]:
    if stage is None:
        return []
    if inner in stage:
        return [one for part in stage[inner] for one in _unrolled(part, inner)]
    return [stage]


def _build(kind: str, stages: Sequence[dict[str, Any] | None]) -> Any:
    kept = [stage for stage in stages if stage is not None]
    if not kept:
        return None
    config = {
        "version": "1.0",
        "model": {"type": "WordLevel", "vocab": {"": 0}, "unk_token": ""},
        kind.removesuffix("s").replace("pret", "pre_t"): {"type": "Sequence", kind: kept},
    }
    built = tokenizers.Tokenizer.from_str(json.dumps(config))
    return built.normalizer if kind == "normalizers" else built.pre_tokenizer


def _inside(stage: dict[str, Any]) -> dict[str, Any] | None:
    """A normalizer for text that is not the beginning of its segment."""
    match stage["type"]:
        case "Prepend":
            return None
        case "Strip":
            return {**stage, "strip_left": False}
    return stage


def _unprefixed(stage: dict[str, Any], scheme: str) -> dict[str, Any]:
    """A pre-tokenizer without the prefix that it writes under this scheme."""
    match stage["type"]:
        case "Metaspace":
            own = stage.get("prepend_scheme", "always")
            gone = scheme == "any" or own == scheme
            bare = {key: value for key, value in stage.items() if key != "add_prefix_space"}
            return {**bare, "prepend_scheme": "never"} if gone else stage
        case "ByteLevel" if scheme == "any":
            return {**stage, "add_prefix_space": False}
    return stage


def origin_of(string: tokenizers.PreTokenizedString) -> list[Span]:
    """For each character of the splits, the characters of the original that it came from."""
    string.split(lambda _, piece: [piece.slice((i, i + 1)) for i in range(len(piece.normalized))])
    return [origin for _, origin, _ in string.get_splits("original", "char")]
