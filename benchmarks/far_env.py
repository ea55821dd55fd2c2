"""The environment of the row `environments`: one class for threads, servers and actors.

Its replies depend on its row and on the actions, so that a side which loses or changes one of them
gets different rollouts.
"""

import hashlib
import mmap
import time
from typing import Any, Self

STATE_BYTES = 1_000_000
"""Memory of an environment, outside Python's heap, so that `close` really frees it."""
REPLY_BYTES = 1_200
SESSIONS = "ABUT_BENCH_SESSIONS"
"""The environment variable with a server's largest number of sessions."""

_REPLY = " ".join(f"line {number} of what was found;" for number in range(64))


class FarEnv:
    """Answers each action, after some work if the row says so."""

    def __init__(self) -> None:
        self.alive = True
        self.reward = 0.0
        self._state = mmap.mmap(-1, STATE_BYTES)
        self._state.write(b"\1" * STATE_BYTES)  # memory is allocated when it is written

    def reset(self, seed: str, number: int, turns: int, busy_s: float) -> tuple[Self, str]:
        """Begin an episode of `turns` turns; each step works for `busy_s` CPU seconds."""
        self._number, self._turns, self._busy_s = number, turns, busy_s
        self._turn, self.alive, self.reward = 0, True, 0.0
        return self, "Begin."

    def step(self, action: str) -> tuple[Self, str]:
        """Return a reply that depends on the action; the reward does too."""
        until = time.thread_time() + self._busy_s
        while time.thread_time() < until:
            pass
        self._turn += 1
        self.alive = self._turn < self._turns
        heard = f"{self._number} {self._turn} {action}".encode()
        digest = hashlib.blake2b(heard, digest_size=8).digest()
        self.reward = int.from_bytes(digest[:4]) / 2**32
        return self, f"{digest.hex()}: {_REPLY}"[:REPLY_BYTES]

    def close(self) -> None:
        """Free the memory."""
        self._state.close()


def columns(number: int, turns: int, busy_s: float) -> dict[str, Any]:
    """Return the arguments of `reset` as columns of a dataset's row."""
    return {"number": number, "turns": turns, "busy_s": busy_s}
