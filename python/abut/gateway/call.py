"""One call of an agent: its request, its sample, and whether anybody got that.

Invariant: a sample that was drawn is given to one asker at a time, and to none but the one that
sent that very body.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from abut.gateway.answer import Answer
from abut.gateway.request import ChatRequest
from abut.rollout.conversation import Heard
from abut.samplers.sampler import Sample


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

    @property
    def sampled_tokens(self) -> int:
        """How many tokens were drawn for it."""
        return 0 if self.turn is None else self.turn.end - self.turn.start

    @property
    def may_be_given(self) -> bool:
        """Whether it has a sample, or may still get one."""
        return not self.answered.done() or self.answered.exception() is None
