"""Verdicts on the seams that training makes after tokens that cannot change any more.

There are three kinds of such seams: between a sampled stop token and what the template writes next,
between a cut sample and the end of turn that abut writes, and between the generation prompt and a
sample. The last is reported but decides nothing: sampled tokens stay, whatever a tokenizer would
have made of their text. The same holds for a sample that was cut inside its thinking: both sides of
that seam are ordinary text, so with nearly every tokenizer something merges there.

A seam at a hard token (`barrier`) holds for every text. Any other seam is judged by making it with
many texts, so its verdict says how many.
"""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from abut._native import Seam, Tokenizer, positions_of
from abut.errors import TemplateError
from abut.messages import Message
from abut.parts import Part, Scaffold
from abut.rollout.conversation import Conversation
from abut.rollout.sampled_text import end_of_turn
from abut.template.processor import ChatTemplateProcessor
from abut.template.rendering import Rendering
from abut.template.report import NEXT_MESSAGES
from abut.template.turn_layout import CALLING, PLAIN, user

Kind = Literal["barrier", "window", "opaque", "merged"]
_WORST: tuple[Kind, ...] = ("barrier", "window", "opaque", "merged")
_EXAMPLES = 3  # of each seam; `broken` counts all

# Texts on either side of a seam. Spaces, letters and signs behave alike before and after a seam, so
# both sides share one list.
EDGES = (
    *("\n", "\n\n", " \n", "\r\n", "\r", "\t", " ", "  ", "\u00a0", "\u3000", "▁"),
    *("a", "A", "s", "é", "\u0301", "\u0323", "ß", "ſ", "中", "한", "\u1161", "ا", "न", "\u0e33"),
    *("0", "12", "²", "'", "'s", '"', ".", ",", ":", "-", "_", "#", "*", "`", "```", "/", "\\"),
    *("<", ">", "|", "[", "]", "{", "}", "(", ")", "🙂", "\u200d", "\ufe0f", "👍🏽"),
)


@dataclass(frozen=True)
class Break:
    """A text whose canonical tokens differ from the tokens at the seam.

    Attributes:
        left: the tokens before the seam, as far as they differ.
        right: the tokens after the seam.
        canonical: the tokens that a tokenizer would have made of both; empty if there are none.
        left_ids: the ids of `left`.
        right_ids: the ids of `right`.
        canonical_ids: the ids of `canonical`.
    """

    left: tuple[str, ...]
    right: tuple[str, ...]
    canonical: tuple[str, ...]
    left_ids: tuple[int, ...]
    right_ids: tuple[int, ...]
    canonical_ids: tuple[int, ...]


@dataclass(frozen=True)
class SeamVerdict:
    """The verdict on one seam.

    Attributes:
        left: what is before the seam.
        right: what is after the seam.
        decides: whether the seam counts for the verdict on tokenizer and template; the seam
            between the generation prompt and a sample does not, nor one inside thinking.
        kind: the worst kind that was found; None if there is no such seam (`reason`).
        exact: whether the seam held for every text that was tried; None if there is no such seam.
        proved: whether it holds for every text.
        tried: the number of texts that it was made with.
        broken: for how many of these it was not exact.
        breaks: the first of those.
        reason: why there is no such seam: what the template or the processor refuses.
        refused: whether the processor refused.
    """

    left: str
    right: str
    decides: bool
    kind: Kind | None = None
    exact: bool | None = None
    proved: bool = False
    tried: int = 0
    broken: int = 0
    breaks: tuple[Break, ...] = ()
    reason: str | None = None
    refused: bool = False


def judge_seams(
    tokenizer: Tokenizer,
    processor: ChatTemplateProcessor,
    render: Rendering,
    *,
    roles: Collection[str],
) -> list[SeamVerdict]:
    """Make every seam that training makes after tokens that cannot change, and judge it.

    Args:
        tokenizer: makes the tokens.
        processor: writes what follows a turn.
        render: renders the template, which decides which messages it takes.
        roles: the roles of messages that may follow a turn.
    """
    edges = _SeamMaker(tokenizer, processor)
    kinds = {
        kind: messages
        for kind, messages in NEXT_MESSAGES.items()
        if all(message["role"] in roles for message in messages)
    }
    verdicts = {verdict.kind: verdict for verdict in processor.verdicts()}
    found: list[SeamVerdict] = []
    closings: dict[tuple[int | None, str], list[Message]] = {}
    for kind, messages in kinds.items():
        verdict, right = verdicts[kind], f"next {kind}"
        if not verdict.appendable:
            # Messages that can be appended alone but not together are reported, not a fault.
            alone = len(messages) == 1
            refused = _takes(render, messages) if alone else verdicts["tool"].appendable
            why = verdict.because
            found.append(SeamVerdict("a turn", right, alone, reason=why, refused=refused))
            continue
        stop = tokenizer.token_to_id(verdict.stop)
        if stop is not None:
            found.append(edges.after_stop(stop, messages, right))
        for after in (None, *processor.stop_token_ids):
            if closing := processor.closing(messages, after=after):
                closings.setdefault((after, "".join(closing)), messages)
    # Cut samples last.
    for (after, close), messages in sorted(closings.items(), key=lambda item: item[0][0] is None):
        found.append(edges.before_close(after, close, messages))
    for (after, close), messages in closings.items():
        if after is None:
            found += edges.inside_thinking(messages)
            found += edges.inside_character(close, messages)
    return [*found, edges.generation_prompt()]


def _takes(render: Rendering, messages: Sequence[Message]) -> bool:
    """Return whether the template itself writes such messages after an answer or a call."""
    new = [{**message, "content": "abutEarlier"} for message in messages]
    for form in (PLAIN, *CALLING) if messages[0]["role"] == "tool" else (PLAIN,):
        try:
            if "abutEarlier" in render.after_turn([user()], form, new):
                return True
        except TemplateError:
            continue
    return False


def visible(token: str) -> str:
    """Return the token, quoted if it would not be visible as it is."""
    plain = token.isprintable() and not any(map(str.isspace, token))
    return token if plain else repr(token)


@dataclass(frozen=True)
class _MadeSeam:
    """A seam in its conversation, before token `at`."""

    conversation: Conversation
    seam: Seam
    at: int


class _SeamMaker:
    """Makes seams, each in a fresh conversation of the prompt, one sample and what follows it."""

    def __init__(self, tokenizer: Tokenizer, processor: ChatTemplateProcessor) -> None:
        self._tokenizer = tokenizer
        self._processor = processor
        self._thinking = processor.thinking
        self._opened = Conversation(tokenizer, processor)
        self._opened.open([user()])

    def after_stop(self, stop: int, messages: Sequence[Message], right: str) -> SeamVerdict:
        """Judge a sampled stop token before the text of such messages."""

        def make(sample: str, content: str) -> _MadeSeam:
            talk = self._hear(self._sampled(sample, stop))
            at = len(talk.trajectory)
            return _MadeSeam(talk, talk.say([{**m, "content": content} for m in messages]).seam, at)

        made = [make(f"abut{edge}", "abut") for edge in ("", *EDGES)]
        for edge in EDGES:
            # The processor refuses a content that this template would change.
            with suppress(TemplateError):
                made.append(make("abut", f"{edge}abut"))
        return self._verdict(self._after(stop), right, made)

    def before_close(
        self, stop: int | None, close: str, messages: Sequence[Message]
    ) -> SeamVerdict:
        """Judge a sample without the template's end of turn, before the end that abut writes."""
        ends = ["abut", *(f"abut{edge}" for edge in EDGES), '<tool_call>\n{"name']
        ends += [f"abut{close[:k]}" for k in range(1, len(close))]
        if stop is not None:  # a stop token can also end the turn inside its thinking
            ends.append(f"{self._thinking.open}\nabut")
        elif self._thinking.opened:
            ends = [f"abut{self._thinking.between}{end}" for end in ends]
        made = self._closed([self._sampled(end, stop) for end in ends], messages)
        return self._verdict(self._after(stop), visible(close), made)

    def inside_thinking(self, messages: Sequence[Message]) -> list[SeamVerdict]:
        """Judge a sample that was cut inside its thinking, before the end of thinking and turn."""
        thinking = self._thinking
        begun = "abut" if thinking.opened else f"{thinking.open}\nabut"
        close = self._close(self._sampled(begun, None), messages)
        if close == self._processor.closing(messages):
            return []
        before = thinking.between.partition(thinking.close)[0] + thinking.close
        ends = ["", *EDGES, *(before[:k] for k in range(1, len(before)))]
        samples = [self._sampled(begun + end, None) for end in ends]
        # Leave out samples whose last text ends the thinking: abut then writes another end.
        made = self._closed(
            [ids for ids in samples if self._close(ids, messages) == close], messages
        )
        right = visible("".join(close))
        return [self._verdict("sample cut inside thinking", right, made, decides=False)]

    def inside_character(self, close: str, messages: Sequence[Message]) -> list[SeamVerdict]:
        """Judge a sample that was cut inside a character; nothing if no token ends inside one.

        Such a seam decides nothing: a part of a character has no canonical tokens to differ from.
        """
        begun = f"abut{self._thinking.between}" if self._thinking.opened else ""
        samples = [self._sampled(begun + text, None) for text in ("🙂", "한", "\u0e33", "🇩🇪")]
        none = self._sampled(begun, None)
        made = self._closed([ids[:-1] for ids in samples if len(ids) > len(none) + 1], messages)
        left, right = "sample cut inside a character", visible(close)
        return [self._verdict(left, right, made, decides=False)] if made else []

    def _close(self, sampled: list[int], messages: Sequence[Message]) -> list[Part]:
        stops = self._processor.stop_token_ids
        return end_of_turn(
            self._processor, self._tokenizer, sampled, messages, stops=positions_of(sampled, stops)
        )

    def _closed(self, samples: Sequence[list[int]], messages: Sequence[Message]) -> list[_MadeSeam]:
        """Return each sample with the end of turn that the engine would write."""
        made = []
        for sampled in samples:
            talk = self._hear(sampled)
            at = len(talk.trajectory)
            if (closing := talk.end_turn(messages)) is not None:
                made.append(_MadeSeam(talk, closing.seam, at))
        return made

    def _after(self, stop: int | None) -> str:
        return (
            "cut sample" if stop is None else f"sampled {visible(self._tokenizer.decode([stop]))}"
        )

    def generation_prompt(self) -> SeamVerdict:
        """Judge the generation prompt before samples that begin in many ways."""
        begins = [text for edge in EDGES for text in (edge, f"{edge}abut")]
        begins += ["<think>\nabut", "\n</think>\n\nabut", '<tool_call>\n{"name']
        heard = [self._hear(self._sampled(begin, None)) for begin in begins]
        made = [_MadeSeam(talk, talk.turns[0].seam, talk.turns[0].start) for talk in heard]
        return self._verdict("generation prompt", "sample", made, decides=False)

    def _sampled(self, text: str, stop: int | None) -> list[int]:
        ids = self._tokenizer.encode_parts([Scaffold(text)], at_start=False).tolist()
        return ids if stop is None else [*ids, stop]

    def _hear(self, sampled: list[int]) -> Conversation:
        """Return a conversation of the prompt and this sample."""
        talk = self._opened.fork(len(self._opened.trajectory))
        talk.request()
        talk.hear(sampled, [-1.0] * len(sampled))
        return talk

    def _verdict(
        self, left: str, right: str, made: Sequence[_MadeSeam], *, decides: bool = True
    ) -> SeamVerdict:
        kinds = {one.seam.kind for one in made}
        broken = [one for one in made if not one.seam.exact]
        return SeamVerdict(
            left,
            right,
            decides,
            kind=max(kinds, key=_WORST.index),
            exact=not broken,
            proved=kinds == {"barrier"},
            tried=len(made),
            broken=len(broken),
            breaks=tuple(dict.fromkeys(map(self._break, broken)))[:_EXAMPLES],
        )

    def _break(self, made: _MadeSeam) -> Break:
        """Return the tokens that differ on both sides, or the two that meet inside a character."""
        ids, at, merge = made.conversation.trajectory.ids.tolist(), made.at, made.seam.merge
        left, right, canonical = ids[at - 1 : at], ids[at : at + 1], []
        if merge is not None:
            right, canonical = merge.right_ids.tolist(), merge.merged_ids.tolist()
            if len(merge.left_ids):
                left = merge.left_ids.tolist()
            else:  # only the right side changes: show the token before it for orientation
                canonical = [*left, *canonical]
        return Break(
            left=self._texts(left),
            right=self._texts(right),
            canonical=self._texts(canonical),
            left_ids=tuple(left),
            right_ids=tuple(right),
            canonical_ids=tuple(canonical),
        )

    def _texts(self, ids: Sequence[int]) -> tuple[str, ...]:
        return tuple(self._tokenizer.decode([i]) for i in ids)
