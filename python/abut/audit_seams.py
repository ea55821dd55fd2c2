"""The seams that assembly really makes at frozen edges, each judged by making it.

Three kinds of edges exist: a sampled stop token before what the template writes next, a cut sample
before the close that abut writes, and the generation prompt before a sample. The last is reported
and decides nothing: the sampled tokens stay whatever a tokenizer would have made of them. So is a
sample that was cut inside its thinking before what closes that: both are mostly ordinary text, so
that something merges with nearly every tokenizer.

A seam at a hard token (`barrier`) holds for every text. Any other is judged by trying texts, so the
verdict says how many.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from abut._native import Seam, Tokenizer, Trajectory
from abut.errors import TemplateError
from abut.messages import Message
from abut.parts import Part, Scaffold
from abut.probe_messages import user
from abut.processor import ChatTemplateProcessor
from abut.rendering import Rendering
from abut.template_report import NEXT_MESSAGES
from abut.turn_close import turn_close
from abut.turn_form import CALLING, PLAIN

Kind = Literal["barrier", "window", "opaque", "merged"]
_WORST: tuple[Kind, ...] = ("barrier", "window", "opaque", "merged")
_EXAMPLES = 3  # of each seam; `broken` counts all

# How texts begin and end. A space, a letter and a sign behave alike before and after a seam, so one
# list serves both sides.
EDGES = (
    *("\n", "\n\n", " \n", "\r\n", "\r", "\t", " ", "  ", "\u00a0", "\u3000", "▁"),
    *("a", "A", "s", "é", "\u0301", "\u0323", "ß", "ſ", "中", "한", "\u1161", "ا", "न", "\u0e33"),
    *("0", "12", "²", "'", "'s", '"', ".", ",", ":", "-", "_", "#", "*", "`", "```", "/", "\\"),
    *("<", ">", "|", "[", "]", "{", "}", "(", ")", "🙂", "\u200d", "\ufe0f", "👍🏽"),
)


@dataclass(frozen=True)
class Break:
    """One text for which the canonical tokens differ from what stands there.

    Attributes:
        left: the tokens that stand before the seam, as far as they differ.
        right: the tokens that stand behind it.
        canonical: what a tokenizer would have written for both; empty where nothing is canonical.
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
        left: what stands before the seam.
        right: what follows.
        decides: whether it decides about the tokenizer and template; the generation prompt before
            a sample does not, nor does half a thought before its close.
        kind: the worst that was found; None where the seam does not exist (`reason`).
        exact: whether it held for everything that was tried; None where it does not exist.
        proved: whether it holds for every text.
        tried: for how many texts it was made.
        broken: for how many of these it was not exact.
        breaks: the first of those.
        reason: why there is no such seam: what the template or the processor refuses.
        refused: whether it was the processor that refused.
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
    """Make every seam that assembly makes behind a frozen edge, and say what came of it.

    Args:
        tokenizer: makes the tokens.
        processor: writes what follows.
        render: of the template, which says what messages it takes.
        roles: of the messages that may follow a turn.
    """
    edges = _Edges(tokenizer, processor)
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
            # That messages can be appended alone and not together is worth knowing, and no fault.
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
    # A cut sample last.
    for (after, close), messages in sorted(closings.items(), key=lambda item: item[0][0] is None):
        found.append(edges.before_close(after, close, messages))
    for (after, close), messages in closings.items():
        if after is None:
            found += edges.inside_thinking(messages)
            found += edges.inside_character(close, messages)
    return [*found, edges.generation_prompt()]


def _takes(render: Rendering, messages: Sequence[Message]) -> bool:
    """Whether the template itself writes such messages behind an answer or a call."""
    new = [{**message, "content": "abutEarlier"} for message in messages]
    for form in (PLAIN, *CALLING) if messages[0]["role"] == "tool" else (PLAIN,):
        try:
            if "abutEarlier" in render.after_turn([user()], form, new):
                return True
        except TemplateError:
            continue
    return False


def named(token: str) -> str:
    """The token, quoted where it would not be seen as it is."""
    plain = token.isprintable() and not any(map(str.isspace, token))
    return token if plain else repr(token)


@dataclass(frozen=True)
class _Made:
    """A seam in its trajectory; it lies before token `at`."""

    trajectory: Trajectory
    seam: Seam
    at: int


class _Edges:
    """Makes seams: each time a fresh trajectory of the prompt, one sample and what follows it."""

    def __init__(self, tokenizer: Tokenizer, processor: ChatTemplateProcessor) -> None:
        self._tokenizer = tokenizer
        self._processor = processor
        self._thinking = processor.thinking
        self._opening = processor.opening([user()])

    def after_stop(self, stop: int, messages: Sequence[Message], right: str) -> SeamVerdict:
        """A sampled stop token before the increment of such messages."""

        def increment(content: str) -> list[Part]:
            return self._processor.increment([{**m, "content": content} for m in messages])

        samples = ["abut", *(f"abut{edge}" for edge in EDGES)]
        made = [self._make(self._sampled(sample, stop), increment("abut")) for sample in samples]
        for edge in EDGES:
            try:
                parts = increment(edge + "abut")
            except TemplateError:  # a content that this template would change: none is written
                continue
            made.append(self._make(self._sampled("abut", stop), parts))
        return self._verdict(self._after(stop), right, made)

    def before_close(
        self, stop: int | None, close: str, messages: Sequence[Message]
    ) -> SeamVerdict:
        """A sample that does not end as the template would, before what abut closes it with."""
        ends = ["abut", *(f"abut{edge}" for edge in EDGES), '<tool_call>\n{"name']
        ends += [f"abut{close[:k]}" for k in range(1, len(close))]
        if stop is not None:  # it ends the turn inside its thinking, too
            ends.append(f"{self._thinking.open}\nabut")
        elif self._thinking.opened:
            ends = [f"abut{self._thinking.between}{end}" for end in ends]
        made = self._closed([self._sampled(end, stop) for end in ends], messages)
        return self._verdict(self._after(stop), named(close), made)

    def inside_thinking(self, messages: Sequence[Message]) -> list[SeamVerdict]:
        """A sample that was cut inside its thinking, before what closes that and the turn."""
        thinking = self._thinking
        begun = "abut" if thinking.opened else f"{thinking.open}\nabut"
        close = self._close(self._sampled(begun, None), messages)
        if close == self._processor.closing(messages):
            return []
        before = thinking.between.partition(thinking.close)[0] + thinking.close
        ends = ["", *EDGES, *(before[:k] for k in range(1, len(before)))]
        samples = [self._sampled(begun + end, None) for end in ends]
        # Some edges end the thinking: then its close is not what is missing.
        made = self._closed(
            [ids for ids in samples if self._close(ids, messages) == close], messages
        )
        right = named("".join(close))
        return [self._verdict("sample cut inside thinking", right, made, decides=False)]

    def inside_character(self, close: str, messages: Sequence[Message]) -> list[SeamVerdict]:
        """A sample that was cut inside a character before the close; none where no token ends so.

        It decides nothing: a part of a character has no canonical tokens to differ from.
        """
        begun = f"abut{self._thinking.between}" if self._thinking.opened else ""
        samples = [self._sampled(begun + text, None) for text in ("🙂", "한", "\u0e33", "🇩🇪")]
        none = self._sampled(begun, None)
        made = self._closed([ids[:-1] for ids in samples if len(ids) > len(none) + 1], messages)
        left, right = "sample cut inside a character", named(close)
        return [self._verdict(left, right, made, decides=False)] if made else []

    def _close(self, sampled: list[int], messages: Sequence[Message]) -> list[Part]:
        stops = self._processor.stop_token_ids
        return turn_close(self._processor, self._tokenizer, sampled, messages, stop_token_ids=stops)

    def _closed(self, samples: Sequence[list[int]], messages: Sequence[Message]) -> list[_Made]:
        """Each sample before what the engine would close it with."""
        return [self._make(ids, self._close(ids, messages)) for ids in samples]

    def _after(self, stop: int | None) -> str:
        return "cut sample" if stop is None else f"sampled {named(self._tokenizer.decode([stop]))}"

    def generation_prompt(self) -> SeamVerdict:
        """The generation prompt before samples that begin in many ways."""
        begins = [text for edge in EDGES for text in (edge, f"{edge}abut")]
        begins += ["<think>\nabut", "\n</think>\n\nabut", '<tool_call>\n{"name']
        made = [self._make(self._sampled(begin, None), None) for begin in begins]
        return self._verdict("generation prompt", "sample", made, decides=False)

    def _sampled(self, text: str, stop: int | None) -> list[int]:
        ids = self._tokenizer.encode_parts([Scaffold(text)], at_start=False).tolist()
        return ids if stop is None else [*ids, stop]

    def _make(self, sampled: list[int], following: Sequence[Part] | None) -> _Made:
        trajectory = Trajectory(self._tokenizer)
        trajectory.append_parts(self._opening, provenance="prompt")
        at = len(trajectory.request())
        seam = trajectory.append_sampled(sampled, [-1.0] * len(sampled))
        if following is not None:
            at = len(trajectory)
            seam = trajectory.append_parts(following)
        return _Made(trajectory, seam, at)

    def _verdict(
        self, left: str, right: str, made: Sequence[_Made], *, decides: bool = True
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

    def _break(self, made: _Made) -> Break:
        """The tokens that differ, on both sides, or those that meet inside a character."""
        ids, at, merge = made.trajectory.ids.tolist(), made.at, made.seam.merge
        left, right, canonical = ids[at - 1 : at], ids[at : at + 1], []
        if merge is not None:
            right, canonical = merge.right_ids.tolist(), merge.merged_ids.tolist()
            if len(merge.left_ids):
                left = merge.left_ids.tolist()
            else:  # only the right side changes: the token before it shows where
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
