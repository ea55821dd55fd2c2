"""One conversation between a policy and its environment or agent, exact to the token.

Invariant: each request to the policy holds everything that was written so far. It has sampled
tokens exactly as they were sampled, and between them only the text that the processor writes around
messages. A conversation does not use clocks, threads or the network, so the engine, a replay and an
audit play it in the same way.

    conversation.open(messages)               # the prompt
    ids = conversation.request()              # what the engine gets
    turn = conversation.hear(ids, logprobs)   # what it sampled
    conversation.reply(messages)              # ends the turn, and asks for the next one
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from abut._native import Seam, Tokenizer, Trajectory, positions_of
from abut.errors import SamplerError, TemplateError, TrajectoryError
from abut.images import ImageSpan
from abut.messages import Message, texts_of, with_images
from abut.parts import Part
from abut.processor import (
    PartsProcessor,
    QuickProcessor,
    ToolSpellings,
    TurnWritingProcessor,
    WritesImages,
)
from abut.rollout.budget import Allowance, Budget
from abut.rollout.image_spans import images_before, written_images
from abut.rollout.rollout import StopReason, TurnRecord
from abut.rollout.sampled_text import Ids, end_of_turn, until_stop
from abut.samplers.sampler import SampleRequest

# How many characters the encoders manage in about half a millisecond.
_QUICK_CHARS = {"fast": 2**14, "hf": 2**10}
_QUICK_TOKENS = 2048
_OF_POLICY_OR_DEVELOPER = ("system", "developer", "assistant")


class WrittenParts(NamedTuple):
    """Parts that were written, and the seam before them."""

    parts: list[Part]
    seam: Seam


@dataclass(frozen=True, slots=True)
class PolicyTurn:
    """One turn of the policy, and the state of the conversation before it."""

    record: TurnRecord
    text: str
    """All text before the end of the turn, with thinking and calls; `""` for an empty sample."""
    seam: Seam
    """The seam before the sample."""
    messages_before: int
    """The number of messages before the sample."""
    seams_before: int

    @property
    def start(self) -> int:
        """The index of the first token of the sample in the trajectory."""
        return self.record.start

    @property
    def end(self) -> int:
        """The index after the last token of the sample."""
        return self.record.end


class Conversation:
    """A trajectory and its messages, written turn by turn.

    Attributes:
        trajectory: its tokens.
        stop_token_ids: the tokens that end a turn.
        budget: the limits, which may change from turn to turn.
        messages: all messages; the policy's turns with their text as it was sampled.
        turns: the turns of the policy.
        seams: the kind of each seam, and whether it is exact.
        images: the written images in order, and the positions of their tokens.
        never_token_ids: tokens that must not be sampled, because they stand for images.
        control_spellings: how often users, tools and the environment have spelled each control
            token; a spelling never becomes a control token.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        processor: PartsProcessor,
        *,
        stop_token_ids: Sequence[int] | None = None,
        budget: Budget | None = None,
        streams: Sequence[str] = (),
    ) -> None:
        """Begin an empty conversation.

        Args:
            tokenizer: makes the tokens.
            processor: writes the messages, and the scaffold around them.
            stop_token_ids: tokens that end a turn; None: those of the processor.
            budget: the limits; None: no limits.
            streams: see `RolloutConfig.streams`.
        """
        self._tokenizer = tokenizer
        self._processor = processor
        self.stop_token_ids = tuple(stop_token_ids or processor.stop_token_ids)
        self.budget = budget or Budget()
        self._streams = tuple(streams)
        self.trajectory = Trajectory(tokenizer)
        self.messages: list[Message] = []
        self.turns: list[PolicyTurn] = []
        self.seams: list[tuple[str, bool]] = []
        self.images: list[ImageSpan] = []
        writer = processor if isinstance(processor, WritesImages) else None
        self._media = () if writer is None else writer.media_token_ids
        self.never_token_ids = () if writer is None else writer.never_token_ids
        self.control_spellings: dict[str, int] = {}
        if isinstance(processor, ToolSpellings):
            self.control_spellings.update(processor.tool_spellings)
        self._quick = processor if isinstance(processor, QuickProcessor) else None
        self._written = 0  # how many of the messages are in the trajectory
        self._sampled: Ids = ()  # by the turn whose end is not written yet
        self._stops: list[int] = []  # where in it are stop tokens

    def note(self, messages: Sequence[Message], parts: Sequence[Part] = ()) -> None:
        """Keep messages without writing them; a later `open` or `reply` writes them.

        An environment's last messages are never written: a row must end with a sampled token,
        because TRL decides by the last token whether the row was cut.

        Args:
            messages: to keep.
            parts: the parts that will be written of them.

        Raises:
            ImageError: a message has an image that cannot be read.
        """
        messages = [_with_images(message) for message in messages]
        self.messages += messages
        written = iter(parts)
        for message in messages:
            if message.get("role") not in _OF_POLICY_OR_DEVELOPER:
                for text in texts_of(message):
                    # Scan the equal part instead of the text: a str caches the UTF-8 that is made
                    # of it. A part lives only until it is written; a message lives on.
                    same = next((part for part in written if part == text), text)
                    for _, token in self._tokenizer.control_spellings(same):
                        count = self.control_spellings.get(token, 0)
                        self.control_spellings[token] = count + 1

    def open(self, messages: Sequence[Message] = ()) -> WrittenParts:
        """Write the prompt: the messages so far.

        Raises:
            TemplateError: the processor refuses the messages; the conversation does not change.
        """
        opening = self._processor.opening([*self.messages, *messages])
        self.note(messages)
        written = self._write(opening, "prompt")
        self._written = len(self.messages)
        return written

    def is_quick(self, *, ids: Ids = (), messages: Sequence[Message] = ()) -> bool:
        """Return whether `hear(ids)` or `reply(messages)` takes well under a millisecond.

        This is known if only abut's own code runs and the processor has seen such messages.
        """
        if self._quick is None or len(ids) > _QUICK_TOKENS:
            return False
        chars = 0
        for message in messages:
            content = message.get("content")
            if type(content) is not str:
                return False
            chars += len(content)
        return chars <= self._quick_chars and self._quick.knows(messages)

    @cached_property
    def _quick_chars(self) -> int:
        """The number of characters that the tokenizer encodes in about half a millisecond."""
        return _QUICK_CHARS[self._tokenizer.profile()["encoder"]]

    def request(self) -> NDArray[np.int64]:
        """Return the ids that the engine gets: `(T,)` int64, read-only; they never change later.

        Raises:
            TrajectoryError: messages were noted but not written, so the policy would not see them.
        """
        self._require_written()
        return self.trajectory.request()

    def sample_request(
        self,
        *,
        max_tokens: int,
        seed: int,
        rollout_id: str,
        turn: int,
        stop: tuple[str, ...] = (),
        messages: Callable[[], Sequence[Message]] = list,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> SampleRequest:
        """Return the request for the next turn; the arguments go to `SampleRequest`.

        Raises:
            TrajectoryError: as for `request`.
        """
        return SampleRequest(
            self.request(),
            max_tokens,
            self.stop_token_ids,
            seed,
            rollout_id,
            turn,
            stop,
            images=tuple(self.images),
            never_token_ids=self.never_token_ids,
            streams=self._streams,
            messages=messages,
            tools=tools,
            ids_of=self.ids_of,
        )

    def ids_of(self, message: Message) -> NDArray[np.int64]:
        """Return the ids of a turn as the processor would write it; nothing is written here.

        Raises:
            TemplateError: the processor cannot write turns, or not this one.
        """
        if not isinstance(writer := self._processor, TurnWritingProcessor):
            raise TemplateError(
                f"{type(writer).__name__} cannot write turns of the policy\n"
                "hint: leave processor= out, so that the chat template writes them"
            )
        alone = Trajectory(self._tokenizer)
        alone.append_parts(writer.turn_parts(message), provenance="env")
        return alone.ids

    @property
    def allowance(self) -> Allowance:
        """The length that the next turn may have, and the limit that would end the conversation."""
        length, budget = len(self.trajectory), self.budget
        prompt = self.turns[0].start if self.turns else length
        left, reason = sys.maxsize, StopReason.MAX_COMPLETION_TOKENS
        if budget.max_completion_tokens is not None:
            left = budget.max_completion_tokens - (length - prompt)
        if budget.max_context_tokens is not None and budget.max_context_tokens - length < left:
            left, reason = budget.max_context_tokens - length, StopReason.MAX_CONTEXT_TOKENS
        if budget.max_turn_tokens is not None:
            left = min(left, budget.max_turn_tokens)
        return Allowance(left, reason)

    def hear(self, ids: Ids, logprobs: Any, *, stop_string: str | None = None) -> PolicyTurn:
        """Write the sample for the last request.

        Args:
            ids: `(T,)`, verbatim. If it is empty, no message is added.
            logprobs: `(T,)`, nats.
            stop_string: the stop string that ended the sample, if one did.

        Raises:
            TrajectoryError: the sample does not fit the request.
            SamplerError: a token stands for an image, or the text does not have the stop string.
                The conversation cannot continue after this.
        """
        self._require_written()
        if self.never_token_ids and (drawn := positions_of(ids, self.never_token_ids)):
            token = self._tokenizer.decode(ids[drawn[0] : drawn[0] + 1])
            raise SamplerError(
                f"turn {len(self.turns)}: {token!r} was sampled, but this token only stands for "
                "an image\n"
                "hint: the sampler must never draw the tokens in SampleRequest.never_token_ids"
            )
        start, messages, text = len(self.trajectory), len(self.messages), ""
        seam = self._add_seam(self.trajectory.append_sampled(ids, logprobs))
        self._sampled, self._stops = ids, positions_of(ids, self.stop_token_ids)
        record = TurnRecord(start, start + len(ids), message=messages if len(ids) else None)
        if len(ids):
            number = len(self.turns)
            text = until_stop(self._tokenizer, ids, self._stops, stop_string, record, turn=number)
            self.messages.append({"role": "assistant", "content": str(text)})
            self._written = len(self.messages)
        turn = PolicyTurn(record, text, seam, messages, len(self.seams) - 1)
        self.turns.append(turn)
        return turn

    def action(self, turn: PolicyTurn) -> str:
        """Return the part of a turn that its environment gets: the text without thinking."""
        thinking, action = self._processor.parse_agent_output(turn.text)
        if thinking:
            turn.record.spoken = {"reasoning_content": thinking, "content": str(action)}
        return action

    def reply(self, messages: Sequence[Message] = ()) -> WrittenParts:
        """Write the reply to the policy's last turn: the missing end of the turn, and messages.

        Messages that were only noted since that turn are written first.

        Raises:
            TemplateError: the processor cannot append such messages.
        """
        said = [*self.messages[self._written :], *messages]
        # Make both before either is written, so that a failed reply does not change anything.
        closing, increment = self._closing(said), self._processor.increment(said)
        self.note(messages, increment)
        if closing:
            self._write(closing, "close")
        self._sampled = ()
        self._written = len(self.messages)
        return self._write(increment, "env")

    def end_turn(self, messages: Sequence[Message]) -> WrittenParts | None:
        """Write the missing end of the last turn before `messages`; None if it is complete.

        The end is missing if the turn was cut by length, or ended with a stop token other than the
        template's.
        """
        closing = self._closing(messages)
        return self._write(closing, "close") if closing else None

    def say(self, messages: Sequence[Message]) -> WrittenParts:
        """Write messages after an ended turn, with the prompt for the next one.

        Unlike `reply`, it does not keep them in `messages`.
        """
        written = self._write(self._processor.increment(messages), "env")
        self._sampled = ()
        return written

    def fork(self, at: int) -> Self:
        """Return another conversation that is the same up to token `at`, see `Trajectory.fork`.

        Its messages and counts leave out everything after that token.
        """
        other = type(self)(
            self._tokenizer,
            self._processor,
            stop_token_ids=self.stop_token_ids,
            budget=self.budget,
            streams=self._streams,
        )
        other.trajectory = self.trajectory.fork(at)
        # Where `at` is the end of one turn and the start of the next, the trajectory decides.
        kept = len(other.trajectory.turns)
        last = self.turns[kept - 1] if kept else None
        messages, seams, sampled = len(self.messages), len(self.seams), self._sampled
        if kept < len(self.turns) and self.turns[kept].start == at:
            messages, seams = self.turns[kept].messages_before, self.turns[kept].seams_before
            sampled = ()
        elif last is not None and last.end == at:
            messages = last.messages_before + (last.end > last.start)
            seams = last.seams_before + 1
            sampled = other.trajectory.ids[last.start : last.end]
        elif at == 0:
            messages, seams, sampled = 0, 0, ()
        other.note(self.messages[:messages])
        other.turns, other.seams = self.turns[:kept], self.seams[:seams]
        other.images = images_before(self.images, at)
        other._written = min(self._written, messages)
        other._sampled, other._stops = sampled, positions_of(sampled, self.stop_token_ids)
        return other

    def _require_written(self) -> None:
        if missing := len(self.messages) - self._written:
            raise TrajectoryError(
                f"{missing} of {len(self.messages)} messages are not written yet, so the policy "
                "would not see them\nhint: call open() or reply() first"
            )

    def _closing(self, messages: Sequence[Message]) -> list[Part]:
        """Return the missing parts at the end of the last turn."""
        return end_of_turn(
            self._processor, self._tokenizer, self._sampled, messages, stops=self._stops
        )

    def _write(
        self, parts: list[Part], provenance: Literal["prompt", "env", "close"]
    ) -> WrittenParts:
        before = len(self.trajectory)
        seam = self.trajectory.append_parts(parts, provenance=provenance)
        if self._media:
            self.images += written_images(parts, seam, before, self._media)
        return WrittenParts(parts, self._add_seam(seam))

    def _add_seam(self, seam: Seam) -> Seam:
        self.seams.append((seam.kind, seam.exact))
        return seam


def _with_images(message: Message) -> Message:
    content = message.get("content")
    return {**message, "content": with_images(content)} if isinstance(content, list) else message
