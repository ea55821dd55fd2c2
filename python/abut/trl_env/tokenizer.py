"""Tokenizers, under trl-env's names: they hold the trainer's tokenizer."""

from typing import Any, Protocol


class Tokenizer(Protocol):
    """Converts text to ids and back."""

    processing_class: Any
    """A transformers tokenizer."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of a string, without special tokens around it."""
        ...

    def decode(self, token_list: list[int]) -> str:
        """Return the text of ids."""
        ...


class TransformerTokenizer:
    """A transformers tokenizer; unlike in trl-env, `encode` does not add a BOS token."""

    def __init__(self, processing_class: Any) -> None:
        self.processing_class = processing_class

    def encode(self, text: str) -> list[int]:
        """Return the ids of a string, without special tokens around it."""
        return list(self.processing_class(text, add_special_tokens=False).input_ids)

    def decode(self, token_list: list[int]) -> str:
        """Return the text of ids."""
        return str(self.processing_class.decode(token_list))
