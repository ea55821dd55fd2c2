"""Environments that fail as planned, a sampler that says other words in each turn, and leaks."""

import asyncio
import ctypes
import gc
import os
import subprocess
import threading
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from abut.envs.task import RolloutTask
from abut.rollout.rollout import Rollout
from abut.samplers.sampler import Sample, SampleRequest
from tests.kit.stage.rollouts import Recording, Stage, check_exact

TURNS = 20
FAULTY = 0.3
BIG = " argument" * 1_111_112
RELEASED_S = 30.0

Calls = Sequence[tuple[SampleRequest, Sample]]


class Fault(NamedTuple):
    """What an environment does, and what its rollout says of it; None where it survives."""

    name: str
    error: str | None


HINT = "hint: return (self, text), or a list of messages"
FAULTS = (
    Fault("raises in the factory", "{env}() raised ValueError: boom"),
    Fault("raises in reset", "{env}.reset raised ValueError: boom"),
    Fault("raises in step", "{env}.step raised ValueError: boom"),
    Fault("raises in alive", "{env}.alive raised OSError: gone"),
    Fault("dies", "{env}.step raised SystemExit: 3"),
    Fault("hangs in reset", "{env}.reset did not answer within reset_timeout_s=6"),
    Fault("hangs in step", "{env}.step did not answer within step_timeout_s=6"),
    Fault(
        "returns no pair",
        "{env}.step must return (env, reply), got int: '42'\nhint: return (self, text)",
    ),
    Fault(
        "replies a number",
        f"{{env}}.step must reply with a str or a list of messages, got int: '42'\n{HINT}",
    ),
    Fault("gives a grade", "{env}.reward must be a number or None, got str: 'A+'"),
    Fault("gives NaN", None),
    Fault("gives None", None),
    Fault("replies 10 MB", None),
    Fault("raises in close", None),
    Fault("dies in close", None),
    Fault("hangs in close", None),
)


PROCESS_DIES = Fault(
    "its process dies", "{env}.step raised BrokenPipeError: [Errno 32] Broken pipe"
)
"""Only where there is `cat`."""


class Plan(NamedTuple):
    """What one rollout meets."""

    fault: Fault | None
    turns: int
    at: int
    """The turn at which it fails."""
    heals: bool
    """Whether the second attempt is free of it."""
    is_async: bool
    images: Sequence[Sequence[Any]] = ()
    """Those of the first message, of the reply to the first action, and so on."""

    @property
    def attempts(self) -> int:
        return 1 if self.fault is None or self.fault.error is None else 2

    @property
    def error(self) -> str | None:
        if self.fault is None or self.fault.error is None or self.heals:
            return None
        name = "AsyncFaulty" if self.is_async else "Faulty"
        return "EnvError: " + self.fault.error.format(env=name)

    @property
    def reward(self) -> float | None:
        """The reward after all turns: what is unscored in one turn may have a score in the next."""
        is_unscored = self.fault is not None and self.fault.name in ("gives NaN", "gives None")
        if self.error is not None or (is_unscored and self.at == self.turns):
            return None
        return float(self.turns)


def plans(
    seed: int,
    count: int,
    *,
    turns: int = TURNS,
    faults: Sequence[Fault] = FAULTS,
) -> list[Plan]:
    """The plans of a batch: `FAULTY` of them have one of the faults, the others none."""
    rng = np.random.default_rng(seed)
    faulty = set(rng.permutation(count)[: round(FAULTY * count)].tolist())
    # Ten megabytes take a part of a second to tokenize, and many tokens.
    weights = np.asarray([0.2 if fault.name == "replies 10 MB" else 1.0 for fault in faults])
    odds = weights / weights.sum()
    found = []
    for index in range(count):
        own_turns = int(rng.integers(1, turns + 1))
        fault = faults[int(rng.choice(len(faults), p=odds))] if index in faulty else None
        at = int(rng.integers(1, own_turns + 1))
        heals, is_async = bool(rng.integers(2)), bool(rng.integers(2))
        found.append(Plan(fault, own_turns, at, heals, is_async))
    return found


class Faulty:
    """Fails as its plan says; its words say whose they are, and of which attempt."""

    def __init__(self, world: "World", index: int) -> None:
        self.plan = world.plans[index]
        self.released = world.released
        self.attempt = world.attempts[index]
        self.fails = not (self.plan.heals and self.attempt)
        world.attempts[index] += 1
        self.name = f"rollout {index} attempt {self.attempt}"
        self.turn = 0
        self.reward: Any = 0.0
        self.process: subprocess.Popen[bytes] | None = None
        if self.does("raises in the factory"):
            raise ValueError("boom")

    def does(self, fault: str) -> bool:
        return self.fails and self.plan.fault is not None and self.plan.fault.name == fault

    def does_now(self, fault: str) -> bool:
        return self.turn == self.plan.at and self.does(fault)

    @property
    def alive(self) -> bool:
        if self.does_now("raises in alive"):
            raise OSError("gone")
        return self.turn < self.plan.turns

    def reset(self, seed: str) -> Any:
        self.wait_if(self.does("hangs in reset"))
        return self._reset()

    def step(self, action: str) -> Any:
        self.turn += 1
        self.wait_if(self.does_now("hangs in step"))
        return self._step(action)

    def close(self) -> None:
        self.wait_if(self.does("hangs in close"))
        self._close()

    def wait_if(self, hangs: bool) -> None:
        if hangs:
            self.released.wait(RELEASED_S)

    def _reset(self) -> Any:
        if self.does("raises in reset"):
            raise ValueError("boom")
        if self.plan.fault is PROCESS_DIES:
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(["cat"], bufsize=0, stdin=pipe, stdout=pipe)
        return self.say(f"{self.name} begins")

    def say(self, text: str) -> Any:
        """Reply with a text, and with the images that the plan has for this turn."""
        images = self.plan.images[self.turn] if self.turn < len(self.plan.images) else ()
        if not images:
            return self, text
        blocks = [{"type": "image", "image": image} for image in images]
        return self, [*blocks, {"type": "text", "text": text}]

    def _step(self, action: str) -> Any:
        if self.does_now("raises in step"):
            raise ValueError("boom")
        if self.does_now("dies"):
            raise SystemExit(3)
        if self.does_now("returns no pair"):
            return 42
        if self.does_now("replies a number"):
            return self, 42
        self.reward = float(self.turn)
        for fault, reward in (
            ("gives a grade", "A+"),
            ("gives NaN", float("nan")),
            ("gives None", None),
        ):
            if self.does_now(fault):
                self.reward = reward
        if self.process is not None:
            self.ask_process(self.process)
        big = BIG * self.does_now("replies 10 MB")
        return self.say(f"{self.name} heard {action} {big}")

    def ask_process(self, process: subprocess.Popen[bytes]) -> None:
        if self.does_now(PROCESS_DIES.name):
            process.kill()
            process.wait()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"ping\n")
        assert process.stdout.readline() == b"ping\n"

    def _close(self) -> None:
        if self.process is not None:
            with self.process:
                self.process.kill()
        if self.does("raises in close"):
            raise ValueError("boom")
        if self.does("dies in close"):
            raise SystemExit(3)


class AsyncFaulty(Faulty):
    """Its asynchronous twin; what hangs in it can be cancelled."""

    async def reset(self, seed: str) -> Any:  # type: ignore[override]
        await self.wait_async_if(self.does("hangs in reset"))
        return self._reset()

    async def step(self, action: str) -> Any:  # type: ignore[override]
        self.turn += 1
        await self.wait_async_if(self.does_now("hangs in step"))
        return self._step(action)

    async def close(self) -> None:  # type: ignore[override]
        await self.wait_async_if(self.does("hangs in close"))
        self._close()

    async def wait_async_if(self, hangs: bool) -> None:
        await asyncio.sleep(RELEASED_S if hangs else 0)


class World:
    """A batch: what each rollout meets, and how often it was begun."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        self.plans = plans
        self.attempts = [0] * len(plans)
        self.released = threading.Event()
        """Ends what hangs on threads, which nothing else can end."""

    def tasks(self) -> list[RolloutTask]:
        def factory(index: int) -> Any:
            cls = AsyncFaulty if self.plans[index].is_async else Faulty

            def make() -> Any:
                return cls(self, index)

            make.__name__ = cls.__name__
            return make

        return [RolloutTask(i, f"r{i}", factory(i), [], str(i), i) for i in range(len(self.plans))]


class Talkative(Recording):
    """Says other words in every turn of every attempt; every third turn is cut."""

    def __init__(self, stage: Stage) -> None:
        words = [stage.tokenizer.encode(word).tolist() for word in ("yes ", "no ", "so ", "go ")]

        def script(request: SampleRequest) -> list[int]:
            rng = np.random.default_rng(request.seed)
            spoken = [id for word in rng.integers(0, len(words), 6) for id in words[word]]
            return spoken if rng.integers(3) == 0 else [*spoken, stage.processor.close_token_id]

        super().__init__(script)

    def last_attempts(self) -> dict[str, list[tuple[SampleRequest, Sample]]]:
        found: dict[str, list[tuple[SampleRequest, Sample]]] = defaultdict(list)
        for request, sample in self.calls:
            if request.turn == 0:
                found[request.rollout_id].clear()
            found[request.rollout_id].append((request, sample))
        return found


def check_survivor(stage: Stage, hf_tokenizer: Any, rollout: Rollout, calls: Calls) -> None:
    """Its row is its last attempt: to the sampler, to the environment and to the template."""
    check_exact(rollout.columns, calls)
    text = stage.row_text(rollout)
    spoken = max(i for i, message in enumerate(rollout.messages) if message["role"] == "assistant")
    rendered = hf_tokenizer.apply_chat_template(rollout.messages[: spoken + 1], tokenize=False)
    assert rendered.removesuffix("\n").removesuffix("<|im_end|>") == text.removesuffix("<|im_end|>")
    check_heard(rollout)


def check_heard(rollout: Rollout) -> None:
    """Each reply is to the action before it, of this rollout and of its last attempt."""
    heard = [text_of(message) for message in rollout.messages if message["role"] == "user"]
    name = f"rollout {rollout.index} attempt {rollout.attempts - 1}"
    assert heard[0] == f"{name} begins"
    said = [text_of(message) for message in rollout.messages if message["role"] == "assistant"]
    for answer, reply in zip(said, heard[1:], strict=False):
        assert reply.startswith(f"{name} heard {answer}")


def text_of(message: Any) -> str:
    """The text of a message, without its images."""
    content = message["content"]
    if isinstance(content, str):
        return content
    return "".join(block["text"] for block in content if block["type"] == "text")


def open_files() -> list[str]:
    """The files and sockets that something still holds, without those that are only uncollected.

    Empty where the system does not say: macOS and Windows have no /proc.
    """
    gc.collect()
    folder = Path("/proc/self/fd")
    links = [os.path.realpath(link) for link in folder.iterdir()] if folder.is_dir() else []
    return sorted(link for link in links if not link.startswith("/proc/"))  # the folder itself


def open_sockets() -> set[str]:
    """Those of them that are sockets."""
    return {link for link in open_files() if "socket:" in link}


def child_processes() -> set[int]:
    """The children of this process, ended ones that nobody has waited for included."""
    found = Path("/proc/self/task").glob("*/children")
    return {int(pid) for file in found for pid in file.read_text(encoding="ascii").split()}


def resident_bytes() -> int:
    """What the process holds; its allocator too, but for what `make test-soak` has it let go."""
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
