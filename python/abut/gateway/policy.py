"""What a session asks for its samples, and what bounds it."""

from typing import Any, Protocol

from abut._native import Tokenizer
from abut.gateway.branch import Branch
from abut.gateway.processors import Shown
from abut.gateway.request import ChatRequest
from abut.processor import PartsProcessor
from abut.rollout.conversation import Budget, Conversation
from abut.samplers.sampler import Sample, SampleRequest


class Follower(Protocol):
    """A follower that hears of all that happens in a session, on its loop."""

    def asked(self, session: Any, body: bytes) -> None:
        """A request came, with a body that equal ones share."""
        ...

    def settled(self, request: ChatRequest) -> None:
        """A request was placed, or refused."""
        ...

    def passed(self, session: Any, branch: Branch, entries: int) -> None:
        """A request goes on behind so many messages of a branch."""
        ...

    def heard(self, session: Any, branch: Branch) -> None:
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

    async def shown(self, request: ChatRequest) -> Shown:
        """What writes the conversation of a request.

        Raises:
            Refusal: nothing can.
        """
        ...

    def note(self, request: ChatRequest) -> None:
        """See what a request asks for that it does not get."""
        ...

    async def sample(self, request: SampleRequest, chat: ChatRequest) -> Sample:
        """Draw one turn.

        Raises:
            Refusal: not in the time that there is.
        """
        ...

    def failed(self, error: Exception) -> None:
        """Note that no rollout can go on, or that this one cannot."""
        ...
