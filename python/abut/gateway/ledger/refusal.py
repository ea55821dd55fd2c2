"""Refusals: why a request gets no answer.

Invariant: a refusal says why, and its status is 400, except for an unknown route and a failure of
the gateway itself. Clients retry without end after 429 and 503, and a NeMo Gym model server is dead
after 401. Its code says which kind it is; the words by which clients of a protocol recognise that
kind are the dialect's.
"""

import reprlib
from typing import Any

from abut.rollout.rollout import StopReason

CONVERSATION_FULL = "conversation_full"
"""The code of a refusal because the conversation has used up its tokens; another one may go on."""
LIMIT_REACHED = "limit_reached"
"""The code of a refusal because of another limit: nothing of the rollout goes on."""


_MOST_SHOWN = 200
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _MOST_SHOWN
_SHORT.maxlevel = 2  # 6 values of each level


def short(value: Any) -> str:
    """Return the `repr` of a client's value, cut where it is long: it may be a whole body."""
    shown = _SHORT.repr(value)
    return shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}…"


class Refusal(Exception):
    """Why a request gets no answer.

    Attributes:
        param: the field of the request that is wrong, if it is one.
        code: its kind.
        status: of the HTTP answer.
        reason: the limit of the rollout that was reached, if any.
        tokens: where the conversation is full, its length with one token more.
        most_tokens: where the conversation is full, how long it may be.
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
    """Return the refusal of messages that the template does not write.

    A hint to use another template is left out, because a client cannot.
    """
    return Refusal(
        f"the chat template cannot write the messages: {said_to_client(error)}", param="messages"
    )


def no_turn_behind_answer(error: Exception) -> Refusal:
    """Return the refusal of a request that ends on an answer, where the template writes none."""
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
    """Return the refusal of a turn that the conversation has no room for; see `Refusal`."""
    return Refusal(
        why, code=CONVERSATION_FULL, reason=reason, tokens=tokens, most_tokens=most_tokens
    )


def limit_reached(why: str, *, reason: StopReason | None = None) -> Refusal:
    """Return the refusal of a request of a live rollout that may ask nothing any more."""
    return Refusal(why, code=LIMIT_REACHED, reason=reason)


def ended(why: str = "") -> Refusal:
    """Return the refusal of a request whose rollout has ended."""
    return Refusal("this rollout is over" + (f": {why}" if why else ""), code="rollout_over")


def not_answered(why: str) -> Refusal:
    """Return the refusal of a request that names no rollout."""
    return Refusal(
        f"the gateway did not answer a request that names no rollout: {why}", code="not_answered"
    )
