"""Fields of a body: each is read, or refused by its name."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from abut.gateway.ledger.refusal import Refusal

Unenforced: TypeAlias = Literal["refuse", "accept"]
"""How a request for a form of the answer is taken: it is refused, or sampled freely."""

_MOST_STOPS = 16
_MOST_STOP_CHARS = 1024
_MOST_TOOLS = 512


def flag(body: Mapping[str, Any], name: str) -> bool:
    """Return a field that is true or false; False if it is missing."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise Refusal(f"{name}={value!r}: must be true or false", param=name)
    return bool(value)


def object_at(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a field that is an object; an empty one if it is missing."""
    value = body.get(name)
    if value is not None and not isinstance(value, dict):
        raise Refusal(f"{name} must be an object", param=name)
    return value or {}


def list_at(body: Mapping[str, Any], name: str) -> list[Any]:
    """Return a field that is a list; an empty one if it is missing."""
    value = body.get(name)
    if value is not None and not isinstance(value, list):
        raise Refusal(f"{name} must be a list", param=name)
    return value or []


def text_at(body: Mapping[str, Any], name: str) -> str | None:
    """Return a field that is a text; None if it is missing."""
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise Refusal(f"{name} must be a text", param=name)
    return value


def most_tokens(body: Mapping[str, Any], *names: str) -> int | None:
    """Return the least of the limits of a turn's tokens; None if there is none."""
    given = []
    for name in names:
        value = body.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise Refusal(f"{name}={value!r}: must be 1 or more", param=name)
        given.append(value)
    return min(given, default=None)


def stops(body: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Return the strings that end a turn."""
    stop = body.get(name)
    given = [stop] if isinstance(stop, str) else [] if stop is None else stop
    if (
        not isinstance(given, list)
        or len(given) > _MOST_STOPS
        or not all(isinstance(one, str) and 0 < len(one) <= _MOST_STOP_CHARS for one in given)
    ):
        raise Refusal(
            f"{name} must be a text or at most {_MOST_STOPS} texts, of 1 to {_MOST_STOP_CHARS} "
            "characters",
            param=name,
        )
    return tuple(dict.fromkeys(given))


def check_tools(tools: Sequence[Any]) -> None:
    """Refuse more tools than a prompt may show."""
    if len(tools) > _MOST_TOOLS:
        raise Refusal(f"{len(tools)} tools: at most {_MOST_TOOLS}", param="tools")


def check_form(name: str, unenforced: Unenforced) -> None:
    """Refuse a request for a form of the answer, unless it may be sampled freely.

    Args:
        name: of the field that asks for it.
        unenforced: "refuse" or "accept".
    """
    if unenforced != "accept":
        raise Refusal(
            f"{name} is not enforced: a sample that is forced into a form is not the policy's "
            "own, and could not be trained\n"
            "hint: Gateway(unenforced='accept') samples freely where it is asked for",
            param=name,
        )
