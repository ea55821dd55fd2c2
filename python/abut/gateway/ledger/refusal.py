"""Refusals: why a request gets no answer.

Invariant: a refusal says why, and its status is 400, except for an unknown route and a failure of
the gateway itself. Clients retry without end after 429 and 503, and a NeMo Gym model server is dead
after 401.
"""

from abut.rollout.rollout import StopReason

# Agents and SDKs end well on this code, as when a model's context is full.
_OVER = "context_length_exceeded"


class Refusal(Exception):
    """Why a request gets no answer.

    Attributes:
        param: the field of the request that is wrong, if it is one.
        code: by which clients recognise it.
        status: of the HTTP answer.
        reason: the limit of the rollout that was reached, if any.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
        reason: StopReason | None = None,
    ) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
        self.status = status
        self.reason = reason


def unwritten(error: Exception) -> Refusal:
    """Return the refusal of messages that the template does not write.

    A hint to use another template is left out, because a client cannot.
    """
    return Refusal(f"the messages cannot be written: {said_to_client(error)}", param="messages")


def said_to_client(error: Exception) -> str:
    """Return an error's message without hints that only the owner of the gateway can follow."""
    why, _, hint = str(error).partition("\nhint: ")
    hint = hint.partition(", or pass another")[0]
    return f"{why}\nhint: {hint}" if hint and "ChatTemplateProcessor" not in hint else why


def context_full(why: str, *, reason: StopReason | None = None) -> Refusal:
    """Return a refusal that SDKs take for a full context, so agents end as they would there."""
    text = f"This rollout is at its maximum context length: {why}"
    return Refusal(text, code=_OVER, reason=reason)


def ended(why: str = "") -> Refusal:
    """Return the refusal of a request whose rollout has ended."""
    return Refusal("this rollout is over" + (f": {why}" if why else ""), code="rollout_over")


def not_answered(why: str) -> Refusal:
    """Return the refusal of a request that names no rollout."""
    return Refusal(f"a request that names no rollout is not answered: {why}", code="not_answered")
