"""What an actor is, whatever plays in it."""

import errno
import pickle
from typing import Any

from abut.errors import text_of

_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class ActorHost:
    """Base of actors' classes: Ray has a thread for each slot, and one for what is of no slot.

    Args:
        pickled: what the pool was made with.
    """

    def __init__(self, pickled: bytes) -> None:
        self._pickled = pickled
        self.made: Any = None
        """It, once this has begun."""

    def begin(self) -> str | None:
        """Unpickle it; returns what is wrong with that, None for nothing."""
        try:
            self.made = pickle.loads(self._pickled)
        except BaseException as error:  # the user's modules are imported
            return text_of(error)
        return None


def is_exhausted(error: BaseException) -> bool:
    """Whether a process that has run out of memory, files or threads is behind an error."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError) or "can't start new thread" in str(cause):
            return True
        if isinstance(cause, OSError) and cause.errno in _EXHAUSTED:
            return True
        cause = cause.__cause__
    return False
