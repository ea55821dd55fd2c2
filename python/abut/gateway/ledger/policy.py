"""What a session asks for its samples, and what bounds it."""

import logging
from collections.abc import Mapping
from typing import Any, Protocol

from abut._native import Tokenizer
from abut.gateway.ledger.agent_call import AgentRequest
from abut.gateway.ledger.branch import LedgerBranch
from abut.gateway.ledger.writer import Writer
from abut.notices import Once
from abut.processor import PartsProcessor
from abut.rollout.conversation import Budget, Conversation
from abut.samplers.sampler import Sample, SampleRequest

logger = logging.getLogger(__name__)

_MOST = 32


class LedgerObserver(Protocol):
    """A follower that hears of all that happens in a session, on its loop."""

    def asked(self, ledger: Any, body: bytes) -> None:
        """A request came, with a body that equal ones share."""
        ...

    def settled(self, request: AgentRequest) -> None:
        """A request was placed, or refused."""
        ...

    def passed(self, ledger: Any, branch: LedgerBranch, entries: int) -> None:
        """A request goes on behind so many messages of a branch."""
        ...

    def heard(self, ledger: Any, branch: LedgerBranch) -> None:
        """A branch has an answer at its end."""
        ...


class Policy(Protocol):
    """What a session asks, and what bounds it."""

    tokenizer: Tokenizer
    max_turns: int | None
    """Calls of a branch."""

    def conversation(self, processor: PartsProcessor) -> Conversation:
        """One in which nothing is said yet."""
        ...

    def budget(self) -> Budget:
        """What a conversation may have."""
        ...

    def seed(self, number: int) -> int:
        """That of the sample of one call."""
        ...

    async def writer_of(self, request: AgentRequest) -> Writer:
        """What writes the conversation of a request.

        Raises:
            Refusal: nothing can.
        """
        ...

    def note(self, request: AgentRequest) -> None:
        """See what a request asks for that it does not get."""
        ...

    async def sample(self, request: SampleRequest, chat: AgentRequest) -> Sample:
        """Draw one turn.

        Raises:
            Refusal: not in the time that there is.
        """
        ...

    def failed(self, error: Exception) -> None:
        """Note that no rollout can go on, or that this one cannot."""
        ...


class ClientWarnings:
    """Of one batch, on the loop of the gateway.

    Args:
        sampling: the trainer's own settings, which win over a client's; None: the client's hold.
    """

    def __init__(self, sampling: Mapping[str, Any] | None) -> None:
        self._sampling = sampling
        self._once = Once(logger, most=_MOST)

    def see(self, request: AgentRequest) -> None:
        """Look at a request."""
        warn = self._once.warn
        for name in request.ignored:
            warn(name, f"requests have {name[:80]!r}, which the gateway ignores")
        for name in request.unmet:
            warn(name, f"requests ask by {name} for what is not enforced: sampled freely")
        for name, asked in request.sampling.items():
            if self._sampling is None:
                return
            if name not in self._sampling:
                warn(name, f"requests have {name}={asked!r}, which the sampler decides itself")
            elif asked != (own := self._sampling[name]):
                warn(name, f"requests have {name}={asked!r}; the trainer's {own!r} is used")
