"""The SDK of OpenAI, and loops of somebody's own around it: forty lines as people write them."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from abut import agent
from tests.kit.clients.conversation import (
    FOLLOW,
    LOOKUP,
    QUESTION,
    REPLIES,
    SAYS,
    SYSTEM,
    Heard,
    found,
)
from tests.kit.servers.dropping_proxy import DroppingProxy

ENVIRONMENTS = ("openai-3", "litellm")

Play = Callable[..., Heard]


def answered(call: Any) -> dict[str, Any]:
    """The message of the tool for one call, however that is given."""
    call = call if isinstance(call, dict) else call.model_dump()
    result = found(**json.loads(call["function"]["arguments"]))
    return {"role": "tool", "tool_call_id": call["id"], "content": result}


def rebuilt(message: Any) -> dict[str, Any]:
    """A message written anew, as examples on the net do."""
    said: dict[str, Any] = {"role": "assistant", "content": message.content or ""}
    if message.tool_calls:
        said["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function.name, "arguments": call.function.arguments},
            }
            for call in message.tool_calls
        ]
    return said


def put_together(chunks: Any) -> dict[str, Any]:
    """The message of a stream, put together by hand."""
    text, calls = "", {}
    for chunk in chunks:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            for piece in choice.delta.tool_calls or ():
                call = calls.setdefault(
                    piece.index,
                    {"id": "", "type": "function", "function": {"name": "", "arguments": ""}},
                )
                call["id"] += piece.id or ""
                call["function"]["name"] += piece.function.name or ""
                call["function"]["arguments"] += piece.function.arguments or ""
    said: dict[str, Any] = {"role": "assistant", "content": text}
    return said | ({"tool_calls": list(calls.values())} if calls else {})


def asking(client: Any) -> Callable[[list[Any]], Any]:
    """Asks for a completion; returns the message of it."""

    def ask(messages: list[Any]) -> Any:
        completion = client.chat.completions.create(
            model="policy", messages=messages, tools=[LOOKUP]
        )
        return completion.choices[0].message

    return ask


def loop(ask: Callable[[list[Any]], Any], sent: Callable[[Any], Any] = lambda said: said) -> float:
    """Ask until there is no call left, twice."""
    messages: list[Any] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": QUESTION},
    ]
    for follows in (True, False):
        while True:
            message = ask(messages)
            messages.append(sent(message))
            calls = message.get("tool_calls") if isinstance(message, dict) else message.tool_calls
            if not calls:
                break
            messages += map(answered, calls)
        if follows:
            messages.append({"role": "user", "content": FOLLOW})
    return 1.0


@pytest.mark.parametrize(
    "sent",
    [
        lambda message: message,
        lambda message: message.model_dump(),
        lambda message: message.model_dump(exclude_none=True),
        rebuilt,
    ],
    ids=["as it is", "dumped", "dumped without nulls", "rebuilt"],
)
def test_a_message_may_be_sent_back_in_any_form(heard: Play, sent: Callable[[Any], Any]) -> None:
    @agent
    def solve(endpoint: Any) -> float:
        import openai

        with openai.OpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key) as client:
            return loop(asking(client), sent)

    one = heard(solve)
    one.check_same_as_env()
    assert not one.rewrites


def test_async(heard: Play) -> None:
    @agent
    async def solve(endpoint: Any) -> float:
        import openai

        messages: list[Any] = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": QUESTION},
        ]
        async with openai.AsyncOpenAI(
            base_url=endpoint.base_url, api_key=endpoint.api_key
        ) as client:
            for follows in (True, False):
                while True:
                    completion = await client.chat.completions.create(
                        model=endpoint.model, messages=messages, tools=[LOOKUP]
                    )
                    message = completion.choices[0].message
                    messages.append(message)
                    if not message.tool_calls:
                        break
                    messages += map(answered, message.tool_calls)
                if follows:
                    messages.append({"role": "user", "content": FOLLOW})
        return 1.0

    heard(solve).check_same_as_env()


def test_a_stream_that_is_put_together_by_hand(heard: Play) -> None:
    @agent
    def solve(endpoint: Any) -> float:
        import openai

        with openai.OpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key) as client:
            create = client.chat.completions.create
            return loop(
                lambda messages: put_together(
                    create(model=endpoint.model, messages=messages, tools=[LOOKUP], stream=True)
                )
            )

    one = heard(solve)
    one.check_same_as_env()
    assert all(request.stream for request in one.asked)


def test_the_helper_for_streams(heard: Play) -> None:
    """`.stream()` adds `parsed`, `parsed_arguments` and `index`, and writes null as `""`."""

    @agent
    def solve(endpoint: Any) -> float:
        import openai

        with openai.OpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key) as client:

            def ask(messages: list[Any]) -> Any:
                with client.chat.completions.stream(
                    model=endpoint.model, messages=messages, tools=[LOOKUP]
                ) as events:
                    for _ in events:
                        pass
                    return events.get_final_completion().choices[0].message

            return loop(ask)

    heard(solve).check_same_as_env()


def test_typed_arguments(heard: Play) -> None:
    """`.parse()` sends a strict schema of the tool, and its own keys back on the message."""

    @agent
    def solve(endpoint: Any) -> float:
        import openai
        from pydantic import BaseModel

        class Lookup(BaseModel):
            """Look up."""

            a: str
            b: float = 0.0
            k: int = 0

        tools = [openai.pydantic_function_tool(Lookup, name="lookup")]
        with openai.OpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key) as client:
            return loop(
                lambda messages: (
                    client.chat.completions.parse(
                        model=endpoint.model, messages=messages, tools=tools
                    )
                    .choices[0]
                    .message
                )
            )

    one = heard(solve)
    one.check_same_as_env()
    assert one.asked[0].tools is not None
    assert one.asked[0].tools[0]["function"]["strict"]


def test_what_is_asked_again_gets_what_was_sampled(heard: Play) -> None:
    """The SDK asks twice more, with the same body, where a plain reply breaks off."""
    drops: dict[int, Any] = {0: "unheard", 2: "cut", 4: "unheard", 5: "cut"}
    counts: list[Any] = []

    @agent
    def solve(endpoint: Any) -> float:
        import openai

        with (
            DroppingProxy(endpoint.base_url, drops) as proxy,
            openai.OpenAI(base_url=proxy.base_url, api_key=endpoint.api_key) as client,
        ):
            counts.append(proxy.retry_counts)
            return loop(asking(client))

    one = heard(solve)
    one.check_same_as_env()
    assert counts == [["0", "1", "0", "1", "0", "1", "2", "0", "0"]]
    assert len(one.sampled) == 5


def test_another_conversation_is_another_row(heard: Play) -> None:
    """What all of these compare with does notice a word."""

    @agent
    def solve(endpoint: Any) -> float:
        import openai

        with openai.OpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key) as client:
            return loop(asking(client))

    one = heard(solve)
    with pytest.raises(AssertionError, match="completion_ids"):
        one.check_same_as_env(replies=[*REPLIES[:3], [{"role": "user", "content": "And then?"}]])


def test_the_end_of_the_budget_raises_what_clients_look_for(heard: Play) -> None:
    raised: list[Any] = []

    @agent
    def solve(endpoint: Any) -> float:
        import openai

        with openai.OpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key) as client:
            try:
                return loop(asking(client))
            except openai.BadRequestError as error:
                raised.append(error)
                raise

    one = heard(solve, completion=200)
    assert (one.rollout.error, one.rollout.reward) == (None, None)
    assert one.rollout.stop_reason == "max_completion_tokens"
    assert one.rollout.branches == []
    (error,) = raised
    assert error.code == "context_length_exceeded"
    assert "maximum context length" in str(error)


def test_a_conversation_may_go_on_in_another_protocol(heard: Play) -> None:
    @agent
    def solve(endpoint: Any) -> float:
        import openai

        with openai.OpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key) as client:
            model = endpoint.model
            first = client.responses.create(model=model, instructions=SYSTEM, input=QUESTION)
            messages: list[Any] = [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": QUESTION},
                {"role": "assistant", "content": first.output_text},
                {"role": "user", "content": FOLLOW},
            ]
            client.chat.completions.create(model=model, messages=messages)
        return 1.0

    one = heard(solve, says=SAYS[-2:])
    one.check()
    assert one.causes == [None]
    assert len(one.rollout.turns) == 2
