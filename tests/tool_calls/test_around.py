"""What a model writes around calls, and what its prompt asks for, where its template is no example.

The templates are short ones in the manner of those that are named.
"""

import pytest

from abut.errors import TemplateError
from abut.template.processor import ChatTemplateProcessor
from abut.tool_calls.parsed import ParsedCalls, ToolCall
from tests.kit.data.templates import CHATML, tiny_tokenizer

F = ToolCall("f", {"a": "x"})
G = ToolCall("g", {})
TOOLS = [{"type": "function", "function": {"name": "f", "description": ".", "parameters": {}}}]


def processor_of(template: str, *tokens: str) -> ChatTemplateProcessor:
    return ChatTemplateProcessor(tiny_tokenizer(template, *tokens), tools=TOOLS)


# As Kimi K3: a tag is two tokens and a word, and text, calls and message close alike.
TAGS = ("<|open|>", "<|close|>", "<|sep|>", "<|end|>")
OPEN, CLOSE = "<|open|>{}<|sep|>", "<|close|>{}<|sep|>"
END = CLOSE.format("message") + "<|end|>"
K3 = (
    "{% for m in messages %}<|open|>message {{ m.role }}<|sep|>"
    "{% if m.role == 'assistant' %}<|open|>response<|sep|>{{ m.content or '' }}"
    "<|close|>response<|sep|>{% if m.tool_calls %}<|open|>tools<|sep|>{% for c in m.tool_calls %}"
    '<|open|>call tool="{{ c.function.name }}"<|sep|>{% for k, v in c.function.arguments.items() %}'
    '<|open|>argument key="{{ k }}"<|sep|>{{ v if v is string else v | tojson }}'
    "<|close|>argument<|sep|>{% endfor %}<|close|>call<|sep|>{% endfor %}<|close|>tools<|sep|>"
    "{% endif %}{% else %}{{ m.content }}{% endif %}<|close|>message<|sep|><|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|open|>message assistant<|sep|>{% endif %}"
)
CALLS = (
    '<|open|>tools<|sep|><|open|>call tool="f"<|sep|><|open|>argument key="a"<|sep|>x'
    '<|close|>argument<|sep|><|close|>call<|sep|><|open|>call tool="g"<|sep|><|close|>call<|sep|>'
    "<|close|>tools<|sep|>"
)
SAID = CLOSE.format("response")


@pytest.mark.parametrize("text", ["", "answer"])
@pytest.mark.parametrize("end", ["", "<|close|>", CLOSE.format("message"), END])
def test_no_tag_of_a_turns_end_is_text(text: str, end: str) -> None:
    processor = processor_of(K3, *TAGS)
    action = processor.parse_agent_output(OPEN.format("response") + text + SAID + CALLS + end)[1]
    assert processor.parse_tool_calls(action) == ParsedCalls(text, (F, G), ())


CUTS = range(len("<|close|>"), len(SAID + CLOSE.format("message")) + 1)


@pytest.mark.parametrize("end", [SAID + END, *((SAID + END)[:cut] for cut in CUTS)])
def test_a_turn_that_was_cut_in_its_end_is_its_text(end: str) -> None:
    processor = processor_of(K3, *TAGS)
    action = processor.parse_agent_output(OPEN.format("response") + "answer" + end)[1]
    assert processor.parse_tool_calls(action) == ParsedCalls("answer", (), ())


def test_calls_may_stand_without_the_text_that_a_template_writes_before_them() -> None:
    processor = processor_of(K3, *TAGS)
    assert processor.parse_tool_calls(CALLS) == ParsedCalls("", (F, G), ())


def test_a_call_whose_name_cannot_be_read_is_malformed_and_no_text() -> None:
    text = "<|open|>tools<|sep|>" + '<|open|>call tool="f&quot;"<|sep|><|close|>call<|sep|>'
    parsed = processor_of(K3, *TAGS).parse_tool_calls(text + "<|close|>tools<|sep|>")
    assert (parsed.content, parsed.calls, len(parsed.malformed)) == ("", (), 1)


# As Functionary: what separates calls stands between text and calls as well.
RECIPIENTS = CHATML.replace(
    "m.content +",
    "(('all\n' + m.content + ('>>>' if m.tool_calls else '')) if m.content else '') }}"
    "{% for c in m.tool_calls or [] %}{{ ('>>>' if not loop.first else '') + c.function.name + '\n'"
    " + c.function.arguments | tojson }}{% endfor %}{{ '' +",
)


def test_what_separates_text_from_calls_is_no_text() -> None:
    processor = processor_of(RECIPIENTS, "<|im_end|>", "<|im_start|>")
    found = processor.parse_tool_calls('Look.>>>f\n{"a": "x"}>>>g\n{}')
    assert found == ParsedCalls("Look.", (F, G), ())


# As Llama 4: calls in Python, and tokens around them that no template writes.
PYTHONIC = CHATML.replace(
    "m.content +",
    "(m.content or '') }}{% if m.tool_calls %}{{ '[' }}{% for c in m.tool_calls %}"
    "{{ c.function.name + '(' }}{% for k, v in c.function.arguments.items() %}"
    "{{ k + '=' + v | tojson + (', ' if not loop.last else '') }}{% endfor %}"
    "{{ ')' + (', ' if not loop.last else '') }}{% endfor %}{{ ']' }}{% endif %}{{ '' +",
)


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ('<|python_start|>[f(a="x"), g()]<|python_end|>', ""),
        ('Look: <|python_start|>[f(a="x"), g()]', "Look:"),
        ('[f(a="x"), g()]<|python_end|>', ""),
        ('Look: [f(a="x"), g()]<|python_end|> \n', "Look:"),
    ],
)
def test_control_tokens_around_calls_are_no_text(text: str, content: str) -> None:
    tokens = ("<|im_end|>", "<|im_start|>", "<|python_start|>", "<|python_end|>")
    processor = processor_of(PYTHONIC, *tokens)
    assert processor.parse_tool_calls(text) == ParsedCalls(content, (F, G), ())
    # The negative control: what is no token of the model is text, and text before calls.
    foreign = processor_of(PYTHONIC, *tokens[:2]).parse_tool_calls(text)
    assert foreign.calls == () or "<|python" in foreign.content


def test_a_control_token_that_no_call_follows_is_left_in_the_text() -> None:
    processor = processor_of(PYTHONIC, "<|im_end|>", "<|im_start|>", "<|python_start|>")
    text = "<|python_start|>print(1)"
    assert processor.parse_tool_calls(text) == ParsedCalls(text, (), ())


# As Phi-4 mini: the prompt asks for a list behind a word, and the template writes no list.
ASKED = (
    "{% if tools %}<|im_start|>system\nCalls are a list: functools"
    '[{"name": [function name], "arguments": [arguments as JSON]}, ...]\n'
    "{{ tools | tojson }}<|im_end|>\n{% endif %}"
)
OBJECTS = CHATML.replace(
    "m.content +",
    "(m.content or '') }}{% for c in m.tool_calls or [] %}"
    "{{ c.function | tojson + (',' if not loop.last else '') }}{% endfor %}{{ '' +",
)
WRITTEN = '{"name": "f", "arguments": {"a": "x"}}, {"name": "g", "arguments": {}}'


@pytest.mark.parametrize("text", [WRITTEN, f"functools[{WRITTEN}]", f"functools[\n{WRITTEN}\n]"])
def test_calls_are_read_as_the_prompt_asks_and_as_the_template_writes(text: str) -> None:
    processor = processor_of(ASKED + OBJECTS, "<|im_end|>", "<|im_start|>")
    assert processor.parse_tool_calls(text) == ParsedCalls("", (F, G), ())
    # The negative control: where the prompt asks for nothing else, a word begins no call.
    if text != WRITTEN:
        plain = processor_of(OBJECTS, "<|im_end|>", "<|im_start|>")
        assert plain.parse_tool_calls(text) == ParsedCalls(text, (), ())


def test_an_argument_that_spells_the_word_is_one() -> None:
    processor = processor_of(ASKED + OBJECTS, "<|im_end|>", "<|im_start|>")
    text = '{"name": "f", "arguments": {"a": "functools[{}]"}}'
    assert processor.parse_tool_calls(text).calls == (ToolCall("f", {"a": "functools[{}]"}),)


# As llama.cpp's Kimi K2.
QUEUE = "{% set q = namespace(ids=[]) %}" + OBJECTS.replace(
    "{% for c in m.tool_calls or [] %}", "{% for c in m.tool_calls or [] %}ADD"
)


def test_a_template_that_changes_a_list_is_refused_with_what_to_write() -> None:
    appended = QUEUE.replace("ADD", "{% set _ = q.ids.append(c.id) %}")
    processor = processor_of(appended, "<|im_end|>", "<|im_start|>")
    with pytest.raises(TemplateError) as caught:
        processor.parse_tool_calls(WRITTEN)
    assert str(caught.value) == (
        "the template cannot render [user, assistant]: SecurityError: access to attribute "
        "'append' of 'list' object is unsafe.\nhint: transformers, and so TRL and vLLM, "
        "renders templates in a sandbox that keeps them from changing lists; in the template, "
        "replace `x.ids.append(id)` with `x.ids = x.ids + [id]` and `x.ids.pop(0)` with "
        "`x.ids[1:]`, or pass another template: processor=ChatTemplateProcessor(tokenizer, "
        "chat_template=…)"
    )
    added = QUEUE.replace("ADD", "{% set q.ids = q.ids + [c.id] %}")
    processor = processor_of(added, "<|im_end|>", "<|im_start|>")
    assert processor.parse_tool_calls(WRITTEN).calls == (F, G)
