"""From conversations to text: what abut asks of a processor. Nothing here implements it."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from abut.messages import Message
from abut.parts import Part


class Processor(Protocol):
    """Text in, text out, as in trl-env."""

    def init_system_input(self, prompt: str) -> str:
        """The system block alone, from the first byte of the conversation."""
        ...

    def append_user_input(self, prompt: str) -> str:
        """What follows a closed turn: separator, user block, generation prompt."""
        ...

    def parse_agent_output(self, completion: str) -> tuple[str, str]:
        """`(reasoning, action)` of a completion without its stop token."""
        ...


@runtime_checkable
class PartsProcessor(Protocol):
    """A processor that keeps scaffold and content apart: what the engine uses.

    It may also have `close_thinking(completion: str) -> list[Part]`: what closes thinking that a
    completion was cut in, `[]` where it was not. It is written before `closing()`. Without that
    method a turn that was cut inside its thinking is closed as any other.

    Attributes:
        stop_token_ids: every id that ends a turn, the template's own first.
        close_token_id: the id that ends an answer.
    """

    @property
    def stop_token_ids(self) -> tuple[int, ...]: ...  # noqa: D102 (in the class's docstring)

    @property
    def close_token_id(self) -> int: ...  # noqa: D102

    def opening(self, messages: Sequence[Message]) -> list[Part]:
        """From the first byte up to and with the generation prompt."""
        ...

    def closing(self, messages: Sequence[Message] = (), *, after: int | None = None) -> list[Part]:
        """What is missing of the end of a turn that `messages` follow.

        Args:
            messages: what follows; none given: a user's message.
            after: the last id that was sampled; None: the end is missing as a whole.
        """
        ...

    def increment(self, messages: Sequence[Message]) -> list[Part]:
        """After a closed assistant turn: separator, the new messages, generation prompt."""
        ...

    def parse_agent_output(self, completion: str) -> tuple[str, str]:
        """`(reasoning, action)` of a completion without its stop token."""
        ...
