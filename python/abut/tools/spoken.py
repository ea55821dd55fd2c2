"""What a policy with tools said, as TRL's own tool loop hands it to reward functions.

Invariant: the messages are those of `GRPOTrainer(tools=…)` for the same samples: an assistant
message holds the text without the markup of thinking and calls, the calls are `tool_calls`, and
each result is a message of the role `tool` with the name that was called. Messages of others stay.
"""

from collections.abc import Sequence
from typing import Any

from abut.messages import Message, container_copy
from abut.processor import PartsProcessor
from abut.tool_calls.call import ToolCall
from abut.tool_calls.parse import Parse


def spoken_messages(
    processor: PartsProcessor, parse: Parse, messages: Sequence[Message]
) -> list[Message]:
    """Return copies of the messages, the policy's own taken apart.

    Args:
        processor: tells thinking from the action.
        parse: finds the calls in an action.
        messages: as `Rollout.messages` has them, from the policy's first turn on.
    """
    told: list[Message] = []
    waiting: list[tuple[ToolCall, dict[str, Any]]] = []
    for message in messages:
        content = message.get("content")
        if message.get("role") == "assistant" and isinstance(content, str):
            said, waiting = _taken_apart(processor, parse, content)
            told.append({**container_copy(message), **said})
        elif message.get("role") == "tool" and waiting:
            (call, shown), *waiting = waiting
            told.append({**container_copy(message), "name": call.name})
            if "tool_call_id" in message:  # templates that link the two; TRL has none
                shown["id"] = message["tool_call_id"]
        else:
            told.append(container_copy(message))
    return told


def _taken_apart(
    processor: PartsProcessor, parse: Parse, content: str
) -> tuple[Message, list[tuple[ToolCall, dict[str, Any]]]]:
    """Return the message of one turn, and each of its calls with its entry in that message."""
    thinking, action = processor.parse_agent_output(content)
    parsed = parse(action)
    calls: list[tuple[ToolCall, dict[str, Any]]] = []
    for call in parsed.calls:
        function = {"name": call.name, "arguments": container_copy(call.arguments)}
        calls.append((call, {"type": "function", "function": function}))
    # TRL parses a turn as a whole: if no call of it can be read, it is text, thinking included.
    if parsed.malformed and not calls:
        return {"content": content}, []
    said: Message = {"content": str(parsed.content).strip()}
    if thinking.strip():
        said["reasoning_content"] = thinking.strip()
    if calls:
        said["tool_calls"] = [shown for _, shown in calls]
    return said, calls
