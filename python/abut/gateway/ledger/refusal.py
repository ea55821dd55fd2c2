"""What the gateway refuses, in the form that OpenAI's clients read.

Invariant: a refusal says why, and its status is 400, but for a route that is none. Clients ask
again without end after 429 and 503, and a NeMo Gym model server is dead after 401.
"""

from typing import Any

from abut.rollout.rollout import StopReason

# What agents and SDKs look for, to end well where there is no more room.
_OVER = "context_length_exceeded"


class Refusal(Exception):
    """Why a request gets no answer.

    Attributes:
        status: of HTTP.
        param: the field of the request that is meant.
        code: what clients tell it by.
        reason: the limit of the rollout that it is about, if any.
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

    @property
    def body(self) -> dict[str, Any]:
        """As OpenAI writes errors."""
        kind = "not_found_error" if self.status == 404 else "invalid_request_error"
        return {
            "error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        }


def unwritten(error: Exception) -> Refusal:
    """The template does not write the messages of a request.

    A hint to use another template is left out: a client cannot.
    """
    return Refusal(f"the messages cannot be written: {said_to_client(error)}", param="messages")


def said_to_client(error: Exception) -> str:
    """Return what an error says, with no hint that only the owner of the gateway can follow."""
    why, _, hint = str(error).partition("\nhint: ")
    hint = hint.partition(", or pass another")[0]
    return f"{why}\nhint: {hint}" if hint and "ChatTemplateProcessor" not in hint else why


def over(why: str, *, reason: StopReason | None = None) -> Refusal:
    """There is no more for this rollout: what SDKs take for the end of the context."""
    text = f"This rollout is at its maximum context length: {why}"
    return Refusal(text, code=_OVER, reason=reason)


def ended(why: str = "") -> Refusal:
    """The rollout is over: nothing is wrong with its context, and nothing will be answered."""
    return Refusal("this rollout is over" + (f": {why}" if why else ""), code="rollout_over")
