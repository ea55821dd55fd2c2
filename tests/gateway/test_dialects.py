"""The same conversation in each dialect: one row, and the same limits in each one's own words."""

import re
from typing import Any

import pytest

from abut.gateway.server.gateway import Gateway
from tests.kit.clients.dialect_talks import FOUND, QUESTION, SYSTEM, TALKS, Talk
from tests.kit.stage.agents import LOOKUP, ask, check_tree, says, serving, user
from tests.kit.stage.rollouts import Recording, Stage

TALK = pytest.mark.parametrize("talk_in", TALKS.values(), ids=TALKS)


@TALK
def test_the_row_is_that_of_a_chat_client_with_the_same_conversation(
    gateway: Gateway, sampler: Recording, talk_in: type[Talk]
) -> None:
    assert talk_in(gateway).goes_on()
    row = gateway.end("a", 1.0)
    assert (row.error, row.branches, len(row.turns)) == (None, [], 3)
    check_tree(row, [call for call in sampler.calls if call[0].rollout_id == "a"])
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, user(QUESTION)]
    for found in (*FOUND, ()):
        answer, _ = ask(gateway, messages, "chat", tools=[LOOKUP])
        messages.append(answer)
        messages += [
            {"role": "tool", "tool_call_id": call["id"], "content": text}
            for call, text in zip(answer.get("tool_calls", ()), found, strict=True)
        ]
    chat = gateway.end("chat", 1.0)
    assert row.columns is not None
    assert chat.columns is not None
    for name in ("prompt_ids", "completion_ids", "env_mask"):
        assert getattr(row.columns, name).tolist() == getattr(chat.columns, name).tolist()


@TALK
def test_an_empty_turn_may_be_left_out(
    stage: Stage, hf_tokenizer: Any, talk_in: type[Talk]
) -> None:
    with serving(says(stage, "", "yes"), hf_tokenizer) as gateway:
        client: Any = talk_in.kind(gateway)
        empty = client.ask([talk_in.said("hi")])
        assert not any(empty.get(key) for key in ("content", "output", "parts"))
        client.ask([talk_in.said("hi"), talk_in.said("well?")])
        assert client.causes == [None]


FULL = {
    "messages": r"prompt is too long: (\d+) tokens > 60 maximum",
    "responses": r"maximum context length: the conversation has (\d+) tokens",
    "gemini": r"input token count \((\d+)\) exceeds the maximum number of tokens allowed \(60\)",
}


@pytest.mark.parametrize("name", TALKS)
def test_a_full_conversation_and_a_rollout_that_is_over_differ(
    stage: Stage, hf_tokenizer: Any, name: str
) -> None:
    talk_in = TALKS[name]
    config = {"max_context_tokens": 60, "max_turns": 2}
    with serving(says(stage, "yes"), hf_tokenizer, config=config) as gateway:
        client: Any = talk_in.kind(gateway)
        status, full = client.post([talk_in.said("hi " * 60)])
        found = re.search(FULL[name], full["error"]["message"])
        assert found is not None, full
        assert (status, int(found[1]) > 60) == (400, True)
        history = [talk_in.said("a")]
        for _ in range(2):
            history += [*talk_in.answered(client.ask(history)), talk_in.said("b")]
        status, limited = client.post(history)
        assert (status, limited["error"]["message"]) == (
            400,
            "the conversation has reached max_turns=2",
        )
        gateway.end("a", 1.0)
        status, over = client.post([talk_in.said("a")])
        assert (status, over["error"]["message"]) == (400, "this rollout is over")
        kinds = [
            {
                key: value
                for key, value in answer["error"].items()
                if key not in ("message", "param")
            }
            for answer in (full, limited, over)
        ]
        assert kinds == KINDS[name]


KINDS: dict[str, list[dict[str, Any]]] = {
    "messages": [{"type": "invalid_request_error"}] * 3,
    "responses": [
        {"type": "invalid_request_error", "code": code}
        for code in ("context_length_exceeded", "limit_reached", "rollout_over")
    ],
    "gemini": [{"code": 400, "status": "INVALID_ARGUMENT"}] * 3,
}
