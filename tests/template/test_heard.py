"""What an environment hears of a turn has no token and no tag that the template wrote."""

import pytest

from abut.errors import TemplateError

pytest.importorskip("tokenizers")
pytest.importorskip("transformers")
pytest.importorskip("trl", reason="TRL, which ships the templates, is not installed")

from abut.template.calls.written import ANSWER, CALLS, CONTENT, VALUE, CallProbe, call_probes
from abut.template.processor import ChatTemplateProcessor
from abut.template.rendering import Rendering
from abut.template.thinking import after_common_prefix, after_user
from abut.template.turn_layout import assistant, user
from tests.kit.data.public_calls import PUBLIC, call_templates

# Their history has another header than their generation prompt: what a policy says is not told.
NOT_TOLD = (
    "llama_cpp/CohereForAI-c4ai-command-r-plus-tool_use",
    "vllm/tool_chat_template_llama4_json",
)
THOUGHT = call_templates.THINKING
TOOLS = [call_templates.tool(name) for name in call_templates.NAMES[:2]]


def processor_of(name: str) -> ChatTemplateProcessor:
    try:
        return ChatTemplateProcessor(PUBLIC[name].hf_tokenizer, tools=TOOLS)
    except TemplateError as error:
        pytest.skip(f"not appendable: {error}")


def completion(processor: ChatTemplateProcessor, render: Rendering, message: dict) -> str:
    """What the policy says to be given this message, up to and with the token that it stops on."""
    prompt = after_user(render([user()]))
    written = after_user(render([user(), message], add_generation_prompt=False))
    said = after_common_prefix(written.lstrip(), prompt.lstrip())
    for place, token in sorted((said.find(t), t) for t in processor.report.stop_tokens):
        if place >= 0:
            said = said[: place + len(token)]
            break
    thinking = processor.thinking
    if not thinking.opened or thinking.close in said:
        return said
    header = next(
        k for k in range(len(said) + 1) if thinking.between.endswith(said[: len(said) - k])
    )
    return f"hm{thinking.between}{said[len(said) - header :]}"


def messages(probe: CallProbe | None):
    yield "an answer", assistant(ANSWER)
    yield "an answer behind thinking", {**assistant(ANSWER), **THOUGHT}
    if probe is not None:
        calls = [probe.call(k, *call) for k, call in enumerate(CALLS[:1])]
        message = {**assistant(""), "content": probe.content, "tool_calls": calls}
        yield "a call", message
        yield "a call behind text", {**message, "content": CONTENT}
        yield "a call behind thinking", {**message, **THOUGHT}


def heard(processor: ChatTemplateProcessor, said: str) -> str:
    action = processor.parse_agent_output(said)[1]
    try:
        return processor.parse_tool_calls(action).content
    except TemplateError:  # nothing reads calls: an environment that wants them is refused
        return "" if VALUE in action else action


@pytest.mark.parametrize("name", [name for name in PUBLIC if name not in NOT_TOLD])
def test_no_token_and_no_tag_of_a_turn_is_heard(name: str) -> None:
    processor = processor_of(name)
    render = Rendering(PUBLIC[name].hf_tokenizer, {"tools": TOOLS, "chat_template": None})
    probe = next(call_probes(render), None)
    for what, message in messages(probe):
        try:
            said = completion(processor, render, message)
        except TemplateError:
            continue
        control = render.tokens(said)
        ends = [len("".join(a + b for a, b in control[:k])) for k in range(len(control) + 1)]
        words = [word for word in (ANSWER, CONTENT, VALUE) if word in said]
        if not words:
            continue  # the turn ends before them
        last = max(said.rfind(word) + len(word) for word in words)
        for end in {end for end in ends if end >= last} | {len(said)}:
            content = heard(processor, said[:end])
            left = content.replace(ANSWER, "").replace(CONTENT, "").strip()
            assert left == "", f"{what}: {said[:end]!r} is heard as {content!r}"
