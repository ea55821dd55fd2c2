"""Templates that take calls only with an id, a text or a history of their own kind are read too."""

from typing import Any

import pytest

from abut.template.processor import ChatTemplateProcessor
from abut.tool_calls.parsed import ToolCall
from tests.kit.data.templates import tiny_tokenizer

HEAD = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
TAIL = (
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

NAME_IN_ID = (
    HEAD + "{{ '## Return of ' + m.tool_call_id + '\n' if m.role == 'tool' }}{{ m.content or '' }}"
    "{% if m.tool_calls %}{{ '<|calls|>' }}{% for c in m.tool_calls %}"
    "{{ '<|call|>' + c.id + '<|args|>' }}{{ c.function.arguments | tojson }}{{ '<|call_end|>' }}"
    "{% endfor %}{{ '<|calls_end|>' }}{% endif %}" + TAIL
)
"""As Kimi K2 Thinking's: a call has no name but that in its id."""

TEXT_NEEDED = (
    HEAD + "{% if m.tool_calls %}{{ '<think>' + m.content[0] + m.content[1:] + '</think>' "
    "if m.content else raise_exception('no plan') }}{{ '<|act|>[' }}{% for c in m.tool_calls %}"
    "{{ c.function | tojson }}{{ ', ' if not loop.last }}{% endfor %}{{ ']<|act_end|>' }}"
    "{% else %}{{ m.content or '' }}{% endif %}" + TAIL
)
"""As Command A Reasoning's: calls without a text before them do not render."""

TEXT_BEHIND = (
    "{% for m in messages %}{% if m.role == 'tool' %}"
    "{{ '<|result|>' + m.content + '<|result_end|>' }}"
    "{% if messages[loop.index0 - 1].content and messages[loop.index0 - 1].role != 'tool' %}"
    "{{ messages[loop.index0 - 1].content + '<|im_end|>\n' }}"
    "{{ '<|im_start|>assistant\n' if add_generation_prompt and loop.last }}"
    "{% elif add_generation_prompt and loop.last %}{{ '<|thought|>' }}{% endif %}"
    "{% else %}{{ '<|im_start|>' + m.role + '\n' }}{% for c in m.tool_calls or [] %}"
    "{{ '<|call|>' + (c.function | tojson) + '<|call_end|>' }}{% endfor %}"
    "{% if not m.tool_calls %}{{ (m.content or '') + '<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>assistant\n' if add_generation_prompt and loop.last }}{% endif %}{% endfor %}"
)
"""As Unsloth's Gemma 4: the text beside a call ends the turn, behind the result."""

TEXT_IN_TAGS = (
    HEAD + "{% if m.tool_calls %}{{ '<|calls|>' + m.content + '<|calls_end|>' if m.content }}"
    "{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}"
    "{% else %}{{ m.content or '' }}{% endif %}" + TAIL
)
"""As Llama 4's: the text beside calls stands in tags that others do not have."""

BARE_QUOTES = (
    HEAD + "{% for c in m.tool_calls or [] %}{{ '<|call|>' + c.function.name + '(' }}"
    "{% for k, v in c.function.arguments.items() %}"
    "{{ k }}={{ \"'\" ~ v ~ \"'\" if v is string else v }}{{ ', ' if not loop.last }}{% endfor %}"
    "{{ ')<|call_end|>' }}{% endfor %}{% if not m.tool_calls %}{{ m.content or '' }}{% endif %}"
    + TAIL
)
"""As LFM2.5's: texts stand between quotes that nothing escapes, so the next key ends a text."""

CONTROL = ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "<|result|>", "<|result_end|>")
CALLS = (
    "<|calls|>",
    "<|call|>",
    "<|args|>",
    "<|call_end|>",
    "<|calls_end|>",
    "<|act|>",
    "<|thought|>",
)


def processor(template: str) -> ChatTemplateProcessor:
    return ChatTemplateProcessor(tiny_tokenizer(template, *CONTROL, *CALLS, "<|act_end|>"))


def calls_in(template: str, action: str) -> list[Any]:
    found = processor(template).parse_tool_calls(action)
    assert found.malformed == ()
    return [found.content, *found.calls]


def test_a_name_that_stands_only_in_the_id_is_read() -> None:
    said = (
        'ok<|calls|><|call|>functions.look:0<|args|>{"a": 1}<|call_end|>'
        "<|call|>functions.fs.read:1<|args|>{}<|call_end|><|calls_end|>"
    )
    assert calls_in(NAME_IN_ID, said) == [
        "ok",
        ToolCall("look", {"a": 1}, "functions.look:0"),
        ToolCall("fs.read", {}, "functions.fs.read:1"),
    ]


def test_calls_that_are_rendered_only_beside_text_are_read_with_it_and_without() -> None:
    said = (
        '<|act|>[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]<|act_end|>'
    )
    calls = [ToolCall("f", {"a": 1}), ToolCall("g", {})]
    assert calls_in(TEXT_NEEDED, said) == ["", *calls]
    assert calls_in(TEXT_NEEDED, f"hm</think>{said}") == ["hm", *calls]


def test_the_tags_around_the_text_before_calls_are_no_text() -> None:
    call = '{"name": "f", "arguments": {"a": 1}}'
    assert calls_in(TEXT_IN_TAGS, f"<|calls|>ok<|calls_end|>{call}") == [
        "ok",
        ToolCall("f", {"a": 1}),
    ]
    assert calls_in(TEXT_IN_TAGS, call) == ["", ToolCall("f", {"a": 1})]


def test_text_that_a_template_moves_behind_the_result_does_not_refuse_the_result() -> None:
    verdicts = {verdict.kind: verdict for verdict in processor(TEXT_BEHIND).verdicts()}
    assert verdicts["tool"].appendable, verdicts["tool"].because
    assert "the text of a tool call" in verdicts["tool"].notes[0]


@pytest.mark.parametrize("key", ["a b", "a,b", "a'b", "é 日", "a=b"])
def test_a_key_of_the_schema_ends_the_text_before_it(key: str) -> None:
    properties = {name: {"type": "string"} for name in ("text", key)}
    function = {"name": "f", "parameters": {"type": "object", "properties": properties}}
    tokenizer = tiny_tokenizer(BARE_QUOTES, *CONTROL, *CALLS)
    tools = [{"type": "function", "function": function}]
    processor = ChatTemplateProcessor(tokenizer, tools=tools)
    parsed = processor.parse_tool_calls(f"<|call|>f(text='x', {key}='y')<|call_end|>")
    assert parsed.calls == (ToolCall("f", {"text": "x", key: "y"}),)
