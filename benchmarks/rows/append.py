"""A turn: the environment's reply is appended to a conversation, the template included.

abut and TRL tokenize what is new. The other peers give the whole next prompt: they are divided by
the append with `request()`, which hands all ids over as one array.
"""

from collections.abc import Callable
from typing import Any

from benchmarks.figures import Need, Row, require_same
from benchmarks.measured_conversation import MeasuredConversation, render, tool_reply
from benchmarks.next_prompt import BRIDGE, RENDER, SUFFIX, TML, AfterReply, peers_after_reply
from benchmarks.texts import Replies
from benchmarks.timing import Check, Prepare, Sides, all_rounds, interleave
from benchmarks.workbench import Workbench

ABUT, REQUEST = "abut", "abut and request()"
_ALONE_S = 25e-6


def measure(workbench: Workbench) -> Row:
    """Append replies to conversations of several lengths."""
    scale = workbench.scale
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
    peers = peers_after_reply(workbench, row)
    replies = Replies(2, scale.reply_bytes)
    for length in scale.lengths:
        rounds = []
        for _ in range(scale.conversations):
            timed, twin = (
                _turns(
                    MeasuredConversation.of_length(workbench, replies, length),
                    replies.take(2 * scale.replies + 2),
                    peers,
                )
                for _ in range(2)
            )
            rounds.append(interleave(timed, scale.replies, twin=twin))
        taken = all_rounds(rounds)
        pairs = zip(taken[ABUT], taken.pop(REQUEST), strict=True)
        taken[REQUEST] = [append + request for append, request in pairs]
        row.add(case(length), taken, tokens=length)
    _alone(workbench, row, replies, (scale.lengths[0], scale.lengths[-1]))
    _require(row, scale.lengths)
    return row


def case(length: int, *, alone: bool = False) -> str:
    """The name of a length."""
    return f"to {length:,} tokens" + (", abut alone" if alone else "")


def _turns(
    conversation: MeasuredConversation, texts: list[str], peers: dict[str, AfterReply]
) -> Prepare:
    """One round is one turn; what renders the whole takes part in every fourth."""
    trajectory = conversation.trajectory
    replies, answers = texts[::2], texts[1::2]

    def prepare(number: int) -> tuple[Sides, Check]:
        message = tool_reply(replies[number + 1])
        before = len(trajectory)
        sides: dict[str, Callable[[], Any]] = {
            ABUT: lambda: conversation.append(message),
            REQUEST: trajectory.request,
        }
        for name, after_reply in peers.items():
            # A render of a long conversation takes half a second, the others some milliseconds.
            if name in (SUFFIX, BRIDGE) or number % 4 == 0:
                sides[name] = after_reply(conversation, message)

        def check(results: dict[str, Any]) -> None:
            whole = results[REQUEST]
            for name in results.keys() - {ABUT, REQUEST}:
                ours = whole[before:] if name == SUFFIX else whole
                require_same(f"the prompt behind {before} tokens", name, ours, results[name])
            conversation.answer(answers[number + 1])

        return sides, check

    return prepare


def _alone(workbench: Workbench, row: Row, replies: Replies, lengths: tuple[int, int]) -> None:
    """A short and a long conversation by turns: how flat the append is.

    Beside the peers it is not seen: what they leave in the caches depends on the length.
    """
    conversations = {
        length: MeasuredConversation.of_length(workbench, replies, length) for length in lengths
    }

    def prepare(number: int) -> tuple[Sides, Check]:
        def appending(conversation: MeasuredConversation) -> Callable[[], Any]:
            (text,) = replies.take(1)
            return lambda: conversation.append(tool_reply(text))

        def check(_: dict[str, Any]) -> None:
            for conversation in conversations.values():
                conversation.answer(*replies.take(1))

        sides = {
            case(length, alone=True): appending(conversation)
            for length, conversation in conversations.items()
        }
        return sides, check

    taken = interleave(prepare, workbench.scale.conversations * workbench.scale.replies)
    for name, values in taken.items():
        row.add(name, {ABUT: values})
    for length, conversation in conversations.items():  # what was appended before does not change
        conversation.append(tool_reply(*replies.take(1)))
        whole = render(workbench.hf_tokenizer, conversation.messages)
        require_same(case(length, alone=True), RENDER, conversation.trajectory.ids, whole)


def _require(row: Row, lengths: tuple[int, ...]) -> None:
    first, last = lengths[0], lengths[-1]
    for length in (first, 30_000, last):
        if length in lengths:
            row.need_faster(SUFFIX, case(length), 20)
    long, short = case(last, alone=True), case(first, alone=True)
    row.need_ratio(f"{long} ÷ {short}", (ABUT, long), (ABUT, short), "at most", 1.2)
    if (alone_s := row.median(ABUT, long)) is not None:
        row.needs.append(Need(f"abut {long}", alone_s, "at most", _ALONE_S, "s"))
    for peer, times in ((RENDER, 2_000), (BRIDGE, 30), (TML, 500)):
        row.need_faster(peer, case(last), times, side=REQUEST)
