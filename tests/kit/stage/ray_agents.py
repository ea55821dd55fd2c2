"""Agents that are played in actors, where they fail in every way; importable on each node.

Each asks the policy three times. In between it does once what a file in its folder asks for.
"""

import asyncio
import json
import os
import threading
import urllib.request
from pathlib import Path
from typing import Any

import aiohttp

from abut import AgentResult, agent

TURNS = 3


class Lock:
    """What cannot be pickled."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


MADE_ON_IMPORT = Lock()
"""As a client of a module is: an agent that uses it still travels, by its name."""


@agent
async def talks(endpoint: Any, question: str, folder: str, episode_seed: int) -> AgentResult:
    """Asynchronous."""
    assert MADE_ON_IMPORT
    headers = {"Authorization": f"Bearer {endpoint.api_key}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        messages = [said("user", question)]
        for turn in range(TURNS):
            body = {"model": endpoint.model, "messages": messages}
            async with session.post(url_of(endpoint), json=body) as reply:
                messages += answered(await reply.json(), turn)
            if what := asked_for(folder, endpoint.rollout_id):
                await asyncio.sleep(3600) if what == "hang" else does(what)
    return ended(episode_seed)


@agent
def talks_sync(endpoint: Any, question: str, folder: str, episode_seed: int) -> AgentResult:
    """The synchronous twin."""
    assert MADE_ON_IMPORT
    messages = [said("user", question)]
    for turn in range(TURNS):
        messages += answered(asked(endpoint, messages), turn)
        if what := asked_for(folder, endpoint.rollout_id):
            threading.Event().wait() if what == "hang" else does(what)
    return ended(episode_seed)


class Talker:
    """The same as an object; it is sent with what it has."""

    def __init__(self, reward: float) -> None:
        self.reward = reward

    async def run(self, endpoint: Any, task: Any) -> AgentResult:
        result: AgentResult = await talks(
            endpoint, task.columns["question"], task.columns["folder"], task.episode_seed
        )
        return AgentResult(self.reward, result.extras)

    async def settle(self, played: Any, tokenizer: Any) -> None:
        """Rank them, where all of them are known."""
        for place, (_, rollout) in enumerate(played):
            rollout.extras = {**rollout.extras, "place": place}


@agent
def odd(endpoint: Any, returned: str) -> Any:
    """Returns what is no reward, or cannot be sent."""
    asked(endpoint, [said("user", "hi")])
    values = {"nan": float("nan"), "text": "good", "lock": AgentResult(1.0, {"lock": Lock()})}
    return values[returned]


@agent
def lacks(endpoint: Any, other: str) -> float:
    """Needs a column that no row has."""
    return 1.0


def said(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


def url_of(endpoint: Any) -> str:
    return f"{endpoint.base_url}/chat/completions"


def asked(endpoint: Any, messages: list[Any]) -> Any:
    """The answer to a request."""
    body = json.dumps({"model": endpoint.model, "messages": messages}).encode()
    headers = {
        "Authorization": f"Bearer {endpoint.api_key}",
        "Content-Type": "application/json",
    }
    with urllib.request.urlopen(urllib.request.Request(url_of(endpoint), body, headers)) as reply:
        return json.load(reply)


def answered(body: Any, turn: int) -> list[Any]:
    """What the policy says, and what is said to that."""
    return [body["choices"][0]["message"], said("user", f"and {turn}?")]


def ended(episode_seed: int) -> AgentResult:
    return AgentResult(episode_seed / 10, {"agent/turns": TURNS, "pid": os.getpid()})


def asked_for(folder: str, rollout_id: str) -> str:
    """What a file asks for, once; whoever does it leaves its id and process there."""
    for what in ("raise", "exit", "die", "hang", "wait"):
        try:
            os.unlink(f"{folder}/{what}")
        except OSError:
            continue
        Path(folder, f"{what}.part").write_text(f"{rollout_id} {os.getpid()} {node_id()}")
        os.rename(f"{folder}/{what}.part", f"{folder}/{what}.done")
        return what
    return ""


def does(what: str) -> None:
    if what == "raise":
        raise KeyError("it")
    if what == "exit":
        raise SystemExit(3)
    if what == "die":
        os._exit(3)
    threading.Event().wait()


def node_id() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id()) if ray.is_initialized() else ""


@agent(session_header="x-session-id")
async def players(endpoint: Any) -> AgentResult:
    """Two players, one of them in a session, and a judge that is not trained."""
    body = {"model": "policy", "messages": [said("user", "play")]}
    headers = {"Authorization": f"Bearer {endpoint.api_key}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        for named, more in (
            (endpoint.named("white"), {}),
            (endpoint, {"x-session-id": "s1"}),
            (endpoint.named("judge", train=False), {}),
        ):
            async with session.post(url_of(named), json=body, headers=more) as reply:
                assert reply.status == 200
    return AgentResult(0.5, rewards={"white": 1.0, "s1": -1.0}, names={"s1": "black"})
