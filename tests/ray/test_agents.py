"""Agents in actors: rows, and what becomes of each failure."""

import asyncio
import dataclasses
import os
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

ray = pytest.importorskip("ray", reason="no ray: make test-ray")

from abut import agent  # noqa: E402
from abut.agents.protocol import is_agent  # noqa: E402
from abut.errors import EnvError, RolloutError  # noqa: E402
from abut.gateway import Gateway  # noqa: E402
from abut.ray import RayPool  # noqa: E402
from abut.trl.route import EnvRoute  # noqa: E402
from tests.kit.servers.ray_cluster import a_node, all_ready  # noqa: E402
from tests.kit.stage.agents import check_tree, play_agents  # noqa: E402
from tests.kit.stage.ray_agents import Talker, lacks, odd, players, talks, talks_sync  # noqa: E402
from tests.kit.stage.ray_envs import Far  # noqa: E402
from tests.kit.stage.rollouts import LIMIT_S, Stage, eventually  # noqa: E402

BOTH = pytest.mark.parametrize("of", [talks, talks_sync], ids=["async", "sync"])
HANG_S = 2 * LIMIT_S
"""The limit of whole rollouts, of which one hangs and the others must not reach it."""

COLUMNS = ("prompt_ids", "completion_ids", "env_mask", "logprobs")


def play(stage: Stage, *agents: Any, folder: Any = "", **options: Any) -> Any:
    columns = [{"question": f"What is {k}?", "folder": str(folder)} for k in range(len(agents))]
    return play_agents(stage, *agents, columns=columns, **options)


def check_rows(played: Any) -> None:
    """Every row is exact: that of its last attempt."""
    for rollout in played.rollouts:
        assert rollout.error is None, rollout.attempt_tracebacks
        last = f"{rollout.rollout_id}.{rollout.attempts - 1}"
        calls = [call for call in played.sampler.calls if call[0].rollout_id == last]
        assert len(calls) == 3
        check_tree(rollout, calls)


def done(folder: Path, what: str) -> list[str]:
    """Who did what was asked for, once that happened: rollout, process, node."""
    file = folder / f"{what}.done"
    assert eventually(file.exists)
    return file.read_text().split()


@pytest.mark.parametrize("of", [talks, talks_sync, Talker(0.5)], ids=["async", "sync", "object"])
def test_rows_are_those_of_the_agent_here(pool_of: Any, stage: Stage, of: Any) -> None:
    pool = pool_of(of, size=6, slots=3)
    asyncio.run(all_ready(pool))
    there, here = play(stage, *[pool] * 12), play(stage, *[of] * 12)
    check_rows(there)
    pids = set()
    for far, near in zip(there.rollouts, here.rollouts, strict=True):
        for name in COLUMNS:
            assert getattr(far.columns, name).tolist() == getattr(near.columns, name).tolist()
        assert (far.reward, far.attempts) == (near.reward, 1)
        assert far.messages == near.messages
        pids.add(far.extras["pid"])
        assert {**far.extras, "pid": 0} == {**near.extras, "pid": 0}
    assert os.getpid() not in pids
    assert len(pids) == 2


def test_a_pool_of_agents_stands_beside_environments(pool_of: Any) -> None:
    agents, envs = pool_of(talks), pool_of(Far)
    assert is_agent(agents)
    assert not is_agent(envs)
    route = EnvRoute({"talks": agents, "far": envs, "here": talks_sync})
    assert [source.agent for source in route.agents] == [agents, talks_sync]
    assert route.of_row({"environment": "far"}, "row")[0] is envs


@BOTH
@pytest.mark.parametrize(("what", "text"), [("raise", "KeyError: 'it'"), ("exit", "SystemExit: 3")])
def test_what_an_agent_raises_is_its_own_failure(
    pool_of: Any, stage: Stage, tmp_path: Path, of: Any, what: str, text: str
) -> None:
    (tmp_path / what).touch()
    pool = pool_of(of, size=2, slots=2)
    played = play(stage, *[pool] * 4, folder=tmp_path, retries=1)
    check_rows(played)
    rollout_id, pid, _ = done(tmp_path, what)
    (again,) = [rollout for rollout in played.rollouts if rollout.attempts > 1]
    assert rollout_id == f"{again.rollout_id}.0"
    assert again.attempt_errors == [f"EnvError: {of.__name__} raised {text} (after 1 calls)"]
    assert "ray_agents.py" in again.attempt_tracebacks[0]
    assert {str(rollout.extras["pid"]) for rollout in played.rollouts} == {pid}, "it stays"


@BOTH
def test_an_actor_that_dies_costs_its_attempts(
    pool_of: Any, stage: Stage, tmp_path: Path, of: Any
) -> None:
    (tmp_path / "die").touch()
    pool = pool_of(of, size=4, slots=2)
    played = play(stage, *[pool] * 12, folder=tmp_path, retries=2)
    check_rows(played)
    rollout_id, pid, _ = done(tmp_path, "die")
    again = {f"{r.rollout_id}.0": r for r in played.rollouts if r.attempts > 1}
    assert 1 <= len(again) <= 2, "what was in that actor"
    for rollout in again.values():
        assert f"{of.__name__}: its actor died: Actor" in rollout.attempt_errors[0]
        assert "\nhint: abut replaces the actor" in rollout.attempt_errors[0]
    assert rollout_id in again
    assert pid not in {str(rollout.extras["pid"]) for rollout in again.values()}


def test_a_node_that_is_lost_costs_the_attempts_on_it(
    cluster: Any, pool_of: Any, stage: Stage, tmp_path: Path
) -> None:
    nodes = [a_node(cluster, agents=1), a_node(cluster, agents=1)]
    pool = pool_of(talks, size=4, slots=2, resources={"agents": 0.6})
    (tmp_path / "hang").touch()
    removed: list[str] = []

    def remove() -> None:
        _, _, node_id = done(tmp_path, "hang")
        (lost,) = [node for node in nodes if node.node_id == node_id]
        cluster.remove_node(lost, False)
        nodes.remove(lost)
        removed.append(node_id)

    thread = threading.Thread(target=remove)
    thread.start()
    played = play(stage, *[pool] * 12, folder=tmp_path, retries=2)
    thread.join()
    check_rows(played)
    assert removed
    rollout_id, _, _ = done(tmp_path, "hang")
    again = {f"{r.rollout_id}.0": r for r in played.rollouts if r.attempts > 1}
    assert "its actor died: Actor" in again[rollout_id].attempt_errors[0]
    pool.close()
    cluster.remove_node(nodes[0])


def test_an_asynchronous_agent_that_hangs_is_cancelled_and_its_actor_stays(
    pool_of: Any, stage: Stage, tmp_path: Path
) -> None:
    (tmp_path / "hang").touch()
    pool = pool_of(talks, size=2, slots=2)
    limits = {"rollout_timeout_s": HANG_S, "retries": 1}
    played = play(stage, *[pool] * 4, folder=tmp_path, **limits)
    check_rows(played)
    rollout_id, pid, _ = done(tmp_path, "hang")
    (again,) = [rollout for rollout in played.rollouts if rollout.attempts > 1]
    assert rollout_id == f"{again.rollout_id}.0"
    assert f"longer than rollout_timeout_s={HANG_S:g}" in again.attempt_errors[0]
    assert "ray_agents.py" in again.attempt_tracebacks[0], "where the agent begins"
    assert {str(rollout.extras["pid"]) for rollout in played.rollouts} == {pid}


@pytest.mark.parametrize(
    ("of", "what"), [(talks_sync, "hang"), (talks, "wait")], ids=["sync", "blocks its loop"]
)
def test_an_actor_whose_agent_hangs_is_condemned(
    pool_of: Any, stage: Stage, tmp_path: Path, of: Any, what: str
) -> None:
    (tmp_path / what).touch()
    pool = pool_of(of, size=2, slots=1)
    played = play(stage, *[pool] * 4, folder=tmp_path, rollout_timeout_s=HANG_S, retries=1)
    check_rows(played)
    rollout_id, pid, _ = done(tmp_path, what)
    (again,) = [rollout for rollout in played.rollouts if rollout.attempts > 1]
    assert rollout_id == f"{again.rollout_id}.0"
    assert eventually(lambda: not Path(f"/proc/{pid}").exists())


def test_an_actor_that_is_killed_in_the_middle(pool_of: Any, stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "hang").touch()
    pool = pool_of(talks, size=4, slots=2)

    def kill() -> None:
        _, pid, _ = done(tmp_path, "hang")
        os.kill(int(pid), signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    played = play(stage, *[pool] * 16, folder=tmp_path, retries=2)
    thread.join()
    check_rows(played)
    assert any(rollout.attempts > 1 for rollout in played.rollouts)


def test_what_an_agent_returns_is_judged_as_here(pool_of: Any, stage: Stage) -> None:
    pool = pool_of(odd, size=2, slots=2)
    columns = [{"returned": "nan"}, {"returned": "text"}, {"returned": "lock"}]
    played = play_agents(
        stage, *[pool] * 3, columns=columns, retries=0, max_failed_frac=1.0
    ).rollouts
    assert (played[0].error, played[0].reward) == (None, None)
    assert (played[1].error or "").startswith("EnvError: odd returned str: expected a number")
    assert "odd returned a value that cannot be sent back: TypeError" in (played[2].error or "")


def test_names_and_sessions_are_those_of_the_agent_here(pool_of: Any, stage: Stage) -> None:
    """Its names are in the addresses that it asks, and its header in that of the trainer."""
    pool = pool_of(players, size=2, slots=2)
    there, here = play(stage, pool, pool).rollouts, play(stage, players, players).rollouts
    for far, near in zip(there, here, strict=True):
        assert far.error is None, far.attempt_tracebacks
        rows = [
            sorted((row.name or "", row.session, row.reward, row.trained) for row in rows)
            for rows in ((one.main_row, *one.branches) for one in (far, near))
        ]
        assert (
            rows[0]
            == rows[1]
            == [
                ("black", "s1", -1.0, True),
                ("judge", None, None, False),
                ("white", None, 1.0, True),
            ]
        )


def test_a_row_without_the_column_that_an_agent_needs(pool_of: Any, stage: Stage) -> None:
    with pytest.raises(ValueError, match="lacks needs the column 'other', but the row"):
        play(stage, pool_of(lacks))


def test_an_agent_of_the_main_script_is_sent_whole(pool_of: Any, stage: Stage) -> None:
    def local() -> Any:
        @agent
        async def talks_too(endpoint: Any, question: str, folder: str, episode_seed: int) -> Any:
            result = await talks(endpoint, question, folder, episode_seed)
            return dataclasses.replace(result, reward=0.25)

        return talks_too

    played = play(stage, pool_of(local()))
    check_rows(played)
    assert played.one.reward == 0.25


def test_who_waits_for_a_slot_loses_no_time(pool_of: Any, stage: Stage, tmp_path: Path) -> None:
    """One slot: the second rollout waits for the whole limit of the first, and has its own."""
    (tmp_path / "hang").touch()
    pool = pool_of(talks)
    played = play(stage, pool, pool, folder=tmp_path, rollout_timeout_s=HANG_S, retries=1)
    check_rows(played)
    assert sorted(rollout.attempts for rollout in played.rollouts) == [1, 2]


def test_an_object_settles_where_all_rollouts_are(pool_of: Any, stage: Stage) -> None:
    pool = pool_of(Talker(1.0), size=2, slots=1)
    played = play(stage, *[pool] * 3)
    assert [rollout.extras["place"] for rollout in played.rollouts] == [0, 1, 2]


def test_a_gateway_on_the_loopback_is_refused_where_nodes_are_elsewhere(
    cluster: Any, pool_of: Any, stage: Stage
) -> None:
    node = a_node(cluster, address="127.0.0.2", far=1)
    pool = pool_of(talks, resources={"far": 0.5})
    with pytest.raises(EnvError) as raised:
        play(stage, pool)
    assert str(raised.value).startswith(
        "agents on 127.0.0.2 cannot reach the gateway at http://127.0.0.1:"
    )
    assert "\nhint: use make_rollout_func(…, gateway=Gateway(host=…))" in str(raised.value)
    gateway = Gateway(host=own_address())
    try:
        check_rows(play(stage, pool, gateway=gateway))
    finally:
        gateway.stop()
        pool.close()
        cluster.remove_node(node)


def own_address() -> str:
    """One of this machine's that is not its loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has only its loopback")
        return str(probe.getsockname()[0])


def test_a_gateway_that_nodes_cannot_reach_is_said(pool_of: Any, stage: Stage) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        gateway = Gateway(public_url=url)
        try:
            with pytest.raises(RolloutError) as raised:
                play(stage, pool_of(talks), gateway=gateway, retries=0)
        finally:
            gateway.stop()
    assert f"cannot reach {url.removeprefix('http://')}" in str(raised.value)
    assert "gateway=Gateway(host=…)) to an address" in str(raised.value)


def test_what_cannot_be_an_agent_of_a_pool_is_refused() -> None:
    class Starts(Talker):
        async def start(self, gateway: Any) -> None: ...

    with pytest.raises(TypeError, match="RayPool of Starts: "):
        RayPool(Starts(1.0), size=1)
    lock = threading.Lock()

    @agent
    async def locked(endpoint: Any) -> float:
        return float(lock.locked())

    with pytest.raises(TypeError, match="cannot send locked to an actor"):
        RayPool(locked, size=1)
