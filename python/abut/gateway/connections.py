"""Connections that one rollout alone has used, which are closed with it.

Clients are often made for one rollout and never closed: each would keep two files of this process
open until the garbage collector finds it. What is closed here is one of the two.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Protocol

_LOOKED_THROUGH = 256
_LAST_WORDS_S = 1.0


class Connection(Protocol):
    """What serves the requests of one connection."""

    transport: Any
    """None when it is closed."""

    def close(self) -> None:
        """Take no more requests."""
        ...


class Connections:
    """Those of one server, on its loop."""

    def __init__(self) -> None:
        self._used_by: dict[Connection, str | None] = {}
        """The only rollout that has used it; None where there were several."""
        self._of: defaultdict[str, set[Connection]] = defaultdict(set)
        self._look_at = _LOOKED_THROUGH

    def note(self, connection: Connection, rollout_id: str) -> None:
        """Note that a rollout uses a connection."""
        before = self._used_by.setdefault(connection, rollout_id)
        if before == rollout_id:
            self._of[rollout_id].add(connection)
        elif before is not None:
            self._used_by[connection] = None
            self._of[before].discard(connection)
        if len(self._used_by) >= self._look_at:
            self._forget_closed()

    def end(self, rollout_id: str) -> None:
        """Close those that nobody else has used, when what is still said there is said."""
        of = self._of.pop(rollout_id, set())
        for connection in of:
            del self._used_by[connection]
            connection.close()
        if of:
            # One that waited for a request has ended with its socket open.
            asyncio.get_running_loop().call_later(_LAST_WORDS_S, _close_all, of)

    def _forget_closed(self) -> None:
        for connection, rollout_id in list(self._used_by.items()):
            if connection.transport is None:
                del self._used_by[connection]
                if rollout_id is not None:
                    self._of[rollout_id].discard(connection)
        self._look_at = max(_LOOKED_THROUGH, 2 * len(self._used_by))


def _close_all(connections: Iterable[Connection]) -> None:
    for connection in connections:
        if connection.transport is not None:
            connection.transport.close()
