"""Typed text to tokens: cut, normalize, cut again, pre-tokenize, ask the model.

Invariant: text that is all scaffold has the tokens of `tokenizers`, and content never becomes a
control token, neither by matching nor by the model's own vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import tokenizers

from abut.errors import TokenizerError
from abut.parts import Part, Scaffold
from tests.reference.added import AddedToken
from tests.reference.cut import Span, cut, hard_tokens, run_around, scaffold_runs
from tests.reference.edge import Edge, origin_of, stages_at
from tests.reference.file import File


@dataclass(frozen=True)
class Token:
    """A token and the characters of the joined text that it came from."""

    id: int
    start: int
    end: int
    cut: AddedToken | None = None


class Encoder:
    """The stages of a file at each edge, and the model between the cuts."""

    def __init__(self, file: File):
        self.file = file
        self.added = file.added
        self.hard = hard_tokens(file.added)
        self.hard_ids = {token.id for token in self.hard}
        self._stages = {edge: stages_at(file.config, edge) for edge in Edge}
        self._control = {token.id: token.content for token in file.added if token.control}

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
        origin = origin_of(normalized_string()) if by_pattern else []
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
        return id in self._control and (id != self.file.unk_id or text == self._control[id])

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
            tokens = self.file.model.tokenize(text)
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
        prefix = getattr(self.file.model, "continuing_subword_prefix", None) or "" if at else ""
        is_last = at == len(text) - 1
        suffix = getattr(self.file.model, "end_of_word_suffix", None) or "" if is_last else ""
        symbol = prefix + text[at] + suffix
        spelled = [f"<0x{byte:02X}>" for byte in symbol.encode()]
        has = self.file.model.token_to_id
        return has(symbol) is not None or (
            self.file.model.byte_fallback and all(has(byte) is not None for byte in spelled)
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

    def is_hard(self, token: Token) -> bool:
        """Whether the token was cut out at a place that no other text can change."""
        return token.cut in self.hard
