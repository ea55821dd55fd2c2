"""Tokenizers that are wrong on purpose, for negative controls."""

import json
import string
from typing import Any

import pytest

from abut.demo.model import ASSETS


class Broken:
    """A transformers tokenizer whose `encode` is changed by `spoil(text, ids)`."""

    def __init__(self, tokenizer: Any, spoil: Any) -> None:
        self._tokenizer = tokenizer
        self._spoil = spoil

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __len__(self) -> int:
        return len(self._tokenizer)

    def encode(self, text: str, **options: Any) -> list[int]:
        return self._spoil(text, self._tokenizer.encode(text, **options))


def with_close(**flags: Any) -> str:
    """The demo's tokenizer.json with other flags on its `<|im_end|>`."""
    source = json.loads((ASSETS / "tokenizer.json").read_text(encoding="utf-8"))
    for token in source["added_tokens"]:
        if token["content"] == "<|im_end|>":
            token |= flags
    return json.dumps(source)


def template() -> str:
    return (ASSETS / "chat_template.jinja").read_text(encoding="utf-8")


REAL = pytest.mark.parametrize("name", ["qwen3", "mistral_v3"])


def word_level(*added: str | dict, vocab: str = "ab", **model: object) -> str:
    """A tokenizer with one token per character, and these added tokens."""
    plain_token = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    tokens = [token if isinstance(token, dict) else {"content": token} for token in added]
    characters = list(dict.fromkeys("?" + vocab + string.printable))
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": [{"id": 0, "special": False} | plain_token | t for t in tokens],
            "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated"}
            | {"invert": False},
            "model": {
                "type": "WordLevel",
                "vocab": {char: id for id, char in enumerate(characters)},
                "unk_token": "?",
            }
            | model,
        }
    )
