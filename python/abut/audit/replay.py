"""A conversation built turn by turn, against the chat template's own render of it.

What is compared, after every turn: the ids of the trajectory with one encode of the whole text that
the engine should have seen: the first prompt as rendered, each answer as it was sampled, and behind
each answer what the template writes there when it renders the whole conversation so far. Where the
template does not rewrite the past, that text *is* the render of the whole conversation, and the ids
are compared with `apply_chat_template(tokenize=True)` too.

The conversation itself is played by what the engine plays it with (`abut.rollout.conversation`);
what it is compared with is rendered and encoded here.

The encode is transformers' own. It mints control tokens from contents that spell them, and lets
tokens with lstrip or rstrip eat into contents; abut does neither. Conversations with such contents
are compared with one `encode_parts` of the whole instead, and say so (`against="parts"`).
"""

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from abut._native import Tokenizer
from abut.audit.difference import difference, token_text
from abut.errors import TokenizerError
from abut.messages import Message
from abut.parts import Content, Part, Scaffold
from abut.rollout.conversation import Conversation
from abut.template.probe import PLAIN
from abut.template.processor import ChatTemplateProcessor
from abut.template.quote import quote_difference
from abut.template.rendering import Rendering

_NOT_SAMPLED = ("tool_calls", "reasoning_content", "reasoning", "thinking")  # a render of it is


@dataclass(frozen=True)
class Replayed:
    """What came of one conversation.

    Attributes:
        problem: what differs and where, on several lines; None where nothing does.
        against: what the ids were compared with, besides the text that was sent: `"render"`, the
            full render in the end; `"sent"`, nothing else, since the render is another text
            (`rewritten`) or nothing says where a merge ends in it; `"parts"`, one `encode_parts`
            of all that was sent, in the place of transformers' encode.
        rewritten: the template writes the past of this conversation otherwise than it was sent, as
            one that strips thinking does.
        merged: the turns whose samples a tokenizer would have merged with the generation prompt, or
            with the close of the thinking that they were cut in. The sampled tokens stay, so what
            is compared begins again behind such a turn.
    """

    problem: str | None = None
    against: Literal["render", "sent", "parts"] = "render"
    rewritten: bool = False
    merged: tuple[int, ...] = ()


class Replay:
    """Replays conversations of one tokenizer and template.

    Attributes:
        tokenizer: the tokenizer for abut.
        processor: its processor.
        render: its template.
        hard: the ids of the hard tokens.
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
        self.render = Rendering(hf_tokenizer, options)
        self.hard = set(map(tokenizer.token_to_id, tokenizer.profile()["hard_tokens"]))
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
            cut: the turns (from 0) that were cut by a length limit: no stop token was sampled.

        Raises:
            TemplateError: the processor refuses the messages.
            ValueError: the conversation does not begin with a prompt, an answer is not what was
                sampled, or there is no such turn as one that is said to be cut.
        """
        opening, turns = _split(conversation)
        if unknown := sorted(set(cut) - set(range(len(turns)))):
            raise ValueError(
                f"cut={unknown[0]!r}: the conversation has {len(turns)} turns, counted from 0\n"
                "hint: give the numbers of the assistant's messages that were cut"
            )
        play = _Play(self, opening)
        problem = play.compare("the first request")
        for turn, (answer, new) in enumerate(turns):
            problem = problem or play.answer(turn, answer, new, cut=turn in cut)
            if problem or play.lost or not new:
                break
            problem = play.follow(turn, new)
        whole = self.render(play.history)
        rewritten = not play.text.startswith(whole)
        against: Literal["render", "sent", "parts"] = self.against(play.parts)
        if against == "render" and not problem:
            if rewritten or play.lost:
                against = "sent"
            else:
                problem = play.compare("the full render", self._ids_of_render(play.history))
        return Replayed(problem, against, rewritten, tuple(play.merged))

    def encode(self, text: str, parts: Sequence[Part]) -> list[int]:
        """One encode of the whole."""
        if self.against(parts) == "parts":
            return list(map(int, self.tokenizer.encode_parts(parts)))
        return list(map(int, self._hf.encode(text, add_special_tokens=False)))

    def against(self, parts: Sequence[Part]) -> Literal["render", "parts"]:
        """Whether transformers is asked: not where it means something else by definition."""
        contents = [part for part in parts if isinstance(part, Content)]
        if any(map(self._mints, contents)) or self._spells_beside_scaffold(parts):
            return "parts"
        return "render"

    def _mints(self, content: str) -> bool:
        if self._eats_spaces and content != content.strip():
            return True
        ids = self._hf.encode(str(content), add_special_tokens=False)
        return not self._control_ids.isdisjoint(ids)

    def _spells_beside_scaffold(self, parts: Sequence[Part]) -> bool:
        """Whether a control token is spelled, of which content has a part."""
        text = "".join(parts)
        ends = list(itertools.accumulate(map(len, parts)))
        said = [
            range(end - len(part), end)
            for part, end in zip(parts, ends, strict=True)
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
        blocks = self.render.in_blocks
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

    def tail(self, history: list[Message], answer: Message, new: list[Message]) -> str:
        """What the template writes behind this answer, in this conversation."""
        form = self.processor.thinking
        thinking, closed, _ = answer["content"].rpartition(form.close)
        if closed:
            opening = f"{form.open}\n" if form.opened else ""
            after = form.between.partition(form.close)[2]
            thinking = f"{opening}{thinking}{form.close}{after}"
        return self.render.after_turn(history, PLAIN, new, thinking=thinking)


class _Play:
    """A conversation as the engine plays it, and beside it what the engine should have seen.

    `text` and `parts` are what was sent. Behind a merge, ours and the canonical tokens are compared
    from the places `ours` and `canonical` on; `lost` where nothing says what these places are.
    """

    def __init__(self, replay: Replay, opening: list[Message]) -> None:
        self._replay = replay
        self._processor = replay.processor
        self.history = opening
        self._conversation = Conversation(replay.tokenizer, replay.processor)
        self.parts: list[Part] = list(self._conversation.open(opening).parts)
        self.text = replay.render(opening)
        self.merged: list[int] = []
        self.lost = False
        self._ours = self._canonical = 0
        self._answer: Message = {}

    def answer(self, turn: int, answer: Message, new: list[Message], *, cut: bool) -> str | None:
        """Sample the answer, and close it where it was cut; returns what differs."""
        request = self._conversation.request()[self._ours :].tolist()
        sample = answer["content"] + ("" if cut else self._end(new))
        self._send([Scaffold(sample)])
        whole = self._whole()
        ids = whole[len(request) :]
        canonical = whole[: len(request)] == request
        if not canonical:
            self.merged.append(turn)
            parts = [Scaffold(sample)]
            ids = self._replay.tokenizer.encode_parts(parts, at_start=False).tolist()
        seam = self._conversation.hear(ids, [-1.0] * len(ids)).seam
        if seam.exact != canonical:
            what = "canonical" if canonical else "not canonical"
            return f"turn {turn}: the sample is {what}, yet the seam before it is {seam}"
        closing = self._conversation.end_turn(new)
        # What closes thinking stands before the end of the turn.
        text = "" if closing is None else "".join(closing.parts)
        thinking = text[: max(0, len(text) - len(self._end(new)))]
        self._answer = {**answer, "content": answer["content"] + thinking}
        if closing is not None:
            self._send(closing.parts)
            seam = closing.seam
            if not seam.exact and not thinking:
                return f"turn {turn}: the seam before the close of a cut sample is {seam}"
            if not seam.exact and canonical:  # half a thought, which no token ends, has merged
                self.merged.append(turn)
                canonical = False
        if not canonical:
            written = self._conversation.trajectory.ids
            self.lost = int(written[-1]) not in self._replay.hard
            self._ours, self._canonical = len(written), len(self._encode())
        return self.compare(f"turn {turn}")

    def follow(self, turn: int, new: list[Message]) -> str | None:
        """Append what is said to the last answer; returns what differs."""
        parts, seam = self._conversation.say(new)
        tail = self._replay.tail(self.history, self._answer, new)
        if (ours := self._end(new) + "".join(parts)) != tail:
            return (
                f"turn {turn}: the template writes something else behind the answer: "
                f"{quote_difference(ours, tail)}"
            )
        self._send(parts)
        self.history = [*self.history, self._answer, *new]
        if not seam.exact:
            return f"turn {turn}: the seam before the next messages is {seam}"
        return self.compare(f"turn {turn}: the next request")

    def compare(self, what: str, theirs: list[int] | None = None) -> str | None:
        """Compare with one encode of all that was sent, or with the ids of a part of it."""
        ours = self._conversation.trajectory.ids.tolist()
        if theirs is None:
            theirs = self._encode()
        else:
            ours = ours[: self._ours + len(theirs) - self._canonical]
        text_of = token_text(self._replay.tokenizer)
        found = difference(ours[self._ours :], theirs[self._canonical :], text_of)
        if found is None:
            return None
        lines = found.lines("turn by turn", "one encode")
        return "\n".join([f"{what}: token {self._ours + found.token} differs", *lines])

    def _send(self, parts: Sequence[Part]) -> None:
        self.parts += parts
        self.text += "".join(parts)

    def _end(self, new: list[Message]) -> str:
        """What ends a turn that these messages follow."""
        return "".join(self._processor.closing(new))

    def _whole(self) -> list[int]:
        return self._encode()[self._canonical :]

    def _encode(self) -> list[int]:
        return self._replay.encode(self.text, self.parts)


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
            for key in _NOT_SAMPLED:
                if message.get(key):
                    raise ValueError(
                        f"message {k} (assistant): {key}={message[key]!r} is not what was sampled\n"
                        "hint: write the text of the sample, tool calls and all, as its content"
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
