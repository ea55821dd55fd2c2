"""`RayPool` on a real cluster: each row of what can fail there, and what becomes of it."""

import asyncio
import logging
import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

ray = pytest.importorskip("ray", reason="no ray: make test-ray")

from abut.envs.signatures import UnplayableRow  # noqa: E402
from abut.envs.task import EnvPool, RolloutTask  # noqa: E402
from abut.errors import EnvError  # noqa: E402
from abut.ray import RayPool  # noqa: E402
from tests.kit.servers.ray_cluster import a_node, all_ready, node_pids  # noqa: E402
from tests.kit.stage.ray_envs import Closes, Columns, Endless, Far, FarAsync, Odd, Scores  # noqa: E402
from tests.kit.stage.rollouts import assert_done, check_exact, eventually  # noqa: E402


async def lent(pool: Any, **task: Any) -> Any:
    """An environment of the pool, at its beginning."""
    env = await pool.lend(RolloutTask(0, "r0", pool, [], "seed", 7, **task))
    await env.reset("seed")
    return env


async def said(env: Any, action: str) -> str:
    """What a step says behind its number."""
    _, reply = await env.step(action)
    return str(reply).partition(" ")[2]


BOTH = pytest.mark.parametrize("env", [Far, FarAsync])


@BOTH
def test_extras_come_from_the_actor(pool_of: Any, env: Any) -> None:
    async def play() -> None:
        far = await lent(pool_of(env))
        assert far.extras == {}
        await far.step("extras here")
        assert far.extras == {"word": "here", "count": 1.0}
        far.close()

    asyncio.run(play())


@BOTH
def test_an_episode_is_played_in_an_actor(pool_of: Any, env: Any) -> None:
    async def play() -> None:
        pool = pool_of(env)
        assert isinstance(pool, EnvPool)
        far = await pool.lend(RolloutTask(0, "r0", pool, [], "seed", 7))
        assert await far.reset("seed") == (far, "seed: go on")
        assert (far.reward, far.alive) == (0.0, True)
        assert await said(far, "pid") != str(os.getpid())
        await far.step("on")
        assert (far.reward, far.alive) == (2 / 3, True)
        assert await far.step("on") == (far, "3 on")
        assert (far.reward, far.alive) == (1.0, False)
        assert type(far).__name__ == env.__name__
        far.close()

    asyncio.run(play())


@BOTH
def test_an_environment_with_nothing_to_close_is_over_with_its_last_reply(
    pool_of: Any, env: Any
) -> None:
    class Plain(env):  # type: ignore[misc]
        close = None

    async def play() -> None:
        pool = pool_of(Plain)
        far = await lent(pool)
        waiting = asyncio.ensure_future(lent(pool))
        for _ in range(3):
            assert not waiting.done()
            await far.step("on")
        with pytest.raises(EnvError, match=r"Plain\.step was called after the end of its episode"):
            await far.step("on")
        far.close()
        await waiting

    asyncio.run(play())


def test_the_engine_plays_rows_that_are_exact(pool_of: Any, stage: Any) -> None:
    pool = pool_of(Far, size=4, slots=2)
    played = stage.play(*[pool] * 24)
    for rollout in played.rollouts:
        assert_done(rollout)
        assert rollout.reward == 1.0
        check_exact(rollout.columns, played.calls(rollout))


def test_reset_gets_the_columns_that_it_names_and_the_policy_what_is_wrong_with_them(
    pool_of: Any,
) -> None:
    pool = pool_of(Columns)

    async def play() -> None:
        columns = {"question": "why?", "other": 1}
        env = await pool.lend(RolloutTask(0, "r0", pool, [], "seed", 7, columns))
        assert await env.reset("seed") == (env, "why? 7")
        env.close()
        with pytest.raises(UnplayableRow, match=r"Columns\.reset needs the column 'question'"):
            await lent(pool, columns={"other": 1})

    asyncio.run(play())


def test_an_environment_may_score_its_episode_and_have_no_score(pool_of: Any, stage: Any) -> None:
    (rollout,) = stage.play(pool_of(Scores)).rollouts
    assert rollout.reward == 7.0, "the first reply, and three turns with theirs"
    played = stage.play(pool_of(Far), script="nan")
    assert played.one.reward is None


def test_environments_of_one_actor_play_side_by_side(pool_of: Any, tmp_path: Path) -> None:
    async def play() -> None:
        pool = pool_of(Far, size=2, slots=2)
        waits, other = await lent(pool), await lent(pool)
        waiting = asyncio.ensure_future(waits.step(f"wait {tmp_path / 'go'}"))
        assert await said(other, "on") == "on"
        assert not waiting.done()
        (tmp_path / "go").touch()
        await waiting

    asyncio.run(play())


def test_slots_are_as_many_as_size_says_and_the_emptiest_actor_is_next(pool_of: Any) -> None:
    async def play() -> None:
        pool = pool_of(Far, size=5, slots=3)
        await all_ready(pool)
        envs = [await lent(pool) for _ in range(5)]
        pids = [await said(env, "pid") for env in envs]
        assert sorted(pids.count(pid) for pid in set(pids)) == [2, 3]
        assert len({*pids[:2]}) == 2
        waiting = asyncio.ensure_future(lent(pool))
        await asyncio.sleep(0)
        await envs[0].step("on")
        assert not waiting.done()
        envs[0].close()
        assert await said(await waiting, "pid") == pids[0]

    asyncio.run(play())


async def what_ends(env: Any) -> str:
    """The error of the step that comes too late; an actor outlives its node by some moments."""
    try:
        while True:
            await env.step("on")
    except EnvError as error:
        return str(error)


@pytest.mark.parametrize(
    ("action", "what"),
    [
        ("raise it", "Far.step raised KeyError: 'it'"),
        ("interrupt", "Far.step raised KeyboardInterrupt"),
        ("exit", "Far.step raised SystemExit: 3"),
    ],
)
def test_what_an_environment_raises_is_its_own_failure(
    pool_of: Any, action: str, what: str
) -> None:
    async def play() -> None:
        pool = pool_of(Far, size=2, slots=2)
        failing, other = await lent(pool), await lent(pool)
        pid = await said(other, "pid")
        with pytest.raises(EnvError) as raised:
            await failing.step(action)
        assert str(raised.value).startswith(what)
        assert "ray_envs.py" in raised.value.trace
        failing.close()
        assert await said(other, "pid") == await said(await lent(pool), "pid") == pid

    asyncio.run(play())


@pytest.mark.parametrize("kill", ["die", "signal"])
def test_an_actor_that_dies_is_replaced(pool_of: Any, kill: str) -> None:
    async def play() -> None:
        pool = pool_of(Far)
        env = await lent(pool)
        pid = int(await said(env, "pid"))
        if kill == "signal":
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(EnvError, match=r"Far\.step: its actor died: Actor.*\nhint: abut"):
            await env.step("die")
        env.close()
        assert await said(await lent(pool), "pid") != str(pid)

    asyncio.run(play())


@pytest.mark.parametrize("stop", [False, True], ids=["waits", "stopped"])
def test_an_actor_that_hangs_gets_no_new_lease_and_ends_with_the_last(
    pool_of: Any, tmp_path: Path, stop: bool
) -> None:
    async def play() -> None:
        pool = pool_of(Far, size=2, slots=2)
        hangs, other = await lent(pool), await lent(pool)
        pid = int(await said(other, "pid"))
        if stop:
            os.kill(pid, signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(hangs.step(f"wait {tmp_path / 'never'}"), 0.2)
        hangs.close()
        assert await said(await lent(pool), "pid") != str(pid)
        if not stop:
            assert await said(other, "pid") == str(pid), "it plays on"
        other.close()
        if not stop:  # Ray takes half a minute for one that stands still
            assert eventually(lambda: not Path(f"/proc/{pid}").exists())

    asyncio.run(play())


def test_a_call_that_was_given_up_and_returns_costs_no_actor(pool_of: Any, tmp_path: Path) -> None:
    async def play() -> None:
        pool = pool_of(Far)
        env = await lent(pool)
        pid = await said(env, "pid")
        call = asyncio.ensure_future(env.step(f"wait {tmp_path / 'go'}"))
        await asyncio.sleep(0.05)
        call.cancel()
        await asyncio.wait([call])
        (tmp_path / "go").touch()
        env.close()
        assert await said(await lent(pool), "pid") == pid

    asyncio.run(play())


def test_an_actor_that_has_run_out_of_memory_is_replaced(pool_of: Any) -> None:
    async def play() -> None:
        pool = pool_of(Far, size=2, slots=2)
        leaks, other = await lent(pool), await lent(pool)
        pid = await said(other, "pid")
        with pytest.raises(EnvError, match="MemoryError: none left"):
            await leaks.step("leak")
        leaks.close()
        assert await said(await lent(pool), "pid") != pid
        assert await said(other, "pid") == pid

    asyncio.run(play())


@pytest.mark.parametrize("graceful", [True, False])
def test_a_node_that_is_lost_costs_the_episodes_on_it(
    cluster: Any, pool_of: Any, graceful: bool
) -> None:
    async def play() -> None:
        lost, kept = a_node(cluster, spare=1), a_node(cluster, spare=1)
        pool = pool_of(Endless, size=2, slots=1, resources={"spare": 0.4})
        envs = {await said(env, "node"): env for env in [await lent(pool), await lent(pool)]}
        assert set(envs) == {lost.node_id, kept.node_id}
        cluster.remove_node(lost, graceful)
        error = await what_ends(envs[lost.node_id])
        assert re.search(r"its actor died: Actor(Unavailable|Died)Error", error)
        envs[lost.node_id].close()
        again = await lent(pool)
        assert await said(again, "node") == kept.node_id == await said(envs[kept.node_id], "node")
        pool.close()
        cluster.remove_node(kept)

    asyncio.run(play())


def test_a_node_that_stands_still_costs_the_step_its_limit(cluster: Any, pool_of: Any) -> None:
    async def play() -> None:
        frozen = a_node(cluster, cold=1)
        pool = pool_of(Far, resources={"cold": 0.4})
        env = await lent(pool)
        pids = node_pids(frozen)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        other = a_node(cluster, cold=1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(env.step("on"), 0.2)
        env.close()
        assert await said(await lent(pool), "node") == other.node_id
        pool.close()
        for pid in pids:
            if Path(f"/proc/{pid}").exists():
                os.kill(pid, signal.SIGCONT)
        cluster.remove_node(frozen, False)
        cluster.remove_node(other)

    asyncio.run(play())


def test_where_all_actors_are_gone_rollouts_fail_and_go_on_with_the_next_that_starts(
    cluster: Any, pool_of: Any
) -> None:
    async def play() -> None:
        node = a_node(cluster, lone=1)
        pool = pool_of(Endless, start_timeout_s=120, resources={"lone": 0.4})
        env = await lent(pool)
        pool._actors._start_timeout_s = 1.0
        cluster.remove_node(node, False)
        await what_ends(env)
        env.close()
        with pytest.raises(EnvError) as raised:
            await lent(pool)
        assert str(raised.value).startswith("no actor answered within start_timeout_s=1: an actor")
        why = r"\nthe last actor that (was lost|failed): its actor died: Actor"
        assert re.search(why, str(raised.value))
        again = a_node(cluster, lone=1)
        await all_ready(pool)
        assert await said(await lent(pool), "node") == again.node_id
        pool.close()
        cluster.remove_node(again)

    asyncio.run(play())


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({"num_cpus": 1000}, "{'num_cpus': 1000}"),
        ({"resources": {"quantum": 1}}, "{'num_cpus': 0.01, 'resources': {'quantum': 1}}"),
    ],
)
def test_a_cluster_without_room_is_said_with_what_there_is(
    pool_of: Any, options: Any, asked: str, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("abut.ray.actor_pool._NOTICE_S", 0.1)
    pool = pool_of(Far, start_timeout_s=1, **options)
    with pytest.raises(EnvError) as raised:
        asyncio.run(lent(pool))
    text = str(raised.value)
    assert text.startswith(
        f"no actor answered within start_timeout_s=1: an actor needs {asked}; free in the "
        "cluster: {'CPU': "
    )
    assert "\nhint: run `ray status` to see the nodes; request less" in text
    assert eventually(lambda: "no actor of the pool is running yet: an actor needs" in caplog.text)


def test_actors_beyond_the_room_are_said_and_the_others_play(pool_of: Any, caplog: Any) -> None:
    pool = pool_of(Far, size=9, slots=1, num_cpus=0.9, start_timeout_s=120)

    async def play() -> None:
        for _ in range(4):
            env = await lent(pool)
            env.close()
        await pool._loop.ask(pool._actors.say_who_runs)

    asyncio.run(play())
    assert "of 9 actors are running; the others wait for room in the cluster" in caplog.text


def test_an_environment_that_no_node_can_import_is_said_at_once(
    pool_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "from tests.kit.stage.ray_envs import Far\nclass Here(Far):\n    pass\n"
    (tmp_path / "only_here.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    from only_here import Here  # type: ignore[import-not-found]

    with pytest.raises(EnvError) as raised:
        asyncio.run(lent(pool_of(Here)))
    assert "cannot make the environment: ModuleNotFoundError: No module named 'only_here'" in str(
        raised.value
    )
    assert "runtime_env={'working_dir': '.'}" in str(raised.value)
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    pool = pool_of(Here, runtime_env={"env_vars": {"PYTHONPATH": path, "FAR": "yes"}})

    async def play() -> None:
        assert await said(await lent(pool), "env FAR") == "yes"

    asyncio.run(play())


@pytest.mark.parametrize(
    ("action", "what"),
    [
        ("unsent", "Odd.step returned a value that cannot be sent back: TypeError: it has a lock"),
        (
            "unread",
            "Odd.step returned a value that this process cannot unpickle: FileNotFoundError: ",
        ),
    ],
)
def test_a_reply_that_cannot_travel_is_the_failure_of_its_environment(
    pool_of: Any, action: str, what: str
) -> None:
    async def play() -> None:
        pool = pool_of(Odd, size=2, slots=2)
        failing, other = await lent(pool), await lent(pool)
        pid = await said(other, "pid")
        with pytest.raises(EnvError) as raised:
            await failing.step(action)
        assert str(raised.value).startswith(what)
        failing.close()
        assert await said(await lent(pool), "pid") == pid

    asyncio.run(play())


def test_what_cannot_be_lent_is_refused_before_anything_starts() -> None:
    lock = threading.Lock()
    with pytest.raises(TypeError, match=r"cannot send locked to an actor: .*lock.*\nhint: create"):
        RayPool(_locked(lock), size=1)
    with pytest.raises(TypeError, match="one environment object"):
        RayPool(Far(), size=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"RayPool\(size=0\): must be at least 1"):
        RayPool(Far, size=0)
    with pytest.raises(ValueError, match=r"RayPool\(max_restarts=…\) cannot be changed"):
        RayPool(Far, size=1, max_restarts=1)


def _locked(lock: Any) -> Any:
    def locked() -> Any:
        return Far() if lock else None

    return locked


def test_two_pools_play_in_one_batch(pool_of: Any, stage: Any) -> None:
    pools = [pool_of(Far, size=2, slots=2), pool_of(FarAsync, size=2, slots=1)]
    for rollout in stage.play(*pools * 6).rollouts:
        assert_done(rollout)


def test_who_is_cancelled_in_line_costs_no_slot(pool_of: Any) -> None:
    async def play() -> None:
        pool = pool_of(Far)
        env = await lent(pool)
        line = [asyncio.ensure_future(lent(pool)) for _ in range(3)]
        await asyncio.sleep(0.1)
        line[0].cancel()
        env.close()
        second = await line[1]
        line[2].cancel()
        second.close()
        await asyncio.gather(*line, return_exceptions=True)
        assert await said(await lent(pool), "on") == "on"

    asyncio.run(play())


@pytest.mark.parametrize("turns", range(12))
def test_who_is_cancelled_in_the_moment_of_its_turn_costs_no_slot(pool_of: Any, turns: int) -> None:
    """At whatever crossing between the two loops that is."""

    async def play() -> None:
        pool = pool_of(Far)
        for turn in range(turns, turns + 12):
            env = await lent(pool)
            waiting = asyncio.ensure_future(pool.lend(RolloutTask(0, "r0", pool, [], "seed", 7)))
            await asyncio.sleep(0)
            env.close()
            for _ in range(turn):
                await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
            if not waiting.cancelled():
                waiting.result().close()

    asyncio.run(play())


def test_a_pool_that_is_closed_ends_who_waits_and_its_actors(pool_of: Any) -> None:
    async def play() -> None:
        pool = pool_of(Far)
        env = await lent(pool)
        pid = await said(env, "pid")
        waiting = asyncio.ensure_future(lent(pool))
        await asyncio.sleep(0.1)
        pool.close()
        with pytest.raises(EnvError, match="closed"):
            await waiting
        with pytest.raises(EnvError, match="this RayPool is closed\nhint: make a new one"):
            await lent(pool)
        with pytest.raises(EnvError, match="this RayPool is closed"):
            await env.step("on")
        env.close()
        assert eventually(lambda: not Path(f"/proc/{pid}").exists())

    asyncio.run(play())


def test_an_environment_is_closed_before_its_slot_is_lent(pool_of: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    path = os.environ["PYTHONPATH"]
    env_vars = {"FAR_LOG": str(log), "PYTHONPATH": path}
    pool = pool_of(Closes, runtime_env={"env_vars": env_vars})

    async def play() -> None:
        for count in range(3):
            env = await lent(pool)
            assert (log.read_text() if count else "").count("closed 1") == count
            await env.step("on")
            env.close()

    asyncio.run(play())


def test_another_cluster_and_a_late_folder_are_refused(cluster: Any, pool_of: Any) -> None:
    with pytest.raises(ValueError, match=r"this process has already joined the cluster of "):
        RayPool(Far, size=1, address="127.0.0.1:1")
    with pytest.raises(ValueError, match="applies to a whole Ray job, but this job has"):
        RayPool(Far, size=1, runtime_env={"working_dir": "."})
    asyncio.run(lent(pool_of(Far, address=cluster.address)))


def test_a_share_of_each_rank(pool_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    pool = pool_of(Far, size=10, slots=2)
    assert pool._actors._slots == [2, 1]


@pytest.fixture(autouse=True)
def log_is_seen(caplog: Any) -> None:
    caplog.set_level(logging.INFO, logger="abut.ray")
