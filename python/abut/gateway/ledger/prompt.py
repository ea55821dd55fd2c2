"""The prompt of a request: its messages, written into a conversation.

Invariant: messages that a conversation already holds are not written again, and if writing fails
the conversation does not change.
"""

from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from functools import partial
from typing import Any

from abut.concurrency.threads import work_done
from abut.errors import ImageError, TemplateError, TokenizerError
from abut.gateway.ledger.agent_call import HANDLES, AgentCall, AgentRequest
from abut.gateway.ledger.branch import LedgerBranch, find_continuation, seen_in
from abut.gateway.ledger.entry import HANDLE, REREAD, Dialect
from abut.gateway.ledger.matching import History
from abut.gateway.ledger.refusal import Refusal, unwritten
from abut.gateway.ledger.system_messages import SYSTEM_ROLES
from abut.gateway.ledger.writer import Writer, template_messages, why_unwritten
from abut.messages import Message
from abut.rollout.conversation import Conversation

_MOST_DIGITS = 10


async def write_opening(
    conversation: Conversation,
    writer: Writer,
    messages: Sequence[Message],
    names: Mapping[str, str],
    dialect: Dialect,
) -> None:
    """Write all messages of a request into an empty conversation, as the template renders them.

    Args:
        conversation: an empty one.
        writer: of the conversation.
        messages: of a client.
        names: the tool that each call of the rollout names, by the call's id.
        dialect: of the request.

    Raises:
        Refusal: the template cannot write them.
    """
    taken = template_messages(messages, names, names.keys(), joined=writer.joins)
    if dialect.places_system:
        taken = await work_done(False, partial(writer.system_messages.placed, taken, opens=True))
    try:
        await work_done(False, lambda: conversation.open(taken))
    except (TemplateError, TokenizerError, ImageError) as error:
        why = partial(why_unwritten, taken, writer.processor, error)
        raise await work_done(False, why) from error


async def write_reply(branch: LedgerBranch, messages: Sequence[Message], dialect: Dialect) -> None:
    """Write the messages that follow the last turn of a branch.

    Args:
        branch: ends with a turn of the policy.
        messages: of a client.
        dialect: of the request.

    Raises:
        Refusal: the text of a message cannot be tokenized, or the template does not show a system
            message there.
        TemplateError: the template cannot write such messages after a turn.
    """
    conversation, writer = branch.conversation, branch.writer
    taken = template_messages(messages, branch.names, branch.own_ids, joined=writer.joins)
    if dialect.places_system and any(message["role"] in SYSTEM_ROLES for message in taken):
        taken = await work_done(False, partial(writer.system_messages.placed, taken, opens=False))
    written = writer.written(taken)
    quick = bool(written) and conversation.is_quick(messages=written)
    try:
        await work_done(quick, lambda: conversation.reply(written))
    except (TokenizerError, ImageError) as error:
        raise unwritten(error) from error


async def length(
    request: AgentRequest,
    writer: Writer,
    conversation: Conversation,
    branches: Sequence[LedgerBranch] = (),
    calls: Sequence[AgentCall] = (),
) -> int:
    """Return how many tokens the prompt of a request would have.

    Args:
        request: one that is only counted, not placed.
        writer: of the request.
        conversation: an empty one, into which the messages may be written.
        branches: of the rollout; they do not change.
        calls: of the rollout.

    Raises:
        Refusal: the template cannot write the messages.
    """
    request = with_history(request, calls)
    messages, dialect = list(request.messages), request.dialect
    history = History(messages, seen_in(branches, messages), writer.joints)
    place = find_continuation(branches, request.frame, history, dialect, learns=False)
    if place is not None:
        branch, found, again = place
        turns = branch.conversation.turns
        if again:
            whole = found.entries == len(branch.entries)
            return len(branch.conversation.trajectory) if whole else turns[found.turns].start
        fork = branch.conversation.fork(turns[found.turns - 1].end)
        target = branch.forked(found.answered_entries, fork, "repeated")
        with suppress(TemplateError):
            reply = with_reasoning(target.in_own_ids(history, found), calls)
            await write_reply(target, reply, dialect)
            return len(fork.trajectory)
    names = {id_: name for branch in branches for id_, name in branch.names.items()}
    opening = with_reasoning(messages, calls)
    await write_opening(conversation, writer, opening, names, dialect)
    return len(conversation.trajectory)


def with_history(request: AgentRequest, calls: Sequence[AgentCall]) -> AgentRequest:
    """Return a request extended by the conversation that it follows: the messages and the answer.

    Args:
        request: of a client.
        calls: all of the rollout.

    Raises:
        Refusal: the rollout has no such answer.
    """
    if request.follows is None:
        return request
    call = call_of_answer(request.follows, calls)
    if call is None:
        raise Refusal(
            f"previous_response_id {request.follows[:200]!r} is not the id of an answer of this "
            "rollout",
            param="previous_response_id",
        )
    before, answer = call.request, call.answered.result()
    head, messages = request.messages[: request.head], request.messages[request.head :]
    history = [*head, *before.messages[before.head :], answer.message, *messages]
    return request.with_messages(history)


def call_of_answer(id_: str, calls: Sequence[AgentCall]) -> AgentCall | None:
    """Return the call whose answer has this id; None if there is no such call."""
    answered = (c for c in calls if c.answered.done() and c.answered.exception() is None)
    return next((call for call in answered if call.answered.result().id == id_), None)


def with_reasoning(messages: Sequence[Message], calls: Sequence[AgentCall]) -> list[Message]:
    """Return messages with their reasoning restored, if they have only a handle or text of it.

    Args:
        messages: of a client.
        calls: all of the rollout, by their numbers.
    """
    reasonings: set[Any] = set()
    if any(REREAD in message for message in messages):  # copied, because each may have other text
        answered = (c for c in calls if c.answered.done() and c.answered.exception() is None)
        reasonings = {call.answered.result().message.get("reasoning_content") for call in answered}
    return [_with_reasoning(message, calls, reasonings) for message in messages]


def _with_reasoning(message: Message, calls: Sequence[AgentCall], reasonings: Set[Any]) -> Message:
    other = message.get(REREAD)
    if other is not None and other.get("reasoning_content") in reasonings:
        return dict(other)
    handle = message.get(HANDLE)
    if not handle or message.get("reasoning_content"):
        return message
    call = _call_of_handle(str(handle), calls)
    reasoning = None if call is None else call.answered.result().message.get("reasoning_content")
    return {**message, "reasoning_content": reasoning} if reasoning else message


def _call_of_handle(handle: str, calls: Sequence[AgentCall]) -> AgentCall | None:
    """Return the call whose answer has this handle; None if there is no such call."""
    number = handle.removeprefix(HANDLES).partition(".")[0]
    if not (number.isascii() and number.isdecimal() and len(number) < _MOST_DIGITS):
        return None
    call = calls[int(number)] if int(number) < len(calls) else None
    if call is None or not call.may_be_reused or not call.answered.done():
        return None
    return call if call.answered.result().handle == handle else None
