"""From conversations to text: what abut asks of a processor. Nothing here implements it."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from abut.messages import Message
from abut.parts import Part


class Processor(Protocol):
    """Text in, text out, as in trl-env."""

    def init_system_input(self, prompt: str) -> str:
        """The system block alone, from the first byte of the conversation."""
        ...

    def append_user_input(self, prompt: str) -> str:
        """The text after an ended turn: separator, user block, generation prompt."""
        ...

    def parse_agent_output(self, completion: str) -> tuple[str, str]:
        """`(reasoning, action)` of a completion without its stop token."""
        ...


@runtime_checkable
class PartsProcessor(Protocol):
    """A processor that keeps scaffold and content apart: what the engine uses.

    It may do more: see the protocols below, all of which `ChatTemplateProcessor` meets.

    Attributes:
        stop_token_ids: every id that ends a turn, the template's own first.
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
            messages: follow the turn; if none are given, a user's message does.
            after: the last id that was sampled; None if the whole end is missing.
        """
        ...

    def increment(self, messages: Sequence[Message]) -> list[Part]:
        """Return the parts after an ended turn: separator, the new messages, generation prompt."""
        ...

    def parse_agent_output(self, completion: str) -> tuple[str, str]:
        """`(reasoning, action)` of a completion without its stop token."""
        ...


@runtime_checkable
class ThinkingProcessor(Protocol):
    """A processor that closes thinking. Without it, a turn that was cut there ends as any other."""

    def close_thinking(self, completion: str) -> list[Part]:
        """Return what closes thinking that a completion was cut in, `[]` where it was not.

        It is written before `closing()`.
        """
        ...


@runtime_checkable
class TurnWritingProcessor(Protocol):
    """A processor that writes turns of the policy, for policies that give messages."""

    def turn_parts(self, message: Message) -> list[Part]:
        """Return a turn behind the generation prompt, its stop token included.

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
        """Return whether it has seen such messages, so that no code but abut's runs for them."""
        ...


@runtime_checkable
class WritesImages(Protocol):
    """A processor that can write images: their text is an `abut.images.Expansion` among its parts.

    Attributes:
        media_token_ids: stand for features of images. Empty: it refuses messages with images.
        never_token_ids: must never be sampled, the media tokens among them.
    """

    @property
    def media_token_ids(self) -> tuple[int, ...]: ...  # noqa: D102 (in the class's docstring)

    @property
    def never_token_ids(self) -> tuple[int, ...]: ...  # noqa: D102


@runtime_checkable
class ToolProcessor(Protocol):
    """A processor that can show other tools to the policy than those it was made with."""

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
    """A processor that counts the control tokens which the definitions of its tools spell.

    Whoever wrote the tools, an MCP server say: a template shows them in each prompt.
    """

    @property
    def tool_spellings(self) -> Mapping[str, int]:
        """How often each control token is spelled."""
        ...


@runtime_checkable
class CallReadingProcessor(Protocol):
    """A processor that reads the tool calls of an action."""

    def parse_tool_calls(self, action: str) -> Any:
        """Return the `ParsedCalls` of an action.

        Raises:
            TemplateError: the template writes no calls.
        """
        ...
