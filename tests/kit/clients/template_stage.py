"""Stages on several chat templates, on each of which the policy says the same in its own format."""

import functools
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from abut import Tokenizer
from abut.demo.model import load_demo_tokenizer
from abut.template.processor import ChatTemplateProcessor
from tests.kit.clients.conversation import Says
from tests.kit.data.trl_templates import completion, renderer
from tests.kit.stage.rollouts import Stage

TEMPLATES_WITH_TOOLS = ("demo", "qwen3", "qwen3_5_think")
"""The demo's, and two of Qwen's; the last one writes calls in another format, opens the thinking
itself, and refuses system messages in the middle."""

TEMPLATES = (*TEMPLATES_WITH_TOOLS, "gemma")
"""And one that knows neither system messages nor tools."""

on_each_template = pytest.mark.parametrize("stage", TEMPLATES, indirect=True)

_THINKING = re.compile(r"<think>\n(.*?)\n</think>\n\n", re.DOTALL)
_CALL = re.compile(r"\n?<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)


class TemplateStage(Stage):
    """Plays rollouts on one template.

    Attributes:
        takes_tools: whether the template shows tools.
    """

    def __init__(self, name: str, hf_tokenizer: Any) -> None:
        super().__init__(
            Tokenizer.from_pretrained(hf_tokenizer), ChatTemplateProcessor(hf_tokenizer)
        )
        self.takes_tools = "tools" in hf_tokenizer.chat_template
        self._speaks_as_the_demo = name == "demo"
        self._render = renderer(hf_tokenizer)

    def sampled(self, says: Says) -> Says:
        """Return the texts of the demo's policy as one of this template writes them."""
        if self._speaks_as_the_demo:
            return says
        if isinstance(says, Mapping):
            return {mark: [self._sampled(turn) for turn in turns] for mark, turns in says.items()}
        return [self._sampled(turn) for turn in says]

    def _sampled(self, text: Any) -> Any:
        if not isinstance(text, str):
            return lambda prompt: self._sampled(text(prompt))
        thinking = _THINKING.match(text)
        answer = text[thinking.end() :] if thinking else text
        calls = [json.loads(call) for call in _CALL.findall(answer)]
        message: dict[str, Any] = {"content": _CALL.sub("", answer)}
        if thinking:
            message["reasoning_content"] = thinking[1]
        if calls:
            message["tool_calls"] = [{"type": "function", "function": call} for call in calls]
        written = completion(self._render, message)
        end = self.tokenizer.decode([self.processor.close_token_id])
        return written[: written.rindex(end)]


@functools.cache
def stage_of(name: str) -> TemplateStage:
    """The stage of a template, with the tokenizer that belongs to it.

    Args:
        name: of `TEMPLATES`.
    """
    if name == "demo":
        return TemplateStage(name, load_demo_tokenizer())
    if name == "gemma":
        public = pytest.importorskip("tests.kit.data.public_templates")
        return TemplateStage(name, public.tokenizer_of(name, public.TEMPLATES[name]))
    from transformers import AutoTokenizer

    from tests.kit.data.trl_templates import TRL, with_template

    folder = os.environ.get("ABUT_TOKENIZERS")
    if not folder:
        pytest.skip("ABUT_TOKENIZERS is unset: it names a folder of tokenizer folders")
    qwen3 = AutoTokenizer.from_pretrained(Path(folder) / "qwen3")
    return TemplateStage(name, with_template(qwen3, TRL[name]))
