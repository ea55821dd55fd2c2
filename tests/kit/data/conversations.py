"""Records of conversations with thinking, tools and branches, really played with scripted policies.

    python -m tests.kit.data.conversations FOLDER

writes `agent.jsonl`, `tools.jsonl` and `hosted.jsonl` there.
"""

import asyncio
import json
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import abut
from abut.demo.model import ASSETS
from abut.samplers import Sample, SampleRequest, ScriptedReplies

TOKENIZER = abut.Tokenizer.from_file(ASSETS / "tokenizer.json")

SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search the encyclopedia, and return the best passages.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}},
            "required": ["query"],
        },
    },
}
SYSTEM = "You answer questions about rivers.\nSearch before you answer, and name your source."
PLAN = "<think>\nThe Rhine has several sources. I should look up which one counts.\n</think>\n\n"


def call(name: str, **arguments: Any) -> dict[str, Any]:
    """A call as `ScriptedReplies` takes it."""
    return {"name": name, "arguments": arguments}


class Policy:
    """Says `replies`. Its tags of thinking and calls are control tokens, as a model's are."""

    max_context_tokens = 4096

    async def sample(self, request: SampleRequest) -> Sample:
        """Return the ids of the next reply."""
        said = replies(request.messages(), request.turn)
        if not isinstance(said, str):
            calls = [
                f"\n<tool_call>\n{json.dumps(one)}\n</tool_call>" for one in said["tool_calls"]
            ]
            said = said["content"] + "".join(calls)
        text = f"{said}<|im_end|>"
        ids = TOKENIZER.encode(text, added="parse")
        return Sample(ids, -(np.arange(len(ids)) % 9).astype(np.float32) / 3, "stop")


def replies(messages: Sequence[Mapping[str, Any]], turn: int) -> Any:
    """The policy of the agent: what it says depends on what it was asked last."""
    last = str(messages[-1]["content"])
    if "critic" in last:
        return "The draft is correct, but it does not name its source."
    if "short" in last:
        return "The Rhine begins in Switzerland."
    if messages[-1]["role"] != "tool":
        return {
            "content": PLAN + "I search.",
            "tool_calls": [call("search", query="source of the Rhine", limit=2)],
        }
    return "The Rhine begins at Lake Toma in Switzerland [Rhine, passage 1]."


@abut.agent
async def rivers(endpoint: abut.Endpoint, question: str) -> float:
    """Answer a question with a search, ask for another answer, and have a critic read it."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": question},
    ]
    first = await ask(endpoint, messages)
    result = (
        "1. Lake Toma, in Grisons, is the source of the Rhine.\n2. "
        + 12 * "The Rhine flows north. "
    )
    messages += [
        first,
        {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": result},
    ]
    answer = await ask(endpoint, messages)
    draft = f"You are the critic of an answer. The draft: {answer['content']}"
    verdict = await ask(endpoint.named("critic"), [{"role": "user", "content": draft}], tools=())
    await ask(endpoint, [*messages, {"role": "user", "content": "A short answer, please."}])
    more = [*messages, answer, {"role": "user", "content": f"Improve it: {verdict['content']}"}]
    await ask(endpoint, more)
    return 1.0


async def ask(endpoint: Any, messages: Sequence[Any], tools: Sequence[Any] = (SEARCH,)) -> Any:
    """Return the next message of the policy."""
    body: dict[str, Any] = {"model": endpoint.model, "messages": list(messages)}
    if tools:
        body["tools"] = list(tools)
    request = urllib.request.Request(
        f"{endpoint.base_url}/chat/completions",
        json.dumps(body).encode(),
        {"Authorization": f"Bearer {endpoint.api_key}", "Content-Type": "application/json"},
    )

    def post() -> Any:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.load(reply)["choices"][0]["message"]

    return await asyncio.to_thread(post)


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first one.
        b: the second one.
    """
    return a + b


TURNS: Sequence[Any] = [
    {"content": "I add.", "tool_calls": [call("add", a=2, b=3), call("add", a=5, b=4)]},
    'The sum is <tool_call>\n{"name": "add", "arguments": [1]}\n</tool_call>',
    "The sum is 9.",
]


class Hosted:
    """A `TextSampler` that says `TURNS`, as a hosted model would."""

    async def reply(self, messages: Sequence[Any], tools: Any, settings: Any) -> dict[str, Any]:
        """Return the next turn."""
        said = TURNS[sum(message["role"] == "assistant" for message in messages)]
        if isinstance(said, str):
            return {"role": "assistant", "content": said}
        calls = [
            {
                "id": f"call_{k}",
                "type": "function",
                "function": {"name": one["name"], "arguments": json.dumps(one["arguments"])},
            }
            for k, one in enumerate(said["tool_calls"])
        ]
        return {
            "role": "assistant",
            "content": said["content"],
            "tool_calls": calls,
            "usage": {"prompt_tokens": 90, "completion_tokens": 20},
        }


def write(folder: Path) -> None:
    """Play, and write the records."""
    sums = abut.tool_env([add], reward=lambda completion: float("9" in completion))
    question = [{"prompt": "rivers", "question": "Where does the Rhine begin?"}]
    prompts = [
        {
            "prompt": [
                {"role": "system", "content": "You add."},
                {"role": "user", "content": "2 + 3 + 4?"},
            ]
        }
    ]
    demo = str(ASSETS)
    abut.play(
        rivers,
        question,
        sampler=Policy(),
        tokenizer=demo,
        recorder=folder / "agent.jsonl",
    )
    config = abut.RolloutConfig(max_turns=3)
    abut.play(
        sums,
        prompts,
        sampler=ScriptedReplies(TURNS),
        tokenizer=demo,
        recorder=folder / "tools.jsonl",
        config=config,
    )
    abut.play(sums, prompts, sampler=Hosted(), k=2, recorder=folder / "hosted.jsonl", config=config)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
