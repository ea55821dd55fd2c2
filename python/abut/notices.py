"""Warnings that are logged once, even if their cause repeats."""

import logging
from collections.abc import Hashable


class Once:
    """Logs the first warning of each kind; may be used from any thread.

    Args:
        logger: gets the warnings.
        most: how many kinds are logged at most. Set it where strangers choose the kinds, such as
            the clients of a server by the names of their fields.
    """

    def __init__(self, logger: logging.Logger, *, most: int | None = None) -> None:
        self._logger = logger
        self._most = most
        self._kinds: dict[Hashable, object] = {}

    def __contains__(self, kind: Hashable) -> bool:
        """Return whether a warning of this kind came before."""
        return kind in self._kinds

    def is_first(self, kind: Hashable) -> bool:
        """Return True the first time that this kind comes, and never again."""
        if self._most is not None and len(self._kinds) >= self._most:
            return False
        # `setdefault` is one step for all threads. A lock could be held by another thread when this
        # process forks, and the child would wait for it for ever.
        mark = object()
        return self._kinds.setdefault(kind, mark) is mark

    def warn(self, kind: Hashable, message: str, *args: object) -> None:
        """Log a warning, unless one of its kind came before."""
        if self.is_first(kind):
            self._logger.warning(message, *args)
