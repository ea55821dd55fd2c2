"""A call in a forked child process, on the main thread of that process.

Python lets only the main thread set signal handlers, so code that bounds itself with `signal.alarm`
fails on any other thread. `os.fork` makes the calling thread the main thread of the child, so the
same code runs there as in a separate program.

Invariant: the child has a copy of everything in the parent, and returns only the pickled result or
exception of the call. Other changes stay in the child. A killed child does not answer.
"""

import multiprocessing
import pickle
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

from abut.concurrency.process_turns import CallTurn
from abut.errors import text_of, trace_of

T = TypeVar("T")

_END_S = 1.0
"""How long a child may take to end after its answer."""


class ForkedCall(Generic[T]):
    """One call in its own child process.

    Args:
        call: runs in the child.
        turn: held during the fork, so that no other call forks then.
    """

    def __init__(self, call: Callable[[], T], turn: CallTurn) -> None:
        self._call, self._turn = call, turn
        self._process: Any = None
        self._is_killed = False

    def run(self) -> T:
        """Fork, and wait for the answer; blocks.

        Raises:
            CallGivenUp: the turn ended before the fork.
            RuntimeError: the child ended without an answer, or the answer cannot be pickled.
            BaseException: what the call raised, with its traceback as a note.
        """
        with self._turn.forking():
            answer = self._start()
        with answer:
            try:
                result, error = pickle.loads(answer.recv_bytes())
            except EOFError:
                self._process.join()
                code = self._process.exitcode
                raise RuntimeError(
                    f"its process ended without an answer: exit code {code}"
                ) from None
        self._process.join(_END_S)
        self.kill()
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]

    def kill(self) -> None:
        """End the child, if there is one; may be called on any thread."""
        self._is_killed = True
        if self._process is not None:
            self._process.kill()

    def _start(self) -> Connection:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe(duplex=False)
        with theirs:
            # Not daemonic: the call may start processes too.
            process = context.Process(target=_answer, args=(self._call, theirs))
            process.start()
        self._process = process
        if self._is_killed:  # meanwhile
            process.kill()
        return ours


def _answer(call: Callable[[], Any], to: Connection) -> None:
    result, error = None, None
    try:
        result = call()
    except BaseException as raised:  # passed to the caller that waits
        error = raised
        error.add_note(trace_of(error))  # a traceback is not pickled
    to.send_bytes(_pickled(result, error))


def _pickled(result: Any, error: BaseException | None) -> bytes:
    try:
        data = pickle.dumps((result, error))
        pickle.loads(data)  # some exceptions can be written, and not be read
    except Exception as why:
        what = f"{type(result).__name__}" if error is None else text_of(error)
        told = f"{what} cannot be pickled to be sent from its process: {text_of(why)}"
        return pickle.dumps((None, RuntimeError(told)))
    return data
