"""Objects that stay in their process: the error says what to send instead.

Invariant: pickling such an object, or copying it, raises a `TypeError` with the reason; never an
error of something deep inside of it.
"""

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

_C = TypeVar("_C", bound=type)


def stays(because: str, *, hint: str) -> Callable[[_C], _C]:
    """Class decorator: its objects are not pickled.

    Args:
        because: what they hold that another process cannot have.
        hint: what to send instead.
    """

    def refuse(self: Any) -> NoReturn:
        raise TypeError(f"{type(self).__name__} cannot be pickled: {because}\nhint: {hint}")

    def mark(cls: _C) -> _C:
        cls.__reduce__ = refuse  # type: ignore[method-assign, assignment]
        return cls

    return mark
