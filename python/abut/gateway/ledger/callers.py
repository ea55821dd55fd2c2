"""The parts of an agent that send requests, distinguished by name and session.

Invariant: within a rollout, all calls of a name are trained, or none of them is.
"""

import hashlib
from typing import NamedTuple

from abut.gateway.ledger.agent_call import AgentRequest
from abut.gateway.ledger.refusal import Refusal

_MOST_SESSION = 200


class Caller(NamedTuple):
    """A part of an agent that sends requests. Calls of two callers are never one conversation."""

    name: str | None = None
    session: str | None = None
    train: bool = True
    """False: its calls are not trained."""

    def digest(self, digest: bytes) -> bytes:
        """Return the digest of a request, different for each caller."""
        if self == NOBODY:
            return digest
        return hashlib.blake2b(repr(tuple(self)).encode() + digest).digest()


NOBODY = Caller()


class Callers:
    """The callers of one rollout.

    Args:
        session_header: the label that names the session of a request; None: requests have no
            sessions.

    Attributes:
        asked_by: the names and sessions of all requests, including refused ones.
    """

    def __init__(self, session_header: str | None = None) -> None:
        self.asked_by: set[str] = set()
        self._session_header = session_header
        self._trained: dict[str, bool] = {}

    def of(self, request: AgentRequest) -> Caller:
        """Return the caller of a request."""
        header = self._session_header
        session = None if header is None else request.labels.get(header)
        return Caller(request.name, session, request.train)

    def note(self, caller: Caller) -> None:
        """Note the caller of a request.

        Raises:
            Refusal: its name has calls that are trained and others that are not, or its session is
                too long.
        """
        if len(caller.session or "") > _MOST_SESSION:
            raise Refusal(
                f"{self._session_header} must have at most {_MOST_SESSION} characters",
                code="wrong_session",
            )
        self.asked_by.update(filter(None, (caller.name, caller.session)))
        name = caller.name
        if name is not None and self._trained.setdefault(name, caller.train) != caller.train:
            raise Refusal(
                f"the name {name!r} is used both with train=True and with train=False\n"
                "hint: give the calls that must not be trained another name",
                code="wrong_name",
            )
