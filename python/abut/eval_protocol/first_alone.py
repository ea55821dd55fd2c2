"""The first call of somebody's code by itself, and then all at once.

Such code imports when it is first called, in a factory or in a test's body. From 64 threads at once
that goes wrong inside of CPython and of packages that import lazily: `SystemError: AST constructor
recursion depth mismatch`, or names that a module does not have yet.

Invariant: nobody waits longer than `FIRST_S` for the first one.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

FIRST_S = 30.0


class FirstAlone:
    """Lets one through, and the others when that one is."""

    def __init__(self) -> None:
        self._is_through: asyncio.Event | None = None

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Hold the turn; all on one loop."""
        if self._is_through is not None:
            if not self._is_through.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._is_through.wait(), FIRST_S)
            yield
            return
        self._is_through = asyncio.Event()
        try:
            yield
        finally:
            self._is_through.set()
