"""The job of `submit.sbatch`: what it starts and waits for, and how it ends, whoever ends it.

Stand-ins for Slurm run its parts here, and the parts are stubs: what they are told is looked at.
`test_nodes.py` has real ones.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.kit.checkout import KIT
from tests.kit.servers.free_port import free_port
from tests.kit.stage.rollouts import eventually
from tests.kit.training.job import Job, is_running

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Slurm is for Linux")

NODES = ("n1", "n2", "n3", "n4", "n5")
KINDS = ("vllm", "gym", "accelerate")
# The address of node k is 127.0.0.k, and its name says k.
HOSTNAME = ("sh", "-c", 'echo "127.0.0.${SLURMD_NODENAME#n}"', "hostname")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Starts a job: two nodes train, one has vLLM, two have Gym, unless it is told otherwise."""
    with ExitStack() as stack:

        def start(*arguments: str, nodes: Any = NODES, **settings: str) -> Job:
            stub = [sys.executable, str(KIT / "training" / "stub_part.py")]
            commands = {kind: [*stub, kind] for kind in KINDS} | {"hostname": HOSTNAME}
            environment = {
                "NODES_HERE": "1",
                "STUB_FOLDER": str(tmp_path),
                "MODEL": "a/model",
                "GPUS": "4",
                "GYM_NODES": "2",
                "VLLM_PORT": str(free_port()),
                "HEAD_PORT": str(free_port()),
                "END_GRACE_S": "2",
            }
            job = Job(tmp_path, nodes, commands, *(arguments or ("train.yaml",)))
            job._environment |= environment | settings
            return stack.enter_context(job)

        yield start


def part(job: Job, name: str) -> dict[str, Any]:
    """What a part noted, as soon as it has."""
    file = job.folder / f"{name}.json"
    assert eventually(lambda: file.exists() or job.process.poll() is not None, 60), job.said
    assert file.exists(), job.said
    noted: dict[str, Any] = json.loads(file.read_text())
    return noted


def finish(job: Job, status: int = 0) -> None:
    """Let the trainers end."""
    (job.folder / "finish.new").write_text(str(status))
    (job.folder / "finish.new").replace(job.folder / "finish")


def check_all_ended(job: Job) -> None:
    """No part runs, and nothing that one has left."""
    noted = [json.loads(file.read_text()) for file in job.folder.glob("*-n*.json")]
    assert noted
    for each in noted:
        assert not is_running(each["pid"])
        assert not is_running(each["left"])
    assert job.said.endswith("all parts have ended\n")


def test_each_part_is_told_where_the_others_are(start: Any) -> None:
    job = start("own.yaml", "--max_steps", "3")
    trainers = [part(job, f"accelerate-{node}") for node in ("n1", "n2")]
    server, gyms = part(job, "vllm-n3"), [part(job, f"gym-{node}") for node in ("n4", "n5")]
    finish(job)
    assert job.status() == 0, job.said
    check_all_ended(job)
    vllm_url = f"http://127.0.0.3:{job._environment['VLLM_PORT']}"
    head = job._environment["HEAD_PORT"]
    for rank, trainer in enumerate(trainers):
        words = trainer["words"]
        script = words.index(next(word for word in words if word.endswith("/train.py")))
        launch = " ".join(words[:script])
        assert f"--num_machines 2 --num_processes 8 --machine_rank {rank} " in launch
        assert "--main_process_ip 127.0.0.1 --main_process_port 29500" in launch
        told = " ".join(words[script + 1 :])
        assert told == (
            f"--config own.yaml --model_name_or_path a/model --vllm_server_base_url {vllm_url} "
            f"--heads n4=http://127.0.0.4:{head} n5=http://127.0.0.5:{head} "
            f"--gateway_host 127.0.0.{rank + 1} --gateway_port 8100 --max_steps 3"
        )
    served = " ".join(server["words"])
    assert served.startswith("serve a/model --host 127.0.0.3 --port ")
    assert "--logprobs-mode processed_logprobs --max-logprobs -1" in served
    assert "--data-parallel-size 4 --data-parallel-size-local 4" in served
    for k, gym in enumerate(gyms):
        told = " ".join(gym["words"])
        assert "+policy_base_url=http://127.0.0.1:8100/v1" in told  # rank 0's, for all
        assert f"+default_host=127.0.0.{k + 4} +head_server.host=127.0.0.{k + 4}" in told
        assert gym["cwd"] == str(job.logs / f"gym-{k}")


def test_all_have_one_key_that_no_command_line_and_no_log_has(start: Any) -> None:
    job = start()
    names = ("vllm-n3", "gym-n4", "gym-n5", "accelerate-n1", "accelerate-n2")
    parts = [part(job, name) for name in names]
    (key,) = {each["key"] for each in parts}
    assert len(key) >= 32
    assert not any(key in word for each in parts for word in each["words"])
    finish(job)
    assert job.status() == 0
    for file in (job.output, *job.logs.rglob("*")):
        assert file.is_dir() or key not in file.read_text(), file


def test_more_nodes_of_vllm_are_engines_of_one_server(start: Any) -> None:
    job = start(TRAIN_NODES="1", VLLM_NODES="3", GYM_NODES="1", TENSOR_PARALLEL="2")
    part(job, "accelerate-n1")
    for k, node in enumerate(("n2", "n3", "n4")):
        told = " ".join(part(job, f"vllm-{node}")["words"])
        assert "--data-parallel-size 6 --data-parallel-size-local 2 " in told
        assert "--data-parallel-address 127.0.0.2" in told
        assert (f"--headless --data-parallel-start-rank {2 * k}" in told) == (k > 0)
    finish(job)
    assert job.status() == 0


@pytest.mark.parametrize(
    ("how", "status", "name"), [("scancel", 143, "TERM"), ("keys", 130, "INT")]
)
def test_who_ends_the_job_ends_all_of_it(start: Any, how: str, status: int, name: str) -> None:
    job = start()
    part(job, "accelerate-n2")
    job.press_ctrl_c() if how == "keys" else job.process.terminate()
    assert job.status() == status, job.said
    assert f"the job was told to end (SIG{name})" in job.said
    check_all_ended(job)


def test_it_can_be_ended_while_parts_are_waited_for(start: Any) -> None:
    """In the middle of a question, too: what is said then does not go where its answer goes."""
    job = start(STUB_HANGS="vllm")
    assert eventually((job.folder / "asked").exists)
    job.process.terminate()
    assert job.status() == 143, job.said
    assert not list(job.folder.glob("accelerate-*")), "nothing trains before all is ready"
    check_all_ended(job)


def test_what_is_never_ready_ends_the_job(start: Any) -> None:
    job = start(STUB_HANGS="vllm", START_LIMIT_S="1")
    assert job.status() == 1
    assert "vllm-0 on n3 is not ready after START_LIMIT_S=1 seconds: answers http" in job.said
    assert job.said.endswith("all parts have ended\n")


@pytest.mark.parametrize(
    ("victim", "text"),
    [("vllm-n3", "vllm-0 on n3"), ("accelerate-n2", "train-1 on n2")],
)
def test_a_part_that_dies_ends_the_job_and_is_named(start: Any, victim: str, text: str) -> None:
    job = start()
    part(job, "accelerate-n1"), part(job, "accelerate-n2")
    os.kill(part(job, victim)["pid"], signal.SIGKILL)
    assert job.status() == 1
    assert f"{text} has ended with status 137; the end of {job.logs}/" in job.said
    assert f"{victim.partition('-')[0]} runs on {victim[-2:]}" in job.said
    check_all_ended(job)


def test_training_goes_on_until_the_last_gym_node_is_gone(start: Any) -> None:
    job = start()
    part(job, "accelerate-n1")
    os.kill(part(job, "gym-n5")["pid"], signal.SIGKILL)
    assert eventually(lambda: "the other Gym nodes continue" in job.said, 30), job.said
    assert "gym-1 on n5 has ended with status 137" in job.said
    assert job.process.poll() is None
    assert is_running(part(job, "accelerate-n1")["pid"])
    os.kill(part(job, "gym-n4")["pid"], signal.SIGKILL)
    assert job.status() == 1
    assert "gym-0 on n4 has ended with status 137" in job.said
    check_all_ended(job)


def test_training_that_fails_ends_the_job_with_what_it_said(start: Any) -> None:
    job = start()
    part(job, "accelerate-n1"), part(job, "accelerate-n2")
    finish(job, 3)
    assert job.status() == 1
    assert "has ended with status 3" in job.said
    check_all_ended(job)


@pytest.mark.parametrize(("kind", "name"), [("vllm", "vllm-0 on n3"), ("gym", "gym-0 on n4")])
def test_what_cannot_start_is_not_waited_for(start: Any, kind: str, name: str) -> None:
    job = start(STUB_FAILS=kind)
    assert job.status() == 1
    assert f"{name} has ended with status 7" in job.said
    assert "it cannot be started: no memory" in job.said
    assert not list(job.folder.glob("accelerate-*")), "nothing trains before all is ready"
    check_all_ended(job)


def test_engines_that_do_not_fit_on_a_node_are_refused(start: Any) -> None:
    job = start(TENSOR_PARALLEL="3")
    assert job.status() == 1
    assert "GPUS=4 is not a multiple of TENSOR_PARALLEL=3" in job.said


def test_a_job_with_other_nodes_says_so(start: Any) -> None:
    job = start(nodes=NODES[:4])
    assert job.status() == 1
    assert "the job has 4 nodes, but TRAIN_NODES=2, VLLM_NODES=1 and GYM_NODES=2 need 5" in job.said
