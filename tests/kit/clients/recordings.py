"""Recorded requests of chat clients, played once more to a session that answers as it was recorded.

A recording is a list of requests in the order in which a client made them, each with what it was
answered. What does not depend on the client, tokens and template, is the demo's.
"""

import asyncio
import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from abut.gateway.dialects.chat import Chat
from abut.gateway.ledger.agent_call import AgentCall, AgentRequest, PolicyAnswer
from abut.gateway.ledger.branch import LedgerBranch
from abut.gateway.ledger.ledger import Ledger
from abut.gateway.ledger.matching import History, match
from abut.gateway.ledger.refusal import Refusal
from abut.gateway.ledger.writer import Writer, Writers
from abut.rollout.budget import Budget
from abut.rollout.conversation import Conversation
from abut.samplers.sampler import Sample, SampleRequest
from abut.samplers.scripted import ScriptedSampler
from tests.kit.stage.rollouts import Stage

Seen = Callable[[Ledger, AgentRequest], None]
"""Looks at a session before a request is placed in it."""

RULES = {
    "text beside calls dropped": "text_lost",
    "stop text put back": "stop_put_back",
    "calls as text": "calls_as_text",
    "code repeated as a call": "code_again",
    "empty turn left out": "empty_turn_left_out",
}
"""What the table of verdicts calls a rewrite, and what abut does."""


def folder() -> Path:
    """Where the recordings are."""
    named = os.environ.get("ABUT_CLIENTS")
    if not named:
        pytest.skip("ABUT_CLIENTS is unset: it names a folder of recorded chat clients")
    return Path(named)


@dataclasses.dataclass(frozen=True)
class Recorded:
    """One request, and what it was answered; no message: it failed."""

    body: dict[str, Any]
    message: dict[str, Any] | None


def recordings() -> dict[str, list[Recorded]]:
    """All of them by name, those without a chat request left out."""
    read = {path.stem: _read(path) for path in sorted((folder() / "requests").glob("*.json"))}
    return {name: requests for name, requests in read.items() if requests}


def _read(path: Path) -> list[Recorded]:
    """A recording; messages and tools that a request repeats are written down once in it."""
    entries = json.loads(path.read_text(encoding="utf-8"))
    tools: Any = None
    requests = []
    for entry in entries:
        body = entry.get("body")
        if not isinstance(body, dict):
            continue
        said = body.get("messages")
        if isinstance(said, dict):
            before = entries[said["as"]]["body"]["messages"]
            body["messages"] = before[: said["first"]] + said["then"]
        if body.get("tools") == "_as_before":
            body["tools"] = tools
        tools = body.get("tools") or tools
        if entry["path"].endswith("/chat/completions"):
            reply = entry["reply"]
            requests.append(Recorded(body, None if "fault" in reply else reply["msg"]))
    return requests


@dataclasses.dataclass(frozen=True)
class Verdicts:
    """What became of each request, as the table writes it, and by which rules."""

    marks: tuple[str, ...]
    rewrites: frozenset[str]


def verdicts() -> dict[str, tuple[Verdicts, Verdicts]]:
    """The table: by name those of the rule without rewrites, and those of the rule with them."""
    table = {}
    for line in (folder() / "verdicts.txt").read_text(encoding="utf-8").splitlines():
        name, _, rest = line.partition(" ")
        old, _, rest = rest.partition("old:")[2].partition("new:")
        new, bracket, said = rest.partition("[")
        known = (
            {RULES[rule.strip("' ")] for rule in said.rstrip("] ").split(", ")} if bracket else ()
        )
        table[name] = (
            Verdicts(tuple(old.split()), frozenset()),
            Verdicts(tuple(new.split()), frozenset(known)),
        )
    return table


class Replay:
    """Plays recordings to sessions of their own."""

    def __init__(self, stage: Stage, rewrites: Sequence[str], seen: Seen | None = None) -> None:
        self.stage = stage
        self.chat = Chat(rewrites, "accept")
        self.seen = seen or (lambda session, request: None)
        self.requests = 0
        self._processors = Writers(
            lambda tools, _: stage.processor.with_tools(tools) if tools else stage.processor
        )

    async def verdicts(self, recorded: Sequence[Recorded]) -> Verdicts:
        """What becomes of each request of a recording."""
        policy = _Policy(self.stage, self._processors)
        session = _AsRecorded("r", policy)
        marks: list[str] = []
        failed: dict[str, str] = {}
        for number, one in enumerate(recorded):
            request = self.chat.read(one.body)
            self.seen(session, request)
            before = list(session.branches)
            text = json.dumps([request.frame, request.messages])
            agreed = _agreed(before, request)
            policy.message = one.message
            is_first = not session.answered_calls
            asked = session.ask(request, digest=b"%d" % number, retried=False, is_open=_open)
            call = await asked.placed
            mark = "·" if is_first else _mark(session, before, agreed)
            policy.may_sample.release()
            if text in failed:  # it stands where it was asked the first time
                assert len(session.branches) == len(before)
                mark = failed[text]
            if await _is_answered(call):
                session.delivered(call)
            else:
                failed[text] = mark
            marks.append(mark)
        self.requests += len(marks)
        return Verdicts(tuple(marks), frozenset(session.client_rewrites))


def _open() -> bool:
    return True


async def _is_answered(call: AgentCall) -> bool:
    try:
        await call.answered
    except Refusal:
        return False
    return True


def _agreed(branches: Sequence[LedgerBranch], request: AgentRequest) -> int:
    """How many messages of a request stand before an answer that there was."""
    history = History(request.messages)
    most = 0
    for branch in branches:
        if branch.frame == request.frame:
            answered = max((k + 1 for k, one in enumerate(branch.entries) if one.ours), default=0)
            most = max(most, match(branch.entries[:answered], history, request.dialect).messages)
    return most


def _mark(session: Ledger, before: Sequence[LedgerBranch], agreed: int) -> str:
    """Where a request went: the sign of the table."""
    if len(session.branches) == len(before):
        return "E"
    new = session.branches[-1]
    assert new.cause != "template", "the demo's template is in the way"
    if new.cause == "repeated":
        return "S"
    turns = len(new.calls)
    if turns and not any(one.calls[:turns] == new.calls != one.calls for one in before):
        return "E"  # behind what failed: there is no other answer
    return f"F@{agreed}" if agreed else "R"


class _AsRecorded(Ledger):
    """Answers with the message that was recorded, whatever was sampled."""

    _policy: "_Policy"

    async def _heard(self, *args: Any) -> PolicyAnswer:
        answer = await super()._heard(*args)
        assert self._policy.message is not None
        return dataclasses.replace(answer, message=self._policy.message)


class _Policy:
    """Says `yes`, or fails where the recorded server did."""

    max_turns = max_calls = max_rollout_tokens = None

    def __init__(self, stage: Stage, processors: Writers) -> None:
        self.tokenizer = stage.tokenizer
        self.message: dict[str, Any] | None = None
        self.may_sample = asyncio.Semaphore(0)
        """For each request, when it was seen where it went."""
        self._sampler = ScriptedSampler(stage.says())
        self._processors = processors

    def conversation(self, processor: Any) -> Conversation:
        return Conversation(self.tokenizer, processor)

    def budget(self) -> Budget:
        return Budget()

    def seed(self, number: int) -> int:
        return number

    async def writer_of(self, request: AgentRequest) -> Writer:
        return await self._processors.of(request)

    def note(self, request: AgentRequest) -> None:
        pass

    async def sample(self, request: SampleRequest, chat: AgentRequest) -> Sample:
        await self.may_sample.acquire()
        if self.message is None:
            raise Refusal("as it was recorded")
        return await self._sampler.sample(request)

    def failed(self, error: Exception) -> None:
        raise error
