"""Agents that misbehave: each costs its own rollout at the most, and leaves nothing behind."""

import asyncio
import gc
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from abut import SamplerError, agent
from abut.concurrency.clock import TimeLimit
from abut.gateway import Gateway
from abut.samplers.sampler import Sample, SampleRequest
from tests.kit.stage.agents import Client, check_tree, play_agents, user
from tests.kit.stage.rollouts import Recording, Stage, eventually

MANY = 512


@agent
async def plays(endpoint: Any) -> float:
    async with Client(endpoint) as client:
        first = await client.ask([user("hi")])
        await client.ask([user("hi"), first, user("and?")])
    return 1.0


@agent
async def raises(endpoint: Any) -> float:
    raise RuntimeError("broken before it called")


@agent
async def hangs(endpoint: Any) -> float:
    async with Client(endpoint) as client:
        await client.ask([user("hi")])
    await asyncio.sleep(3600)
    return 1.0


@agent
async def calls_once_and_dies(endpoint: Any) -> float:
    async with Client(endpoint) as client:
        asking = asyncio.ensure_future(client.ask([user("hi")]))
        await asyncio.sleep(0)
        asking.cancel()
    raise SystemExit(3)


@agent
async def sends_garbage(endpoint: Any) -> float:
    async with Client(endpoint) as client:
        for body in (None, [], {"messages": 7}, {"messages": [user("x")], "n": 3}):
            status, _ = await client.post(body)
            assert status == 400
        await client.ask([user("x" * 1000)])
    return 0.5


@agent
async def goes_on_after_the_end(endpoint: Any) -> float:
    async with Client(endpoint) as client:
        await client.ask([user("hi")])

    async def orphan() -> None:
        async with Client(endpoint) as client:
            while (await client.post({"messages": [user("hi")]}))[0] == 200:
                pass

    ORPHANS.append(asyncio.ensure_future(orphan()))
    return 1.0


ORPHANS: list[Any] = []


@agent
async def opens_connections(endpoint: Any) -> float:
    address = endpoint.base_url.split("/")[2].split(":")
    held = [await asyncio.open_connection(address[0], int(address[1])) for _ in range(100)]
    try:
        async with Client(endpoint) as client:
            await client.ask([user("hi")])
    finally:
        for _, writer in held:
            writer.close()
    return 1.0


def sockets() -> int:
    """How many of this process are open."""
    count = 0
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:")
        except OSError:
            continue
    return count


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts the sockets of Linux")
def test_512_agents_of_which_a_third_misbehave(stage: Stage) -> None:
    bad = [raises, hangs, calls_once_and_dies, sends_garbage, goes_on_after_the_end]
    agents = [bad[k // 10 % 5] if k % 10 < 3 else plays for k in range(MANY - 1)]
    # What hangs ends at the limit, which nobody else may reach, however busy the machine is.
    began = time.monotonic()
    play_agents(stage, *[plays] * (MANY // 8)).engine._parts.env_loops.open().end(1.0)
    limit_s = max(20.0, 4 * 8 * (time.monotonic() - began))
    gateway = Gateway()
    threads, open_before = set(threading.enumerate()), sockets()
    play = {"retries": 0, "max_failed_frac": 1.0, "rollout_timeout_s": limit_s}
    played = play_agents(stage, *agents, opens_connections, gateway=gateway, **play)
    assert len(played.rollouts) == MANY
    for index, who in enumerate(agents):
        rollout = played.rollouts[index]
        well = who in (plays, sends_garbage, goes_on_after_the_end)
        assert rollout.failed != well, (who.__name__, rollout.error)
        if well:
            check_tree(rollout, [c for c in played.sampler.calls if _is_of(c[0], index)])
    assert not gateway.registry.ledgers
    gateway.stop()
    played.engine._parts.env_loops.open().end(1.0)
    ORPHANS.clear()
    gc.collect()

    def left() -> set[threading.Thread]:
        return {t for t in set(threading.enumerate()) - threads if t.is_alive()}

    assert eventually(lambda: not left()), left()  # those that are idle end by themselves
    assert eventually(lambda: sockets() <= open_before)


async def hang_up(client: Client, messages: list[Any], once: Callable[[], object]) -> None:
    """Ask, and hang up once that holds."""
    asking = asyncio.ensure_future(client.ask(messages))
    while not once():
        await asyncio.sleep(0.01)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


def _is_of(request: SampleRequest, index: int) -> bool:
    return request.rollout_id.startswith(f"r{index}-")


def test_a_synchronous_agent_that_hangs_keeps_its_thread(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    let_go = threading.Event()
    seen: list[int] = []

    @agent
    def waits(endpoint: Any) -> float:
        seen.append(threading.get_ident())
        let_go.wait(60)
        seen.append(threading.get_ident())
        return 1.0

    gateway = Gateway()
    try:
        rollouts = play_agents(
            stage, waits, plays, gateway=gateway, retries=0, rollout_timeout_s=0.5
        ).rollouts
    finally:
        let_go.set()
        gateway.stop()
    assert "rollout_timeout_s=0.5" in (rollouts[0].error or "")
    assert "let_go.wait" in rollouts[0].attempt_tracebacks[-1]
    assert rollouts[1].error is None
    assert "1 calls of environments have not returned" in caplog.text


def test_an_agent_that_asks_when_its_time_is_over_keeps_its_row(stage: Stage) -> None:
    @agent
    async def goes_on(endpoint: Any) -> float:
        async with Client(endpoint) as client:
            messages = [user("hi")]
            while True:
                messages += [await client.ask(messages), user("and?")]
                await asyncio.sleep(0.01)

    rollout = play_agents(stage, goes_on, rollout_timeout_s=1.0, completion=100_000, retries=1).one
    assert (rollout.error, rollout.stop_reason, rollout.reward) == (None, "deadline", None)
    assert rollout.turns


def test_an_agent_that_blocks_its_loop_takes_no_time_from_others(
    stage: Stage, monkeypatch: Any, caplog: Any
) -> None:
    rings, over, begun = [], threading.Event(), threading.Event()
    ring = TimeLimit._ring

    def note(self: TimeLimit) -> None:
        rings.append(self)
        if len(set(rings)) == 2:  # both have come to their limit, and the block ends
            over.set()
        ring(self)

    monkeypatch.setattr(TimeLimit, "_ring", note)

    @agent
    async def blocks(endpoint: Any) -> float:
        while not begun.is_set():
            await asyncio.sleep(0.01)
        over.wait(60)
        return 0.0

    @agent
    async def neighbour(endpoint: Any) -> float:
        begun.set()
        while not over.is_set():
            await asyncio.sleep(0.01)
        return await plays.function(endpoint)

    _, second = play_agents(stage, blocks, neighbour, rollout_timeout_s=2.0, retries=0).rollouts
    assert (second.error, second.reward, second.stop_reason) == (None, 1.0, "env_done")
    (warning,) = [r.message for r in caplog.records if "has blocked the event loop" in r.message]
    assert warning.startswith("blocks has blocked")
    assert "over.wait(60)" in warning
    assert "their own event loop and thread" not in warning, "agents share clients between rollouts"


def test_a_turn_that_takes_too_long_is_refused(stage: Stage) -> None:
    class Slow(Recording):
        async def sample(self, request: SampleRequest) -> Sample:
            if request.turn:
                await asyncio.sleep(3600)
            return await super().sample(request)

    rollout = play_agents(stage, plays, sampler=Slow(stage.says()), turn_timeout_s=0.5).one
    assert (rollout.stop_reason, len(rollout.turns), rollout.failed) == ("deadline", 1, False)


def test_a_policy_that_is_down_fails_the_batch(stage: Stage) -> None:
    class Down(Recording):
        async def sample(self, request: SampleRequest) -> Sample:
            if request.turn:
                raise SamplerError("the server is down")
            return await super().sample(request)

    with pytest.raises(SamplerError, match="the server is down"):
        play_agents(stage, plays, sampler=Down(stage.says()))


def test_what_start_raises_ends_the_batch(stage: Stage) -> None:
    class Service:
        async def start(self, gateway: Gateway) -> None:
            assert gateway.base_url.startswith("http://127.0.0.1:")
            raise OSError("no head")

        async def run(self, endpoint: Any, task: Any) -> float:
            return 0.0

    with pytest.raises(Exception, match=r"Service.start raised OSError: no head"):
        play_agents(stage, Service())


def test_a_sample_that_nobody_got_is_given_to_who_asks_again(stage: Stage) -> None:
    """A client that hangs up while its turn is sampled, and asks the same again."""
    asked, hung_up = asyncio.Event(), asyncio.Event()

    class Waits(Recording):
        async def sample(self, request: SampleRequest) -> Sample:
            asked.set()
            await hung_up.wait()
            return await super().sample(request)

    sampler = Waits(stage.says())
    gateway = Gateway()

    @agent
    async def breaks_off(endpoint: Any) -> float:
        async with Client(endpoint) as client:
            await hang_up(client, [user("hi")], lambda: sampler.calls or asked.is_set())
            session = gateway.registry.ledgers[endpoint.rollout_id]
            while session.calls[0].is_open():
                await asyncio.sleep(0.01)
            played.engine_loop.call_soon_threadsafe(hung_up.set)
            await client.ask([user("hi")])
            await client.ask([user("hi")])  # and a sample of its own after that
        return 1.0

    class played:
        engine_loop: Any = None

    original = sampler.sample

    async def sample(request: SampleRequest) -> Sample:
        played.engine_loop = asyncio.get_running_loop()
        return await original(request)

    sampler.sample = sample  # type: ignore[method-assign]
    rollout = play_agents(stage, breaks_off, sampler=sampler, gateway=gateway).one
    gateway.stop()
    assert rollout.error is None
    assert len(sampler.calls) == 2
    assert [branch.cause for branch in rollout.branches] == ["repeated"]
    check_tree(rollout, sampler.calls)


def test_a_sample_that_nobody_got_is_never_the_row(stage: Stage) -> None:
    class Waits(Recording):
        loop: Any = None

        async def sample(self, request: SampleRequest) -> Sample:
            sample = await super().sample(request)
            if request.turn:
                self.loop = asyncio.get_running_loop()
                await hung_up.wait()
            return sample

    hung_up, gateway = asyncio.Event(), Gateway()
    sampler = Waits(stage.says())

    @agent
    async def leaves(endpoint: Any) -> float:
        async with Client(endpoint) as client:
            first = await client.ask([user("hi")])
            await hang_up(client, [user("hi"), first, user("slow")], lambda: sampler.loop)
        session = gateway.registry.ledgers[endpoint.rollout_id]
        while session.calls[1].is_open():
            await asyncio.sleep(0.01)
        sampler.loop.call_soon_threadsafe(hung_up.set)
        while endpoint.calls < 2:
            await asyncio.sleep(0.01)
        return 1.0

    rollout = play_agents(stage, leaves, sampler=sampler, gateway=gateway).one
    gateway.stop()
    assert len(rollout.turns) == 1
    assert [branch.delivered for branch in rollout.branches] == [False]
    check_tree(rollout, sampler.calls)


def test_memory_stays_flat_over_batches(stage: Stage) -> None:
    gateway = Gateway()
    counts = []
    for _ in range(2):
        for _ in range(10):
            play_agents(stage, *[plays] * 16, gateway=gateway)
        gc.collect()
        counts.append(len(gc.get_objects()))
    gateway.stop()
    assert counts[1] - counts[0] < 0.02 * counts[0]
