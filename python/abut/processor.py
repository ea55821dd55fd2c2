"""The protocols of processors, which turn conversations into text."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from abut.messages import Message
from abut.parts import Part


class Processor(Protocol):
    """Text in, text out, as in trl-env."""

    def init_system_input(self, prompt: str) -> str:
        """Return the system block alone, from the first byte of the conversation."""
        ...

    def append_user_input(self, prompt: str) -> str:
        """Return the text after a turn: separator, user block, generation prompt."""
        ...

    def parse_agent_output(self, completion: str) -> tuple[str, str]:
        """Return `(reasoning, action)` of a completion without its stop token."""
        ...


@runtime_checkable
class PartsProcessor(Protocol):
    """A processor that returns scaffold and content as separate parts; the engine needs one.

    The protocols below add optional features; `ChatTemplateProcessor` has all of them.

    Attributes:
        stop_token_ids: all ids that end a turn, the template's own first.
        close_token_id: the id that ends an answer.
    """

    @property
    def stop_token_ids(self) -> tuple[int, ...]: ...  # noqa: D102 (in the class's docstring)

    @property
    def close_token_id(self) -> int: ...  # noqa: D102

    def opening(self, messages: Sequence[Message]) -> list[Part]:
        """Return the parts of a prompt, the generation prompt included."""
        ...

    def closing(self, messages: Sequence[Message] = (), *, after: int | None = None) -> list[Part]:
        """Return the parts that are missing at the end of a turn before `messages`.

        Args:
            messages: the messages that follow the turn; without any, a user message.
            after: the last id that was sampled; None if the whole end is missing.
        """
        ...

    def increment(self, messages: Sequence[Message]) -> list[Part]:
        """Return the parts after an ended turn: separator, the new messages, generation prompt."""
        ...

    def parse_agent_output(self, completion: str) -> tuple[str, str]:
        """Return `(reasoning, action)` of a completion without its stop token."""
        ...


@runtime_checkable
class ThinkingProcessor(Protocol):
    """A processor that ends thinking that was cut; otherwise such a turn ends like any other."""

    def close_thinking(self, completion: str) -> list[Part]:
        """Return the end of thinking if a completion was cut inside its thinking; else `[]`.

        It is written before `closing()`.
        """
        ...


@runtime_checkable
class TurnWritingProcessor(Protocol):
    """A processor that writes turns of the policy, for policies that answer with messages."""

    def turn_parts(self, message: Message) -> list[Part]:
        """Return a turn to follow the generation prompt, its stop token included.

        Args:
            message: has `content`, `tool_calls` (whose arguments are objects), or both.

        Raises:
            TemplateError: the template does not write such a turn.
        """
        ...


@runtime_checkable
class QuickProcessor(Protocol):
    """A processor that knows which messages it writes in well under a millisecond."""

    def knows(self, messages: Sequence[Message] = ()) -> bool:
        """Return whether only abut's own code runs for such messages, because it has seen them."""
        ...


@runtime_checkable
class WritesImages(Protocol):
    """A processor that can write images, as an `abut.images.Expansion` among its parts.

    Attributes:
        media_token_ids: the tokens for features of images; if empty, messages with images are
            refused.
        never_token_ids: tokens that must never be sampled, the media tokens included.
    """

    @property
    def media_token_ids(self) -> tuple[int, ...]: ...  # noqa: D102 (in the class's docstring)

    @property
    def never_token_ids(self) -> tuple[int, ...]: ...  # noqa: D102


@runtime_checkable
class ToolProcessor(Protocol):
    """A processor that can be changed to show other tools to the policy."""

    def with_tools(
        self, tools: Sequence[Any] | None, **chat_template_kwargs: Any
    ) -> PartsProcessor:
        """Return a processor of the same template that shows these tools.

        Raises:
            TemplateError: the template cannot show them.
        """
        ...


@runtime_checkable
class ToolSpellings(Protocol):
    """A processor that counts the control tokens that the definitions of its tools spell.

    Tools may be written by others, such as an MCP server, and the template shows them in each
    prompt.
    """

    @property
    def tool_spellings(self) -> Mapping[str, int]:
        """How often the tools spell each control token."""
        ...


@runtime_checkable
class CallReadingProcessor(Protocol):
    """A processor that reads the tool calls of an action."""

    def parse_tool_calls(self, action: str) -> Any:
        """Return the `ParsedCalls` of an action.

        Raises:
            TemplateError: the template does not write calls.
        """
        ...
