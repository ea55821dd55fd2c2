"""How clients of OpenAI Responses write what a chat client would say."""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from abut.gateway.dialects.responses import Responses
from tests.kit.clients.habits import own
from tests.kit.clients.tree import Item, Message, Node, answered
from tests.kit.dialects.spelling import OTHER_HABITS, OtherSpelling, function_call, texts


def thinking_as_text(node: Node, rng: random.Random) -> tuple[Message | None, Item] | None:
    """As pydantic-ai does: a message before the text says exactly what was thought."""
    message = own(node)
    if not message.get("reasoning_content"):
        return None
    del message["reasoning"], message["handle"]
    return message | {"respelled": True}, answered(node, reasoning=True)


class ResponsesSpelling(OtherSpelling):
    """Items, which say nothing by their ids and states; those between two inputs are one turn."""

    dialect = Responses()
    habits = (*OTHER_HABITS, thinking_as_text)
    has_stops = False
    follows = True
    system_later = True
    merges = True

    def _is_written(self, message: Message) -> bool:
        return any(value for key, value in message.items() if key != "role")

    def _answer(self, message: Message) -> Message | None:
        refusal = message.get("refusal")
        if "pieces" in message:
            return super()._answer(message)
        new = super()._answer({**message, "refusal": None})
        return None if new is None else new | ({"refusal": refusal} if refusal else {})

    def _thoughts(self, message: Message) -> dict[str, Any]:
        return {key: message.get(key) or "" for key in ("reasoning_content", "reasoning")}

    def arguments(self, arguments: Any) -> Any:
        return "" if arguments is None else arguments

    def body(self, chat: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
        messages = [*chat["messages"]]
        body: dict[str, Any] = {"model": "policy"}
        # A system message with more than one text cannot be written as instructions.
        text = messages[0]["content"] if messages[0]["role"] == "system" else ""
        if text and isinstance(text, str):
            body["instructions"] = text
            del messages[0]
        if (follows := chat.get("previous_response_id")) is not None:
            body["previous_response_id"] = follows
            messages = messages[chat["said_before"] - ("instructions" in body) :]
        body["input"] = [item for message in messages for item in _items(message, rng)]
        if chat.get("tools"):
            body["tools"] = [{"type": "function", **tool["function"]} for tool in chat["tools"]]
        if "max_tokens" in chat:
            body["max_output_tokens"] = chat["max_tokens"]
        if rng.random() < 0.3:
            body["client_metadata"] = {"b": str(rng.random()), "store": False}
        return body

    def heard(self, answer: Any) -> Message:
        message: Message = {"role": "assistant", "content": None}
        for item in answer["output"]:
            if item["type"] == "reasoning":
                (part,) = item["summary"]
                message["reasoning"] = message["reasoning_content"] = part["text"]
                message["handle"] = item["encrypted_content"]
            elif item["type"] == "message":
                (part,) = item["content"]
                message["content"] = part["text"]
            else:
                call = function_call(item["call_id"], item["name"], item["arguments"])
                message.setdefault("tool_calls", []).append(call)
        return message

    def assembled(self, events: Sequence[Any]) -> Any:
        assert [event["sequence_number"] for event in events] == [*range(len(events))]
        created, _, *filled, last = events
        output: list[Any] = []
        for event in filled:
            kind = event["type"].removeprefix("response.")
            if kind == "output_item.added":
                output.append(json.loads(json.dumps(event["item"])))
            elif kind == "output_item.done":
                assert output[event["output_index"]] == event["item"] | (
                    {"status": "in_progress"} if "status" in event["item"] else {}
                )
                output[event["output_index"]] = event["item"]
            else:
                _fill(output[event["output_index"]], kind, event)
        response = last["response"]
        assert {event["response"]["id"] for event in (created, events[1], last)} == {response["id"]}
        return {**response, "output": output, "status": last["type"].removeprefix("response.")}

    def whole(self, answer: Any) -> Any:
        return answer

    def edits(self, node: Node, message: Message) -> Iterator[tuple[str, Message]]:
        yield from super().edits(node, message)
        yield "sealed by another", message | {"handle": "gAAAAABo"}
        if thinking := message.get("reasoning_content"):
            bare = {k: v for k, v in message.items() if k not in ("reasoning", "handle")}
            for other in (f"{thinking}'", f" {thinking}", f"{thinking}\n"):
                yield (
                    "thinking as another text",
                    bare
                    | {
                        "reasoning_content": other,
                        "respelled": True,
                    },
                )


def _fill(item: dict[str, Any], kind: str, event: dict[str, Any]) -> None:
    assert event["item_id"] == item["id"]
    parts = item.get("summary" if "summary" in kind else "content", [])
    if kind.endswith("part.added"):
        parts.append({**event["part"]})
    elif kind.endswith("text.delta"):
        parts[-1]["text"] += event["delta"]
    elif kind.endswith("text.done"):
        assert parts[-1]["text"] == event["text"]
    elif kind.endswith("part.done"):
        assert parts[-1] == event["part"]
    else:
        field = "arguments" if kind.startswith("function") else "input"
        if kind.endswith(".delta"):
            item[field] += event["delta"]
        else:
            assert item[field] == event[field]


def _labels(rng: random.Random) -> dict[str, Any]:
    labels = {"id": f"x_{rng.randrange(9)}", "status": "completed", "phase": None}
    return {key: value for key, value in labels.items() if rng.random() < 0.3}


def _parts(content: Any, kind: str, rng: random.Random) -> Any:
    if isinstance(content, str) and rng.random() < 0.5:
        return content
    noted = {"annotations": []} if kind == "output_text" and rng.random() < 0.5 else {}
    return [{"type": kind, "text": text, **noted} for text in texts(content)]


def _items(message: Message, rng: random.Random) -> list[dict[str, Any]]:
    role = message["role"]
    if role == "tool":
        output = _parts(message["content"], "input_text", rng)
        item = {"type": "function_call_output", "call_id": message["tool_call_id"]}
        return [{**item, "output": output, **_labels(rng)}]
    if role != "assistant":
        typed = {"type": "message"} if rng.random() < 0.5 else {}
        return [{**typed, "role": role, "content": _parts(message["content"], "input_text", rng)}]
    if pieces := message.get("pieces"):
        return [item for piece in pieces for item in _items(piece, rng)]
    thinking = _thinking(message, rng)
    said = _messages(message, rng)
    called = [
        {
            "type": "function_call",
            "call_id": call["id"],
            **call["function"],
            **_labels(rng),
        }
        for call in message.get("tool_calls", ())
    ]
    return thinking + (called + said if message.get("reordered") else said + called)


def _thinking(message: Message, rng: random.Random) -> list[dict[str, Any]]:
    summary, content = message.get("reasoning_content"), message.get("reasoning")
    if message.get("respelled"):
        return [{"role": "assistant", "content": f"<think>\n{summary}\n</think>"}]
    if not (summary or content or message.get("handle")):
        return []
    item: dict[str, Any] = {"type": "reasoning", "summary": [], **_labels(rng)}
    if summary:
        item["summary"] = [{"type": "summary_text", "text": summary}]
    if content or rng.random() < 0.3:
        item["content"] = [{"type": "reasoning_text", "text": content}] if content else None
    if message.get("handle") or rng.random() < 0.3:
        item["encrypted_content"] = message.get("handle")
    return [item]


def _messages(message: Message, rng: random.Random) -> list[dict[str, Any]]:
    text, refusal = message["content"], message.get("refusal")
    if not (text or refusal):
        return []
    head = {"type": "message", "role": "assistant"}
    if refusal:
        parts = [{"type": "output_text", "text": text}] if text else []
        return [{**head, "content": [*parts, {"type": "refusal", "refusal": refusal}]}]
    cut = rng.randrange(len(text) + 1) if rng.random() < 0.2 else 0
    # Only the whole of a text may look like thinking.
    pieces = [piece for piece in (text[:cut], text[cut:]) if piece]
    pieces = [text] if any(piece.startswith("<think>") for piece in pieces) else pieces
    return [
        {**head, "content": _parts(piece, "output_text", rng), **_labels(rng)} for piece in pieces
    ]
