"""The threads of environments that pools lend.

Invariant: an environment has one thread as long as it lives, whoever plays with it.
"""

import os
import sys
import weakref
from typing import Any

from abut.concurrency.threads import THREADS, CallQueue
from abut.errors import EnvError

_THREADS: dict[int, CallQueue] = {}
if sys.platform != "win32":
    os.register_at_fork(after_in_child=_THREADS.clear)  # a forked child has none of them


def thread_of(env: Any) -> CallQueue:
    """The thread of an environment, which ends with it.

    Raises:
        EnvError: nobody could tell when it ends.
    """
    if (thread := _THREADS.get(id(env))) is not None:
        return thread
    thread = THREADS.call_queue()
    try:
        weakref.finalize(env, _forget, id(env)).atexit = False
    except TypeError as error:
        thread.give_back()
        raise EnvError(
            f"a pool lent a {type(env).__name__} that cannot be weakly referenced\n"
            'hint: add "__weakref__" to its __slots__'
        ) from error
    _THREADS[id(env)] = thread
    return thread


def _forget(address: int) -> None:
    if (thread := _THREADS.pop(address, None)) is not None:
        thread.give_back()
