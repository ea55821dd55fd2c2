"""LiteLLM in a loop of somebody's own: it sends its message object back, or the dump of that."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from abut import agent
from tests.kit.clients.conversation import FOLLOW, LOOKUP, QUESTION, SAYS, SYSTEM, Heard, found

ENVIRONMENTS = ("litellm", "harnesses")

Play = Callable[..., Heard]


def plain(messages: list[Any], **options: Any) -> Any:
    import litellm

    return litellm.completion(messages=messages, **options).choices[0].message


def dumped(messages: list[Any], **options: Any) -> Any:
    return plain(messages, **options).model_dump()


def streamed(messages: list[Any], **options: Any) -> Any:
    import litellm

    chunks = list(litellm.completion(messages=messages, stream=True, **options))
    return litellm.stream_chunk_builder(chunks, messages=messages).choices[0].message


def hosted(messages: list[Any], **options: Any) -> Any:
    return plain(messages, **options | {"model": "hosted_vllm/policy"})


def loop(
    endpoint: Any, ask: Callable[..., Any], tools: list[Any] | None = None, **options: Any
) -> float:
    """Ask until there is no call left, twice."""
    options |= {"api_key": endpoint.api_key} | ({"tools": tools} if tools else {})
    messages: list[Any] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": QUESTION},
    ]
    for follows in (True, False):
        while True:
            messages.append(ask(messages, **options))
            calls = messages[-1]["tool_calls"]
            if not calls:
                break
            messages += map(answered, calls)
        if follows:
            messages.append({"role": "user", "content": FOLLOW})
    return 1.0


@pytest.mark.parametrize("ask", [plain, dumped, streamed, hosted])
def test_a_loop_with_a_tool(heard: Play, ask: Callable[..., Any]) -> None:
    @agent
    def solve(endpoint: Any) -> float:
        model = f"openai/{endpoint.model}"
        return loop(endpoint, ask, [LOOKUP], model=model, api_base=endpoint.base_url)

    one = heard(solve)
    one.check_same_as_env()
    assert not one.rewrites
    assert all(request.stream == (ask is streamed) for request in one.asked)


def test_async(heard: Play) -> None:
    @agent
    async def solve(endpoint: Any) -> float:
        import litellm

        messages: list[Any] = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": QUESTION},
        ]
        for _ in SAYS:
            completion = await litellm.acompletion(
                model=f"openai/{endpoint.model}",
                api_base=endpoint.base_url,
                api_key=endpoint.api_key,
                messages=messages,
                tools=[LOOKUP],
            )
            message = completion.choices[0].message
            messages.append(message)
            messages += map(answered, message.tool_calls or ())
            if not message.tool_calls:
                messages.append({"role": "user", "content": FOLLOW})
        return 1.0

    heard(solve).check_same_as_env()


def answered(call: Any) -> dict[str, Any]:
    """The message of the tool for one call."""
    result = found(**json.loads(call["function"]["arguments"]))
    return {"role": "tool", "tool_call_id": call["id"], "name": "lookup", "content": result}
