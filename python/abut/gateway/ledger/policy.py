"""The policy from which a ledger samples, and warnings about fields that it does not follow."""

import logging
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from abut._native import Tokenizer
from abut.gateway.ledger.agent_call import AgentCall, AgentRequest
from abut.gateway.ledger.branch import LedgerBranch
from abut.gateway.ledger.refusal import short
from abut.gateway.ledger.writer import Writer
from abut.notices import Once
from abut.processor import PartsProcessor
from abut.rollout.budget import Allowance, Budget
from abut.rollout.conversation import Conversation
from abut.rollout.rollout import StopReason
from abut.samplers.sampler import Sample, SampleRequest

logger = logging.getLogger(__name__)

_MOST = 32


class LedgerObserver(Protocol):
    """Follows what happens in a ledger, on its loop.

    `ledger` is a `Ledger`, whose module imports this one.
    """

    def asked(self, ledger: Any, digest: bytes) -> None:
        """A request arrived; equal bodies have the same digest."""
        ...

    def settled(self, request: AgentRequest) -> None:
        """A request was placed, or refused."""
        ...

    def passed(self, ledger: Any, branch: LedgerBranch, entries: int) -> None:
        """A request continues a branch after its first `entries`."""
        ...

    def heard(self, ledger: Any, branch: LedgerBranch) -> None:
        """A branch now ends with an answer."""
        ...


class Policy(Protocol):
    """Draws samples for a ledger, and sets its limits."""

    tokenizer: Tokenizer
    max_turns: int | None
    """The most calls of a branch; None: no limit."""
    max_calls: int | None
    """The most answered calls of the rollout, over all branches; None: no limit."""
    max_rollout_tokens: int | None
    """The most sampled tokens of the rollout, over all branches; None: no limit."""

    def conversation(self, processor: PartsProcessor) -> Conversation:
        """Return an empty conversation."""
        ...

    def budget(self) -> Budget:
        """Return the token limits of a conversation."""
        ...

    def seed(self, number: int) -> int:
        """Return the seed of a call's sample."""
        ...

    async def writer_of(self, request: AgentRequest) -> Writer:
        """Return the writer of a request's conversation.

        Raises:
            Refusal: the template cannot write it.
        """
        ...

    def note(self, request: AgentRequest) -> None:
        """Warn about fields of a request that are not followed."""
        ...

    async def sample(self, request: SampleRequest, asked: AgentRequest) -> Sample:
        """Draw one turn.

        Raises:
            Refusal: the time limit has passed.
        """
        ...

    def failed(self, error: Exception) -> None:
        """Note that this rollout, or every rollout, cannot continue."""
        ...


def rollout_allowance(policy: Policy, calls: Sequence[AgentCall]) -> Allowance:
    """Return how many tokens a rollout may still sample, and the limit that would end it.

    A call that is being answered counts as answered. Its tokens count once they are sampled, so
    concurrent calls may together sample more than `max_rollout_tokens`.
    """
    left = sys.maxsize
    if policy.max_rollout_tokens is not None:
        left = policy.max_rollout_tokens - sum(call.sampled_tokens for call in calls)
    if left > 0 and policy.max_calls is not None:
        answered = sum(call.may_be_reused for call in calls)
        if answered >= policy.max_calls:
            return Allowance(0, StopReason.MAX_CALLS)
    return Allowance(left, StopReason.MAX_ROLLOUT_TOKENS)


class ClientWarnings:
    """Warns once about each field that clients send and the gateway does not follow.

    Args:
        sampling: the trainer's own settings, which win over a client's; None: the client's settings
            apply.
    """

    def __init__(self, sampling: Mapping[str, Any] | None) -> None:
        self._sampling = sampling
        self._once = Once(logger, most=_MOST)

    def warn_about(self, request: AgentRequest) -> None:
        """Warn about the fields of a request."""
        warn = self._once.warn
        for name in request.ignored:
            warn(name, f"clients send {name[:80]!r}, which the gateway ignores")
        for name in request.unmet:
            warn(
                name, f"clients send {name}, which the gateway does not enforce: it samples freely"
            )
        if self._sampling is None:
            return
        for name, asked in request.sampling.items():
            if name not in self._sampling:
                warn(
                    name,
                    f"clients send {name}={short(asked)}, which is ignored because the sampler "
                    "uses its own setting",
                )
            elif asked != (own := self._sampling[name]):
                warn(
                    name,
                    f"clients send {name}={short(asked)}, which is ignored because the trainer "
                    f"samples with {own!r}",
                )
