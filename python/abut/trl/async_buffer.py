"""The queue between a rollout worker and the trainer, on whose other end a loop waits for room."""

import asyncio
import queue
from typing import Any


class RolloutBuffer(queue.Queue[Any]):
    """First in, first out: what the trainer has taken is what was pushed first.

    The trainer calls `get`, on its own thread; `room` and `push` are for one loop.
    """

    def __init__(self, maxsize: int) -> None:
        """Args: `maxsize`: so many rows at the most; 0: any number."""
        super().__init__(maxsize)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._room: asyncio.Event | None = None

    def belongs_to(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Say which loop pushes; None: none does any more."""
        self._loop, self._room = loop, asyncio.Event()

    def push(self, row: Any) -> bool:
        """Put a row, if there is room for it."""
        assert self._room is not None
        self._room.clear()  # before: what is taken after a failing put sets it again
        try:
            self.put_nowait(row)
        except queue.Full:
            return False
        return True

    async def room(self) -> None:
        """Wait until something was taken since `push` failed, or `wake` was called."""
        assert self._room is not None
        await self._room.wait()

    def wake(self) -> None:
        """Have who waits for room look again; from any thread."""
        if self._loop is not None and self._room is not None:
            try:
                self._loop.call_soon_threadsafe(self._room.set)
            except RuntimeError:  # it is closed, and nobody waits
                self._loop = None

    def _get(self) -> Any:
        row = super()._get()
        self.wake()
        return row
