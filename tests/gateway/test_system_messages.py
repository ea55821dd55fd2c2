"""System messages in the middle: each chat template writes them once, and in their place."""

from typing import Any

import pytest

from abut._native import Tokenizer
from abut.errors import AbutError, TemplateError
from abut.gateway.ledger.refusal import Refusal
from abut.gateway.ledger.system_messages import SystemMessages
from abut.gateway.ledger.writer import Writer
from abut.messages import Message
from abut.rollout.conversation import Conversation
from abut.template.processor import ChatTemplateProcessor
from abut.tools.tool_messages import ToolAnswers
from tests.kit.clients.dialect_clients import causes, send
from tests.kit.data.public_templates import TEMPLATES, tokenizer_of
from tests.kit.data.templates import tiny_tokenizer
from tests.kit.data.trl_templates import with_template
from tests.kit.stage.agents import LOOKUP, ask, post, says, serving
from tests.kit.stage.rollouts import Stage


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
        pytest.skip("abut cannot append to the template")
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
        "the chat template of strict/model does not write a system message after a 'tool' message "
        "and at the end, and there is no adjacent user message to hold its text\n"
        "hint: send the text in a user message, or put the system message first"
    )
    assert raised.value.param == "messages"


def test_a_conversation_that_could_not_be_opened_has_no_messages() -> None:
    tokenizer = tiny_tokenizer(STRICT, "<end>")
    native, processor = Tokenizer.from_pretrained(tokenizer), ChatTemplateProcessor(tokenizer)
    conversation = Conversation(native, processor)
    with pytest.raises(TemplateError):
        conversation.open([FIRST, RESULT, LAST])
    conversation.open([FIRST])
    assert conversation.messages == [FIRST]


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


# ---- chat, whose clients speak of roles as a template has them


def guarded(template: str, guard: str) -> str:
    raises = f"{{% if {guard} %}}{{{{ raise_exception('no such role here') }}}}{{% endif %}}"
    return f"{{% for m in messages %}}{raises}{{% endfor %}}{template}"


SAID: list[Any] = [
    said("system", "You are a finder."),
    said("developer", "Be brief."),
    said("user", "What is it?"),
    said("system", "Be kind."),
]


def test_a_chat_client_gets_what_the_template_makes_of_its_roles(
    stage: Stage, hf_tokenizer: Any
) -> None:
    sampler = says(stage, "One.")
    with serving(sampler, hf_tokenizer) as gateway:
        ask(gateway, SAID, "a")
    prompt = stage.tokenizer.decode(sampler.calls[-1][0].prompt_ids)
    assert prompt == hf_tokenizer.apply_chat_template(
        SAID, tokenize=False, add_generation_prompt=True
    )


@pytest.mark.parametrize("guard", ["m.role == 'system'", "m.role == 'system' and not loop.first"])
def test_a_role_that_the_template_refuses_is_a_400_for_chat_and_not_for_others(
    stage: Stage, hf_tokenizer: Any, guard: str
) -> None:
    """As a server that renders the messages would refuse it; the rollout goes on."""
    tokenizer = with_template(hf_tokenizer, guarded(hf_tokenizer.chat_template, guard))
    with serving(says(stage, "One.", "Two."), tokenizer) as gateway:
        base, key = gateway.endpoint("a").base_url, gateway.key
        status, answer, _ = post(f"{base}/chat/completions", key, {"messages": SAID})
        assert (status, answer["error"]["param"]) == (400, "messages")
        message = answer["error"]["message"]
        assert "no such role here" in message
        assert "hint: use roles, keys and an order that the template accepts" in message
        first, _ = ask(gateway, [SAID[2]], "a")
        turn = [SAID[2], first, SAID[3], said("user", "Well?")]
        status, answer, _ = post(f"{base}/chat/completions", key, {"messages": turn})
        assert (status, answer["error"]["param"]) == (400, "messages")
        ask(gateway, [SAID[2], first, said("user", "Well?")], "a")
        assert causes(gateway, "a") == [None]
        body = {"messages": SAID[2:], "system": "You are a finder.", "max_tokens": 5}
        assert send(f"{base}/messages", key, body)[0] == 200
