"""A turn: the environment's reply is appended to a conversation, the template included.

abut and TRL tokenize what is new. The other peers give the whole next prompt: they are divided by
the append with `request()`, which hands all ids over as one array.
"""

from collections.abc import Callable
from typing import Any

from abut.bench.conversation import Conversation, render, tool_reply
from abut.bench.figures import Row, require_same
from abut.bench.stage import Stage
from abut.bench.texts import Replies
from abut.bench.timing import Check, Prepare, Sides, interleave, together
from abut.bench.turns import BRIDGE, RENDER, SUFFIX, TML, Turn, peer_turns

ABUT, REQUEST = "abut", "abut and request()"


def measure(stage: Stage) -> Row:
    """Append replies to conversations of several lengths."""
    scale = stage.scale
    row = Row(
        "append",
        f"append an environment's reply of {scale.reply_bytes:,} bytes, template included",
        equal="the token ids of the whole next prompt (of TRL: the new ones), after every append",
        notes=[
            "Every reply is another text. abut and TRL tokenize the new message alone; the other "
            "peers give the whole next prompt, and are divided by the append with `request()`. "
            "That returns a read-only view of all ids, and costs what the turn adds.",
            "Every side is called twice in a row, for two conversations of one length, and the "
            "second call is timed: what the side before left in the caches is no part of it.",
            "tml-renderers gets its messages in its own type; making them is not counted.",
        ],
    )
    peers = peer_turns(stage, row)
    replies = Replies(2, scale.reply_bytes)
    for length in scale.lengths:
        rounds = []
        for _ in range(scale.conversations):
            timed, twin = (
                _turns(
                    Conversation.of_length(stage, replies, length),
                    replies.take(2 * scale.replies + 2),
                    peers,
                )
                for _ in range(2)
            )
            rounds.append(interleave(timed, scale.replies, twin=twin))
        taken = together(rounds)
        pairs = zip(taken[ABUT], taken.pop(REQUEST), strict=True)
        taken[REQUEST] = [append + request for append, request in pairs]
        row.add(case(length), taken, tokens=length)
    _alone(stage, row, replies, (scale.lengths[0], scale.lengths[-1]))
    _require(row, scale.lengths)
    return row


def case(length: int, *, alone: bool = False) -> str:
    """The name of a length."""
    return f"to {length:,} tokens" + (", abut alone" if alone else "")


def _turns(conversation: Conversation, texts: list[str], peers: dict[str, Turn]) -> Prepare:
    """One round is one turn; what renders the whole takes part in every fourth."""
    trajectory, processor = conversation.trajectory, conversation.stage.processor
    replies, answers = texts[::2], texts[1::2]

    def prepare(number: int) -> tuple[Sides, Check]:
        message = tool_reply(replies[number + 1])
        before = len(trajectory)
        sides: dict[str, Callable[[], Any]] = {
            ABUT: lambda: trajectory.append_parts(processor.increment([message])),
            REQUEST: trajectory.request,
        }
        for name, turn in peers.items():
            if name in (SUFFIX, BRIDGE) or number % 4 == 0:
                sides[name] = turn(conversation, message)

        def check(results: dict[str, Any]) -> None:
            whole = results[REQUEST]
            for name in results.keys() - {ABUT, REQUEST}:
                ours = whole[before:] if name == SUFFIX else whole
                require_same(f"the prompt behind {before} tokens", name, ours, results[name])
            conversation.messages.append(message)
            conversation.answer(answers[number + 1])

        return sides, check

    return prepare


def _alone(stage: Stage, row: Row, replies: Replies, lengths: tuple[int, int]) -> None:
    """A short and a long conversation by turns: how flat the append is.

    Beside the peers it is not seen: what they leave in the caches depends on the length.
    """
    talks = {length: Conversation.of_length(stage, replies, length) for length in lengths}

    def prepare(number: int) -> tuple[Sides, Check]:
        def appending(talk: Conversation) -> Callable[[], Any]:
            (text,) = replies.take(1)
            return lambda: talk.append(tool_reply(text))

        def check(_: dict[str, Any]) -> None:
            for talk in talks.values():
                talk.answer(*replies.take(1))

        sides = {case(length, alone=True): appending(talk) for length, talk in talks.items()}
        return sides, check

    taken = interleave(prepare, stage.scale.conversations * stage.scale.replies)
    for name, values in taken.items():
        row.add(name, {ABUT: values})
    for length, talk in talks.items():  # what was appended before does not change
        talk.append(tool_reply(*replies.take(1)))
        whole = render(stage.hf_tokenizer, talk.messages)
        require_same(case(length, alone=True), RENDER, talk.trajectory.ids, whole)


def _require(row: Row, lengths: tuple[int, ...]) -> None:
    first, last = lengths[0], lengths[-1]
    for length in (first, 30_000, last):
        if length in lengths:
            row.need_faster(SUFFIX, case(length), 20)
    long, short = case(last, alone=True), case(first, alone=True)
    row.need_ratio(f"{long} ÷ {short}", (ABUT, long), (ABUT, short), "at most", 1.2)
    for peer, times in ((RENDER, 2_000), (BRIDGE, 30), (TML, 500)):
        row.need_faster(peer, case(last), times, side=REQUEST)
