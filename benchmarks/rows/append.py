"""A turn: append the environment's reply to a conversation, with the chat template.

abut and TRL tokenize only the new message. The other peers return the whole next prompt, so they
are compared with the append plus `request()`, which returns all ids as one array.
"""

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.figures import Need, Row, require_same
from benchmarks.measured_conversation import MeasuredConversation, render, tool_reply
from benchmarks.next_prompt import BRIDGE, RENDER, SUFFIX, TML, AfterReply, peers_after_reply
from benchmarks.texts import Replies
from benchmarks.timing import Check, Prepare, Sides, all_rounds, interleave
from benchmarks.workbench import Workbench

ABUT, REQUEST = "abut", "abut with request()"
_ALONE_S = 25e-6


def measure(workbench: Workbench) -> Row:
    """Append replies to conversations of several lengths."""
    scale = workbench.scale
    row = Row(
        "append",
        f"append an environment's reply of {scale.reply_bytes:,} bytes, template included",
        equal="the token ids of the whole next prompt (for TRL: the new ids), after every append",
        notes=[
            "Every reply is different. abut and TRL tokenize only the new message. The other peers "
            "return the whole next prompt, so they are compared with the append plus `request()`, "
            "which returns a read-only view of all ids; its cost depends only on what the turn "
            "adds.",
            "Every side is called twice in a row, for two conversations of the same length, and "
            "only the second call is timed, so that the previous side's use of the CPU caches does "
            "not count.",
            "tml-renderers receives its messages in its own type; converting them is not timed.",
        ],
    )
    peers = peers_after_reply(workbench, row)
    replies = Replies(2, scale.reply_bytes)
    rounds: dict[int, list[Mapping[str, list[float]]]] = {length: [] for length in scale.lengths}
    # All lengths in turn, or the first would pay for the words that are new to every encoder.
    for _ in range(scale.conversations):
        for length in scale.lengths:
            timed, twin = (
                _turns(
                    MeasuredConversation.of_length(workbench, replies, length),
                    replies.take(2 * scale.replies + 2),
                    peers,
                )
                for _ in range(2)
            )
            rounds[length].append(interleave(timed, scale.replies, twin=twin))
    for length, found in rounds.items():
        taken = all_rounds(found)
        pairs = zip(taken[ABUT], taken.pop(REQUEST), strict=True)
        taken[REQUEST] = [append + request for append, request in pairs]
        row.add(case(length), taken, tokens=length)
    _alone(workbench, row, replies, (scale.lengths[0], scale.lengths[-1]))
    _require(row, scale.lengths)
    return row


def case(length: int, *, alone: bool = False) -> str:
    """Return the name of the case of a length."""
    return f"to {length:,} tokens" + (", measured alone" if alone else "")


def _turns(
    conversation: MeasuredConversation, texts: list[str], peers: dict[str, AfterReply]
) -> Prepare:
    """One round is one turn; peers that render the whole prompt run in every fourth round."""
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
                require_same(f"the prompt after {before} tokens", name, ours, results[name])
            conversation.answer(answers[number + 1])

        return sides, check

    return prepare


def _alone(workbench: Workbench, row: Row, replies: Replies, lengths: tuple[int, int]) -> None:
    """Alternate a short and a long conversation, to show that the length does not matter.

    Next to the peers this would not show, because their use of the caches depends on the length.
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
    for length, conversation in conversations.items():  # earlier tokens have not changed
        conversation.append(tool_reply(*replies.take(1)))
        whole = render(workbench.hf_tokenizer, conversation.messages)
        require_same(case(length, alone=True), RENDER, conversation.trajectory.ids, whole)


def _require(row: Row, lengths: tuple[int, ...]) -> None:
    first, last = lengths[0], lengths[-1]
    for length in (first, 30_000, last):
        if length in lengths:
            row.need_faster(SUFFIX, case(length), 20)
    long, short = case(last, alone=True), case(first, alone=True)
    row.need_ratio(f"abut, {long} ÷ {short}", (ABUT, long), (ABUT, short), "at most", 1.2)
    if (alone_s := row.median(ABUT, long)) is not None:
        row.needs.append(Need(f"abut, {long}", alone_s, "at most", _ALONE_S, "s"))
    for peer, times in ((RENDER, 2_000), (BRIDGE, 30), (TML, 500)):
        row.need_faster(peer, case(last), times, side=REQUEST)
