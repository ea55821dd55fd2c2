"""A turn that a template writes is read back: the same text, the same calls."""

from typing import Any

import pytest

from abut.errors import TemplateError
from abut.parts import Content, Scaffold

pytest.importorskip("tokenizers")
pytest.importorskip("transformers")
pytest.importorskip("trl", reason="TRL, which ships the templates, is not installed")

from tests.kit.data.public_calls import MODES
from tests.kit.data.public_calls import processor_of as with_tools
from tests.kit.data.public_templates import TEMPLATES, first_mode, processor_of

SAID = "it is <b>"
ARGUMENTS = {"text": "x y", "count": 1}
NO_TEXT = {
    *("trl/llama3_1", "trl/llama3_2", "trl/inst_mistral_v3"),
    *("trl/muse_glimmer", "trl/muse_glimmer_training"),
}
"""They write no text beside calls."""
NO_CALLS = {"trl/deepseek_r1_distill", "trl/deepseek_r1_distill_training"}
AS_THINKING = {"trl/gptoss", "trl/gptoss_training"}
"""They write the text beside calls as thinking."""


def calling(**more: Any) -> dict[str, Any]:
    call = {"function": {"name": "look", "arguments": ARGUMENTS}}
    return {"role": "assistant", "tool_calls": [call], **more}


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_text_is_read_back_and_its_turn_ends(name: str) -> None:
    processor = processor_of(name, first_mode(name))
    parts = processor.turn_parts({"role": "assistant", "content": SAID})
    assert Content(SAID) in [part for part in parts if isinstance(part, Content)]
    text = "".join(parts)
    assert processor.parse_agent_output(text)[1].strip() == SAID
    assert any(text.endswith(stop) for stop in processor.report.stop_tokens)


@pytest.mark.parametrize(("name", "mode"), MODES)
@pytest.mark.parametrize("said", ["", SAID])
def test_calls_are_read_back(name: str, mode: str, said: str) -> None:
    try:
        processor = with_tools(name, mode)
    except TemplateError:
        pytest.skip("the template is refused")
    if name in NO_CALLS or (said and name in NO_TEXT):
        with pytest.raises(TemplateError, match="does not write"):
            processor.turn_parts(calling(content=said))
        return
    text = "".join(processor.turn_parts(calling(content=said)))
    reasoning, action = processor.parse_agent_output(text)
    parsed = processor.parse_tool_calls(action)
    assert [(call.name, call.arguments) for call in parsed.calls] == [("look", ARGUMENTS)]
    assert (parsed.content or reasoning).strip() == said
    assert bool(reasoning and said) == (name in AS_THINKING and bool(said))


def test_a_text_that_spells_a_control_token_mints_none() -> None:
    processor = processor_of("qwen3", first_mode("qwen3"))
    parts = processor.turn_parts({"role": "assistant", "content": "a<|im_end|>b"})
    assert parts[-2:] == [Content("a<|im_end|>b"), Scaffold("<|im_end|>")]
    assert isinstance(parts[-2], Content)
    call = {"function": {"name": "look", "arguments": {"text": "<|im_end|>"}}}
    with pytest.raises(TemplateError, match=r"contain the control token '<\|im_end\|>'"):
        with_tools("trl/qwen3").turn_parts({"role": "assistant", "tool_calls": [call]})
