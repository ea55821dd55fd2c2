"""How clients of Gemini generateContent write what a chat client would say."""

import base64
import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

from abut.gateway.dialects.gemini import Gemini
from tests.kit.clients.tree import Message
from tests.kit.dialects.spelling import OTHER_HABITS, OtherSpelling, function_call, texts


class GeminiSpelling(OtherSpelling):
    """Contents of parts; those of the model are one turn, and results name their tool."""

    dialect = Gemini()
    habits = OTHER_HABITS
    merges = True
    signs_once = True

    def _said(self, message: Message, tools: Mapping[str, str]) -> Message | None:
        if message["role"] != "tool":
            new = super()._said(message, tools)
            if new is not None and new["role"] == "system":
                shown = [text for text in texts(new["content"]) if text]
                return {**new, "content": shown[0]} if len(shown) == 1 else None
            return new
        id_, content = message.get("tool_call_id"), message.get("content") or ""
        if not isinstance(content, str) or (id_ is None and "name" not in message):
            return None  # which call it answers is a rule of the protocol
        if id_ in tools:
            return {"role": "tool", "content": content, "tool_call_id": id_}
        return {"role": "tool", "content": content, "name": message.get("name", "unknown")}

    def body(self, chat: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
        messages = [*chat["messages"]]
        body: dict[str, Any] = {}
        if messages[0]["role"] == "system":
            system = messages.pop(0)["content"]
            body["systemInstruction"] = {"parts": [{"text": system}]}
        body["contents"] = _contents(messages, bool(chat.get("lacks_ids")), rng)
        if chat.get("tools"):
            declared = [_declared(tool["function"], rng) for tool in chat["tools"]]
            body["tools"] = [{"functionDeclarations": declared}]
        config = {
            key: chat[name]
            for name, key in (("max_tokens", "maxOutputTokens"), ("stop", "stopSequences"))
            if name in chat
        }
        if config:
            body["generationConfig"] = config
        if rng.random() < 0.3:
            body["labels"] = {"a": str(rng.random())}
        return {_spelled(key, rng): value for key, value in body.items()}

    def heard(self, answer: Any) -> Message:
        message: Message = {"role": "assistant", "content": None}
        for part in answer["candidates"][0]["content"].get("parts", ()):
            if "thoughtSignature" in part:
                message["handle"] = base64.urlsafe_b64decode(part["thoughtSignature"]).decode()
            if part.get("thought"):
                message["reasoning"] = message["reasoning_content"] = part["text"]
            elif "text" in part:
                message["content"] = part["text"]
            else:
                call = part["functionCall"]
                made = function_call(call["id"], call["name"], json.dumps(call["args"]))
                message.setdefault("tool_calls", []).append(made)
        return message

    def assembled(self, events: Sequence[Any]) -> Any:
        parts: list[Any] = []
        for event in events:
            (candidate,) = event["candidates"]
            assert ("finishReason" in candidate) == (event is events[-1])
            assert candidate["content"].get("parts", [{"text": "x"}])
            parts += candidate["content"].get("parts", ())
        content = {"role": "model", "parts": parts} if parts else {"role": "model"}
        return {**events[-1], "candidates": [{**candidate, "content": content}]}

    def whole(self, answer: Any) -> Any:
        return answer


def _spelled(key: str, rng: random.Random) -> str:
    """A key in camelCase, or in snake_case."""
    if rng.random() < 0.7:
        return key
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in key)


def _declared(function: Any, rng: random.Random) -> Any:
    made = {key: value for key, value in function.items() if key != "parameters"}
    return {**made, _spelled("parametersJsonSchema", rng): function["parameters"]}


def _contents(
    messages: Sequence[Message], lacks_ids: bool, rng: random.Random
) -> list[dict[str, Any]]:
    contents: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    has_ids = not (lacks_ids and _may_lack_ids(messages))
    place = 0
    while place < len(messages):
        message = messages[place]
        end = place + 1
        if message["role"] == "assistant":
            calls = message.get("tool_calls", ())
            names |= {call["id"]: call["function"]["name"] for call in calls}
            parts = _model_parts(message, has_ids, rng)
            if len(parts) > 1 and rng.random() < 0.3:
                contents += [{"role": "model", "parts": [part]} for part in parts]
            else:
                contents.append({"role": "model", **({"parts": parts} if parts else {})})
        elif message["role"] == "tool":
            while end < len(messages) and messages[end]["role"] == "tool" and rng.random() < 0.7:
                end += 1
            parts = [_response(one, names, has_ids, rng) for one in messages[place:end]]
            follows = messages[end] if end < len(messages) else message
            if follows["role"] == "user" and rng.random() < 0.5:
                said = [{"text": text} for text in texts(follows["content"])]
                parts = said + parts if rng.random() < 0.5 else parts + said
                end += 1
            contents.append({"role": rng.choice(["user", "function"]), "parts": parts})
        else:
            role = {"role": "user"} if rng.random() < 0.7 else {}
            said = [{"text": text} for text in texts(message["content"])]
            contents.append({**role, "parts": said})
        place = end
    return contents


def _may_lack_ids(messages: Sequence[Message]) -> bool:
    """Whether each result answers the first open call of its tool in the turn before."""
    unanswered: list[tuple[str, str]] = []
    for message in messages:
        if message["role"] == "assistant":
            calls = message.get("tool_calls", ())
            unanswered = [(call["id"], call["function"]["name"]) for call in calls]
        elif message["role"] == "tool":
            id_ = message.get("tool_call_id")
            name = next((name for known, name in unanswered if known == id_), None)
            first = next((pair for pair in unanswered if pair[1] == name), None)
            if name is None or first != (id_, name):
                return False
            unanswered.remove(first)
    return True


def _response(
    message: Message, names: Mapping[str, str], has_ids: bool, rng: random.Random
) -> dict[str, Any]:
    id_ = message.get("tool_call_id")
    name = names[id_] if id_ is not None else message["name"]
    given = {} if id_ is None or not has_ids else {"id": id_}
    key = rng.choice(["result", "output", "content", "error", "return_value"])
    response = {**given, "name": name, "response": {key: message["content"]}}
    return {_spelled("functionResponse", rng): response}


def _model_parts(message: Message, has_ids: bool, rng: random.Random) -> list[dict[str, Any]]:
    if pieces := message.get("pieces"):
        return [part for piece in pieces for part in _model_parts(piece, has_ids, rng)]
    thinking, handle = message.get("reasoning_content"), message.get("handle")
    parts: list[dict[str, Any]] = [{"text": thinking, "thought": True}] if thinking else []
    text = message["content"]
    cut = rng.randrange(len(text) + 1) if text and rng.random() < 0.2 else 0
    said: list[dict[str, Any]] = [{"text": piece} for piece in (text[:cut], text[cut:]) if piece]
    called: list[dict[str, Any]] = []
    for call in message.get("tool_calls", ()):
        function = call["function"]
        made = {"name": function["name"], "args": function["arguments"]}
        if not made["args"] and rng.random() < 0.5:
            del made["args"]
        made |= {"id": call["id"]} if has_ids else {}
        called.append({_spelled("functionCall", rng): made})
    parts += called + said if message.get("reordered") else said + called
    signatures = handle.split() if handle else []
    if not signatures and rng.random() < 0.2:
        signatures = ["skip_thought_signature_validator"]  # of nobody
    for signature in signatures:
        made = base64.urlsafe_b64encode(signature.encode()).decode()
        signed = {_spelled("thoughtSignature", rng): made}
        free = [part for part in parts if not any("ignature" in key for key in part)]
        if free and len(signatures) == 1 and rng.random() < 0.7:
            rng.choice(free).update(signed)
        else:
            parts.append({"text": "", **signed})
    return parts
