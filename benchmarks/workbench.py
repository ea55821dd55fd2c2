"""What all rows work on: the tokenizer, its chat template, the peers, and how much is measured."""

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
    """Everything is loaded when a row first asks for it."""

    def __init__(
        self,
        folder: Path,
        scale: Scale,
        reasons: Mapping[str, str],
        cores: Collection[int] | None = None,
    ) -> None:
        """Load nothing yet.

        Args:
            folder: of the tokenizer.
            scale: how much is measured.
            reasons: why peers could not be installed.
            cores: those that rows may use which need more than one; None: those of this process.
        """
        self.folder = folder
        self.scale = scale
        self.reasons = reasons
        self.cores = available_cores() if cores is None else cores

    @property
    def tokenizer_json(self) -> Path:
        """The file that both sides load."""
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
        transformers.logging.set_verbosity_error()  # texts are longer than a model's context
        return transformers.AutoTokenizer.from_pretrained(self.folder)

    @cached_property
    def processor(self) -> ChatTemplateProcessor:
        """The chat template in abut."""
        return ChatTemplateProcessor(self.hf_tokenizer)

    def peer(self, name: str, module: str | None = None) -> Any:
        """A module of a peer; by default the one with its name.

        Raises:
            PeerMissing: it is not installed, or does not import.
        """
        return load(name, module or name.replace("-", "_"), self.reasons)

    def require_qwen3(self) -> None:
        """For peers that have Qwen3's template and tokenizer in their own code.

        Raises:
            PeerMissing: this is another tokenizer.
        """
        if self.tokenizer.token_to_id("<|im_start|>") != QWEN3_IM_START:
            raise PeerMissing(f"it writes Qwen3's conversations, not those of {self.folder}")
