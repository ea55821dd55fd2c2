"""Refusals: errors that a client gets instead of an answer.

Invariant: a refusal says why, and its status is 400, except for an unknown route and a failure of
the gateway itself. Clients retry endlessly after 429 and 503, and a NeMo Gym model server stops
working after 401. The code says which kind of refusal it is; the dialect chooses the words by which
clients of its protocol recognize that kind.
"""

import reprlib
from typing import Any

from abut.rollout.rollout import StopReason

CONVERSATION_FULL = "conversation_full"
"""The code of a refusal because this conversation has used up its tokens; others may continue."""
LIMIT_REACHED = "limit_reached"
"""The code of a refusal because of another limit: no further call of the rollout is answered."""


_MOST_SHOWN = 200
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _MOST_SHOWN
_SHORT.maxlevel = 2  # 6 values of each level


def short(value: Any) -> str:
    """Return the `repr` of a client's value, shortened, because it may be a whole body."""
    shown = _SHORT.repr(value)
    return shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}…"


class Refusal(Exception):
    """The error that a client gets instead of an answer.

    Attributes:
        param: the wrong field of the request, if there is one.
        code: its kind.
        status: of the HTTP answer.
        reason: the limit of the rollout that was reached, if any.
        tokens: if the conversation is full, its length plus one token.
        most_tokens: if the conversation is full, its maximum length.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
        reason: StopReason | None = None,
        tokens: int = 0,
        most_tokens: int = 0,
    ) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
        self.status = status
        self.reason = reason
        self.tokens = tokens
        self.most_tokens = most_tokens


def unwritten(error: Exception) -> Refusal:
    """Return the refusal of messages that the template cannot write.

    A hint to use another template is left out, because a client cannot follow it.
    """
    return Refusal(
        f"the chat template cannot write the messages: {said_to_client(error)}", param="messages"
    )


def no_turn_behind_answer(error: Exception) -> Refusal:
    """Return the refusal of a request that ends with an answer, if no turn can follow there."""
    return Refusal(
        "the last message is an answer of the assistant, and the chat template cannot begin "
        f"another turn after it: {said_to_client(error)}",
        param="messages",
    )


def said_to_client(error: Exception) -> str:
    """Return an error's message without hints that only the owner of the gateway can follow."""
    why, _, hint = str(error).partition("\nhint: ")
    hint = hint.partition(", or pass another")[0]
    return f"{why}\nhint: {hint}" if hint and "ChatTemplateProcessor" not in hint else why


def conversation_full(why: str, reason: StopReason, tokens: int, most_tokens: int) -> Refusal:
    """Return the refusal of a turn for which the conversation has no room; see `Refusal`."""
    return Refusal(
        why, code=CONVERSATION_FULL, reason=reason, tokens=tokens, most_tokens=most_tokens
    )


def limit_reached(why: str, *, reason: StopReason | None = None) -> Refusal:
    """Return the refusal of a request of a live rollout that has reached a limit."""
    return Refusal(why, code=LIMIT_REACHED, reason=reason)


def ended(why: str = "") -> Refusal:
    """Return the refusal of a request whose rollout has ended."""
    return Refusal("this rollout is over" + (f": {why}" if why else ""), code="rollout_over")


def not_answered(why: str) -> Refusal:
    """Return the refusal of a request that does not name a rollout."""
    return Refusal(
        f"the gateway did not answer a request that names no rollout: {why}", code="not_answered"
    )
