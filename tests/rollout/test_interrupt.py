"""Ctrl-C ends a batch, whatever it waits for and for how long, and leaves nothing behind."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest

from abut.envs.task import RolloutTask
from abut.rollout import env_loops
from abut.samplers.sampler import Sample, SampleRequest
from tests.kit.checkout import ROOT
from tests.kit.servers.fake_server import FakeServer, hang, status
from tests.kit.stage.rollouts import (
    Batched,
    Recording,
    Stage,
    Talk,
    asynced,
    env,
    eventually,
    own_threads,
)

pytestmark = pytest.mark.skipif(os.name == "nt", reason="no SIGINT to a process of one's own")


HANGS_S = 3600
BUSY = status(503, Retry_After=str(HANGS_S))


def interrupt(stage: Stage, sampler: Any, envs: Any, is_there: Callable[[], Any]) -> None:
    """Play until it is there, and press Ctrl-C. What hangs outlasts the time that a test has."""

    def press() -> None:
        if eventually(lambda: bool(is_there())):
            os.kill(os.getpid(), signal.SIGINT)

    if isinstance(envs, list):
        tasks = stage.tasks(envs)
    else:
        tasks = [RolloutTask(i, f"r{i}", envs, [], "seed", 0) for i in range(2)]
    threading.Thread(target=press, daemon=True).start()
    with pytest.MonkeyPatch.context() as patch:
        # A batch that has waited for what closes ends by itself, maybe before the Ctrl-C comes.
        patch.setattr(env_loops, "_CLOSE_S", HANGS_S)
        with pytest.raises(KeyboardInterrupt):
            stage.engine(sampler, max_rollouts=4).run(tasks)


class Hanging:
    """A method that hangs until the test is over; one async thing can be cancelled."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.release = threading.Event()

    def sync(self, *_: Any) -> Any:
        self.begun.set()
        # Not in one go: a Ctrl-C just before a wait is seen when that ends.
        while not self.release.wait(0.1):
            pass
        raise OSError("released")

    async def a_sync(self, *_: Any) -> Any:
        self.begun.set()
        await asyncio.sleep(HANGS_S)


def counted() -> Any:
    """Environments of which is known how many were made, and closed."""

    class Counted(Talk):
        made: ClassVar[list[Any]] = []
        closed: ClassVar[list[Any]] = []

        def __init__(self) -> None:
            super().__init__()
            self.made.append(self)

        def close(self) -> None:
            self.closed.append(self)

    return Counted


@pytest.fixture
def hanging() -> Any:
    hanging = Hanging()
    yield hanging
    hanging.release.set()
    assert eventually(lambda: not own_threads()), own_threads()


@pytest.mark.parametrize("method", ["reset", "step", "close"])
def test_in_an_environment(stage: Stage, hanging: Hanging, method: str) -> None:
    envs = [env(**{method: lambda self, *_: hanging.sync()})] * 4
    interrupt(stage, Recording(stage.says()), envs, hanging.begun.is_set)


@pytest.mark.parametrize("method", ["reset", "step", "close"])
def test_in_an_asynchronous_environment(stage: Stage, hanging: Hanging, method: str) -> None:
    async def call(self: Any, *_: Any) -> Any:
        return await hanging.a_sync()

    envs = [env(asynced(Talk), **{method: call})] * 4
    interrupt(stage, Recording(stage.says()), envs, hanging.begun.is_set)
    assert eventually(lambda: not own_threads()), own_threads()


def test_in_an_environment_that_blocks_the_loop_of_all(stage: Stage, hanging: Hanging) -> None:
    async def step(self: Any, action: str) -> Any:
        hanging.sync()

    envs = [env(asynced(Talk), step=step)] * 4
    interrupt(stage, Recording(stage.says()), envs, hanging.begun.is_set)


def test_in_line_for_an_environment(stage: Stage, hanging: Hanging) -> None:
    class Empty:
        async def lend(self, task: RolloutTask) -> Any:
            return await hanging.a_sync()

    interrupt(stage, Recording(stage.says()), Empty(), hanging.begun.is_set)
    assert eventually(lambda: not own_threads()), own_threads()


def test_in_a_model_of_this_process(stage: Stage, hanging: Hanging) -> None:
    class Slow(Batched):
        def sample_batch(self, requests: Sequence[SampleRequest]) -> list[Sample]:
            return hanging.sync()  # type: ignore[no-any-return]

    cls = counted()
    interrupt(stage, Slow(stage.says()), [cls] * 4, hanging.begun.is_set)
    assert eventually(lambda: len(cls.closed) == len(cls.made) > 0)


@pytest.mark.parametrize("fault", [hang, BUSY], ids=["sample", "retry"])
def test_while_a_server_is_waited_for(stage: Stage, fault: Any) -> None:
    vllm = pytest.importorskip("abut.samplers.vllm")
    cls = counted()
    with FakeServer([fault] * 400) as server:
        sampler = vllm.VLLMServerSampler(server.url)
        interrupt(stage, sampler, [cls] * 4, lambda: len(server.requests) >= 1)
        assert eventually(lambda: server.hanging == 0)
    assert eventually(lambda: not own_threads()), own_threads()
    assert eventually(lambda: len(cls.closed) == len(cls.made) > 0)


def test_while_a_server_is_looked_for(stage: Stage) -> None:
    vllm = pytest.importorskip("abut.samplers.vllm")
    with FakeServer() as server:
        server.deaf = True
        sampler = vllm.VLLMServerSampler(server.url)
        interrupt(stage, sampler, [Talk] * 4, lambda: server.connections >= 1)
    assert eventually(lambda: not own_threads()), own_threads()


CHILD = """
import sys, time
sys.path.insert(0, {tests!r})
from transformers import AutoTokenizer
import abut
from tests.kit.checkout import DEMO_ASSETS
from tests.kit.stage.rollouts import Recording, Stage, Talk, asynced, env

def step(self, action):
    print("there", flush=True)
    time.sleep(3600)

hf = AutoTokenizer.from_pretrained(DEMO_ASSETS)
stage = Stage(abut.Tokenizer.from_pretrained(hf), abut.ChatTemplateProcessor(hf))
try:
    stage.play(env(step=step), asynced(Talk), sampler=Recording(stage.says()))
finally:
    print("interrupted", flush=True)
"""


def test_the_process_ends_while_an_environment_hangs() -> None:
    code = CHILD.format(tests=str(ROOT))
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "there\n"
        child.send_signal(signal.SIGINT)
        assert child.stdout.readline() == "interrupted\n"
        _, said = child.communicate(timeout=60)
    assert child.returncode == -signal.SIGINT
    assert said.rstrip().endswith("KeyboardInterrupt")
