"""How a client's messages stand in the row."""

from typing import Any

import pytest

from abut import agent
from abut.gateway.request import read_request
from abut.template.processor import ChatTemplateProcessor
from agent_stage import Client, play_agents, user
from growth import is_linear
from stage import Stage


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


def test_a_developer_is_written_as_the_system(stage: Stage) -> None:
    developer = {"role": "developer", "content": "Be brief."}
    system = {"role": "system", "content": "Be brief."}
    assert row_of(stage, [developer, user("hi")]) == row_of(stage, [system, user("hi")])


def test_a_block_of_thinking_is_the_reasoning() -> None:
    said = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "yes"}]
    messages = [user("a"), {"role": "assistant", "content": said}, user("b")]
    answer = read_request({"messages": messages}).messages[1]
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
