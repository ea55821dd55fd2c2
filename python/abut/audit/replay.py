"""A conversation built turn by turn, compared with the chat template's own render of it.

After every turn the trajectory's ids are compared with one encode of the whole text that the engine
should have seen: the first prompt as rendered, each answer as sampled, and after each answer what
the template writes there in a render of the whole conversation so far. If the template does not
rewrite the past, that text *is* the render of the whole conversation, and the ids are also compared
with `apply_chat_template(tokenize=True)`.

`abut.rollout.conversation` builds the conversation, as in the engine; this module renders and
encodes what it is compared with, by transformers. Transformers mints control tokens from contents
that spell them, and lets tokens with lstrip or rstrip eat into contents; abut does neither.
Conversations with such contents are compared with one `encode_parts` (`against="parts"`) instead.
"""

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any, Literal

from abut._native import Tokenizer
from abut.errors import TokenizerError
from abut.messages import Message
from abut.parts import Content, Part, Scaffold
from abut.rollout.conversation import Conversation
from abut.template.processor import ChatTemplateProcessor
from abut.template.rendering import Rendering
from abut.template.turn_layout import PLAIN, quote_difference

# Fields that a template renders into text: a sample has that text in its content.
_NOT_SAMPLED = ("tool_calls", "reasoning_content", "reasoning", "thinking")
_BEFORE, _AFTER = 3, 4  # tokens shown around the first that differs


@dataclass(frozen=True)
class Replayed:
    """The result of replaying one conversation.

    Attributes:
        problem: what differs and where, on several lines; None if nothing differs.
        against: what the ids were compared with, besides the text that was sent: `"render"`, the
            full render at the end; `"sent"`, nothing else, because the render differs
            (`rewritten`) or a merge has no known end in it; `"parts"`, one `encode_parts` of all
            that was sent, instead of transformers' encode.
        rewritten: the template renders the past of this conversation differently than it was sent,
            as one that strips thinking does.
        merged: the turns whose samples a tokenizer would have merged with the generation prompt, or
            with the end of the thinking that they were cut in. The sampled tokens stay, so the
            comparison starts again after such a turn.
    """

    problem: str | None = None
    against: Literal["render", "sent", "parts"] = "render"
    rewritten: bool = False
    merged: tuple[int, ...] = ()


class Replay:
    """Replays conversations of one tokenizer and template.

    Attributes:
        tokenizer: abut's tokenizer.
        processor: the processor of its template.
        render: renders that template.
        hard: the ids of the hard tokens.
    """

    def __init__(
        self,
        hf_tokenizer: Any,
        tokenizer: Tokenizer,
        processor: ChatTemplateProcessor,
        **options: Any,
    ) -> None:
        """Take a tokenizer in both forms, and its processor.

        Args:
            hf_tokenizer: the transformers tokenizer.
            tokenizer: the same tokenizer for abut.
            processor: the processor of its template.
            **options: the variables of the processor, for `apply_chat_template`.
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
            conversation: messages. The assistant's are the samples, with their thinking; the
                messages before the first of them are the prompt.
            cut: the turns (from 0) that were cut by a length limit, so without a stop token.

        Raises:
            TemplateError: the processor refuses the messages.
            ValueError: the conversation does not begin with a prompt, an answer is not a sample,
                or `cut` names a turn that does not exist.
        """
        opening, turns = _split(conversation)
        if unknown := sorted(set(cut) - set(range(len(turns)))):
            raise ValueError(
                f"cut={unknown[0]!r}: the conversation has {len(turns)} turns, counted from 0\n"
                "hint: pass the positions of the assistant's messages that were cut"
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
        """Encode the whole at once."""
        if self.against(parts) == "parts":
            return list(map(int, self.tokenizer.encode_parts(parts)))
        return list(map(int, self._hf.encode(text, add_special_tokens=False)))

    def against(self, parts: Sequence[Part]) -> Literal["render", "parts"]:
        """Return "render" if transformers encodes these parts as abut does, else "parts"."""
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
        """Return whether content spells a control token, alone or with the text next to it."""
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
        """Return what the template writes after this answer in this conversation."""
        form = self.processor.thinking
        thinking, closed, _ = answer["content"].rpartition(form.close)
        if closed:
            opening = f"{form.open}\n" if form.opened else ""
            after = form.between.partition(form.close)[2]
            thinking = f"{opening}{thinking}{form.close}{after}"
        return self.render.after_turn(history, PLAIN, new, thinking=thinking)


class _Play:
    """A conversation as the engine plays it, and the text that the engine should have seen.

    `text` and `parts` hold all that was sent. After a merge, our tokens are compared from `_ours`
    on and the canonical tokens from `_canonical` on; `lost` if these offsets are not known.
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
        """Sample the answer, and end its turn if it was cut; return what differs."""
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
            return f"turn {turn}: the sample is {what}, but the seam before it is {seam}"
        closing = self._conversation.end_turn(new)
        # The end of the thinking is written before the end of the turn.
        text = "" if closing is None else "".join(closing.parts)
        thinking = text[: max(0, len(text) - len(self._end(new)))]
        self._answer = {**answer, "content": answer["content"] + thinking}
        if closing is not None:
            self._send(closing.parts)
            seam = closing.seam
            if not seam.exact and not thinking:
                return f"turn {turn}: the seam before the close of a cut sample is {seam}"
            if not seam.exact and canonical:  # the cut thinking merged with what ends it
                self.merged.append(turn)
                canonical = False
        if not canonical:
            written = self._conversation.trajectory.ids
            self.lost = int(written[-1]) not in self._replay.hard
            self._ours, self._canonical = len(written), len(self._encode())
        return self.compare(f"turn {turn}")

    def follow(self, turn: int, new: list[Message]) -> str | None:
        """Append the reply to the last answer; return what differs."""
        parts, seam = self._conversation.say(new)
        tail = self._replay.tail(self.history, self._answer, new)
        if (ours := self._end(new) + "".join(parts)) != tail:
            return (
                f"turn {turn}: the template writes other text after the answer: "
                f"{quote_difference(ours, tail)}"
            )
        self._send(parts)
        self.history = [*self.history, self._answer, *new]
        if not seam.exact:
            return f"turn {turn}: the seam before the next messages is {seam}"
        return self.compare(f"turn {turn}: the next request")

    def compare(self, what: str, theirs: list[int] | None = None) -> str | None:
        """Compare with `theirs` (None: one encode of all that was sent); return what differs."""
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
        """Return what ends a turn that these messages follow."""
        return "".join(self._processor.closing(new))

    def _whole(self) -> list[int]:
        return self._encode()[self._canonical :]

    def _encode(self) -> list[int]:
        return self._replay.encode(self.text, self.parts)


def control_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the control tokens and their ids, without the unknown token."""
    found = {token: tokenizer.token_to_id(token) for token in tokenizer.profile()["control_tokens"]}
    try:
        unknown = tokenizer.encode_parts([Content("\U000e0fff")]).tolist()
    except TokenizerError:  # the tokenizer has no unknown token
        unknown = []
    return {token: i for token, i in found.items() if i is not None and i not in unknown}


def _split(
    conversation: Sequence[Message],
) -> tuple[list[Message], list[tuple[Message, list[Message]]]]:
    """Return the prompt, and each answer with the messages that follow it."""
    opening: list[Message] = []
    turns: list[tuple[Message, list[Message]]] = []
    for k, message in enumerate(conversation):
        if message.get("role") == "assistant":
            if not isinstance(message.get("content"), str):
                raise ValueError(
                    f"message {k} (assistant): content={message.get('content')!r} is not the text "
                    "that was sampled\nhint: write the text of the sample, tool calls included"
                )
            for key in _NOT_SAMPLED:
                if message.get(key):
                    raise ValueError(
                        f"message {k} (assistant): {key}={message[key]!r} is not the text that "
                        "was sampled\n"
                        "hint: write the text of the sample, tool calls included, as the content"
                    )
            if turns and not turns[-1][1]:
                raise ValueError(
                    f"messages {k - 1} and {k} are both from the assistant\n"
                    "hint: put a user or tool message between them"
                )
            turns.append((message, []))
        else:
            (turns[-1][1] if turns else opening).append(message)
    if not opening:
        raise ValueError("the conversation has no prompt\nhint: start with a user message")
    return opening, turns


@dataclass(frozen=True)
class Difference:
    """The first token that differs in two lists of ids that should be equal.

    Attributes:
        token: its index from 0; the length of the shorter list if that is a prefix.
        left: the tokens around it on the left side, the first that differs in `»«`.
        right: the same on the right side.
        left_id: its id; None if the left side ends there.
        right_id: its id; None if the right side ends there.
    """

    token: int
    left: str
    right: str
    left_id: int | None
    right_id: int | None

    def lines(self, left: str, right: str) -> list[str]:
        """Return two lines, one for each side, under these names."""
        width = max(len(left), len(right))
        rows = ((left, self.left_id, self.left), (right, self.right_id, self.right))
        return [
            f"  {name:<{width}}  {'ends' if i is None else i:<7}  {shown}"
            for name, i, shown in rows
        ]


def difference(
    left: Sequence[int], right: Sequence[int], text_of: Callable[[int], str]
) -> Difference | None:
    """Compare two lists of ids by the text of each; None if they are equal."""
    left, right = list(map(int, left)), list(map(int, right))
    if left == right:
        return None
    token = len(commonprefix([left, right]))
    return Difference(
        token,
        _shown(left, token, text_of),
        _shown(right, token, text_of),
        left[token] if token < len(left) else None,
        right[token] if token < len(right) else None,
    )


def token_text(tokenizer: Tokenizer) -> Callable[[int], str]:
    """Return what gives the text of one id; U+FFFD for a part of a character."""
    return lambda i: tokenizer.decode([i])


def _shown(ids: list[int], token: int, text_of: Callable[[int], str]) -> str:
    start, end = max(0, token - _BEFORE), min(len(ids), token + _AFTER)
    shown = [
        f"»{text_of(ids[i])!r}«" if i == token else repr(text_of(ids[i])) for i in range(start, end)
    ]
    if token >= len(ids):
        shown.append("»the end«")
    elif end < len(ids):
        shown.append("…")
    return " ".join((["…"] if start else []) + shown)
