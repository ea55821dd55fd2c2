"""Processors of trl-env: the text around a prompt, and the beginning and end of an answer.

Invariant: the three methods return trl-env's texts. abut also writes the text between the end of a
turn and the next turn, which trl-env leaves out: the part of `suffix_system` after `end_answer`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from abut.processor import PartsProcessor, Processor
from abut.template.processor import ChatTemplateProcessor
from abut.template.text_processor import as_parts_processor

__all__ = [
    "Processor",
    "Type1Processor",
    "Type1ProcessorConfig",
    "deepseekr1_processor",
    "gemma4_instruct_processor",
    "gemma4_processor",
    "qwen3_instruct_processor",
    "qwen3_processor",
]


@dataclass
class Type1ProcessorConfig:
    """The text around prompts and answers."""

    prefix_system: str
    """The text before the system message."""
    suffix_system: str
    """The text after the system message."""
    prefix_user: str
    """The text before a user message."""
    suffix_user: str
    """The text after a user message, including the generation prompt."""
    begin_answer: str
    """The text that ends the reasoning."""
    end_answer: str
    """The token that ends a turn."""


class Type1Processor:
    """A `Processor` that writes fixed text around prompts."""

    def __init__(self, config: Type1ProcessorConfig) -> None:
        self.config = config

    def init_system_input(self, prompt: str) -> str:
        """Return the system block."""
        return self.config.prefix_system + prompt + self.config.suffix_system

    def append_user_input(self, prompt: str) -> str:
        """Return a user turn and the generation prompt."""
        return self.config.prefix_user + prompt + self.config.suffix_user

    def parse_agent_output(self, completion: str) -> tuple[str, str]:
        """Return `(reasoning, action)`; the action begins after the last `begin_answer`."""
        spoken = completion.split(self.config.end_answer)[0]
        reasoning, _, action = spoken.rpartition(self.config.begin_answer)
        return reasoning, action


class _Separated:
    """A `Type1Processor` whose turns begin with the text between two turns."""

    def __init__(self, processor: Type1Processor) -> None:
        config = processor.config
        closes = config.suffix_system.startswith(config.end_answer)
        self._separator = config.suffix_system.removeprefix(config.end_answer) if closes else ""
        self._processor = processor
        self.parse_agent_output = processor.parse_agent_output

    def init_system_input(self, prompt: str) -> str:
        return self._processor.init_system_input(prompt).removesuffix(self._separator)

    def append_user_input(self, prompt: str) -> str:
        return self._separator + self._processor.append_user_input(prompt)


def parts_processor(
    processor: Processor | PartsProcessor, hf_tokenizer: Any, eos_token_set: Iterable[int]
) -> PartsProcessor:
    """Return a processor for the engine that writes the texts of a trl-env processor."""
    stops = sorted(eos_token_set)
    if isinstance(processor, ChatTemplateProcessor):
        return processor.with_stop_token_ids(stops)
    if not isinstance(processor, Type1Processor):
        return as_parts_processor(processor, hf_tokenizer, stop_token_ids=stops)
    return as_parts_processor(
        _Separated(processor),
        hf_tokenizer,
        end_token=processor.config.end_answer,
        stop_token_ids=stops,
    )


def _preset(
    *, system: tuple[str, str], user: tuple[str, str], answer: tuple[str, str]
) -> Type1Processor:
    return Type1Processor(Type1ProcessorConfig(*system, *user, *answer))


_CHATML_SYSTEM = ("<|im_start|>system\n", "<|im_end|>\n")
_CHATML_ANSWER = "<|im_end|>\n<|im_start|>assistant\n"

qwen3_instruct_processor = _preset(
    system=_CHATML_SYSTEM,
    user=("<|im_start|>user\n", _CHATML_ANSWER + "<think>\n\n</think>\n\n"),
    answer=("</think>", "<|im_end|>"),
)
qwen3_processor = _preset(
    system=_CHATML_SYSTEM,
    user=("<|im_start|>user\n", _CHATML_ANSWER + "<think>\n"),
    answer=("</think>", "<|im_end|>"),
)
gemma4_instruct_processor = _preset(
    system=("<bos><|turn>system\n", "<turn|>\n"),
    user=("<|turn>user\n", "<turn|>\n<|turn>model\n"),
    answer=("<channel|>", "<turn|>"),
)
gemma4_processor = _preset(
    system=("<bos><|turn>system\n<|think|>\n", "<turn|>\n"),
    user=("<|turn>user\n", "<turn|>\n<|turn>model\n"),
    answer=("<channel|>", "<turn|>"),
)
deepseekr1_processor = _preset(
    system=("<｜begin▁of▁sentence｜>", ""),
    user=("<｜User｜>", "<｜Assistant｜><think>\n"),
    answer=("</think>", "<｜end▁of▁sentence｜>"),
)
