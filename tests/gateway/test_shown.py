"""How a client's messages stand in the row."""

from typing import Any

import pytest

from abut import agent
from abut.gateway.dialects.chat import Chat
from abut.template.processor import ChatTemplateProcessor
from tests.kit.growth import is_linear
from tests.kit.stage.agents import Client, play_agents, user
from tests.kit.stage.rollouts import Stage


def row_of(stage: Stage, messages: list[Any]) -> str:
    @agent
    async def asks(endpoint: Any) -> float:
        async with Client(endpoint) as client:
            await client.ask(messages)
        return 1.0

    rollout = play_agents(stage, asks)
    assert rollout.one.error is None
    return str(stage.row_text(rollout.one))


def test_text_parts_stand_as_they_do_in_a_prompt_of_the_dataset(stage: Stage) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    message = {"role": "user", "content": parts}
    written = "".join(stage.processor.opening([message]))
    assert "one\ntwo" in written
    assert row_of(stage, [message]).startswith(written)


# Takes parts and joins them; has no role developer.
TEMPLATE = (
    "{%- for message in messages -%}{%- if message.role != 'developer' -%}"
    "{{- '<|im_start|>' + message.role + '\\n' -}}"
    "{%- if message.content is string -%}{{- message.content -}}"
    "{%- else -%}{%- for part in message.content -%}{{- part.text -}}{%- endfor -%}{%- endif -%}"
    "{{- '<|im_end|>\\n' -}}{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)


@pytest.fixture
def joining(stage: Stage) -> Stage:
    """A stage whose template writes parts without anything between them."""
    processor = ChatTemplateProcessor(stage.processor._tokenizer, chat_template=TEMPLATE)
    return Stage(stage.tokenizer, processor)


@pytest.mark.parametrize("before", [[], [user("hi"), {"role": "assistant", "content": "Yes?"}]])
def test_a_developer_is_written_as_the_system(joining: Stage, before: list[Any]) -> None:
    developer = {"role": "developer", "content": "Be brief."}
    system = {"role": "system", "content": "Be brief."}
    written = row_of(joining, [*before, developer, user("go on")])
    assert "system\nBe brief." in written
    assert written == row_of(joining, [*before, system, user("go on")])


def test_a_developer_stays_one_where_the_template_has_the_role(stage: Stage) -> None:
    developer = {"role": "developer", "content": "Be brief."}
    assert "developer\nBe brief." in row_of(stage, [developer, user("hi")])


def parts(*texts: str) -> list[Any]:
    return [{"type": "text", "text": text} for text in texts]


def asked_twice(stage: Stage, role: str, *contents: Any) -> Any:
    """Play a rollout of two turns; the second one writes a message of the first in another way."""

    @agent
    async def asks(endpoint: Any) -> float:
        async with Client(endpoint) as client:
            before = [] if role == "system" else [user("go")]
            said = [[*before, {"role": role, "content": it}, user("hi")] for it in contents]
            answer = await client.ask(said[0])
            await client.ask([*said[1], answer, user("more")])
        return 1.0

    return play_agents(stage, asks).one


@pytest.mark.parametrize("joint", ["", "\n"])
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_parts_are_the_string_that_stands_in_the_row(
    stage: Stage, joining: Stage, joint: str, back: bool, role: str
) -> None:
    stage = stage if joint else joining
    forms = [parts("one", "two"), f"one{joint}two"]
    rollout = asked_twice(stage, role, *(forms[::-1] if back else forms))
    assert rollout.error is None
    assert not rollout.branches
    text = stage.row_text(rollout)
    assert f"one{joint}two" in text
    assert "more" in text


@pytest.mark.parametrize("joint", ["", "\n"])
def test_parts_with_another_joint_are_another_text(
    stage: Stage, joining: Stage, joint: str
) -> None:
    other = "one\ntwo" if not joint else "onetwo"
    rollout = asked_twice(stage if joint else joining, "user", parts("one", "two"), other)
    assert len(rollout.branches) == 1


@pytest.mark.parametrize("joint", ["", "\n"])
@pytest.mark.parametrize("same", [True, False])
def test_the_policys_answer_comes_back_in_parts(
    stage: Stage, joining: Stage, joint: str, same: bool
) -> None:
    @agent
    async def asks(endpoint: Any) -> float:
        async with Client(endpoint) as client:
            await client.ask([user("hi")])
            texts = f"one{joint}two".split(joint) if joint else ["one", "two"]
            back = {"role": "assistant", "content": parts(*(texts if same else ["one two"]))}
            await client.ask([user("hi"), back, user("more")])
        return 1.0

    rollout = play_agents(stage if joint else joining, asks, script=f"one{joint}two").one
    assert bool(rollout.branches) is not same


# Refuses arguments that are not an object, as many templates do.
STRICT = TEMPLATE.replace(
    "{%- if message.content is string",
    "{%- for call in message.tool_calls or [] -%}"
    "{%- for name, value in call.function.arguments.items() -%}{{- name ~ value -}}{%- endfor -%}"
    "{%- endfor -%}{%- if message.content is string",
)


def refused(stage: Stage, messages: list[Any]) -> str:
    """What the gateway answers to a request that it refuses."""
    said = []

    @agent
    async def asks(endpoint: Any) -> float:
        async with Client(endpoint) as client:
            status, body = await client.post({"model": "policy", "messages": messages})
            said.append((status, body["error"]["message"]))
            await client.ask([user("hi")])
        return 1.0

    play_agents(stage, asks)
    ((status, text),) = said
    assert status == 400
    return str(text)


@pytest.fixture
def strict(stage: Stage) -> Stage:
    processor = ChatTemplateProcessor(stage.processor._tokenizer, chat_template=STRICT)
    return Stage(stage.tokenizer, processor)


def test_arguments_that_are_not_json_are_named_with_their_call(strict: Stage) -> None:
    good = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    bad = {"id": "b", "type": "function", "function": {"name": "find", "arguments": "{x"}}
    messages = [user("hi"), {"role": "assistant", "content": "", "tool_calls": [good, bad]}]
    assert refused(strict, [*messages, user("go on")]) == (
        "messages[1].tool_calls[1], a call of 'find' with the id 'b', has arguments that are not "
        "a JSON object: '{x'\n"
        "hint: send arguments as the JSON text of an object"
    )


def test_a_refusal_has_no_hint_that_a_client_cannot_follow(stage: Stage) -> None:
    template = "{{ raise_exception('No.') if messages[0].content == 'bad' }}" + TEMPLATE
    processor = ChatTemplateProcessor(stage.processor._tokenizer, chat_template=template)
    text = refused(Stage(stage.tokenizer, processor), [user("bad")])
    assert "TemplateError: No." in text
    assert text.endswith("hint: use roles, keys and an order that the template accepts")


def test_a_block_of_thinking_is_the_reasoning() -> None:
    said = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "yes"}]
    messages = [user("a"), {"role": "assistant", "content": said}, user("b")]
    answer = Chat().read({"messages": messages}).messages[1]
    assert answer["reasoning_content"] == "hm"
    assert answer["content"] == [{"type": "text", "text": "yes"}]


@pytest.mark.parametrize("roles", [("user", "assistant")])
def test_a_first_request_costs_what_it_says(hf_tokenizer: Any, roles: tuple[str, str]) -> None:
    from abut.template.mask import free_stem, mask

    pattern = ChatTemplateProcessor(hf_tokenizer)._render.pattern

    def plans(count: int) -> None:
        messages = [{"role": roles[k % 2], "content": f"m {k}"} for k in range(count)]
        masked = mask(messages, pattern, free_stem(messages))
        masked.plan("\n".join(message["content"] for message in masked.messages))

    assert is_linear(plans, 300)
