"""Functions that turn observations into text for the policy, and its text into actions.

`observe(observation)` returns a string or messages, and `act(text)` one action or several; an `act`
with a second parameter gets the observation that the text answers. Without them, the server's
schemas decide. If they are ambiguous, abut raises an error instead of guessing, because a guessed
field could be the task's answer, and an action under a wrong name would be blamed on the policy.
"""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from abut.envs.env import Reply
from abut.envs.signatures import signature_of
from abut.errors import EnvError, InvalidAction
from abut.messages import Message
from abut.openenv.wire import Observation
from abut.tool_calls.parse import ToolCallFormat, parse_tool_calls

Observe: TypeAlias = Callable[[Observation], Reply]
Actions: TypeAlias = Mapping[str, Any] | Sequence[Mapping[str, Any]]
Act: TypeAlias = Callable[[str], Actions] | Callable[[str, Observation], Actions]


@dataclass(frozen=True)
class Texts:
    """How observations and actions become text, with nothing left open."""

    observe: Observe
    act: Act
    history: Literal["auto", "repeated", "new"]
    """"auto": cut off what is repeated, where it is."""
    act_sees: bool = False
    """True if `act` also gets the observation that the text answers."""


def sees_observation(act: Act) -> bool:
    """Return whether `act` cannot be called without the observation that its text answers."""
    signature = signature_of(act)
    return signature is not None and not _takes(signature, 1) and _takes(signature, 2)


def _takes(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


_OF_EVERY_OBSERVATION = ("done", "metadata", "reward")


def call_tools(format: ToolCallFormat, *, tools: Sequence[Any] | None = None) -> Act:
    """Return an `act` for environments of tools: each call in the policy's text is one action.

    Text without a call is the policy's final answer and ends the episode.

    Args:
        format: how the model writes calls, as for `abut.parse_tool_calls`.
        tools: their JSON schemas, as `OpenEnv.list_tools` gives them: some formats need them to
            tell numbers from text.
    """

    def act(text: str) -> list[dict[str, Any]]:
        parsed = parse_tool_calls(text, format=format, tools=tools)
        if parsed.malformed:
            first = parsed.malformed[0]
            raise InvalidAction(f"Malformed tool call: {first.error}")
        return [
            {"type": "call_tool", "tool_name": call.name, "arguments": call.arguments}
            for call in parsed.calls
        ]

    return act


def tool_message(observation: Observation) -> list[Message]:
    """An `observe` for results of `call_tool`; a tool's failure is shown like a result."""
    error = observation.get("error")
    if error is not None:
        content = f"Error: {error.get('message') if isinstance(error, dict) else error}"
    else:
        content = _result_text(observation.get("result"))
    return [{"role": "tool", "name": str(observation.get("tool_name")), "content": content}]


def transcript(observation: Observation) -> str:
    """An `observe` for TextArena and similar: the texts of the observation's `messages`."""
    messages = observation.get("messages")
    if not isinstance(messages, list):
        messages = []
    return "\n".join(str(m.get("content", "")) for m in messages if isinstance(m, dict))


def field_text(name: str) -> Observe:
    """An `observe` that shows one field of the observation; missing or null is silence."""

    def observe(observation: Observation) -> str:
        value = observation.get(name)
        return "" if value is None else str(value)

    return observe


def observe_by_schema(schema: Any, source: str) -> tuple[Observe, bool]:
    """The `observe` that fits a server's schema, and whether its text repeats the history.

    Tool results become `role: tool` messages. Else it is a transcript where there are `messages`,
    or the only field that holds text.

    Raises:
        EnvError: no field or several hold text.
    """
    properties = _properties(schema, "observation")
    fields = sorted(
        name
        for name, field in properties.items()
        if name not in _OF_EVERY_OBSERVATION and _holds_text(field)
    )
    of_tools = "tool_name" in properties and "result" in properties
    repeats = isinstance(properties.get("messages"), dict)
    if repeats:
        show: Observe = transcript
    elif of_tools or (not fields and set(properties) <= set(_OF_EVERY_OBSERVATION)):
        show = lambda observation: ""  # noqa: E731  # what is no tool's result has no text
    elif len(fields) == 1:
        show = field_text(fields[0])
    else:
        raise EnvError(
            f"{source}: abut cannot tell which field of an observation to show the policy: of "
            f"{sorted(properties)}, {fields or 'none'} are text\n"
            'hint: pass observe=, such as observe=lambda observation: observation["prompt"]'
        )

    def observe(observation: Observation) -> Reply:
        if "tool_name" in observation and "result" in observation:
            return tool_message(observation)
        return show(observation)

    return observe, repeats


def act_by_schema(schema: Any, source: str) -> Act:
    """The `act` that fits a server's schema: the whole text, in the only field that takes text.

    Raises:
        EnvError: no field or several take text.
    """
    properties = _properties(schema, "action")
    required = schema["action"].get("required", [])
    fields = sorted(name for name, field in properties.items() if _holds_text(field))
    needed = [name for name in fields if name in required] or fields
    if len(needed) != 1 or set(required) - set(needed) or "tool_name" in properties:
        raise EnvError(
            f"{source}: abut cannot tell which field of an action takes the policy's text: "
            f"{sorted(properties)}\n"
            'hint: pass act=, such as act=lambda text: {"message": text} or '
            'act=call_tools("hermes")'
        )
    name = needed[0]
    return lambda text: {name: text}


def _properties(schema: Any, part: str) -> dict[str, Any]:
    found = schema.get(part) if isinstance(schema, dict) else None
    properties = found.get("properties", {}) if isinstance(found, dict) else None
    if not isinstance(properties, dict):
        raise EnvError(f"the server's /schema has no {part!r}\nhint: pass observe= and act=")
    return properties


def _holds_text(field: Any) -> bool:
    if not isinstance(field, dict) or "const" in field or "enum" in field:
        return False
    kinds = [field, *(field.get("anyOf") or ())]
    return any(isinstance(kind, dict) and kind.get("type") == "string" for kind in kinds)


def _result_text(result: Any) -> str:
    """The text of an MCP result, or of what an environment made of one."""
    content = result.get("content") if isinstance(result, dict) else None
    if isinstance(content, list):
        blocks = [block for block in content if isinstance(block, dict)]
        texts = [block["text"] for block in blocks if isinstance(block.get("text"), str)]
        if texts or not content:
            return "\n".join(texts)
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
