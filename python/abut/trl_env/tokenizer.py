"""Tokenizers, as trl-env names them: they hold the trainer's."""

from typing import Any, Protocol


class Tokenizer(Protocol):
    """Text to ids and back."""

    processing_class: Any
    """A transformers tokenizer."""

    def encode(self, text: str) -> list[int]:
        """The ids of a text alone."""
        ...

    def decode(self, token_list: list[int]) -> str:
        """The text of ids."""
        ...


class TransformerTokenizer:
    """A transformers tokenizer; unlike in trl-env, `encode` writes no BOS before a text."""

    def __init__(self, processing_class: Any) -> None:
        self.processing_class = processing_class

    def encode(self, text: str) -> list[int]:
        """The ids of a text alone."""
        return list(self.processing_class(text, add_special_tokens=False).input_ids)

    def decode(self, token_list: list[int]) -> str:
        """The text of ids."""
        return str(self.processing_class.decode(token_list))
