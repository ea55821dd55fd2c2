"""The queue between a rollout worker and its trainer.

Invariant: a failed push is tried again as soon as a row was taken.
"""

import asyncio
import queue
from typing import Any


class RolloutBuffer(queue.Queue[Any]):
    """The queue between a rollout worker and the trainer: first in, first out.

    The trainer calls `get`, on its own thread; `room` and `push` are for one loop.
    """

    def __init__(self, maxsize: int) -> None:
        """Make a buffer for at most `maxsize` rows; 0 means no limit."""
        super().__init__(maxsize)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._room: asyncio.Event | None = None

    def set_loop(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Set the loop that pushes; None after the last push."""
        self._loop, self._room = loop, asyncio.Event()

    def push(self, row: Any) -> bool:
        """Put a row, if there is room for it."""
        assert self._room is not None
        self._room.clear()  # first: a row that is taken after the put has failed sets it again
        try:
            self.put_nowait(row)
        except queue.Full:
            return False
        return True

    async def room(self) -> None:
        """Wait until a row was taken since `push` failed, or `wake` was called."""
        assert self._room is not None
        await self._room.wait()

    def wake(self) -> None:
        """Make the loop that waits for room try again; may be called on any thread."""
        if self._loop is not None and self._room is not None:
            try:
                self._loop.call_soon_threadsafe(self._room.set)
            except RuntimeError:  # the loop is closed, so no push waits
                self._loop = None

    def _get(self) -> Any:
        row = super()._get()
        self.wake()
        return row
