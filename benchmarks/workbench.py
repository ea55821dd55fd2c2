"""The objects that all rows share: the tokenizer, its chat template, the peers and the scale."""

from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from abut import ChatTemplateProcessor, Tokenizer
from benchmarks.peers import PeerMissing, load
from benchmarks.scale import Scale
from benchmarks.timing import available_cores

QWEN3_IM_START = 151_644
"""The id of `<|im_start|>` in Qwen3's tokenizer."""


class Workbench:
    """Tokenizers, template and peers, each loaded when a row first needs it."""

    def __init__(
        self,
        folder: Path,
        scale: Scale,
        reasons: Mapping[str, str],
        cores: Collection[int] | None = None,
    ) -> None:
        """Load nothing yet.

        Args:
            folder: the tokenizer's folder.
            scale: sizes and rounds of all rows.
            reasons: why peers could not be installed.
            cores: the cores for rows that need more than one; None: the cores of this process.
        """
        self.folder = folder
        self.scale = scale
        self.reasons = reasons
        self.cores = available_cores() if cores is None else cores

    @property
    def tokenizer_json(self) -> Path:
        """The tokenizer file, which all sides load."""
        return self.folder / "tokenizer.json"

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer in abut."""
        return Tokenizer.from_file(self.tokenizer_json)

    @cached_property
    def oracle(self) -> Any:
        """The same file in `tokenizers`."""
        return self.peer("tokenizers").Tokenizer.from_file(str(self.tokenizer_json))

    @cached_property
    def hf_tokenizer(self) -> Any:
        """The same folder in transformers, with the chat template."""
        transformers = self.peer("transformers")
        transformers.logging.set_verbosity_error()  # no warning about long texts
        return transformers.AutoTokenizer.from_pretrained(self.folder)

    @cached_property
    def processor(self) -> ChatTemplateProcessor:
        """The chat template in abut."""
        return ChatTemplateProcessor(self.hf_tokenizer)

    def peer(self, name: str, module: str | None = None) -> Any:
        """Return a module of a peer; by default the one with its name.

        Raises:
            PeerMissing: it is not installed, or its import fails.
        """
        return load(name, module or name.replace("-", "_"), self.reasons)

    def require_qwen3(self) -> None:
        """Require Qwen3, for peers that have its template and tokenizer in their code.

        Raises:
            PeerMissing: the tokenizer is not Qwen3's.
        """
        if self.tokenizer.token_to_id("<|im_start|>") != QWEN3_IM_START:
            raise PeerMissing(f"it supports Qwen3's template, and {self.folder} is not Qwen3")
