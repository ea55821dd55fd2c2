"""What stands in a `tokenizer.json`: its stages, its model, its added tokens and their bytes.

Invariant: whatever else is asked, the tokens of a text depend on nothing but this: truncation and
padding are ignored, and a tokenizer that draws its tokens at random is refused.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import tokenizers

from abut.errors import TokenizerError
from tests.reference.added import AddedToken, is_textual
from tests.reference.byte_table import byte_table


@dataclass(frozen=True)
class File:
    """A `tokenizer.json` that was read. `model` is that of the `tokenizers` package."""

    config: dict[str, Any]
    model: Any
    added: list[AddedToken]
    unk_id: int | None
    bytes_of: dict[int, bytes]

    @classmethod
    def read(cls, source: str, control: Iterable[str], textual: Iterable[str]) -> Self:
        """Read its text; `control` and `textual` move added tokens between the two classes.

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
        classes = {**dict.fromkeys(textual, False), **dict.fromkeys(control, True)}
        added = _added_tokens(whole, classes)
        unk_token = config["model"].get("unk_token")
        unk_id = config["model"].get("unk_id")
        if unk_id is None and unk_token is not None:
            unk_id = whole.model.token_to_id(unk_token)
        return cls(config, whole.model, added, unk_id, byte_table(config, whole, added))

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        """The bytes of the ids, one after the other, by table.

        Raises:
            TokenizerError: an id is outside the vocabulary.
        """
        for position, id in enumerate(ids):
            if id not in self.bytes_of:
                raise TokenizerError(f"token {position} has id {id}, outside the vocabulary")
        return b"".join(self.bytes_of[id] for id in ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The bytes as text; what is not UTF-8 becomes U+FFFD."""
        return self.decode_bytes(ids).decode(errors="replace")


def _added_tokens(whole: tokenizers.Tokenizer, classes: dict[str, bool]) -> list[AddedToken]:
    """The added tokens by id. `classes` says of some whether they are control tokens."""
    added = [
        AddedToken(
            id=id,
            content=token.content,
            pattern=_normalized(whole.normalizer, token) if token.normalized else token.content,
            single_word=token.single_word,
            lstrip=token.lstrip,
            rstrip=token.rstrip,
            normalized=token.normalized,
            special=token.special,
            control=classes.get(token.content, token.special or not is_textual(token.content)),
        )
        for id, token in sorted(whole.get_added_tokens_decoder().items())
    ]
    for token in added:
        if not token.pattern:  # tokenizers would match it between any two characters
            raise TokenizerError(f"added token {token.content!r} is empty once normalized")
    return added


def _normalized(normalizer: Any, token: tokenizers.AddedToken) -> str:
    return token.content if normalizer is None else str(normalizer.normalize_str(token.content))


def _refuse_randomness(model: dict[str, Any]) -> None:
    if (model.get("dropout") or 0) > 0:
        raise TokenizerError(f"the tokenizer is not deterministic: dropout {model['dropout']}")
    if model.get("alpha") or (model.get("nbest_size") or 0) not in (0, 1):
        raise TokenizerError("the tokenizer is not deterministic: Unigram sampling")
