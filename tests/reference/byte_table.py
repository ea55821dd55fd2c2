"""The bytes that each id stands for, in the spelling of the model's kind."""

import json
from collections.abc import Iterable
from typing import Any

import tokenizers

from tests.reference.added import AddedToken


def byte_table(
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
    foreign = (token for token in added if not is_own(token, whole.model))
    return table | {token.id: token.content.encode() for token in foreign}


def is_own(token: AddedToken, model: Any) -> bool:
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
