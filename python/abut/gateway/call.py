"""One call of an agent: its request, its sample, and whether anybody got that.

Invariant: a sample that was drawn is given to one asker at a time, and to none but the one that
sent that very body.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from abut.gateway.answer import Answer
from abut.gateway.refusal import Refusal
from abut.gateway.request import ChatRequest
from abut.rollout.conversation import Heard
from abut.samplers.sampler import Sample


@dataclass(eq=False)
class Asked:
    """A request on its way, as who asked waits for it: that may go, and the call goes on.

    Attributes:
        request: as it was read.
        body: what equal bodies have in common.
        retried: whether the client says that it has asked this before.
        is_open: whether it still listens.
        placed: holds the call when its prompt is written, or the `Refusal` that there is instead.
        answered: the same when the call has its answer.
        given: the call before it whose sample it gets, where that was known at once.
    """

    request: ChatRequest
    body: bytes
    retried: bool
    is_open: Callable[[], bool]
    placed: "asyncio.Future[Call]"
    answered: "asyncio.Future[Call]"
    given: "Call | None" = None

    def as_call(self, number: int) -> "Call":
        """What it becomes, behind so many calls of its rollout."""
        answered: asyncio.Future[Answer] = self.answered.get_loop().create_future()
        return Call(number, self.body, self.request, answered, self.is_open, time.monotonic())

    def is_placed(self, call: "Call") -> None:
        """Note that its prompt is written."""
        if not self.placed.done():  # cancelled, where who asked has gone
            self.placed.set_result(call)

    def is_answered(self, call: "Call") -> None:
        """Note that it has its answer."""
        if not self.answered.done():
            self.answered.set_result(call)

    def fail(self, error: BaseException) -> None:
        """Note that it gets none."""
        _fail(self.placed, error)
        _fail(self.answered, error)


@dataclass(eq=False)
class Call:
    """One call, from when its prompt was written.

    Attributes:
        number: how many calls of the rollout were before it.
        body: what equal bodies have in common.
        request: as it was read.
        answered: holds the answer, or the `Refusal` that there is instead.
        is_open: whether its asker still listens.
        delivered: whether the answer was written to who asked, or has come back in a history.
        sample: what was drawn.
        turn: where that stands in its branch.
        generate_s: seconds from the call to its sample.
        asked_at: by the monotonic clock.
        heard_at: when its answer was written.
        env_s: seconds that its asker took from then to the next call of the branch.
    """

    number: int
    body: bytes
    request: ChatRequest
    answered: asyncio.Future[Answer]
    is_open: Callable[[], bool]
    asked_at: float
    delivered: bool = False
    sample: Sample | None = None
    turn: Heard | None = None
    generate_s: float = 0.0
    heard_at: float | None = None
    env_s: float = 0.0
    delivered_as: int = field(default=-1)
    """How many answers of the rollout were delivered before it."""

    def refuse(self, refusal: Refusal) -> None:
        """Answer that there is no answer."""
        _fail(self.answered, refusal)

    @property
    def sampled_tokens(self) -> int:
        """How many tokens were drawn for it."""
        return 0 if self.turn is None else self.turn.end - self.turn.start

    @property
    def may_be_given(self) -> bool:
        """Whether it has a sample, or may still get one."""
        return not self.answered.done() or self.answered.exception() is None


class Repeats:
    """The requests of a rollout by their bodies: a client may send one again."""

    def __init__(self) -> None:
        self._calls: defaultdict[bytes, list[Call]] = defaultdict(list)
        self._coming: dict[Asked, None] = {}

    def coming(self, asked: Asked) -> None:
        """Note a request that is not placed yet."""
        self._coming[asked] = None

    def came(self, asked: Asked, call: Call | None = None) -> None:
        """Note that a request was placed, as a call of its own if it is one, or was refused."""
        self._coming.pop(asked, None)
        if call is not None:
            self._calls[asked.body].append(call)

    def before(self, body: bytes, retried: bool) -> Call | None:
        """Return the call whose sample a request is to get, if it is no new one."""
        same = [call for call in self._calls.get(body, ()) if call.may_be_given]
        unheard = [call for call in same if not call.delivered]
        for call in unheard:
            if not call.is_open():
                return call
        if retried and same:
            return (unheard or same)[-1]
        return None

    def fit(self, body: bytes, retried: bool) -> int:
        """Return how well a request fits as one that was sent before; 0: it is a new one."""
        if (call := self.before(body, retried)) is not None:
            return 1 if call.delivered else 2 if call.is_open() else 3
        same = [asked for asked in self._coming if asked.body == body]
        return 3 if any(not asked.is_open() for asked in same) else 2 if retried and same else 0


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # one that nobody waits for is none of the loop's
