"""The environment of the row `environments`: the same class on a thread, on a server, in an actor.

What it says follows from its row and from the words it gets, so that a side on which one of them
was lost or changed on its way plays another game.
"""

import hashlib
import mmap
import time
from typing import Any, Self

STATE_BYTES = 1_000_000
"""What an environment keeps; outside of Python's heap, so that it is given back when it ends."""
REPLY_BYTES = 1_200
SESSIONS = "ABUT_BENCH_SESSIONS"
"""The environment variable that tells a server how many sessions it may have."""

_REPLY = " ".join(f"line {number} of what was found;" for number in range(64))


class FarEnv:
    """Answers each action, after a while of work where it is told so."""

    def __init__(self) -> None:
        self.alive = True
        self.reward = 0.0
        self._state = mmap.mmap(-1, STATE_BYTES)
        self._state.write(b"\1" * STATE_BYTES)  # memory that nobody has written is not there yet

    def reset(self, seed: str, number: int, turns: int, busy_s: float) -> tuple[Self, str]:
        """Begin an episode of so many turns; each step works for `busy_s` seconds of its thread."""
        self._number, self._turns, self._busy_s = number, turns, busy_s
        self._turn, self.alive, self.reward = 0, True, 0.0
        return self, "Begin."

    def step(self, action: str) -> tuple[Self, str]:
        """Say something that depends on the action; the reward does, too."""
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
        """Give the memory back."""
        self._state.close()


def columns(number: int, turns: int, busy_s: float) -> dict[str, Any]:
    """What `reset` asks for, as columns of a dataset's row."""
    return {"number": number, "turns": turns, "busy_s": busy_s}
