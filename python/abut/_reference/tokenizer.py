"""A `tokenizer.json` as a function from typed text to ids.

Invariant: `encode(text)` is what `tokenizers` gives with `add_special_tokens=False`, and content
never becomes a control token, neither by matching nor by the model's own vocabulary.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import groupby, takewhile
from typing import Any, Literal, Self, TypeAlias

import tokenizers

from abut._reference.cut import AddedToken, Span, cut, hard_tokens, is_textual, run_around
from abut.errors import ControlTokenError, TokenizerError
from abut.parts import Content, Part, Scaffold

AddedMode: TypeAlias = Literal["parse", "text", "raise"]
SeamKind: TypeAlias = Literal["barrier", "window", "merged", "opaque"]


class Edge(Enum):
    """What stands to the left of a segment."""

    START = "nothing: it begins the conversation"
    SEGMENT = "an added token: a later segment"
    CONTINUE = "tokens of the same text that must not change: no prefix of any kind"


@dataclass(frozen=True)
class Token:
    """A token and the characters of the joined text that it came from."""

    id: int
    start: int
    end: int
    cut: AddedToken | None = None


@dataclass(frozen=True)
class Merge:
    """The tokens that meet in a merged seam, from the first that differs to the last."""

    left_ids: list[int]
    right_ids: list[int]
    merged_ids: list[int]
    left_text: str
    right_text: str


@dataclass(frozen=True)
class Seam:
    """The left tokens without the last `drop`, then `ids`, are the tokens of both."""

    kind: SeamKind
    exact: bool
    drop: int
    ids: list[int]
    canonical_ids: list[int] | None = None
    merge: Merge | None = None


class Tokenizer:
    """The stages of a `tokenizer.json`, and the two classes of its added tokens."""

    def __init__(self, source: str, *, control: Iterable[str] = (), textual: Iterable[str] = ()):
        """Read the text of a `tokenizer.json`; `control` and `textual` move tokens between classes.

        Raises:
            TokenizerError: it cannot be read, or its tokens are drawn at random.
        """
        try:
            config = json.loads(source) | {"truncation": None, "padding": None}
            _refuse_randomness(config["model"])
            whole = tokenizers.Tokenizer.from_str(json.dumps(config))
        except TokenizerError:
            raise
        except Exception as error:  # tokenizers raises bare Exception
            raise TokenizerError(f"not a tokenizer.json: {error}") from error
        self._model = whole.model
        self._stages = {edge: _stages(config, edge) for edge in Edge}
        overrides = {**dict.fromkeys(textual, False), **dict.fromkeys(control, True)}
        self.added = [
            AddedToken(
                id=id,
                content=token.content,
                pattern=_normalized(whole.normalizer, token) if token.normalized else token.content,
                single_word=token.single_word,
                lstrip=token.lstrip,
                rstrip=token.rstrip,
                normalized=token.normalized,
                special=token.special,
                control=overrides.get(
                    token.content, token.special or not is_textual(token.content)
                ),
            )
            for id, token in sorted(whole.get_added_tokens_decoder().items())
        ]
        for token in self.added:
            if not token.pattern:  # tokenizers would match it between any two characters
                raise TokenizerError(f"added token {token.content!r} is empty once normalized")
        self.hard = hard_tokens(self.added)
        self.hard_ids = {token.id for token in self.hard}
        unk_token = config["model"].get("unk_token")
        unk_id = config["model"].get("unk_id")
        if unk_id is None and unk_token is not None:
            unk_id = self._model.token_to_id(unk_token)
        self._unk_id = unk_id
        self._control = {token.id: token.content for token in self.added if token.control}
        self._bytes = _byte_table(config, whole, self.added)

    @classmethod
    def from_str(cls, source: str, **overrides: Iterable[str]) -> Self:
        """As the constructor, under the name that the native class has."""
        return cls(source, **overrides)

    # --- text to ids

    def encode(self, text: str, *, added: AddedMode = "parse") -> list[int]:
        """The ids of `text`, which begins the conversation."""
        return [token.id for token in self.tokens([self._part(text, added)], Edge.START)]

    def encode_parts(self, parts: Sequence[Part], *, at_start: bool = True) -> list[int]:
        """The ids of the parts as one text; only scaffold becomes control tokens."""
        return [t.id for t in self.tokens(parts, Edge.START if at_start else Edge.SEGMENT)]

    def tokens(self, parts: Sequence[Part], edge: Edge) -> list[Token]:
        """The tokens of the parts as one text, with the characters that they came from."""
        text, runs = "".join(parts), scaffold_runs(parts)
        identity = [(i, i + 1) for i in range(len(text))]
        raw = [token for token in self.added if not token.normalized]
        tokens: list[Token] = []
        end_of_last = 0
        for found in cut(text, identity, raw, runs):
            tokens += self._segment(text, (end_of_last, found.start), runs, edge)
            tokens.append(Token(found.token.id, found.start, found.end, found.token))
            end_of_last = found.end
        return tokens + self._segment(text, (end_of_last, len(text)), runs, edge)

    def _segment(self, text: str, span: Span, runs: Sequence[Span], edge: Edge) -> list[Token]:
        """What stands between two raw cuts: normalized as a whole, then cut again."""
        start, end = span
        if start == end:
            return []
        edge = edge if start == 0 else Edge.SEGMENT
        runs = [(low - start, high - start) for low, high in runs]
        normalizer = self._stages[edge].normalizer

        def normalized_string() -> tokenizers.PreTokenizedString:
            string = tokenizers.PreTokenizedString(text[start:end])
            if normalizer is not None:
                string.normalize(normalizer.normalize)
            return string

        by_pattern = [token for token in self.added if token.normalized]
        normalized = "".join(piece for piece, _, _ in normalized_string().get_splits())
        origin = _origin(normalized_string()) if by_pattern else []
        tokens: list[Token] = []

        def owned(low: int, high: int) -> bool:
            """Not with the help of content that was composed, replaced or removed beside it."""
            first, last = origin[low][0], origin[high - 1][1]
            around = (
                min(first, origin[low - 1][1]) if low else 0,
                max(last, origin[high][0]) if high < len(origin) else end - start,
            )
            if run_around(around, runs) is not None:
                return True
            run = run_around((first, last), runs)
            assert run is not None
            source = text[start + max(around[0], run[0]) : start + min(around[1], run[1])]
            normalizers = [self._stages[e].normalizer for e in (Edge.SEGMENT, Edge.CONTINUE)]
            alone = [n.normalize_str(source) if n else source for n in normalizers]
            return normalized[low:high] in alone

        def piece_tokens(low: int, high: int) -> None:
            if low == high:
                return

            def piece() -> tokenizers.PreTokenizedString:
                string = normalized_string()
                string.split(lambda _, whole: [whole.slice((low, high))])
                return string

            # What stands behind an added token is a later piece.
            stages = self._stages[edge if low == 0 else Edge.SEGMENT]
            for word, origins in stages.words(piece):
                tokens.extend(self._word(word, origins, runs))

        end_of_last = 0
        for found in cut(normalized, origin, by_pattern, runs, owned):
            piece_tokens(end_of_last, found.start)
            low, high = origin[found.start][0], origin[found.end - 1][1]
            tokens.append(Token(found.token.id, low, high, found.token))
            end_of_last = found.end
        piece_tokens(end_of_last, len(normalized))
        return [replace(t, start=t.start + start, end=t.end + start) for t in tokens]

    def _word(self, word: str, origin: Sequence[Span], runs: Sequence[Span]) -> Iterator[Token]:
        """The model's tokens of one pre-token, where content keeps it from control tokens."""
        for id, low, high in self._model_tokens(word):
            span = origin[low][0], origin[high - 1][1]
            if self._mints(id, word[low:high]) and run_around(span, runs) is None:
                for part, i, j in self._spelled_otherwise(word[low:high]):
                    yield Token(part, origin[low + i][0], origin[low + j - 1][1])
            else:
                yield Token(id, *span)

    def _mints(self, id: int, text: str) -> bool:
        """Whether the model wrote a control token: `unk` only does where the text spells it."""
        return id in self._control and (id != self._unk_id or text == self._control[id])

    def _spelled_otherwise(self, text: str) -> Iterator[tuple[int, int, int]]:
        """The tokens of the first character and of the rest, until no control token comes out."""
        for begin, half in (0, text[:1]), (1, text[1:]):
            for id, low, high in self._model_tokens(half) if half else ():
                if not self._mints(id, half[low:high]):
                    yield id, begin + low, begin + high
                elif high - low == 1:
                    raise TokenizerError(f"content spells {half!r}, which only control id {id} is")
                else:
                    for part, i, j in self._spelled_otherwise(half[low:high]):
                        yield part, begin + low + i, begin + low + j

    def _model_tokens(self, text: str) -> Iterator[tuple[int, int, int]]:
        """Ids with the characters of `text` that they cover.

        The model counts bytes, and leaves out those of characters that it drops.
        """
        try:
            tokens = self._model.tokenize(text)
        except Exception as error:  # tokenizers raises bare Exception
            raise TokenizerError(f"the tokenizer cannot encode {text!r}: {error}") from error
        char_of_byte = [i for i, char in enumerate(text) for _ in char.encode()]
        if tokens and tokens[-1].offsets[1] < len(char_of_byte):
            char_of_byte = [i for i in char_of_byte if self._keeps(text, i)]
        for token in tokens:
            low, high = token.offsets
            yield token.id, char_of_byte[low], char_of_byte[high - 1] + 1

    def _keeps(self, text: str, at: int) -> bool:
        """Whether a BPE model without an unknown token has a character, or bytes for it."""
        prefix = getattr(self._model, "continuing_subword_prefix", None) or "" if at else ""
        is_last = at == len(text) - 1
        suffix = getattr(self._model, "end_of_word_suffix", None) or "" if is_last else ""
        symbol = prefix + text[at] + suffix
        spelled = [f"<0x{byte:02X}>" for byte in symbol.encode()]
        has = self._model.token_to_id
        return has(symbol) is not None or (
            self._model.byte_fallback and all(has(byte) is not None for byte in spelled)
        )

    def control_spellings(self, text: str) -> list[tuple[int, str]]:
        """The control tokens that `text` as scaffold becomes, each with its first character."""
        spelled: list[tuple[int, str]] = []
        for token in self.tokens([Scaffold(text)], Edge.START):
            written = text[token.start : token.end]
            if self._mints(token.id, written) or (token.cut and token.cut.control):
                at = token.start + len(written) - len(written.lstrip())
                spelled.append((at, self._control[token.id]))
        return spelled

    def _part(self, text: str, added: AddedMode) -> Part:
        if added == "parse":
            return Scaffold(text)
        if added == "raise" and (spelled := self.control_spellings(text)):
            at, content = spelled[0]
            raise ControlTokenError(
                f"the text spells the control token {content!r} at character {at}"
            )
        return Content(text)

    # --- two texts

    def seam(self, a: str, b: str, *, added: AddedMode = "parse") -> Seam:
        """What became of the tokens of `a` when `b` followed."""
        if added == "raise":
            self._part(a + b, added)
        part = Scaffold if added == "parse" else Content
        left = self.tokens([part(a)], Edge.START)
        joined = self.tokens([part(a), part(b)], Edge.START)
        at_edge = (not a) or (not b) or (left and left[-1].end == len(a) and self.is_hard(left[-1]))
        barrier = at_edge or any(t.start == len(a) and self.is_hard(t) for t in joined)
        return self.between_texts(left, joined, bool(barrier), [part(b)])

    def between_texts(
        self, before: Sequence[Token], after: Sequence[Token], barrier: bool, right: Sequence[Part]
    ) -> Seam:
        """The seam where `before` became `after` because `right` arrived."""
        left_ids, joined_ids = [token.id for token in before], [token.id for token in after]
        kept = common_prefix(left_ids, joined_ids)
        drop = len(left_ids) - kept
        if not drop:
            return Seam("barrier" if barrier else "opaque", True, 0, joined_ids[kept:])
        try:
            right_ids = [token.id for token in self.tokens(right, Edge.CONTINUE)]
        except TokenizerError:  # it cannot be written without what stands before it
            merge = None
        else:
            merge = self.merge(left_ids, right_ids, joined_ids)
        return Seam("merged", False, drop, joined_ids[kept:], merge=merge)

    def merge(self, left: list[int], right: list[int], joined: list[int]) -> Merge:
        """What differs between both sides alone and the two joined."""
        kept = common_prefix(left, joined)
        merged = joined[kept:]
        same = min(common_prefix(right[::-1], joined[::-1]), len(merged), len(right))
        left, right = left[kept:], right[: len(right) - same]
        merged = merged[: len(merged) - same]
        return Merge(left, right, merged, self.decode(left), self.decode(right))

    def is_additive(self, a: str, b: str) -> bool:
        """The literal equation, on three independent encodes."""
        return self.encode(a + b) == self.encode(a) + self.encode(b)

    def is_hard(self, token: Token) -> bool:
        """Whether the token was cut out at a place that no other text can change."""
        return token.cut in self.hard

    def profile(self) -> dict[str, Any]:
        """What is known statically; each list in the order of ids."""
        return {
            "hard_tokens": [token.content for token in self.hard],
            "control_tokens": [token.content for token in self.added if token.control],
            "textual_tokens": [token.content for token in self.added if not token.control],
        }

    # --- ids to text

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        """The bytes of the ids, one after the other, by table.

        Raises:
            TokenizerError: an id is outside the vocabulary.
        """
        for position, id in enumerate(ids):
            if id not in self._bytes:
                raise TokenizerError(f"token {position} has id {id}, outside the vocabulary")
        return b"".join(self._bytes[id] for id in ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The bytes as text; what is not UTF-8 becomes U+FFFD."""
        return self.decode_bytes(ids).decode(errors="replace")

    def parts_of_ids(self, ids: Sequence[int]) -> list[tuple[type[Scaffold | Content], bytes]]:
        """Runs of added tokens as scaffold, runs of all others as content, in bytes."""
        added = {token.id for token in self.added if not _is_own(token, self._model)}
        return [
            (Scaffold if is_added else Content, self.decode_bytes(list(run)))
            for is_added, run in groupby(ids, key=added.__contains__)
        ]


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many ids agree from the start."""
    agree = takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))
    return sum(1 for _ in agree)


def scaffold_runs(parts: Sequence[Part]) -> list[Span]:
    """The maximal runs of adjacent scaffold in the joined text; empty parts separate nothing."""
    runs: list[Span] = []
    end = 0
    for part in parts:
        start, end = end, end + len(part)
        if isinstance(part, Scaffold) and part:
            runs.append((runs.pop()[0] if runs and runs[-1][1] == start else start, end))
    return runs


def _origin(string: tokenizers.PreTokenizedString) -> list[Span]:
    """For each character of the splits, the characters of the original that it came from."""
    string.split(lambda _, piece: [piece.slice((i, i + 1)) for i in range(len(piece.normalized))])
    return [origin for _, origin, _ in string.get_splits("original", "char")]


def _normalized(normalizer: Any, token: tokenizers.AddedToken) -> str:
    return token.content if normalizer is None else str(normalizer.normalize_str(token.content))


def _refuse_randomness(model: dict[str, Any]) -> None:
    if (model.get("dropout") or 0) > 0:
        raise TokenizerError(f"the tokenizer is not deterministic: dropout {model['dropout']}")
    if model.get("alpha") or (model.get("nbest_size") or 0) not in (0, 1):
        raise TokenizerError("the tokenizer is not deterministic: Unigram sampling")


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
    origins = iter(_origin(string))
    for word in words:
        yield word, [next(origins) for _ in word]


def _stages(config: dict[str, Any], edge: Edge) -> Stages:
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


def _byte_table(
    config: dict[str, Any], whole: tokenizers.Tokenizer, added: Iterable[AddedToken]
) -> dict[int, bytes]:
    """The bytes that each id stands for."""
    stages = json.dumps(
        [config.get(key) for key in ("normalizer", "pre_tokenizer", "decoder")], ensure_ascii=False
    )
    vocab = whole.get_vocab(with_added_tokens=False)
    model = config["model"]
    if '"ByteLevel"' in stages:
        table = {id: _byte_level(token) for token, id in vocab.items()}
    elif "Metaspace" in stages or "▁" in stages or model.get("byte_fallback"):
        table = {id: _sentencepiece(token) for token, id in vocab.items()}
    else:
        continuing = model.get("continuing_subword_prefix")
        suffix = model.get("end_of_word_suffix")
        table = {id: _word(token, continuing, suffix) for token, id in vocab.items()}
    foreign = (token for token in added if not _is_own(token, whole.model))
    return table | {token.id: token.content.encode() for token in foreign}


def _is_own(token: AddedToken, model: Any) -> bool:
    """A textual token that the model itself makes of text, and spells as it does."""
    return not token.control and model.token_to_id(token.content) == token.id


def _byte_level(token: str) -> bytes:
    try:
        return bytes(BYTE_OF_CHAR[char] for char in token)
    except KeyError:
        return token.encode()


def _sentencepiece(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes.fromhex(token[3:5])
    return token.replace("▁", " ").encode()


def _word(token: str, continuing: str | None, suffix: str | None) -> bytes:
    if suffix and token.endswith(suffix):
        return token.removesuffix(suffix).encode() + b" "
    if not continuing:
        return token.encode()
    goes_on = token.startswith(continuing)
    return token.removeprefix(continuing).encode() if goes_on else b" " + token.encode()


def _byte_of_char() -> dict[str, int]:
    """GPT-2's table: printable Latin-1 stands for itself, the other bytes follow from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


BYTE_OF_CHAR = _byte_of_char()
