"""`close`: an agent that keeps something open from batch to batch ends it once."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from abut.agents.dataset_agent import Serving
from abut.gateway.server import open_agents
from abut.gateway.server.gateway import Gateway
from tests.kit.stage.agents import Client, play_agents, user
from tests.kit.stage.rollouts import Stage


class Asks:
    """Asks once."""

    async def run(self, endpoint: Any, task: Any) -> float:
        async with Client(endpoint) as client:
            await client.ask([user("hi")])
        return 1.0


class Serves(Asks):
    """Serves for the whole run, and notes the task and loop of each of its steps."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.tasks: list[Any] = []
        self.loops: list[Any] = []
        self.serving = Serving(self.server, "Serves")

    @asynccontextmanager
    async def server(self) -> AsyncIterator[str]:
        self.note("enter")
        async with asyncio.timeout(None):  # as a task group: only the task that enters may leave
            yield "http://tools"
        self.note("leave")

    def note(self, call: str) -> None:
        self.calls.append(call)
        self.tasks.append(asyncio.current_task())
        self.loops.append(asyncio.get_running_loop())

    async def start(self, gateway: Gateway) -> None:
        assert await self.serving.started() == "http://tools"
        self.calls.append("start")

    async def close(self) -> None:
        self.calls.append("close")
        await self.serving.close()


def test_an_agent_is_closed_once_when_its_gateway_stops(stage: Stage) -> None:
    serves, gateway = Serves(), Gateway()
    engine = play_agents(stage, serves, gateway=gateway).engine
    play_agents(stage, serves, serves, gateway=gateway, engine=engine)
    assert serves.calls == ["enter", "start", "start"]
    gateway.stop()
    gateway.stop()
    assert serves.calls == ["enter", "start", "start", "close", "leave"]
    assert len(set(serves.tasks)) == len(set(serves.loops)) == 1


def test_the_loop_of_an_agent_outlives_its_engine(stage: Stage) -> None:
    """Else the loop would be ended with the engine, and what is open on it never closed."""
    serves, gateway = Serves(), Gateway()
    play_agents(stage, serves, gateway=gateway)
    gateway.stop()
    assert serves.calls[-2:] == ["close", "leave"]


def test_an_agent_is_closed_on_its_old_loop_when_another_engine_plays_it(stage: Stage) -> None:
    serves, gateway = Serves(), Gateway()
    for _ in range(2):
        play_agents(stage, serves, gateway=gateway)
    assert serves.calls == ["enter", "start", "close", "leave", "enter", "start"]
    gateway.stop()
    assert serves.calls[-2:] == ["close", "leave"]
    assert serves.loops[0] is serves.loops[1] is not serves.loops[2] is serves.loops[3]


def test_a_gateway_that_stops_and_serves_again_closes_again(stage: Stage) -> None:
    serves, gateway = Serves(), Gateway()
    engine = play_agents(stage, serves, gateway=gateway).engine
    gateway.stop()
    play_agents(stage, serves, gateway=gateway, engine=engine)
    gateway.stop()
    assert serves.calls == ["enter", "start", "close", "leave"] * 2


def test_an_agent_whose_close_fails_keeps_others_open_no_longer(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    class Fails(Asks):
        async def close(self) -> None:
            raise ValueError("boom")

    serves = Serves()
    play_agents(stage, Fails(), serves)
    assert serves.calls[-2:] == ["close", "leave"]
    assert "Fails.close failed: ValueError: boom" in caplog.messages


def test_an_agent_whose_close_hangs_is_not_waited_for(
    stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hangs(Asks):
        async def close(self) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr(open_agents, "CLOSE_S", 0.05)
    play_agents(stage, Hangs())
    assert "Hangs.close did not return within 0.05 s" in caplog.messages


def test_a_close_that_is_not_async_is_another_s(stage: Stage) -> None:
    """A pool of agents has one, for its user."""

    class Pool(Asks):
        def close(self) -> None:
            raise AssertionError

    play_agents(stage, Pool())


def test_what_has_ended_by_itself_serves_again(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    class Ends(Serves):
        @asynccontextmanager
        async def server(self) -> AsyncIterator[str]:
            self.note("enter")
            loop, task = asyncio.get_running_loop(), asyncio.current_task()
            assert task is not None
            self.end = lambda: loop.call_soon(task.cancel)
            yield "http://tools"

        async def stop(self) -> None:
            self.end()
            while not self.tasks[-1].done():
                await asyncio.sleep(0)

    ends, gateway = Ends(), Gateway()
    engine = play_agents(stage, ends, gateway=gateway).engine
    play_agents(stage, ends, gateway=gateway, engine=engine)
    gateway.stop()
    assert ends.calls == ["enter", "start", "enter", "start", "close"]
    said = "Serves restarts, because it ended: it was cancelled"
    assert said in caplog.messages


def test_what_serving_raises_ends_the_batch_and_the_next_one_tries_again() -> None:
    calls: list[int] = []

    @asynccontextmanager
    async def server() -> AsyncIterator[int]:
        calls.append(1)
        if len(calls) == 1:
            raise OSError("no port")
        yield len(calls)

    async def check() -> None:
        serving = Serving(server, "agent")
        with pytest.raises(OSError, match="no port"):
            await serving.started()
        assert await serving.started() == 2
        assert await asyncio.gather(serving.started(), serving.started()) == [2, 2]
        await serving.close()
        await serving.close()
        assert await serving.started() == 3
        await serving.close()

    asyncio.run(check())


def test_what_is_never_entered_is_cancelled() -> None:
    left: list[str] = []

    @asynccontextmanager
    async def server() -> AsyncIterator[None]:
        try:
            await asyncio.Event().wait()
            yield
        finally:
            left.append("left")

    async def check() -> None:
        serving = Serving(server, "agent")
        starts = asyncio.ensure_future(serving.started())
        await asyncio.sleep(0)  # it waits
        await asyncio.sleep(0)  # the context manager is being entered
        await serving.close()
        assert left == ["left"]
        await asyncio.wait([starts])
        assert starts.cancelled()

    asyncio.run(check())


SCRIPT = """
import asyncio, gc, sys
from abut.concurrency.loop_watch import WatchedLoop
from abut.gateway.server.gateway import Gateway

class Closes:
    async def start(self, gateway): ...
    async def run(self, endpoint, task): ...
    async def close(self):
        print("closed", await asyncio.to_thread(lambda: "on a thread"), flush=True)

loop = WatchedLoop("env", lambda *_: None, lambda *_: None)
loop.open()
gateway = Gateway()
asyncio.run(gateway.agents.use(Closes(), "Closes", loop))
loop.close(5)
del gateway, loop
gc.collect()
print("ends", flush=True)
"""


REFUSES_THREADS = sys.version_info[:3] in ((3, 12, 0), (3, 12, 1))
"""These versions start no thread once the main thread has ended (CPython's issue 113964)."""


def test_an_agent_is_closed_when_the_process_ends() -> None:
    """While threads can still be started: `close` may use them."""
    script = [sys.executable, "-c", SCRIPT]
    ended = subprocess.run(script, capture_output=True, text=True, timeout=60)
    if REFUSES_THREADS:
        assert ended.stdout == "ends\n"
        assert ended.stderr == (
            "agents were not closed: can't create new thread at interpreter shutdown\n"
            "hint: stop the gateway before the program ends\n"
        )
    else:
        assert (ended.stdout, ended.stderr) == ("ends\nclosed on a thread\n", "")
    assert ended.returncode == 0
