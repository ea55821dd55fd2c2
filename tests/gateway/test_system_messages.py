"""System messages in the middle: each chat template writes them once, and in their place."""

from typing import Any

import pytest

from abut.errors import AbutError
from abut.gateway.ledger.refusal import Refusal
from abut.gateway.ledger.system_messages import SystemMessages
from abut.gateway.ledger.writer import Writer
from abut.messages import Message
from abut.template.processor import ChatTemplateProcessor
from abut.tools.tool_messages import ToolAnswers
from tests.kit.data.public_templates import TEMPLATES, tokenizer_of
from tests.kit.data.templates import tiny_tokenizer
from tests.kit.stage.agents import LOOKUP


def said(role: str, text: str) -> Message:
    return {"role": role, "content": text}


TOP, FIRST, MIDDLE = said("system", "ONE"), said("user", "UUU"), said("system", "MID")
LAST = said("user", "VVV")
RESULT: Message = {"role": "tool", "name": "lookup", "content": "RRR", "tool_call_id": "call00000"}
OPENINGS = (
    [TOP, said("developer", "TWO"), FIRST],
    [said("developer", "ONE"), FIRST],
    [TOP, FIRST, MIDDLE],
    [FIRST, MIDDLE, LAST],
    [TOP, FIRST, said("assistant", "AAA"), MIDDLE, LAST],
)
REPLIES = ([MIDDLE], [FIRST, MIDDLE], [MIDDLE, LAST], [MIDDLE, said("developer", "TWO"), LAST])
OF_TOOLS = ([RESULT, MIDDLE], [RESULT, MIDDLE, LAST])


def writer_of(name: str, *tools: Any) -> Writer | None:
    """The writer of a template; None if it cannot be appended to, or takes no tools."""
    tokenizer = tokenizer_of(name, TEMPLATES[name])
    try:
        processor = ChatTemplateProcessor(tokenizer, tools=tools or None)
        return Writer(processor, ToolAnswers(processor, tools) if tools else None)
    except AbutError:
        return None


def placed(writer: Writer, messages: list[Message], *, opens: bool) -> str:
    """How the system messages are written; asserts that all texts are, in their order."""
    try:
        found = writer.system_messages.placed(messages, opens=opens)
    except Refusal:
        return "refused"
    processor = writer.processor
    parts = processor.opening(found) if opens else processor.increment(writer.written(found))
    prompt = "".join(parts)
    texts = [message["content"] for message in messages]
    assert [prompt.count(text) for text in texts] == [1] * len(texts)
    # A template may write the first system message where it likes: Mistral's, in the last turn.
    later = texts[1:] if messages[0] is TOP else texts
    assert sorted(later, key=prompt.index) == later
    if len(found) < len(messages):
        return "joined"
    same = all(one["role"] == other["role"] for one, other in zip(found, messages, strict=True))
    return "as it is" if same else "as another role"


def ways(name: str) -> set[str]:
    """How a template's system messages are written; nothing where it cannot be appended to."""
    plain, tools = writer_of(name), writer_of(name, LOOKUP)
    if plain is None:
        return set()
    found = {placed(plain, messages, opens=True) for messages in OPENINGS}
    found |= {placed(plain, messages, opens=False) for messages in REPLIES}
    if tools is not None:
        found |= {placed(tools, messages, opens=False) for messages in OF_TOOLS}
    return found


@pytest.mark.parametrize("name", TEMPLATES)
def test_each_template_writes_each_text_once_and_in_its_place(name: str) -> None:
    found = ways(name)
    if not found:
        pytest.skip("the template cannot be appended to")
    assert found <= {"as it is", "as another role", "joined"}


def test_there_are_templates_that_need_each_way() -> None:
    missing = {"as it is", "as another role", "joined"}
    for name in TEMPLATES:
        missing -= ways(name)
        if not missing:
            return
    raise AssertionError(f"no template has its system messages written {missing}")


STRICT = (
    "{% for m in messages %}"
    "{% if loop.previtem and loop.previtem.role == 'tool' and m.role != 'assistant' %}"
    "{{ raise_exception('an answer follows a result') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}<end>"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def test_where_nothing_can_be_written_the_400_names_the_template() -> None:
    tokenizer = tiny_tokenizer(STRICT, "<end>")
    tokenizer.name_or_path = "strict/model"
    system = SystemMessages(ChatTemplateProcessor(tokenizer), list)
    assert system.placed([MIDDLE], opens=False) == [MIDDLE]
    with pytest.raises(Refusal) as raised:
        system.placed([RESULT, MIDDLE], opens=False)
    assert str(raised.value) == (
        "the chat template of strict/model shows no system message behind a message of the role "
        "'tool' and at the end, and no user message is beside it\n"
        "hint: send it as a user message, or at the beginning"
    )
    assert raised.value.param == "messages"


def test_a_template_is_tried_once_for_each_neighbour() -> None:
    class Counted(ChatTemplateProcessor):
        tries = 0

        def increment(self, messages: Any) -> Any:
            self.tries += 1
            return super().increment(messages)

    processor = Counted(tiny_tokenizer(STRICT, "<end>"))
    system = SystemMessages(processor, list)
    tries = []
    for messages in ([MIDDLE], [MIDDLE], [FIRST, MIDDLE], [FIRST, MIDDLE], [LAST, MIDDLE]):
        before = processor.tries
        system.placed(messages, opens=False)
        tries.append(processor.tries - before)
    assert tries == [1, 0, 1, 0, 0]
