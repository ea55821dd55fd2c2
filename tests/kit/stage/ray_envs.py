"""Environments that are played in actors, where they fail in every way; importable on each node."""

import asyncio
import fcntl
import os
import resource
import threading
import time
import uuid
from pathlib import Path
from typing import Any


class Far:
    """Ends after `turns` actions. What an action begins with is done: `die`, `exit`, `raise`, …

    Attributes:
        held: what of the process would be used up, were it not closed.
    """

    turns = 3

    def __init__(self) -> None:
        self.reward: Any = 0.0
        self.alive = True
        self.count = 0
        self.local = threading.local()
        self.local.thread = threading.get_ident()

    def reset(self, seed: str) -> Any:
        return self, f"{seed}: go on"

    def step(self, action: str) -> Any:
        made_on = getattr(self.local, "thread", "another, or what that thread kept is lost")
        assert made_on == threading.get_ident()
        self.count += 1
        self.reward = self.count / self.turns
        self.alive = self.count < self.turns
        word, _, rest = action.partition(" ")
        said = getattr(self, f"do_{word}", lambda _: action)(rest)
        return self, f"{self.count} {said}"

    def do_pid(self, rest: str) -> int:
        return os.getpid()

    def do_node(self, rest: str) -> str:
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def do_raise(self, rest: str) -> None:
        raise KeyError(rest)

    def do_interrupt(self, rest: str) -> None:
        raise KeyboardInterrupt

    def do_exit(self, rest: str) -> None:
        raise SystemExit(3)

    def do_die(self, rest: str) -> None:
        os._exit(3)

    def do_leak(self, rest: str) -> None:
        raise MemoryError("none left")

    def do_wait(self, path: str) -> str:
        """Until there is a file."""
        while not Path(path).exists():
            time.sleep(0.01)
        return "waited"

    def do_extras(self, word: str) -> None:
        self.extras = {"word": word, "count": self.count}

    def do_nan(self, rest: str) -> None:
        self.reward = float("nan")

    def do_env(self, name: str) -> str:
        return os.environ.get(name, "")


class Endless(Far):
    """Goes on as long as anybody asks."""

    turns = 10**9


class FarAsync(Far):
    """The asynchronous twin; all of a process share a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = ""

    async def reset(self, seed: str) -> Any:
        await asyncio.sleep(0)
        self.local.thread = threading.get_ident()
        return super().reset(seed)

    async def step(self, action: str) -> Any:
        await asyncio.sleep(0)
        return super().step(action)

    async def close(self) -> None:
        await asyncio.sleep(0)


class Columns(Far):
    """Asks for a column."""

    def reset(self, seed: str, question: str, episode_seed: int) -> Any:  # type: ignore[override]
        return self, f"{question} {episode_seed}"


class Odd(Far):
    """Says what cannot be sent, or what cannot be read where it comes to."""

    def step(self, action: str) -> Any:
        _, reply = super().step(action)
        odd = {"unsent": _Unsent, "unread": _Unread}.get(action, str)
        return self, odd(reply)


class _Unsent(str):
    """Cannot be pickled."""

    def __reduce__(self) -> Any:
        raise TypeError("it has a lock")


class _Unread(str):
    """To read it is to open a file that is not there."""

    def __reduce__(self) -> Any:
        return open, ("/not/there",)


class Scores(Far):
    """Wants the whole episode."""

    def score_episode(self, messages: list[Any]) -> None:
        self.reward = float(len(messages))


class Closes(Far):
    """Writes a line when it is closed."""

    path = os.environ.get("FAR_LOG", "")

    def close(self) -> None:
        write_line(self.path, f"closed {self.count}")


def write_line(path: str, line: str) -> None:
    """Whole, whoever else writes."""
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(line + "\n")


LEAKED: list[bytearray] = []


class Logged(Far):
    """Writes each step down, and does once what a file in its folder asks for.

    Attributes:
        folder: of the files, and of the log.
    """

    folder = os.environ.get("FAR_FOLDER", "")

    def __init__(self) -> None:
        super().__init__()
        self.id = uuid.uuid4().hex

    def step(self, action: str) -> Any:
        self.count += 1
        self.reward = self.count / self.turns
        self.alive = self.count < self.turns
        write_line(f"{self.folder}/steps", f"{self.id} {self.count}")
        if self._takes("hang"):
            threading.Event().wait()
        if self._takes("leak"):
            grown = Path("/proc/self/statm").read_text().split()[0]
            limit = int(grown) * resource.getpagesize() + 200 * 2**20
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            while True:
                LEAKED.append(bytearray(2**20))
        return self, f"{self.id} {self.count}"

    def _takes(self, what: str) -> bool:
        try:
            os.unlink(f"{self.folder}/{what}")
        except FileNotFoundError:
            return False
        return True
