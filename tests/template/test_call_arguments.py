"""The arguments of calls in a prompt reach the template in the form in which it takes them."""

import json
from typing import Any

import pytest

from abut.template.processor import ChatTemplateProcessor
from tests.kit.data.templates import render, text, tiny_tokenizer, tool, user

ARGUMENTS = {"city": "Köln", "days": 2}


def template(arguments: str) -> str:
    """A template that writes calls with this expression for their arguments, `a`."""
    return (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + (m.content or '') }}"
        "{% for c in m.tool_calls or [] %}{% set a = c.function.arguments %}"
        '{{ \'<tool_call>\n{"name": "\' + c.function.name + \'", "arguments": \' }}'
        + arguments
        + "{{ '}\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )


EITHER = "{{ a if a is string else a | tojson }}"
TWICE = "{{ a | tojson }}"
ITEMS = "{{ '{' }}{% for k, v in a.items() %}{{ k ~ '=' ~ v }},{% endfor %}{{ '}' }}"
TEXT = "{{ '' + a }}"
AS_PYTHON = "{{ a }}"


def conversation(arguments: Any) -> list[dict[str, Any]]:
    function = {"name": "look", "arguments": arguments}
    call = {"id": "abcdefghi", "type": "function", "function": function}
    said = {"role": "assistant", "content": "", "tool_calls": [call]}
    return [user(), said, tool(tool_call_id="abcdefghi")]


@pytest.mark.parametrize("written", [EITHER, TWICE, ITEMS, TEXT, AS_PYTHON])
def test_arguments_as_json_text_are_written_as_the_template_writes_calls(written: str) -> None:
    tokenizer = tiny_tokenizer(template(written))
    takes_text = written in (TEXT, AS_PYTHON)
    code = json.dumps(ARGUMENTS, ensure_ascii=False)
    expected = render(tokenizer, conversation(code if takes_text else ARGUMENTS))
    opened = ChatTemplateProcessor(tokenizer).opening(conversation(code))
    assert text(opened) == expected


@pytest.mark.parametrize("written", [EITHER, TWICE, ITEMS, TEXT])
def test_arguments_as_an_object_are_written_as_the_template_writes_calls(written: str) -> None:
    tokenizer = tiny_tokenizer(template(written))
    code = json.dumps(ARGUMENTS, ensure_ascii=False)
    expected = render(tokenizer, conversation(code if written == TEXT else ARGUMENTS))
    opened = ChatTemplateProcessor(tokenizer).opening(conversation(ARGUMENTS))
    assert text(opened) == expected


@pytest.mark.parametrize("code", ["[1]", "{not json", "3"])
def test_text_that_is_no_object_stays_what_it_is(code: str) -> None:
    tokenizer = tiny_tokenizer(template(TWICE))
    opened = ChatTemplateProcessor(tokenizer).opening(conversation(code))
    assert text(opened) == render(tokenizer, conversation(code))
