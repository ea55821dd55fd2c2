"""Random conversations, compared with the full render; the first that fails is made small.

Invariant: everything follows from the seed. Conversation `k` of a seed is always the same, however
many conversations are compared.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from abut.audit.replay import Replay, Replayed, control_tokens
from abut.errors import AbutError, TemplateError
from abut.messages import Message
from abut.template.thinking import ThinkingFormat

# Texts that tokenizers treat differently. None is newer than Unicode 13, so that every notion of
# character class and normal form agrees on them.
WORDS = ("a", "ab", "abc", "x", "Hello", "hello", "the", "end", "im", "12", "2024", "'t", "don't")
SPACES = (" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n", "\u00a0", "\u3000", "▁")
SIGNS = ("<", ">", "|", "_", ".", ",", "'", '"', "{", "}", "[", "(", "-", "#", "`", "*", "/", "\\")
COMBINING = ("\u0301", "e\u0301", "é", "É", "\u0302\u0323", "\u1100\u1161", "ก\u0e33", "क\u094d")
SCRIPTS = ("한국", "中文", "ひらがな", "слово", "שלום", "مرحبا", "नमस्ते", "ไทย")
EMOJI = ("🙂", "👩\u200d👩\u200d👧", "👍🏽", "🇩🇪", "❤\ufe0f", "\u200d")
# Characters on which notions of space, word, letter and digit differ.
LOOKALIKES = ("\x1c", "\x85", "ⓐ", "ﬁ", "İ", "ß", "½", "²", "\u2028", "\ufeff", "\ufffd")

FRAGMENTS = (*WORDS, *SPACES, *SIGNS, *COMBINING, *SCRIPTS, *EMOJI, *LOOKALIKES)

_DRAWS = 24  # of one conversation, until one can be compared
_SHRINKS = 400  # replays that making a failure small may cost


@dataclass(frozen=True)
class Failure:
    """A conversation whose tokens differ.

    Attributes:
        number: which conversation, from 0.
        messages: the conversation, made small.
        cut: the turns that were cut.
        problem: what differs and where.
    """

    number: int
    messages: list[Message]
    cut: tuple[int, ...]
    problem: str


@dataclass(frozen=True)
class FuzzResult:
    """The result of the fuzz.

    Attributes:
        seed: gives the same conversations again.
        conversations: how many were asked for.
        roles: the roles of their messages, besides the assistant's.
        against_render: how many were compared with transformers' encode of the template's full
            render, in addition to the text that was sent.
        against_sent: how many were compared only with transformers' encode of the text that was
            sent, because the render differs (`rewritten`) or a merge has no known end in it.
        against_parts: how many were compared with one `encode_parts` instead, because a content
            spells a control token or has whitespace that a control token would eat.
        rewritten: in how many of these the template renders the past differently than it was sent.
        refused: how many draws the processor refused; each was drawn again.
        merged: in how many of these a sample would have merged with the generation prompt, or with
            the end of the thinking that it was cut in. The sample stays as it is, and the
            comparison starts again after it.
        skipped: how many conversations could not be compared in any draw.
        refusal: the first refusal.
        failure: the first conversation that failed, which ended the fuzz.
    """

    seed: int
    conversations: int
    roles: tuple[str, ...]
    against_render: int
    against_sent: int
    against_parts: int
    rewritten: int
    refused: int
    merged: int
    skipped: int
    refusal: str | None
    failure: Failure | None


def fuzz_conversations(
    replay: Replay, conversations: int, *, seed: int = 0, roles: Sequence[str] = ("user",)
) -> FuzzResult:
    """Replay random conversations until one fails.

    Args:
        replay: compares them.
        conversations: how many.
        seed: the seed of the conversations.
        roles: the roles that may answer the model; `"system"` allows a system message at the start.
    """
    spelled = spellings(control_tokens(replay.tokenizer))
    thinking = None
    form = replay.processor.thinking
    # If an answer has a header of its own, thinking cannot be written as text before it.
    if replay.processor.report.history_thinking == "stripped" and not form.answer:
        thinking = form
    count = dict.fromkeys(
        ("render", "sent", "parts", "rewritten", "refused", "merged", "skipped"), 0
    )
    refusal: str | None = None
    failure: Failure | None = None
    for number in range(conversations):
        for draw in range(_DRAWS):
            rng = Random(f"{seed} {number} {draw}")
            messages, cut = _conversation(rng, roles, spelled, draw, thinking=thinking)
            try:
                replayed = replay.run(messages, cut=cut)
            except TemplateError as error:
                count["refused"] += 1
                refusal = refusal or str(error)
                continue
            break
        else:
            count["skipped"] += 1
            continue
        if replayed.problem:
            messages, cut = _smallest(messages, cut, _failing(replay))
            small = replay.run(messages, cut=cut)
            failure = Failure(number, messages, cut, str(small.problem))
            break
        count[replayed.against] += 1
        count["rewritten"] += replayed.rewritten
        count["merged"] += bool(replayed.merged)
    return FuzzResult(
        seed=seed,
        conversations=conversations,
        roles=tuple(roles),
        against_render=count["render"],
        against_sent=count["sent"],
        against_parts=count["parts"],
        rewritten=count["rewritten"],
        refused=count["refused"],
        merged=count["merged"],
        skipped=count["skipped"],
        refusal=refusal,
        failure=failure,
    )


# ---- drawing


def spellings(tokens: Iterable[str]) -> list[str]:
    """Return the tokens and their halves, which meet again when texts are joined."""
    halves = [half for t in tokens for half in (t, t[: len(t) // 2], t[len(t) // 2 :])]
    return list(dict.fromkeys(half for half in halves if half))


def tool_message(content: str) -> Message:
    """Return a tool's message with all keys that templates ask for."""
    # Mistral's template takes only ids of nine letters and digits.
    return {"role": "tool", "name": "look", "tool_call_id": "abutcall0", "content": content}


def _conversation(
    rng: Random,
    roles: Sequence[str],
    spelled: list[str],
    draw: int,
    *,
    thinking: ThinkingFormat | None,
) -> tuple[list[Message], tuple[int, ...]]:
    """Draw one conversation; later draws are tamer, because templates refuse what they change.

    `thinking` is the format of the answers' thinking; None: they do not think.
    """

    def said() -> str:
        if draw >= _DRAWS * 2 // 3:
            return " ".join(rng.choices(WORDS, k=rng.randint(1, 5)))
        pieces = rng.choices(FRAGMENTS, k=rng.randint(0 if draw == 0 else 1, 8))
        if spelled and rng.random() < 0.1:
            pieces.insert(rng.randint(0, len(pieces)), rng.choice(spelled))
        text = "".join(pieces)
        return text if draw < _DRAWS // 3 and rng.random() < 0.5 else text.strip() or "x"

    def answered(*, cut: bool) -> str:
        text = "".join(rng.choices(FRAGMENTS, k=rng.randint(1, 8)))
        if draw > 0 or rng.random() < 0.8:
            text = text.strip() or "x"
        if thinking is not None and rng.random() < 0.3:
            begun = "" if thinking.opened else f"{thinking.open}\n"
            if cut and rng.random() < 0.5:
                return begun + text
            return f"{begun}{''.join(rng.choices(WORDS, k=3))}{thinking.between}{text}"
        return text

    def follow() -> Message:
        role = rng.choice([role for role in roles if role != "system"])
        return tool_message(said()) if role == "tool" else {"role": role, "content": said()}

    messages: list[Message] = []
    if "system" in roles and rng.random() < 0.3:
        messages.append({"role": "system", "content": said()})
    messages.append({"role": "user", "content": said()})
    turns = rng.randint(1, 4)
    cut = tuple(turn for turn in range(turns) if rng.random() < 0.15)
    for turn in range(turns):
        answer = answered(cut=turn in cut)
        messages += [{"role": "assistant", "content": answer}, follow()]
        if messages[-1]["role"] == "tool" and rng.random() < 0.3:
            messages.append({**messages[-1], "content": said()})
    return messages, cut


# ---- making a failure small


def _failing(replay: Replay) -> Callable[[list[Message], tuple[int, ...]], bool]:
    def fails(messages: list[Message], cut: tuple[int, ...]) -> bool:
        try:
            replayed: Replayed = replay.run(messages, cut=cut)
        except (AbutError, ValueError):
            return False
        return replayed.problem is not None

    return fails


def _smallest(
    messages: list[Message],
    cut: tuple[int, ...],
    fails: Callable[[list[Message], tuple[int, ...]], bool],
) -> tuple[list[Message], tuple[int, ...]]:
    """Remove what the failure does not need: cuts, then messages, then halves of contents."""
    left = _SHRINKS
    smaller = True
    while smaller and left > 0:
        smaller = False
        for fewer, fewer_cut in _steps(messages, cut):
            turns = sum(message["role"] == "assistant" for message in fewer)
            fewer_cut = tuple(turn for turn in fewer_cut if turn < turns)
            left -= 1
            if fails(fewer, fewer_cut):
                messages, cut, smaller = fewer, fewer_cut, True
                break
            if left <= 0:
                break
    return messages, cut


def _steps(
    messages: list[Message], cut: tuple[int, ...]
) -> Iterator[tuple[list[Message], tuple[int, ...]]]:
    if cut:
        yield messages, ()
    for start in range(len(messages)):
        for size in (len(messages) - start, 2, 1):
            yield messages[:start] + messages[start + size :], cut
    for k, message in enumerate(messages):
        text = message["content"]
        half = len(text) // 2
        for shorter in (text[:half], text[half:], text[1:], text[:-1]):
            if shorter and shorter != text:
                yield [*messages[:k], {**message, "content": shorter}, *messages[k + 1 :]], cut


def spelled_out(messages: Sequence[Message]) -> Iterator[str]:
    """Yield one line of ASCII for each message."""
    keep: dict[str, Any]
    for message in messages:
        keep = {key: message[key] for key in message if key != "tool_call_id"}
        yield json.dumps(keep)
