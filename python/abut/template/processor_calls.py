"""Calls of a Hugging Face processor that keep the text which it hands to its tokenizer.

That text is how abut learns what a processor puts in the place of an image: nothing here knows a
family of models.
"""

import copy
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from abut.images import Image

Pieces: TypeAlias = Sequence[str | Image]
"""A row for a processor: texts, and images whose place is in between."""

_OF_TEXT = frozenset({"input_ids", "attention_mask", "offset_mapping", "special_tokens_mask"})
_TYPES = "token_type_ids"


@dataclass(frozen=True)
class ProcessorOutput:
    """The output of a processor for some rows.

    Attributes:
        texts: of each row, with the processor's text in the place of each image.
        ids: of each row, without padding.
        types: of each row, by key: the type of each token.
        tensors: everything else, by the name of the model's argument.
    """

    texts: list[str]
    ids: list[list[int]]
    types: dict[str, list[list[int]]]
    tensors: dict[str, Any]


class ProcessorCalls:
    """Calls one processor, on any thread.

    Args:
        hf_processor: stays as it is; each call is one of a copy.
        placeholder: the text for an image.
    """

    def __init__(self, hf_processor: Any, placeholder: str) -> None:
        self._processor = hf_processor
        self._placeholder = placeholder
        # A fast tokenizer sets its padding in the object that encodes, which threads share.
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy no lock."""
        return ProcessorCalls, (self._processor, self._placeholder)

    def __call__(self, rows: Sequence[Pieces]) -> ProcessorOutput:
        """Return what the processor makes of rows, each of which has an image.

        Whatever the processor raises comes through.
        """
        heard = _Heard(self._processor.tokenizer, self._lock)
        processor = copy.copy(self._processor)
        processor.tokenizer = heard
        made = processor(
            images=[[piece.to_pil() for piece in row if isinstance(piece, Image)] for row in rows],
            text=[self.text(row) for row in rows],
            return_tensors="pt",
        )
        return _output(heard.texts, dict(made))

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids of a string by itself, without any that the tokenizer adds."""
        with self._lock:
            return tuple(self._processor.tokenizer.encode(text, add_special_tokens=False))

    def text(self, row: Pieces) -> str:
        """Return the text of a row before the processor has it."""
        return "".join(self._placeholder if isinstance(p, Image) else p for p in row)


class _Heard:
    """A tokenizer for a processor, which keeps the texts that it is given."""

    def __init__(self, hf_tokenizer: Any, lock: threading.Lock) -> None:
        self._tokenizer = hf_tokenizer
        self._lock = lock
        self.texts: list[str] = []

    def __call__(self, text: Any = None, *args: Any, **keywords: Any) -> Any:
        self.texts = [text] if isinstance(text, str) else list(text)
        # Lists, padded here: the tokenizer may have no padding token, and some processors count
        # tokens in lists alone.
        keywords |= {"padding": False, "return_tensors": None, "verbose": False}
        with self._lock:
            encoding = self._tokenizer(self.texts, *args, **keywords)
        longest = max(map(len, encoding["input_ids"]))
        for key, rows in encoding.items():
            encoding[key] = [[*row, *[0] * (longest - len(row))] for row in rows]
        return encoding

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_tokenizer":  # asked while it is copied
            raise AttributeError(name)
        return getattr(self._tokenizer, name)


def _output(texts: list[str], made: dict[str, Any]) -> ProcessorOutput:
    ids, masks = made["input_ids"].tolist(), made["attention_mask"].tolist()

    def unpadded(rows: Any) -> list[list[int]]:
        return [
            [value for value, kept in zip(row, mask, strict=True) if kept]
            for row, mask in zip(rows, masks, strict=True)
        ]

    types = {key: unpadded(rows.tolist()) for key, rows in made.items() if key.endswith(_TYPES)}
    tensors = {key: of for key, of in made.items() if key not in _OF_TEXT and key not in types}
    return ProcessorOutput(texts, unpadded(ids), types, tensors)
