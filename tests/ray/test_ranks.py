"""Several ranks on one cluster: each has its share of it, and nothing of the others."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="no ray: make test-ray")

from tests.kit.checkout import IMPORT_PATH
from tests.kit.servers.free_port import free_port
from tests.kit.stage.rollouts import eventually
from tests.kit.training.ranks import run_ranks

ONE_RANK = """
import asyncio, sys
import torch.distributed as ranks
from abut.ray import RayPool
from abut.envs.task import RolloutTask
from tests.kit.stage.ray_envs import Endless

async def play():
    env = await pool.lend(RolloutTask(0, "r0", pool, [], "seed", 7))
    await env.reset("seed")
    pid = (await env.step("pid"))[1].split()[1]
    pids = [None] * ranks.get_world_size()
    ranks.all_gather_object(pids, pid)
    print(",".join(pids), flush=True)
    for line in sys.stdin:
        print((await env.step("on"))[1].split()[1], flush=True)

ranks.init_process_group("gloo")
with RayPool(Endless, size=2) as pool:
    asyncio.run(play())
ranks.destroy_process_group()
"""


def of_ranks(cluster: Any, ranks: int) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": IMPORT_PATH,
        "RAY_ADDRESS": cluster.address,
        "WORLD_SIZE": str(ranks),
        "TRL_EXPERIMENTAL_SILENCE": "1",
    }


def test_a_trainer_on_two_ranks_plays_on_one_cluster(cluster: Any, tmp_path: Path) -> None:
    ranks = run_ranks("on_ray", tmp_path, timeout_s=400, RAY_ADDRESS=cluster.address)
    assert [rank["slots"] for rank in ranks] == [2, 2]
    ids = [i for rank in ranks for i in rank["ids"]]
    assert len(ids) == len(set(ids)) == 16
    assert {reason for rank in ranks for reason in rank["stop_reasons"]} == {"env_done"}
    pids = [pid for rank in ranks for pid in rank["pids"]]  # that agents have told
    assert len(pids) == 16
    assert 4 <= len([pid for pid in pids if pid is not None]) < 16
    assert [entry["reward"] for entry in ranks[0]["log"] if "reward" in entry] == [1.0, 1.0]


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_that_is_killed_takes_its_actors_and_no_others(cluster: Any, ranks: int) -> None:
    """Each has a process group over gloo with the others; the last is killed, which hosts none."""
    rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", ONE_RANK],
            env=of_ranks(cluster, ranks) | rendezvous | {"RANK": str(rank)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    *others, killed = processes
    try:
        (told,) = {said(process) for process in processes}
        actors = [int(pid) for pid in told.split(",")]
        assert len(set(actors)) == ranks
        killed.kill()
        killed.wait()
        assert eventually(lambda: not Path(f"/proc/{actors[-1]}").exists())
        assert all(Path(f"/proc/{actor}").exists() for actor in actors[:-1])
        for process in others:
            process.stdin.write("\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            assert said(process) == "on"
    finally:
        for process in processes:
            process.stdin.close()  # type: ignore[union-attr]
        for process in others:
            assert process.wait(60) == 0
    assert eventually(lambda: not any(Path(f"/proc/{actor}").exists() for actor in actors))


def said(process: Any) -> str:
    """The next line that is an answer; Ray writes others."""
    for line in process.stdout:
        if len(words := line.split()) == 1:
            return str(words[0])
    raise AssertionError("the rank has ended")
