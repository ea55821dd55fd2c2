"""A conversation built turn by turn, against the chat template's own render of it.

What is compared, after every turn: the ids of the trajectory with one encode of the whole text that
the engine should have seen: the first prompt as rendered, each answer as it was sampled, and behind
each answer what the template writes there when it renders the whole conversation so far. Where the
template does not rewrite the past, that text *is* the render of the whole conversation, and the ids
are compared with `apply_chat_template(tokenize=True)` too.

The encode is transformers' own. It mints control tokens from contents that spell them, and lets
tokens with lstrip or rstrip eat into contents; abut does neither. Conversations with such contents
are compared with one `encode_parts` of the whole instead, and say so (`against="parts"`).
"""

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from abut._native import Tokenizer, Trajectory
from abut.difference import difference, token_text
from abut.errors import TemplateError, TokenizerError
from abut.parts import Content, Part, Scaffold
from abut.placeholder import Message, free_stem
from abut.probe_messages import both
from abut.processor import ChatTemplateProcessor
from abut.rendering import Rendering
from abut.thinking import CLOSE, OPEN


@dataclass(frozen=True)
class Replayed:
    """What came of one conversation.

    Attributes:
        problem: what differs and where, on several lines; None where nothing does.
        against: what the ids were compared with.
        rewritten: the template writes the past of this conversation otherwise than it was sent, as
            one that strips thinking does.
        merged: the turns whose samples a tokenizer would have merged with the generation prompt.
            The sampled tokens stay, so what is compared begins again behind such a turn.
    """

    problem: str | None = None
    against: Literal["render", "parts"] = "render"
    rewritten: bool = False
    merged: tuple[int, ...] = ()


@dataclass
class _Sent:
    """What the engine should have seen: as one text, and as parts.

    Behind a merge ours and the canonical tokens are compared from these two places on.
    """

    text: str
    parts: list[Part]
    ours: int = 0
    canonical: int = 0

    def add(self, text: str, parts: Iterable[Part]) -> None:
        self.text += text
        self.parts += parts


class Replay:
    """Replays conversations of one tokenizer and template.

    Attributes:
        tokenizer: the tokenizer for abut.
        processor: its processor.
        opened: whether the generation prompt opens the thinking of every answer.
    """

    def __init__(
        self,
        hf_tokenizer: Any,
        tokenizer: Tokenizer,
        processor: ChatTemplateProcessor,
        **options: Any,
    ) -> None:
        """Take the three that belong together.

        Args:
            hf_tokenizer: a transformers tokenizer.
            tokenizer: the same for abut.
            processor: its processor.
            **options: what the processor was made with, for `apply_chat_template`.
        """
        self.tokenizer = tokenizer
        self.processor = processor
        self._hf = hf_tokenizer
        self._options = options
        self._render = Rendering(hf_tokenizer, options)
        self._text_of = token_text(tokenizer)
        self._hard = set(map(tokenizer.token_to_id, tokenizer.profile()["hard_tokens"]))
        self.opened = processor.report.generation_prompt.rstrip().endswith(OPEN)
        self._control = control_tokens(tokenizer)
        self._control_ids = set(self._control.values())
        self._eats_spaces = any(
            token.lstrip or token.rstrip for token in hf_tokenizer.added_tokens_decoder.values()
        )

    def run(self, conversation: Sequence[Message], *, cut: Collection[int] = ()) -> Replayed:
        """Build the conversation turn by turn and compare after every turn.

        Args:
            conversation: messages. Those of the assistant are what was sampled, thinking and all;
                what stands before the first of them is the prompt.
            cut: the turns (from 0) that were cut by a length limit: nothing closes them.

        Raises:
            TemplateError: the processor refuses the messages.
            ValueError: the conversation does not begin with a prompt, or an answer is no text.
        """
        opening, turns = _split(conversation)
        trajectory = Trajectory(self.tokenizer)
        parts = self.processor.opening(opening)
        trajectory.append_parts(parts, provenance="prompt")
        sent = _Sent(self._render(opening), list(parts))
        problem = self._differs("the first request", trajectory, sent)
        merged: list[int] = []
        history = list(opening)
        for turn, (answer, new) in enumerate(turns):
            if problem:
                break
            request = trajectory.request().tolist()
            end = "".join(self.processor.closing(new))
            sample = answer["content"] + ("" if turn in cut else end)
            sent.add(sample, [Scaffold(sample)])
            whole = self._whole(sent)
            canonical = whole[: len(request) - sent.ours] == request[sent.ours :]
            ids = whole[len(request) - sent.ours :]
            if not canonical:
                merged.append(turn)
                ids = self.tokenizer.encode_parts([Scaffold(sample)], at_start=False).tolist()
            seam = trajectory.append_sampled(ids, [-1.0] * len(ids))
            if seam.exact != canonical:
                problem = (
                    f"turn {turn}: the sample is {'' if canonical else 'not '}canonical: {seam}"
                )
                break
            if closing := self.processor.closing(new, after=ids[-1] if len(ids) else None):
                seam = trajectory.append_parts(closing, provenance="close")
                sent.add("".join(closing), closing)
                problem = self._inexact(f"turn {turn}: the close of a cut sample", seam)
            if not canonical:
                if int(trajectory.ids[-1]) not in self._hard:
                    break  # nothing says where both are the same again
                sent.ours, sent.canonical = len(trajectory), len(self._encode(sent))
            problem = problem or self._differs(f"turn {turn}", trajectory, sent)
            if problem or not new:
                break
            parts = self.processor.increment(new)
            tail = self._tail(history, answer, new)
            if (ours := end + "".join(parts)) != tail:
                problem = (
                    f"turn {turn}: the template writes something else behind the answer: "
                    f"{both(ours, tail)}"
                )
                break
            seam = trajectory.append_parts(parts)
            sent.add("".join(parts), parts)
            problem = self._inexact(f"turn {turn}: the messages behind it", seam)
            problem = problem or self._differs(f"turn {turn}: the next request", trajectory, sent)
            history += [answer, *new]
        whole_text = self._render(history)
        rewritten = not sent.text.startswith(whole_text)
        against = self._against(sent)
        if not problem and not rewritten and against == "render":
            ids = self._ids_of_render(history)[sent.canonical :]
            ours = trajectory.ids.tolist()[sent.ours :]
            problem = self._parts_at("the full render", ours[: len(ids)], ids, sent)
        return Replayed(problem, against, rewritten, tuple(merged))

    def _differs(self, what: str, trajectory: Trajectory, sent: "_Sent") -> str | None:
        return self._parts_at(what, trajectory.ids.tolist()[sent.ours :], self._whole(sent), sent)

    def _parts_at(self, what: str, ours: list[int], whole: list[int], sent: "_Sent") -> str | None:
        found = difference(ours, whole, self._text_of)
        if found is None:
            return None
        lines = found.lines("turn by turn", "one encode")
        return "\n".join([f"{what}: token {sent.ours + found.token} differs", *lines])

    def _inexact(self, what: str, seam: Any) -> str | None:
        return None if seam.exact else f"{what}: the seam is not exact: {seam}"

    def _whole(self, sent: "_Sent") -> list[int]:
        """One encode of all that was sent, from where ours can be compared with it."""
        return self._encode(sent)[sent.canonical :]

    def _encode(self, sent: "_Sent") -> list[int]:
        if self._against(sent) == "parts":
            return list(map(int, self.tokenizer.encode_parts(sent.parts)))
        return list(map(int, self._hf.encode(sent.text, add_special_tokens=False)))

    def _against(self, sent: "_Sent") -> Literal["render", "parts"]:
        """Whether transformers is asked: not where it means something else by definition."""
        contents = [part for part in sent.parts if isinstance(part, Content)]
        if any(map(self._mints, contents)) or self._spells_beside_scaffold(sent):
            return "parts"
        return "render"

    def _mints(self, content: str) -> bool:
        if self._eats_spaces and content != content.strip():
            return True
        ids = self._hf.encode(str(content), add_special_tokens=False)
        return not self._control_ids.isdisjoint(ids)

    def _spells_beside_scaffold(self, sent: "_Sent") -> bool:
        """Whether a control token is spelled, of which content has a part."""
        text = "".join(sent.parts)
        ends = list(itertools.accumulate(map(len, sent.parts)))
        said = [
            range(end - len(part), end)
            for part, end in zip(sent.parts, ends, strict=True)
            if isinstance(part, Content)
        ]
        for token in self._control:
            start = text.find(token)
            while start >= 0:
                if any(r.start < start + len(token) and start < r.stop for r in said):
                    return True
                start = text.find(token, start + 1)
        return False

    def _ids_of_render(self, messages: Sequence[Message]) -> list[int]:
        blocks = self._render.in_blocks
        given = [
            {**m, "content": [{"type": "text", "text": m["content"]}]}
            if m["role"] in blocks and isinstance(m.get("content"), str)
            else m
            for m in messages
        ]
        ids = self._hf.apply_chat_template(
            given, add_generation_prompt=True, tokenize=True, return_dict=False, **self._options
        )
        return list(map(int, ids))

    def _tail(self, history: list[Message], answer: Message, new: list[Message]) -> str:
        """What the template writes behind this answer, in this conversation."""
        marker = free_stem(history, answer, new) + "answer"
        thinking, closed, _ = answer["content"].rpartition(CLOSE)
        thinking = f"{OPEN}\n{thinking}" if closed and self.opened else thinking
        marked = thinking + closed + ("\n\n" if closed else "") + marker
        rendered = self._render([*history, {**answer, "content": marked}, *new])
        if (count := rendered.count(marker)) != 1:
            raise TemplateError(
                f"the template writes the answer of message {len(history)} (assistant) {count} "
                f"times: {rendered[-200:]!r}"
            )
        return rendered.partition(marker)[2]


def control_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """The control tokens and their ids, without the model's token for what it cannot write."""
    found = {token: tokenizer.token_to_id(token) for token in tokenizer.profile()["control_tokens"]}
    try:
        unknown = tokenizer.encode_parts([Content("\U000e0fff")]).tolist()
    except TokenizerError:  # it cannot write it at all
        unknown = []
    return {token: i for token, i in found.items() if i is not None and i not in unknown}


def _split(
    conversation: Sequence[Message],
) -> tuple[list[Message], list[tuple[Message, list[Message]]]]:
    """The prompt, and each answer with what follows it."""
    opening: list[Message] = []
    turns: list[tuple[Message, list[Message]]] = []
    for k, message in enumerate(conversation):
        if message.get("role") == "assistant":
            if not isinstance(message.get("content"), str):
                raise ValueError(
                    f"message {k} (assistant): content={message.get('content')!r} is not what was "
                    "sampled\nhint: write the text of the sample, tool calls and all"
                )
            if turns and not turns[-1][1]:
                raise ValueError(
                    f"messages {k - 1} and {k} are both the assistant's\n"
                    "hint: put a user or tool message between them"
                )
            turns.append((message, []))
        else:
            (turns[-1][1] if turns else opening).append(message)
    if not opening:
        raise ValueError("the conversation has no prompt\nhint: begin with a user message")
    return opening, turns
