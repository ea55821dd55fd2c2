"""The name and the session of a request, in its address and its headers."""

from collections.abc import Iterable
from typing import NamedTuple

from aiohttp import web

from abut.agents.protocol import NAME_HINT, is_name
from abut.gateway.ledger.refusal import Refusal

NAME_HEADER = "x-abut-name"
NAMED = "/r/{id}/as/{name}{untrained:(?:/untrained)?}"
"""A rollout's address with a name, as `Endpoint.named` writes it."""


class AskingPart(NamedTuple):
    """The part of an agent that asks; as in `AgentRequest`."""

    name: str | None
    train: bool
    labels: dict[str, str]


def part_of(request: web.Request, session_headers: Iterable[str]) -> AskingPart:
    """Return the part of the agent that asks.

    The address says more than the header `x-abut-name`, which cannot say that its calls are not
    trained.

    Raises:
        Refusal: the name or a session is not one.
    """
    name = request.match_info.get("name") or header_of(request, NAME_HEADER)
    if name is not None and not is_name(name):
        raise Refusal(f"{name[:200]!r} is not a name\nhint: {NAME_HINT}", code="wrong_name")
    labels = {}
    for header in session_headers:
        if session := header_of(request, header):
            if not (session.isascii() and session.isprintable()):
                raise Refusal(f"{header} must be printable ASCII", code="wrong_session")
            labels[header] = session
    return AskingPart(name, not request.match_info.get("untrained"), labels)


def header_of(request: web.Request, name: str) -> str | None:
    """Return the value of a header; one that is there more often is a list, as in HTTP."""
    values = request.headers.getall(name, [])
    return ", ".join(values) if values else None
