"""No token that ends a turn stands inside a turn; a template where one does is refused."""

from collections.abc import Sequence
from typing import Any

import pytest

from abut.errors import TemplateError
from abut.parts import Scaffold
from abut.template.processor import ChatTemplateProcessor
from tests.kit.data.templates import CHATML, error, text, tiny_tokenizer, tool, user

pytest.importorskip("trl", reason="TRL, which ships the templates, is not installed")

from tests.kit.data.public_calls import PUBLIC, call_templates

# As Solar Open: one token closes a thought, an answer and a user's message.
CLOSED_ALIKE = (
    "{% for m in messages %}"
    "{% if m.reasoning %}{{ '<|begin|>assistant<|think|>' + m.reasoning + '<|end|>' }}{% endif %}"
    "{{ '<|begin|>' + m.role + '<|say|>' + m.content + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}"
    "{{ '<|begin|>assistant<|think|><|end|>' if effort == 'low' }}<|begin|>assistant{% endif %}"
)
ALIKE_TOKENS = ("<|end|>", "<|begin|>", "<|think|>", "<|say|>", "<|last|>")

# As GigaChat 3: a call is a message behind the answer's, and one token ends both.
CALL_BEHIND_END = (
    "{% for m in messages %}{{ m.role + '<|role|>' + (m.content or '') + '<|sep|>' }}"
    "{% if m.tool_calls %}{{ 'call<|role|>' + (m.tool_calls[0].function | tojson) + '<|sep|>' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}assistant<|role|>{% endif %}"
)


def processor_of(template: str, *control: str, **variables: Any) -> ChatTemplateProcessor:
    tokenizer = tiny_tokenizer(template, *control)
    tokenizer.eos_token = control[0]
    return ChatTemplateProcessor(tokenizer, **variables)


def test_an_end_that_also_closes_thinking_is_refused() -> None:
    assert error(processor_of, CLOSED_ALIKE, *ALIKE_TOKENS) == (
        "the template ends turns with '<|end|>' and also writes it inside a turn, after the "
        "thinking, so an engine that stops at this token cuts every turn before its answer\n"
        "hint: pass chat_template= with a template whose turns end with a token that it writes "
        "nowhere else, or the variable that switches thinking off in this template"
    )


def test_thinking_that_the_prompt_has_closed_comes_in_no_turn() -> None:
    processor = processor_of(CLOSED_ALIKE, *ALIKE_TOKENS, effort="low")
    assert processor.report.stop_tokens == ("<|end|>",)


def test_a_last_answer_that_ends_otherwise_than_thinking_is_taken() -> None:
    # As gpt-oss: of what closes thinking and answers alike, the last answer has its own.
    template = CLOSED_ALIKE.replace(
        "m.content + '<|end|>'",
        "m.content + ('<|last|>' if loop.last and m.role == 'assistant' else '<|end|>')",
    )
    assert processor_of(template, *ALIKE_TOKENS[::-1]).report.stop_tokens == ("<|last|>",)


def test_a_stop_token_of_the_generation_config_is_proved_too() -> None:
    template = CLOSED_ALIKE.replace("m.content + '<|end|>'", "m.content + '<|last|>'")
    tokenizer = tiny_tokenizer(template, *ALIKE_TOKENS[::-1])
    tokenizer.eos_token = "<|last|>"
    processor = ChatTemplateProcessor(tokenizer)
    assert processor.report.stop_tokens == ("<|last|>",)
    closes_thinking = tokenizer.convert_tokens_to_ids("<|end|>")
    refusal = error(processor.with_stop_token_ids, [closes_thinking])
    assert "'<|end|>' and also writes it inside a turn, after the thinking" in refusal


def test_an_end_before_a_call_refuses_the_tools_and_not_the_chat() -> None:
    processor = processor_of(CALL_BEHIND_END, "<|sep|>", "<|role|>")
    assert text(processor.increment([user("a")])) == "user<|role|>a<|sep|>assistant<|role|>"
    refusal = (
        "the template ends turns with '<|sep|>' and also writes it inside a turn, before a "
        "tool call, so an engine that stops at this token never reaches the call\nhint: pass "
        "chat_template= with a template whose turns end with a token that it writes nowhere "
        "else, or do not use tools"
    )
    assert error(processor.increment, [tool()]) == refusal
    assert error(processor.parse_tool_calls, "call") == refusal
    note = f"tool messages cannot be appended: {refusal.splitlines()[0]}"
    assert processor.report.notes[-1] == note


def test_an_end_between_text_and_a_call_refuses_the_tools() -> None:
    template = CHATML.replace(
        "m.content + '<|im_end|>\n'",
        "m.content + ('<|im_end|>\n' if m.content and m.tool_calls else '') }}"
        "{% for c in m.tool_calls or [] %}{{ '<tool_call>' + c|tojson }}{% endfor %}"
        "{{ '<|im_end|>\n'",
    )
    processor = processor_of(template, "<|im_end|>", "<|im_start|>", "<tool_call>")
    assert "inside a turn, before a tool call" in error(processor.increment, [tool()])
    # The negative control: text and call in one message.
    one = template.replace("'<|im_end|>\n' if m.content and m.tool_calls else ''", "''")
    processor = processor_of(one, "<|im_end|>", "<|im_start|>", "<tool_call>")
    assert isinstance(processor.increment([tool()])[0], Scaffold)


def test_an_end_before_a_call_of_a_last_turn_alone_refuses_nothing() -> None:
    # As Nemotron Nano 2: once the tool has answered, text and call are one message.
    template = CHATML.replace(
        "m.content + '<|im_end|>\n'",
        "m.content + ('<|im_end|>\n' if m.content and m.tool_calls and loop.last else '') }}"
        "{% for c in m.tool_calls or [] %}{{ '<tool_call>' + c|tojson }}{% endfor %}"
        "{{ '<|im_end|>\n'",
    )
    processor = processor_of(template, "<|im_end|>", "<|im_start|>", "<tool_call>")
    assert isinstance(processor.increment([tool()])[0], Scaffold)


# ---- the public templates

USER, THOUGHT, BESIDE, VALUE = "abutUser", "abutThought", "abutBeside", "abutValue"
CALL = {
    "id": "abutCall0",
    "type": "function",
    "function": {"name": "abutName", "arguments": {"abutKey": VALUE}},
}
THINKING = dict.fromkeys(("reasoning_content", "reasoning", "thinking"), THOUGHT)
TURNS: Sequence[tuple[dict[str, Any], str, str]] = (
    ({"content": VALUE, **THINKING}, THOUGHT, "an answer behind thinking"),
    ({"content": BESIDE, "tool_calls": [CALL]}, BESIDE, "a call behind text"),
    ({"content": "", "tool_calls": [CALL], **THINKING}, THOUGHT, "a call behind thinking"),
)


RESULT = {"role": "tool", "tool_call_id": "abutCall0", "name": "abutName", "content": "found"}


def between(
    hf_tokenizer: Any, keys: dict[str, Any], turn: dict[str, Any], first: str, *follow: Any
) -> str:
    """The text of a turn from `first` to its last word; `""` where one of them is missing."""
    tools = [call_templates.tool("abutName")] if "tool_calls" in turn else None
    messages = [{"role": "user", "content": USER}, {"role": "assistant", **turn}, *follow]
    try:
        written = hf_tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, **keys)
    except Exception:  # a template can raise anything
        return ""
    before, found, _ = written.rpartition(USER)[2].rpartition(VALUE)
    return str(before.partition(first)[2]) if found else ""


@pytest.mark.parametrize("name", PUBLIC)
def test_no_stop_token_stands_inside_a_turn_of_a_public_template(name: str) -> None:
    template = PUBLIC[name]
    modes = [{"enable_thinking": on} for on in (True, False)]
    for keys in modes if "enable_thinking" in template.text else [{}]:
        try:
            processor = ChatTemplateProcessor(template.hf_tokenizer, **keys)
        except TemplateError:
            continue
        for turn, first, what in TURNS:
            if "tool_calls" in turn and not processor.verdicts()[1].appendable:
                continue
            inside = between(template.hf_tokenizer, keys, turn, first)
            if "tool_calls" in turn and first == BESIDE:  # the form of a last turn may be its own
                inside = between(template.hf_tokenizer, keys, turn, first, RESULT) or inside
            assert [s for s in processor.report.stop_tokens if s in inside] == [], what
