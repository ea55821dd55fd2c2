"""Writes the messages that answer a turn's calls, and turns with their calls as `tool_calls`.

Invariant: the answers to any calls can be written. If the template cannot write one message for
each call (gpt-oss with two tools in one turn), there is one message for all. Reward functions get
the same messages as with `GRPOTrainer(tools=…)`: an assistant message holds the text without the
markup of thinking and calls, the calls are `tool_calls`, and each result is a message of the role
`tool` with the name that was called. Other messages do not change.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from abut.errors import TemplateError
from abut.messages import Message, container_copy, images_of, texts_of
from abut.processor import PartsProcessor
from abut.tool_calls.parsed import Parse, ToolCall

_USABLE_ID = re.compile("[A-Za-z0-9]{9}")
"""The ids that Mistral's templates require."""
_NAMED_ID = re.compile(r"functions\.[A-Za-z0-9_-]{1,64}:[0-9]{1,4}")
"""The ids that Kimi K2 writes; templates that require ids do not accept them."""


class ToolAnswers:
    """Creates the messages that answer a turn, for one processor.

    Args:
        processor: writes the conversation.
        tools: JSON schemas that its template shows.

    Raises:
        TemplateError: its template does not show the tools, or does not accept their results.
    """

    def __init__(self, processor: PartsProcessor, tools: Sequence[Mapping[str, Any]]) -> None:
        names = [tool["function"]["name"] for tool in tools]
        shown = "".join(processor.opening([{"role": "user", "content": "0"}]))
        # Some templates write the schemas as JSON that is ASCII.
        if not any(name in shown or json.dumps(name)[1:-1] in shown for name in names):
            raise TemplateError(
                f"the prompt does not show the policy any of its tools: {', '.join(names)}\n"
                "hint: leave processor= out, or pass it the tools: "
                "ChatTemplateProcessor(tokenizer, tools=env.tools); its template must write tools"
            )
        self._processor = processor
        self._all_have_ids = False
        answer: Message = {"role": "tool", "name": names[0], "content": "0"}
        if not self._can_write([answer]):
            self._all_have_ids = True
            try:
                processor.increment([self._with_id(answer, 0)])
            except TemplateError as error:
                reason = str(error).partition("\n")[0]
                raise TemplateError(
                    f"the processor cannot write the result of a tool: {reason}\n"
                    "hint: use ChatTemplateProcessor with a template that accepts messages of the "
                    "role 'tool'"
                ) from error

    def written(self, answers: Sequence[Message]) -> list[Message]:
        """Return the answers in the template's form; each has `name` and `content`."""
        messages = [self._with_id(answer, number) for number, answer in enumerate(answers)]
        if len(messages) == 1 or self._can_write(messages):
            return messages
        if any(images_of(answer["content"]) for answer in answers):
            blocks = [block for answer in answers for block in _named_blocks(answer)]
            return [messages[0] | {"content": blocks}]
        said = ["\n".join(texts_of(answer)) for answer in answers]
        texts = [f"{answer['name']}: {text}" for answer, text in zip(answers, said, strict=True)]
        return [messages[0] | {"content": "\n".join(texts)}]

    def _with_id(self, answer: Message, number: int) -> Message:
        """Return the answer with an id; keeps the policy's own id only if it is safe."""
        id_ = answer.get("tool_call_id")
        if id_ is None and not self._all_have_ids:
            return answer
        usable = id_ is not None and (
            _USABLE_ID.fullmatch(id_) or (not self._all_have_ids and _NAMED_ID.fullmatch(id_))
        )
        return answer | {"tool_call_id": id_ if usable else f"call{number:05d}"}

    def _can_write(self, messages: Sequence[Message]) -> bool:
        try:
            self._processor.increment(messages)
        except TemplateError:
            return False
        return True


def _named_blocks(answer: Message) -> list[Any]:
    """Return the blocks of an answer, after the name of its tool."""
    content = answer["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return [{"type": "text", "text": f"{answer['name']}: "}, *blocks]


def spoken_messages(
    processor: PartsProcessor, parse: Parse, messages: Sequence[Message]
) -> list[Message]:
    """Return copies of the messages, with the policy's text and calls separated.

    Args:
        processor: separates thinking from the action.
        parse: finds the calls in an action.
        messages: as in `Rollout.messages`, from the policy's first turn.
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
    """Return the message of one turn, and each call with its entry in the message."""
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
