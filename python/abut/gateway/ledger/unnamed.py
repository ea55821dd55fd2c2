"""Requests that do not name a rollout: abut finds the rollout, or answers as a judge.

Invariant: a rollout is found only by its messages. With a trainer, a request is never given to one
of two rollouts that fit equally well, because the reward belongs to only one of them: the request
waits until one of the two has changed.

A judge that is the policy itself sends requests without a rollout's id. Its samples are not in any
row, so they are never trained, and each of its requests is a separate conversation, rendered from
its messages.
"""

import asyncio
import itertools
import weakref
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from abut.gateway.ledger.agent_call import AgentRequest
from abut.gateway.ledger.comparable import comparable, text_of, texts_and_images
from abut.gateway.ledger.histories import Histories, OpenEnd, find_open_ends, find_repeated
from abut.gateway.ledger.ledger import Ledger
from abut.gateway.ledger.policy import Policy
from abut.gateway.ledger.refusal import Refusal, not_answered

Opening: TypeAlias = tuple[tuple[str, Hashable], ...]
"""The role and content of each message, without the instructions at the beginning."""

_INSTRUCTIONS = ("system", "developer")
_SHOWN = 80
_NAMELESS = (
    "hint: use the endpoint's base_url unchanged, or name the rollout by rollout_id in the body, "
    "by the header x-abut-rollout, or by the model policy/ID"
)
_NUMBERS = itertools.count()


def opening_of(messages: Iterable[Mapping[str, Any]]) -> Opening | None:
    """Return the beginning of a conversation; None if it is empty or cannot be written."""
    said = itertools.dropwhile(lambda m: m.get("role") in _INSTRUCTIONS, messages)
    opening = [(str(m.get("role")), texts_and_images(m.get("content"), "")) for m in said]
    if not opening or any(parts is None for _, parts in opening):
        return None
    return tuple((role, comparable(parts or [""])) for role, parts in opening)


@dataclass(frozen=True)
class ExpectedRollout:
    """A rollout whose agent may leave out its id.

    Attributes:
        agent: its name, for errors.
        opening: the messages of its first request, if they are known.
        quotes: whether a later request may be one message that quotes the answer before it.
        wait_s: how long a request waits if it fits another rollout equally well.
    """

    agent: str
    opening: Opening | None
    quotes: bool
    wait_s: float


class Unnamed:
    """The rollouts of a trainer's batches whose agents may leave out their ids.

    Used on the loop of the gateway.

    Attributes:
        matched: how many requests were given to a rollout.
        refused: how many were not.
        last: the last refused one, and why it was refused.
    """

    def __init__(self) -> None:
        self.matched = self.refused = 0
        self.last = ""
        self._expected: dict[Ledger, ExpectedRollout] = {}
        self._histories = Histories()
        self._histories.on_change = self._has_changed
        self._change: asyncio.Future[None] | None = None

    def expect(self, ledger: Ledger, expected: ExpectedRollout) -> None:
        """Begin to match requests with a rollout."""
        self._expected[ledger] = expected
        self._histories.add(ledger)

    def forget(self, ledger: Ledger) -> None:
        """Stop matching requests with a rollout."""
        if self._expected.pop(ledger, None) is not None:
            self._histories.remove(ledger)

    async def ledger_of(
        self,
        request: AgentRequest,
        digest: bytes,
        *,
        retried: bool,
        otherwise: Callable[[], Ledger] | None = None,
    ) -> Ledger:
        """Return the rollout that a request belongs to.

        Args:
            request: does not name a rollout.
            digest: of its body.
            retried: whether its client says that it sent it before.
            otherwise: makes the ledger for a request that belongs to no rollout; None: the request
                is refused.

        Raises:
            Refusal: it belongs to no rollout, or still fits several after their `wait_s`.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            found = self._candidates(request, digest, retried)
            if len(found) == 1:
                ((ledger, open_end),) = found.items()
                if open_end is not None:
                    self._histories.claim(request, open_end)
                self.matched += 1
                return ledger
            if not found and otherwise is not None:
                return otherwise()
            if not found:
                why = "" if not self._expected else ", and its history matches no rollout in flight"
                raise self._refusal(request, f"the request names no rollout{why}", _NAMELESS)
            wait_s = min(self._expected[ledger].wait_s for ledger in found)
            if self._change is None:
                self._change = loop.create_future()
            try:
                async with asyncio.timeout_at(began + wait_s):
                    await asyncio.shield(self._change)
            except TimeoutError:
                raise self._refusal(request, self._ambiguous(found), _NAMELESS) from None

    def _candidates(
        self, request: AgentRequest, digest: bytes, retried: bool
    ) -> dict[Ledger, OpenEnd | None]:
        """Return the rollouts that a request may belong to, and the ends that it may continue."""
        if again := find_repeated(self._histories, request, digest, retried):
            return dict.fromkeys(again)
        if open_ends := find_open_ends(self._histories, request, most=None):
            return {open_end.ledger: open_end for open_end in open_ends}
        return dict.fromkeys(self._beginning(request) or self._quoted(request))

    def _beginning(self, request: AgentRequest) -> Sequence[Ledger]:
        """Return the rollouts with this opening, preferably those without a request yet."""
        opening = opening_of(request.messages)
        fit = [s for s, one in self._expected.items() if opening and one.opening == opening]
        return [ledger for ledger in fit if self._histories.is_new(ledger)] or fit

    def _quoted(self, request: AgentRequest) -> Sequence[Ledger]:
        """Return the rollouts whose last answer the request quotes, preferring the longest."""
        last = request.messages[-1]
        if any(message["role"] == "assistant" for message in request.messages):
            return []
        text = text_of(last.get("content")) or ""
        answers = {s: _last_answer(s) for s, one in self._expected.items() if one.quotes}
        fit = {s: len(said) for s, said in answers.items() if said and said in text}
        longest = max(fit.values(), default=0)
        return [ledger for ledger, length in fit.items() if length == longest]

    def _ambiguous(self, found: Collection[Ledger]) -> str:
        agents = " and ".join(sorted({self._expected[ledger].agent for ledger in found}))
        many = "two" if len(found) == 2 else str(len(found))
        return (
            f"{many} rollouts of {agents} have this history, and the request does not say which "
            "one it belongs to"
        )

    def _refusal(self, request: AgentRequest, why: str, hint: str) -> Refusal:
        self.refused += 1
        first = request.messages[0]
        text = text_of(first.get("content")) or ""
        said = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
        count = len(request.messages)
        messages = f"{count} message{'s' * (count > 1)}"
        self.last = f"a request of {messages}, first {first['role']} {said!r}: {why}"
        return Refusal(f"{why}\n{hint}", code="unknown_rollout")

    def _has_changed(self) -> None:
        change, self._change = self._change, None
        if change is not None and not change.done():
            change.set_result(None)


def _last_answer(ledger: Ledger) -> str:
    """Return the text of a rollout's last answer, if it was delivered and no call came since."""
    call = ledger.calls[-1] if ledger.calls else None
    if call is None or not call.delivered:
        return ""
    return (call.answered.result().message.get("content") or "").strip()


class Judge:
    """Answers the requests of one batch that name no rollout, on the loop of the gateway.

    Args:
        policy: draws the answers.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._calls = 0
        # The task that answers a request keeps its ledger alive.
        self._ledgers: weakref.WeakSet[Ledger] = weakref.WeakSet()

    def new_ledger(self) -> Ledger:
        """Return a ledger for the next request, which is a separate conversation."""
        self._calls += 1
        ledger = _JudgeLedger(f"judge-{next(_NUMBERS)}", self._policy)
        self._ledgers.add(ledger)
        return ledger

    def take_calls(self) -> int:
        """Return how many requests came since the last call of this method."""
        calls, self._calls = self._calls, 0
        return calls

    async def close(self) -> None:
        """Stop answering, and wait for the samples that are being drawn."""
        for ledger in list(self._ledgers):
            await ledger.close()


class _JudgeLedger(Ledger):
    """One request of a judge, and its answer."""

    def _out_of(self, refusal: Refusal) -> Refusal:
        # NeMo Gym turns "maximum context length" into an empty answer, and an empty judgement
        # scores 0. A plain refusal fails the rollout instead.
        return not_answered(str(refusal))
