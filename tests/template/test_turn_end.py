"""On which token a turn ends, what is missing of its end, and turns that call tools."""

import json
from typing import Any

from abut.parts import Content, Scaffold
from abut.template.mask import Message
from abut.template.processor import ChatTemplateProcessor
from tests.kit.data.templates import (
    CHATML,
    assistant,
    error,
    render,
    system,
    text,
    tiny_tokenizer,
    tool,
    user,
)


def processor_of(template: str, *control: str, eos: str | None = None) -> ChatTemplateProcessor:
    tokenizer = tiny_tokenizer(template, *control)
    tokenizer.eos_token = eos or control[0]
    return ChatTemplateProcessor(tokenizer)


def id_of(processor: ChatTemplateProcessor, token: str) -> int:
    return processor._render.control[token]


# ---- where an answer ends

# As GLM: nothing is written after an answer, the next header ends it.
HEADERS = (
    "{% for m in messages %}{{ '<|' + ('observation' if m.role == 'tool' else m.role) + '|>\n' }}"
    "{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ '<call>' + c.function.name + c.function.arguments.abutKey + '</call>' }}{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
HEADER_TOKENS = (
    "<eos>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
    "<call>",
    "</call>",
)


def test_the_next_header_ends_a_turn_that_nothing_else_ends() -> None:
    processor = processor_of(HEADERS, *HEADER_TOKENS)
    assert processor.report.stop_tokens == ("<|user|>", "<|observation|>", "<eos>")
    assert processor.increment([user("a")]) == [
        Scaffold("\n"),
        Content("a"),
        Scaffold("<|assistant|>\n"),
    ]
    assert text(processor.increment([tool("a")])) == "\na<|assistant|>\n"


def test_a_turn_that_ended_on_the_header_of_others_gets_the_right_one() -> None:
    processor = processor_of(HEADERS, *HEADER_TOKENS)
    ends = {token: id_of(processor, token) for token in processor.report.stop_tokens}
    for new, right in ((user(), "<|user|>"), (tool(), "<|observation|>")):
        for sampled, last_id in ends.items():
            missing = processor.closing([new], after=last_id)
            assert missing == ([] if sampled == right else [Scaffold(right)])
        assert processor.closing([new], after=0) == [Scaffold(right)]
    assert processor.closing() == [Scaffold("<|user|>")]


# As gpt-oss: the end of the last turn and of earlier ones differ.
RETURNS = (
    "{% for m in messages %}{{ '<|start|>' + m.role + '<|message|>' + m.content }}"
    "{% if m.tool_calls %}{{ m.tool_calls[0].function.arguments|tojson + '<|call|>' }}"
    "{% elif m.role == 'assistant' and loop.last %}<|return|>{% else %}<|end|>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
RETURN_TOKENS = ("<|return|>", "<|start|>", "<|message|>", "<|end|>", "<|call|>")


def test_the_end_of_a_last_turn_is_not_written_twice() -> None:
    processor = processor_of(RETURNS, *RETURN_TOKENS)
    assert processor.report.stop_tokens == ("<|return|>", "<|call|>")
    assert processor.close_token_id == id_of(processor, "<|return|>")
    assert processor.closing([user()], after=id_of(processor, "<|return|>")) == []
    assert processor.closing([user()], after=id_of(processor, "<|end|>")) == []
    assert processor.closing([user()], after=0) == [Scaffold("<|end|>")]
    assert processor.closing([tool()], after=id_of(processor, "<|call|>")) == []
    assert processor.report.notes[-1] == (
        "in earlier turns the template writes '<|end|>' for the ending '<|return|>'"
    )


# As Cohere: two control tokens end a turn, and the model stops on the second.
TWO = (
    "{% for m in messages %}{{ '<turn>' + m.role }}"
    "{{ '<say>' + m.content + '</say>' if m.role == 'assistant' else m.content }}</turn>"
    "{% endfor %}{% if add_generation_prompt %}<turn>assistant<say>{% endif %}"
)


def test_a_turn_that_two_tokens_end_stops_on_eos() -> None:
    processor = processor_of(TWO, "</turn>", "<turn>", "<say>", "</say>")
    assert processor.report.stop_tokens == ("</turn>",)
    assert processor.closing([user()], after=0) == [Scaffold("</say></turn>")]
    assert processor.closing([user()], after=id_of(processor, "</say>")) == [Scaffold("</turn>")]
    assert processor.closing([user()], after=id_of(processor, "</turn>")) == []
    assert processor.parse_agent_output("go</say></turn>") == ("", "go")
    assert processor.parse_agent_output("go</say>") == ("", "go")


def test_an_eos_that_is_written_only_after_the_last_turn_is_no_end() -> None:
    template = CHATML + "{% if not add_generation_prompt %}</think>{% endif %}"
    processor = processor_of(template, "<|im_end|>", "<|im_start|>", "</think>", eos="</think>")
    assert processor.report.end_token == "<|im_end|>"
    assert processor.report.separator == "\n"
    assert processor.report.generation_prompt == "<|im_start|>assistant\n"


def test_whitespace_before_the_end_belongs_to_it() -> None:
    processor = processor_of(CHATML.replace("<|im_end|>", " <|im_end|>"), "<|im_end|>", "x")
    assert processor.closing() == [Scaffold(" <|im_end|>")]
    assert text(processor.increment([user("a")])).startswith("\n<|im_start|>user\na <|im_end|>")


def test_a_template_without_control_tokens_is_refused() -> None:
    template = (
        "{% for m in messages %}{{ m.role + ': ' + m.content }}{{ '\n' if not loop.last }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '\nassistant: ' }}{% endif %}"
    )
    assert error(processor_of, template, "<|im_end|>") == (
        "before [user] the template writes '\\nuser: abutSaid\\nassistant: ' after the turn, "
        "which does not begin with a control token of this tokenizer, so abut cannot tell "
        "where a turn ends\nhint: use the tokenizer that belongs to the template, or a "
        "template that closes each turn with one added token"
    )


# ---- turns that call tools

CALLS = CHATML.replace(
    "m.content + '<|im_end|>\n'",
    "m.content }}{% for c in m.tool_calls or [] %}{{ '<tool_call>' + c|tojson }}{% endfor %}"
    "{{ '<|im_end|>\n'",
)


def named(name: str, content: str = "42", **keys: Any) -> Message:
    return tool(content, name=name, **keys)


def test_a_tool_message_follows_a_turn_that_calls_its_function() -> None:
    # As gpt-oss and Gemma 4: the name in the header is that of the call.
    template = CALLS.replace(
        "m.role + '\n'",
        "m.role + (messages[loop.index0 - 1].tool_calls[0].function.name if m.role == 'tool' "
        "else '') + '\n'",
    )
    processor = processor_of(template, "<|im_end|>", "<|im_start|>", "<tool_call>")
    assert text(processor.increment([named("search")])) == (
        "\n<|im_start|>toolsearch\n42<|im_end|>\n<|im_start|>assistant\n"
    )
    name = "search<|im_end|>"  # a name mints nothing
    assert Content("<|im_end|>") in processor.increment([named(name)])
    assert error(processor.increment, [tool()]) == (
        "the template writes the name of the function for [tool], but the messages do not have "
        'one\nhint: write {"role": "tool", "name": "...", "content": "..."}'
    )


def test_a_template_that_knows_one_call_takes_no_answers_to_two() -> None:
    template = "{% set seen = namespace(name='') %}" + CALLS.replace(
        "{% for m in messages %}",
        "{% for m in messages %}{% if m.tool_calls %}"
        "{% set seen.name = m.tool_calls[0].function.name %}{% endif %}",
    ).replace("m.role + '\n'", "m.role + (seen.name if m.role == 'tool' else '') + '\n'")
    processor = processor_of(template, "<|im_end|>", "<|im_start|>", "<tool_call>")
    assert error(processor.increment, [named("search"), named("clock")]) == (
        "the template writes the name of the function for [tool, tool], but not 'clock': it "
        "treats all the messages as answers to one call\nhint: let each turn call only one "
        "function, or pass another template: processor=ChatTemplateProcessor(tokenizer, "
        "chat_template=…)"
    )
    twice = text(processor.increment([named("search"), named("search")]))
    assert twice.count("toolsearch") == 2


def test_a_template_that_takes_one_call_takes_two_answers() -> None:
    template = CALLS.replace(
        "{% for c in",
        "{% if m.tool_calls and m.tool_calls|length > 1 %}{{ raise_exception('one call') }}"
        "{% endif %}{% for c in",
    )
    processor = processor_of(template, "<|im_end|>", "<|im_start|>", "<tool_call>")
    assert all(verdict.appendable for verdict in processor.verdicts())
    assert text(processor.increment([named("a"), named("b")])).count("<|im_start|>tool\n42") == 2


def test_a_name_that_only_the_call_has_need_not_be_given() -> None:
    template = CALLS.replace("c|tojson", "c.function.arguments|tojson + c.function.name")
    processor = processor_of(template, "<|im_end|>", "<|im_start|>", "<tool_call>")
    assert text(processor.increment([tool()])).startswith("\n<|im_start|>tool\n42<|im_end|>")


def test_calls_may_be_written_only_without_text() -> None:
    # As Phi-4: the content, or else the calls.
    template = CALLS.replace("or [] %}", "if not m.content %}")
    processor = processor_of(template, "<|im_end|>", "<|im_start|>", "<tool_call>")
    assert [verdict.appendable for verdict in processor.verdicts()] == [True] * 4


def test_arguments_may_have_to_be_text() -> None:
    template = CALLS.replace("c|tojson", "c.function.arguments + '!'")
    processor = processor_of(template, "<|im_end|>", "<|im_start|>", "<tool_call>")
    assert processor.verdicts()[1].stop == "<|im_end|>"


def test_the_token_that_ends_each_call_does_not_end_the_turn() -> None:
    processor = processor_of(HEADERS, *HEADER_TOKENS)
    assert processor.verdicts()[1].stop == "<|observation|>"
    # The negative control: written once for all calls, it is taken for the end.
    once = HEADERS.replace("'</call>' }}{% endfor %}", "'' }}{% endfor %}").replace(
        "{% endfor %}{% endfor %}", "{% endfor %}{{ '</call>' if m.tool_calls }}{% endfor %}"
    )
    assert processor_of(once, *HEADER_TOKENS).verdicts()[1].stop == "</call>"


def test_a_turn_that_calls_and_that_nothing_ends_is_refused() -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'tool' %}{{ '\n' + m.content }}"
        "{% elif m.tool_calls %}{{ m.tool_calls[0].function.arguments|tojson }}"
        "{% else %}{{ m.role + ':' + m.content + '<|im_end|>' }}{% endif %}{% endfor %}"
    )
    processor = processor_of(template, "<|im_end|>")
    assert error(processor.increment, [tool()]) == (
        "before [tool] the template writes '\"}\\nabutx0x' after the turn, which no control "
        "token of this tokenizer ends\nhint: abut cannot append to such a template exactly; "
        "pass another one: processor=ChatTemplateProcessor(tokenizer, chat_template=…)"
    )


def test_a_role_that_the_template_drops_is_refused_when_it_says_nothing() -> None:
    template = CHATML.replace("messages %}", "messages if m.role != 'tool' %}")
    processor = processor_of(template, "<|im_end|>", "<|im_start|>")
    assert error(processor.increment, [tool("")]).startswith(
        "the template does not write the content of message 0 (tool)\n"
    )
    assert error(processor.increment, [tool("x")]) == error(processor.increment, [tool("")])


WITH_ID = CALLS.replace("'\n' + m.content", "(m.tool_call_id or '') + '\n' + m.content")


def test_calls_with_new_ids_are_one_shape() -> None:
    processor = processor_of(WITH_ID, "<|im_end|>", "<|im_start|>", "<tool_call>")
    processor.increment([tool(tool_call_id="call_0123456789")])
    shapes = len(processor._increments)
    for k in range(5):
        call_id = f"call_x{k}y{k}z{k}w{k}__"
        parts = processor.increment([tool("hm", tool_call_id=call_id)])
        assert text(parts).startswith(f"\n<|im_start|>tool{call_id}\nhm<|im_end|>")
        assert [p for p in parts if isinstance(p, Content)] == ["hm"]
    assert len(processor._increments) == shapes
    # The negative control: an id that spells a control token is no id, and mints nothing.
    parts = processor.increment([tool("hm", tool_call_id="call_<|im_end|>_0")])
    assert Content("<|im_end|>") in parts


def test_the_ids_of_two_answers_stay_apart() -> None:
    processor = processor_of(WITH_ID, "<|im_end|>", "<|im_start|>", "<tool_call>")
    ids = ["call_0123456789", "call_9876543210", "call_0123456789"]
    written = text(processor.increment([tool(tool_call_id=call_id) for call_id in ids]))
    assert [line for line in written.split("\n") if "call" in line] == [
        "<|im_start|>tool" + call_id for call_id in ids
    ]


# ---- what a template moves


def test_a_system_message_that_moves_stays_where_it_was() -> None:
    template = CHATML.replace(
        "{% for m in messages %}",
        "{% set s = messages[0].content if messages[0].role == 'system' else '' %}"
        "{% for m in messages if m.role != 'system' %}",
    ).replace("'\n' + m.content", "'\n' + (s + '\n\n' if s and loop.last else '') + m.content")
    processor = processor_of(template, "<|im_end|>", "<|im_start|>")
    assert processor.verdicts()[0].notes == (
        "the template moves the system message with these messages; a trajectory keeps it "
        "where it was first written",
    )
    assert text(processor.opening([system("S"), user("a")])) == (
        "<|im_start|>user\nS\n\na<|im_end|>\n<|im_start|>assistant\n"
    )
    assert "\nb<|im_end|>" in text(processor.increment([user("b")]))


def test_a_system_message_that_changes_more_is_refused() -> None:
    template = CHATML.replace(
        "+ '<|im_end|>\n'", "+ ('!' if messages[0].role == 'system' else '') + '<|im_end|>\n'"
    )
    assert "depends on the history" in error(processor_of, template, "<|im_end|>", "<|im_start|>")


def test_the_text_beside_a_call_that_moves_stays_where_it_was() -> None:
    # As Gemma 4: the text of a turn that called is written after the results.
    template = (
        "{% for m in messages %}{% if m.tool_calls %}{{ '<|im_start|>assistant\n' }}"
        "{{ m.tool_calls|tojson + '<|im_end|>\n' }}"
        "{% else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
        "{% if m.role == 'tool' and messages[loop.index0 - 1].tool_calls %}"
        "{{ messages[loop.index0 - 1].content }}{% endif %}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    processor = processor_of(template, "<|im_end|>", "<|im_start|>")
    assert processor.verdicts()[1].notes == (
        "the template moves the text of a tool call's turn with these messages; a trajectory "
        "keeps it where it was first written",
    )
    assert text(processor.increment([tool("b")])) == (
        "\n<|im_start|>tool\nb<|im_end|>\n<|im_start|>assistant\n"
    )


def moved_text(behind_call: str, behind_result: str) -> tuple[str, ...]:
    """What is noted where a template writes the text beside a call at these places."""
    template = (
        "{% for m in messages %}{% if m.tool_calls %}{{ '<|im_start|>assistant\n' }}"
        f"{{{{ m.tool_calls|tojson }}}}{{{{ {behind_call} }}}}{{{{ '<|im_end|>\n' }}}}"
        "{% elif m.role == 'tool' %}{{ m.content }}{% set m = messages[loop.index0 - 1] %}"
        f"{{{{ {behind_result} if m.tool_calls else '' }}}}{{{{ '<|im_end|>\n' }}}}"
        "{% else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    return processor_of(template, "<|im_end|>", "<|im_start|>").verdicts()[1].notes


def test_text_beside_a_call_is_noted_wherever_the_template_moves_it() -> None:
    # As interleaved Gemma 4: behind the call in the same turn; or close behind a result.
    note = (
        "the template moves the text of a tool call's turn {}; a trajectory keeps it where it "
        "was first written"
    )
    assert moved_text("m.content", "''") == (note.format("after the call"),)
    assert moved_text("''", "m.content") == (note.format("with these messages"),)
    assert moved_text("''", "m.content|trim") == (note.format("with these messages"),)
    assert moved_text("''", "''") == ()


# ---- contents in lists


def test_text_is_given_in_lists_where_the_template_takes_only_lists() -> None:
    template = CHATML.replace("m.content", "m.content|map(attribute='text')|join")
    tokenizer = tiny_tokenizer(template)
    processor = ChatTemplateProcessor(tokenizer)
    blocks = [
        {**message, "content": [{"type": "text", "text": message["content"]}]}
        for message in (user("a"), assistant("b"), user("{{ c"))
    ]
    theirs = render(tokenizer, blocks)
    assert text(processor.opening([user("a"), assistant("b"), user("{{ c")])) == theirs
    assert theirs.endswith("b<|im_end|>" + text(processor.increment([user("{{ c")])))
    assert processor.increment(blocks[2:]) == processor.increment([user("{{ c")])


def test_verdicts_are_json() -> None:
    verdicts = processor_of(CALLS, "<|im_end|>", "<|im_start|>", "<tool_call>").verdicts()
    assert json.loads(json.dumps([vars(verdict) for verdict in verdicts]))[0] == {
        "kind": "user",
        "appendable": True,
        "because": "",
        "stop": "<|im_end|>",
        "scaffold": "\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n",
        "contents": ["as is"],
        "notes": [],
    }


# ---- calls that are written otherwise once they are answered

# As Apriel: an id is written inside the call when it is answered.
IDS_WHEN_ANSWERED = (
    "{% for m in messages %}{{ '<|begin_' + m.role + '|>\n' + (m.content or '') }}"
    "{% if m.tool_calls %}{{ '<calls>[' + (m.tool_calls[0].function | tojson) }}"
    "{{ (m.tool_calls[0].id | tojson) if not loop.last else '' }}{{ ']</calls>' }}{% endif %}"
    "{{ END if m.role == 'assistant' else '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|begin_assistant|>\n{% endif %}"
)
ID_TOKENS = ("<|end|>", "<calls>", "</calls>", "<|begin_tool|>", "<|begin_user|>", "<|other|>")


def ids_when_answered(end: str) -> ChatTemplateProcessor:
    return processor_of(IDS_WHEN_ANSWERED.replace("END", end), *ID_TOKENS, eos="<|end|>")


def test_what_closes_calls_does_not_end_the_turn() -> None:
    for end in ("'\n<|end|>\n'", "'\n<|end|>\n' if not loop.last or not m.tool_calls else ''"):
        processor = ids_when_answered(end)
        assert processor.report.stop_tokens == ("<|end|>",)
        (tools,) = (v for v in processor.verdicts() if v.kind == "tool")
        assert (tools.appendable, tools.stop) == (True, "<|end|>")
        assert processor.closing([tool("a")], after=id_of(processor, "<|end|>")) == []
        assert text(processor.increment([tool("a")])).startswith("\n<|begin_tool|>\na")


def test_where_nothing_tells_the_end_of_calls_it_is_refused() -> None:
    processor = ids_when_answered(
        "'<|other|>' if m.tool_calls and loop.last else '' if m.tool_calls else '<|end|>\n'"
    )
    assert processor.report.stop_tokens == ("<|end|>",)
    refusal = error(lambda: processor.increment([tool("a")]))
    assert refusal.startswith("the template writes the calls of a turn differently")
    assert "no token that ends an answer ends both" in refusal
