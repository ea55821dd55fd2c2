"""Agents that keep resources open between batches, and are closed when their gateway stops.

Invariant: an agent is closed on the loop on which it played, once for each loop; an agent whose
`close` fails or hangs does not keep the process alive.
"""

import atexit
import concurrent.futures.thread  # noqa: F401  see `_close_all`
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from typing import NamedTuple

from abut.agents.protocol import ClosingAgent
from abut.concurrency.loop_watch import WatchedLoop
from abut.concurrency.threads import THREADS
from abut.errors import text_of

logger = logging.getLogger(__name__)

CLOSE_S = 10.0
"""How long agents may take to close; tool servers are processes, which take a while to end."""
_PAUSE_S = 2.0


class _OpenAgent(NamedTuple):
    """An agent, and the loop on which it plays; the reference keeps the loop alive."""

    agent: ClosingAgent
    name: str
    loop: WatchedLoop


class OpenAgents:
    """The agents of one gateway that have an `async close()`; used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[int, _OpenAgent] = {}

    async def use(self, agent: ClosingAgent, name: str, loop: WatchedLoop) -> None:
        """Have an agent closed when the gateway stops, on this loop.

        If it has played on another loop, such as that of another engine, it is closed there first,
        because resources of one loop cannot be used on another.
        """
        with self._lock:
            before = self._open.get(id(agent))
            self._open[id(agent)] = _OpenAgent(agent, name, loop)
        _OPEN.setdefault(self, os.getpid())
        if before is not None and before.loop is not loop:
            await THREADS.ask(lambda: _close([before]))

    def close(self) -> None:
        """Close all agents, and wait for them, at most `CLOSE_S`; log failures."""
        with self._lock:
            found, self._open = [*self._open.values()], {}
        _OPEN.pop(self, None)
        _close(found)


def _close(agents: list[_OpenAgent]) -> None:
    paused: list[WatchedLoop] = []
    closed: dict[Future[None], _OpenAgent] = {}
    for one in agents:
        if one.loop.open():
            paused.append(one.loop)
        closed[one.loop.submit_call(type(one.agent), f"{one.name}.close", one.agent.close)] = one
    wait_for(closed, CLOSE_S)
    for future, one in closed.items():
        if not future.done():
            logger.warning("%s.close did not return within %g s", one.name, CLOSE_S)
        elif (error := future.exception()) is not None:
            logger.warning("%s.close failed: %s", one.name, text_of(error))
    for loop in paused:  # a loop that still runs during interpreter shutdown may crash
        loop.close(_PAUSE_S)


_OPEN: dict[OpenAgents, int] = {}
"""The gateways with open agents, and the process that opened them; a fork has no loops."""


def _close_all() -> None:
    """Close all agents when the process ends, while it can still start threads.

    `atexit` is too late: by then Python refuses new threads, and its thread pools, which
    `asyncio.to_thread` uses, take no more calls. So this uses the thread pools' own hook. Hooks run
    in reverse order of registration, so their module is imported above.

    Python 3.12.0 and 3.12.1 refuse threads even there, which 3.12.2 corrected. An error here would
    keep the thread pools from being closed.
    """
    for open_, process in list(_OPEN.items()):
        if process == os.getpid():
            try:
                open_.close()
            except RuntimeError as error:
                logger.warning(
                    "agents were not closed: %s\nhint: stop the gateway before the program ends",
                    error,
                )


_at_exit: Callable[[Callable[[], None]], object] = getattr(
    threading, "_register_atexit", atexit.register
)
_at_exit(_close_all)
