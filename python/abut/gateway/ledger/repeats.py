"""Requests that are being placed, and repeated requests: a retry does not add a turn.

Invariant: a sample goes to one request at a time, and only to requests that are equal and of the
same caller.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from abut.gateway.ledger.agent_call import AgentCall, AgentRequest, PolicyAnswer, set_failed
from abut.gateway.ledger.callers import NOBODY, Caller


@dataclass(eq=False)
class PendingRequest:
    """A request that is being placed; if its client hangs up meanwhile, the call continues.

    Attributes:
        request: as it was read.
        digest: of the body and the caller; equal requests have the same one.
        retried: whether the client says that it repeats a request.
        is_open: returns whether the client still listens.
        placed: gets the call when its prompt is written, or a `Refusal`.
        answered: gets the call when it has its answer, or a `Refusal`.
        caller: the part of the agent that sent it.
        reused: the earlier call whose sample it gets, if that was known at once.
    """

    request: AgentRequest
    digest: bytes
    retried: bool
    is_open: Callable[[], bool]
    placed: asyncio.Future[AgentCall]
    answered: asyncio.Future[AgentCall]
    caller: Caller = NOBODY
    reused: AgentCall | None = None

    def as_call(self, number: int) -> AgentCall:
        """Return its call, the `number`-th of the rollout."""
        answered: asyncio.Future[PolicyAnswer] = self.answered.get_loop().create_future()
        return AgentCall(
            number, self.digest, self.request, answered, self.is_open, time.monotonic()
        )

    def set_placed(self, call: "AgentCall") -> None:
        """Resolve `placed`: the call's prompt is written."""
        if not self.placed.done():  # it is cancelled if the client hung up
            self.placed.set_result(call)

    def set_answered(self, call: "AgentCall") -> None:
        """Resolve `answered`: the call has its answer."""
        if not self.answered.done():
            self.answered.set_result(call)

    def fail(self, error: BaseException) -> None:
        """Note that the request gets no answer."""
        set_failed(self.placed, error)
        set_failed(self.answered, error)


class Repeats:
    """The requests of a rollout by the digests of their bodies, to recognize repetitions."""

    def __init__(self) -> None:
        self._calls: defaultdict[bytes, list[AgentCall]] = defaultdict(list)
        self._waiting: dict[PendingRequest, None] = {}

    def wait(self, pending: PendingRequest) -> None:
        """Add a request that waits to be placed."""
        self._waiting[pending] = None

    def settle(self, pending: PendingRequest, call: AgentCall | None = None) -> None:
        """Note that a request was placed, as `call` if it is new, or refused."""
        self._waiting.pop(pending, None)
        if call is not None:
            self._calls[pending.digest].append(call)

    def before(self, digest: bytes, retried: bool) -> AgentCall | None:
        """Return the call whose sample a request gets; None if the request is new.

        An equal body alone does not make a repeated request: an agent that wants the best of n
        answers sends n equal bodies at the same time, and each gets its own sample. A request is a
        repetition if the first client has hung up, or if this client says that it retries.
        """
        same = [call for call in self._calls.get(digest, ()) if call.may_be_reused]
        undelivered = [call for call in same if not call.delivered]
        for call in undelivered:
            if not call.is_open():
                return call
        if retried and same:
            return (undelivered or same)[-1]
        return None

    def fit(self, digest: bytes, retried: bool) -> int:
        """Return how well a request fits as a repetition, to choose between rollouts.

        Returns:
            3 if the client of an equal body has hung up, 2 if it still waits, 1 if it has its
            answer; 0 if the request is new.
        """
        if (call := self.before(digest, retried)) is not None:
            return 1 if call.delivered else 2 if call.is_open() else 3
        same = [pending for pending in self._waiting if pending.digest == digest]
        return 3 if any(not pending.is_open() for pending in same) else 2 if retried and same else 0
