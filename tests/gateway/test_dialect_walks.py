"""Random clients of each dialect: the prompts and branches are those of a chat client that says it.

A walk begins conversations, goes on behind any answer of any of them, asks once more, and changes
what was said. It is played twice, with equal samples, by a chat client and by another one, each of
which spells its history at random as its clients do.
"""

import copy
import json
from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar
from urllib.request import Request, urlopen

import pytest

from abut.gateway.server.gateway import Gateway
from tests.kit.clients.dialect_clients import causes
from tests.kit.stage.agents import LOOKUP, a_call, check_tree, serving
from tests.kit.stage.rollouts import Recording, Stage

FUNCTION: dict[str, Any] = LOOKUP["function"]  # type: ignore[assignment]
SYSTEM = "You are a finder."
STEPS = 14


@dataclass(frozen=True)
class Answered:
    """An answer: the history up to it, and its calls."""

    history: list[Any]
    calls: list[dict[str, Any]]
    edited: bool
    """True if answers in it are the client's own now, whose thinking counts as it is written."""


class Chatting:
    """A chat client; the others differ from it in what they send."""

    path: ClassVar[str] = "/v1/chat/completions"
    messages: ClassVar[str] = "messages"
    fields: ClassVar[dict[str, Any]] = {"model": "policy", "tools": [LOOKUP]}

    def __init__(self, gateway: Gateway, rollout: str) -> None:
        self.gateway, self.rollout = gateway, rollout

    def ask(self, history: list[Any]) -> tuple[list[Any], list[dict[str, Any]]]:
        """Return what is added to the history, and the calls in it."""
        url = gateway_url(self.gateway, self.rollout) + self.path
        data = json.dumps({**self.fields, self.messages: history}).encode()
        headers = {"Authorization": f"Bearer {self.gateway.key}"}
        with urlopen(Request(url, data, headers), timeout=60) as reply:
            return self.answer(json.load(reply))

    def begin(self, text: str) -> list[Any]:
        return [{"role": "system", "content": SYSTEM}, *self.say(text)]

    def say(self, text: str) -> list[Any]:
        return [{"role": "user", "content": text}]

    def answer(self, reply: Any) -> tuple[list[Any], list[Any]]:
        message = reply["choices"][0]["message"]
        return [message], message.get("tool_calls", [])

    def results(self, calls: list[Any], texts: list[str], random: Random) -> list[Any]:
        return [
            {"role": "tool", "tool_call_id": call["id"], "content": text}
            for call, text in zip(calls, texts, strict=True)
        ]

    def respelled(self, history: list[Any], random: Random, edited: bool) -> list[Any]:
        return history


class OfAnthropic(Chatting):
    path = "/v1/messages"
    fields: ClassVar[dict[str, Any]] = {
        "model": "policy",
        "max_tokens": 900,
        "system": SYSTEM,
        "tools": [
            {
                "name": "lookup",
                "description": "Look up.",
                "input_schema": FUNCTION["parameters"],
            }
        ],
    }

    def begin(self, text: str) -> list[Any]:
        return self.say(text)

    def answer(self, reply: Any) -> tuple[list[Any], list[Any]]:
        calls = [block for block in reply["content"] if block["type"] == "tool_use"]
        return [{"role": "assistant", "content": reply["content"]}], calls

    def results(self, calls: list[Any], texts: list[str], random: Random) -> list[Any]:
        blocks = [
            {"type": "tool_result", "tool_use_id": call["id"], "content": text}
            for call, text in zip(calls, texts, strict=True)
        ]
        random.shuffle(blocks)  # A3
        return [{"role": "user", "content": blocks}]

    def respelled(self, history: list[Any], random: Random, edited: bool) -> list[Any]:
        for message in history:
            for block in message["content"] if isinstance(message["content"], list) else ():
                if random.random() < 0.3:
                    block["cache_control"] = {"type": "ephemeral"}
                if block["type"] == "thinking" and random.random() < 0.5 * (not edited):
                    block["thinking"] = ""
        return history


class OfResponses(Chatting):
    path = "/v1/responses"
    messages = "input"
    fields: ClassVar[dict[str, Any]] = {
        "model": "policy",
        "instructions": SYSTEM,
        "tools": [{"type": "function", **FUNCTION}],
    }

    def begin(self, text: str) -> list[Any]:
        return self.say(text)

    def answer(self, reply: Any) -> tuple[list[Any], list[Any]]:
        return reply["output"], [i for i in reply["output"] if i["type"] == "function_call"]

    def results(self, calls: list[Any], texts: list[str], random: Random) -> list[Any]:
        return [
            {"type": "function_call_output", "call_id": call["call_id"], "output": text}
            for call, text in zip(calls, texts, strict=True)
        ]

    def respelled(self, history: list[Any], random: Random, edited: bool) -> list[Any]:
        for item in history:
            if random.random() < 0.5:
                item.pop("id", None)
            if item.get("type") == "reasoning" and random.random() < 0.5 * (not edited):
                item["summary"] = []
        return [
            item
            for item in history
            if edited or item.get("type") != "reasoning" or random.random() < 0.8
        ]


class OfGemini(Chatting):
    path = "/v1beta/models/policy:generateContent"
    messages = "contents"
    fields: ClassVar[dict[str, Any]] = {
        "systemInstruction": {"parts": [{"text": SYSTEM}]},
        "tools": [
            {
                "functionDeclarations": [
                    {
                        "name": "lookup",
                        "description": "Look up.",
                        "parametersJsonSchema": FUNCTION["parameters"],
                    }
                ]
            }
        ],
    }

    def begin(self, text: str) -> list[Any]:
        return self.say(text)

    def say(self, text: str) -> list[Any]:
        return [{"role": "user", "parts": [{"text": text}]}]

    def answer(self, reply: Any) -> tuple[list[Any], list[Any]]:
        content = reply["candidates"][0]["content"]
        parts = content.get("parts", [])
        return [content], [part["functionCall"] for part in parts if "functionCall" in part]

    def results(self, calls: list[Any], texts: list[str], random: Random) -> list[Any]:
        parts = [
            {"functionResponse": {"id": c["id"], "name": c["name"], "response": {"output": text}}}
            for c, text in zip(calls, texts, strict=True)
        ]
        return [{"role": "user", "parts": parts}]

    def respelled(self, history: list[Any], random: Random, edited: bool) -> list[Any]:
        without_ids, respelled = random.random() < 0.3, []
        for content in history:
            for part in content.get("parts", ()):
                if without_ids:
                    part.get("functionCall", {}).pop("id", None)
                    part.get("functionResponse", {}).pop("id", None)
                if "functionCall" in part and random.random() < 0.3:
                    part["function_call"] = part.pop("functionCall")
            if content["role"] == "model" and random.random() < 0.3:
                respelled += [{"role": "model", "parts": [p]} for p in content.get("parts", ())]
            else:
                respelled.append(content)
        return respelled


def gateway_url(gateway: Gateway, rollout: str) -> str:
    return gateway.endpoint(rollout).base_url.removesuffix("/v1")


def a_text(number: int, random: Random) -> str:
    """A turn of the policy: thinking, text and calls, other than each turn before.

    Where siblings say the same, a signature tells them apart, and a chat client has none. An empty
    turn may come back as no item.
    """
    word = f"{random.choice(['yes', 'no', 'maybe so'])} {number}"
    thinking = random.choice(["", f"<think>\n{word}?\n</think>\n\n"])
    calls = [
        a_call(a=f"{random.choice('xyz')} {number}") for _ in range(random.choice([0, 1, 1, 2]))
    ]
    text = random.choice(["", f"{word}.\n"]) if calls else word
    return thinking + text + "\n".join(calls)


def walk(client: Chatting, random: Random, spelling: Random) -> None:
    """Ask `STEPS` times; `random` says what, `spelling` how."""
    known: list[Answered] = []
    asked: list[tuple[list[Any], bool]] = []
    for step in range(STEPS):
        kind = random.choice(["on", "on", "on", "on", "again", "begin", "edit"]) if known else ""
        place, tag = random.random(), f"tag{step}"
        texts = [f"found {random.random():.3f}" for _ in range(2)]
        follows = random.random() < 0.3
        edited = False
        if kind == "again":
            history, edited = asked[int(place * len(asked))]
        elif kind in ("on", "edit"):
            before = known[int(place * len(known))]
            history, edited = copy.deepcopy(before.history), before.edited
            if before.calls:
                history += client.results(before.calls, texts[: len(before.calls)], spelling)
            if follows or not before.calls:
                history += client.say(tag)
            if kind == "edit":  # the first question, which is before every answer
                first = client.begin(tag)
                history, edited = [*first, *history[len(first) :]], True
        else:
            history = client.begin(tag)
        asked.append((history, edited))
        said, calls = client.ask(client.respelled(copy.deepcopy(history), spelling, edited))
        known.append(Answered([*history, *said], calls, edited))


@pytest.mark.parametrize("kind", [OfAnthropic, OfResponses, OfGemini])
def test_a_walk_is_that_of_a_chat_client(
    stage: Stage, hf_tokenizer: Any, kind: type[Chatting]
) -> None:
    counts: Counter[str] = Counter()

    def script(request: Any) -> list[int]:
        walk, _, _ = request.rollout_id.partition("-")
        number = counts[request.rollout_id]
        counts[request.rollout_id] += 1
        text = a_text(number, Random(f"{walk} {number}"))
        return [*stage.tokenizer.encode(text, added="parse"), stage.processor.close_token_id]

    seen: Counter[str | None] = Counter()
    with serving(sampler := Recording(script), hf_tokenizer) as gateway:
        for seed in range(25):
            prompts, branches = [], []
            for client in (Chatting, kind):
                rollout = f"{seed}-{client.__name__}"
                walk(client(gateway, rollout), Random(seed), Random(seed))
                calls = [call for call in sampler.calls if call[0].rollout_id == rollout]
                prompts.append([request.prompt_ids.tolist() for request, _ in calls])
                branches.append(causes(gateway, rollout))
                check_tree(gateway.end(rollout), calls)
            assert branches[0] == branches[1], seed
            assert prompts[0] == prompts[1], seed
            seen.update(branches[0])
    assert {None, "new", "repeated", "rewritten"} <= {*seen}
