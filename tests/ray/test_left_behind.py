"""What a training leaves behind on a cluster, or of one of its own: nothing."""

import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="no ray: make test-ray")

from tests.kit.checkout import IMPORT_PATH, KIT
from tests.kit.servers.ray_cluster import MARK, processes
from tests.kit.stage.rollouts import eventually

ALONE = """
import os, sys
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
from abut.ray import RayPool, cluster
from abut.envs.task import RolloutTask
from tests.kit.stage.ray_envs import Far
import asyncio

async def play():
    env = await pool.lend(RolloutTask(0, "r0", pool, [], "seed", 7))
    await env.reset("seed")
    print(cluster._folder, flush=True)
    await env.step(sys.argv[1])

pool = RayPool(Far, size=2, slots=1)
asyncio.run(play())
"""


AGENTS = """
import os, sys
from pathlib import Path
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
from transformers import AutoTokenizer
import abut
from abut.gateway import Gateway
from abut.ray import RayPool, cluster
from tests.kit.stage.agents import play_agents
from tests.kit.checkout import DEMO_ASSETS
from tests.kit.stage.ray_agents import talks, talks_sync
from tests.kit.stage.rollouts import Stage

folder = sys.argv[1]
for what in ("raise", "die", "hang"):
    Path(folder, what).touch()
hf_tokenizer = AutoTokenizer.from_pretrained(DEMO_ASSETS)
processor = abut.ChatTemplateProcessor(hf_tokenizer)
stage = Stage(abut.Tokenizer.from_pretrained(hf_tokenizer), processor)
gateway = Gateway()
with RayPool(talks, size=4, slots=2) as pool, RayPool(talks_sync, size=4, slots=2) as sync:
    print("folder", cluster._folder)
    columns = [{"question": f"{k}?", "folder": folder} for k in range(24)]
    limits = {"rollout_timeout_s": 20, "retries": 3}
    played = play_agents(
        stage, *[pool, sync] * 12, columns=columns, gateway=gateway, **limits
    ).rollouts
    print("errors", [rollout.error for rollout in played if rollout.error])
    print("again", sum(rollout.attempts > 1 for rollout in played) >= 3)
    print("sessions", len(gateway.registry.ledgers))
"""


HEADLESS = """
import os
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
os.environ["RAY_gcs_rpc_server_reconnect_timeout_s"] = "15"
from abut.ray import RayPool
from abut.envs.task import RolloutTask
from tests.kit.servers.ray_cluster import a_cluster
from tests.kit.stage.ray_envs import Far
import asyncio

async def play():
    env = await pool.lend(RolloutTask(0, "r0", pool, [], "seed", 7))
    await env.reset("seed")
    cluster.head_node.kill_gcs_server()
    print((await env.step("plays on"))[1], flush=True)
    await asyncio.Event().wait()

with a_cluster(nodes=1) as cluster:
    print("folder", cluster.head_node.get_temp_dir_path(), flush=True)
    pool = RayPool(Far, size=1, address=cluster.address)
    asyncio.run(play())
"""


def started(*words: str | Path) -> tuple[subprocess.Popen[str], str]:
    """A process whose children are known by a mark."""
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [sys.executable, *map(str, words)],
        env={**os.environ, MARK: mark, "PYTHONPATH": IMPORT_PATH},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return process, mark


def assert_nothing_stays(mark: str) -> None:
    # Ray's agents notice the end of a process that was killed in their own time: on a busy machine
    # in more than a minute.
    assert eventually(lambda: not processes(mark), within_s=180), processes(mark)


def test_two_thousand_episodes_through_every_failure(tmp_path: Path) -> None:
    before = {path.name for path in Path("/dev/shm").iterdir()}
    process, mark = started(KIT / "training" / "ray_trial.py", tmp_path)
    out, _ = process.communicate(timeout=500)
    assert process.returncode == 0
    (line,) = [line for line in out.splitlines() if line.startswith("{")]
    came: dict[str, Any] = json.loads(line)
    assert came["happened"] == ["hang", "kill", "kill", "kill", "kill", "leak", "node"]
    assert came["stopped"] == {"env_done": 4_000}
    assert came["in_order"]
    assert came["whole"] == 2_000
    assert came["again"] >= 3
    assert came["twice"] == []
    assert came["most_steps"] == 3
    assert came["left_files"] == ["steps"]
    assert_nothing_stays(mark)
    stays = {path.name for path in Path("/dev/shm").iterdir()} - before
    assert not [name for name in stays if "plasma" in name]


@pytest.mark.parametrize("action", ["on", "interrupted", "killed"])
def test_a_cluster_of_the_pool_ends_with_its_process(tmp_path: Path, action: str) -> None:
    words = f"wait {tmp_path / 'never'}" if action != "on" else "on"
    process, mark = started("-c", ALONE, words)
    assert process.stdout is not None
    lines = (line.strip() for line in process.stdout)  # others are Ray's
    folder = Path(next(line for line in lines if line.startswith("/tmp/abut-ray-")))
    assert folder.is_dir()
    assert any("ray::EnvHost" in line for line in processes(mark).values())
    if action == "interrupted":
        process.send_signal(signal.SIGINT)
    elif action == "killed":
        process.kill()
    process.wait(120)
    assert_nothing_stays(mark)
    assert folder.exists() == (action == "killed")
    shutil.rmtree(folder, ignore_errors=True)


def test_agents_that_die_and_hang_leave_nothing(tmp_path: Path) -> None:
    process, mark = started("-c", AGENTS, tmp_path)
    out, _ = process.communicate(timeout=400)
    assert process.returncode == 0, out[-4000:]
    said = dict(line.split(" ", 1) for line in out.splitlines() if " " in line)
    assert (said["errors"], said["again"], said["sessions"]) == ("[]", "True", "0")
    assert_nothing_stays(mark)
    assert not Path(said["folder"]).exists()
    assert {path.name for path in tmp_path.iterdir()} == {"raise.done", "die.done", "hang.done"}


def test_a_head_that_is_gone_is_said_before_ray_ends_the_process() -> None:
    process, mark = started("-c", HEADLESS)
    out, _ = process.communicate(timeout=150)
    assert process.returncode == 1
    assert "1 plays on" in out
    assert "no Ray cluster answers at 127.0.0.1:" in out
    assert (
        "Running actors continue, but no new ones start. If the head does not answer again, Ray"
        in out
    )
    for pid in processes(mark):  # the raylet of a test's cluster waits for its head for ever
        os.kill(pid, signal.SIGKILL)
    (folder,) = [line.split()[1] for line in out.splitlines() if line.startswith("folder ")]
    shutil.rmtree(folder)


def test_an_address_that_does_not_answer_is_said_within_seconds() -> None:
    code = (
        "from abut.ray import RayPool; from tests.kit.stage.ray_envs import Far\n"
        "try: RayPool(Far, size=1, address='127.0.0.1:9')\n"
        "except RuntimeError as error: print(type(error).__name__, error)\n"
        "try: RayPool(Far, size=1, address='auto')\n"
        "except ValueError as error: print(error)\n"
        "import os; os.environ['WORLD_SIZE'] = '2'\n"
        "try: RayPool(Far, size=1)\n"
        "except ValueError as error: print(error)\n"
    )
    process, mark = started("-c", code)
    out, _ = process.communicate(timeout=120)
    lines = out.splitlines()
    assert lines[0].startswith("EnvError no Ray cluster answers at 127.0.0.1:9: ")
    assert lines[1].startswith("hint: check that its head is running (ray start --head)")
    assert lines[2] == "RayPool(address='auto'): must be host:port of the cluster's head"
    assert lines[4].startswith("RayPool has no address, so each of the 2 ranks would start")
    assert_nothing_stays(mark)
