"""The job of `examples/slurm/train.sbatch`: in what order it starts its parts, and how it ends.

Stand-ins for Slurm run its parts here. The cluster is Ray's, with a head, a second node with
environments and one for each that trains; vLLM and accelerate are stubs, but in the last test.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.kit.checkout import EXAMPLES, KIT
from tests.kit.servers.free_port import free_port
from tests.kit.servers.ray_cluster import MARK, processes
from tests.kit.stage.rollouts import eventually
from tests.kit.training.job import Job, is_running

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Slurm is for Linux")

NODES = ("t0", "t1", "v0", "e0", "e1")
LIMIT_S = 300
SCRIPTS = sorted(path for path in EXAMPLES.rglob("*") if path.suffix in (".sh", ".sbatch"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_bash_can_read_the_scripts(script: Path) -> None:
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def own_address() -> str:
    """Of all nodes: the machine's, for of others Ray's drivers find no node."""
    said = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=True).stdout
    return said.split()[0] if said.split() else pytest.skip("this machine has no address")


def port_of_head() -> int:
    """A free one below those that Ray takes for itself."""
    return next(port for port in iter(lambda: 2000 + free_port() % 8000, 0) if is_free(port))


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((own_address(), port)) != 0


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Starts a job: two nodes train, one has vLLM, two have environments."""
    pytest.importorskip("ray", reason="no ray: make test-ray")
    temp = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # short: sockets in it have long names
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, temp, ignore_errors=True)

        def start(*, nodes: Any = NODES, **settings: str) -> Job:
            stub = [sys.executable, str(KIT / "training" / "stub_part.py")]
            commands = {kind: [*stub, kind] for kind in ("vllm", "accelerate")}
            # A node has a folder of its own, as where nodes are machines: they start at once.
            own = Path(sys.executable).parent / "ray"
            node = f'exec {own} "$@" --temp-dir={temp}/$SLURMD_NODENAME'
            commands["ray"] = ["sh", "-c", node, "ray"]
            given = {
                "NODES_HERE": "1",
                "STUB_FOLDER": str(tmp_path),
                "MODEL": "a/model",
                "GPUS": "1",
                "VLLM_PORT": str(free_port()),
                "RAY_PORT": str(port_of_head()),
                # Ports that are free, where several nodes are one machine.
                "RAY_FLAGS": "--object-store-memory=80000000 --dashboard-agent-listen-port=0 "
                "--min-worker-port=0 --max-worker-port=0",
                "RAY_raylet_start_wait_time_s": str(LIMIT_S),
                "END_GRACE_S": "5",
                MARK: temp,
                # A cluster of several nodes, which tests/ray forbids for its own process.
                "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",
            }
            commands |= settings.pop("commands", {})  # type: ignore[arg-type]
            config = settings.pop("config", str(EXAMPLES / "ray" / "grpo.yaml"))
            job = Job(
                tmp_path, nodes, commands, config, script="slurm/train.sbatch", **given | settings
            )
            return stack.enter_context(job)

        yield start


def noted(job: Job, name: str) -> dict[str, Any]:
    """Wait for the notes of a stub, and return them."""
    file = job.folder / f"{name}.json"
    assert eventually(lambda: file.exists() or job.process.poll() is not None, LIMIT_S), job.said
    assert file.exists(), job.said
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def of_part(job: Job, part: str, word: str) -> int:
    """Return the process of a part with the word in its command, except `on_node.py`."""
    log = str(job.logs / f"{part}.log")
    mark = job._environment[MARK]
    (pid,) = [
        pid
        for pid, command in processes(mark).items()
        if word in command and "on_node.py" not in command
        if os.path.realpath(f"/proc/{pid}/fd/1") == log
    ]
    return pid


def check_all_ended(job: Job) -> None:
    """No part runs, nor anything that one has left."""
    assert job.said.endswith("all parts have ended\n"), job.said
    left = processes(job._environment[MARK])
    assert not {pid: command for pid, command in left.items() if is_running(pid)}


def places(said: str, *texts: str) -> list[int]:
    """Return the position of each text in the output."""
    found = [re.search(text, said) for text in texts]
    assert all(found), said
    return [match.start() for match in found if match]


@pytest.mark.ray
def test_each_part_starts_when_those_that_it_needs_are_ready(start: Any) -> None:
    job = start()
    trainers = [noted(job, f"accelerate-{node}") for node in NODES[:2]]
    (job.folder / "finish").write_text("0")
    assert job.status(LIMIT_S) == 0, job.said
    check_all_ended(job)
    order = ("env-0 starts", "env-0 is ready", "env-1 starts", "ray-1 starts", "ray-0 is ready")
    assert places(job.said, *order) == sorted(places(job.said, *order))
    before = max(places(job.said, "ray-0 is ready", "vllm-0 is ready"))
    assert before < min(places(job.said, "train-0 starts", "train-1 starts"))
    for trainer in trainers:
        told = " ".join(trainer["words"])
        assert "/ray/train.py --config " in told
        assert (
            f"--vllm_server_base_url http://{own_address()}:{job._environment['VLLM_PORT']}" in told
        )
    key = trainers[0]["key"]
    assert key == trainers[1]["key"] != ""
    for file in (job.output, *job.logs.rglob("*")):
        assert file.is_dir() or key not in file.read_text(errors="replace"), file


@pytest.mark.ray
def test_a_node_with_environments_may_go_and_the_head_may_not(start: Any) -> None:
    job = start(nodes=("t0", "v0", "e0", "e1"), TRAIN_NODES="1")
    noted(job, "accelerate-t0")
    os.kill(of_part(job, "env-1", "ray start"), signal.SIGKILL)
    goes_on = "the other environment nodes continue"
    assert eventually(lambda: goes_on in job.said or job.process.poll() is not None, LIMIT_S)
    assert "env-1 on e1 has ended with status 137" in job.said
    assert job.process.poll() is None
    os.kill(of_part(job, "env-0", "ray start"), signal.SIGKILL)
    assert job.status(LIMIT_S) == 1
    assert "env-0 on e0 has ended with status 137; the end of" in job.said
    check_all_ended(job)


@pytest.mark.ray
@pytest.mark.parametrize("part", ["vllm-0", "train-0", "ray-0"])
def test_a_part_that_dies_ends_the_job_and_is_named(start: Any, part: str) -> None:
    job = start(nodes=("t0", "v0", "e0"), TRAIN_NODES="1", ENV_NODES="1")
    noted(job, "accelerate-t0")
    word = "ray start" if part == "ray-0" else "stub_part.py"
    os.kill(of_part(job, part, word), signal.SIGKILL)
    assert job.status(LIMIT_S) == 1
    assert re.search(rf"{part} on \w+ has ended with status 137; the end of", job.said), job.said
    check_all_ended(job)


@pytest.mark.ray
def test_who_ends_the_job_ends_all_of_it(start: Any) -> None:
    """As scancel does it; while the cluster is waited for, since the head is up."""
    job = start(nodes=("t0", "v0", "e0"), TRAIN_NODES="1", ENV_NODES="1", STUB_HANGS="vllm")
    assert eventually((job.folder / "asked").exists, LIMIT_S), job.said
    job.process.terminate()
    assert job.status(LIMIT_S) == 143, job.said
    assert "the job was told to end (SIGTERM)" in job.said
    assert not list(job.folder.glob("accelerate-*")), "nothing trains before all is ready"
    check_all_ended(job)


@pytest.mark.ray
def test_a_head_that_cannot_start_is_not_waited_for(start: Any) -> None:
    job = start(nodes=("t0", "v0", "e0"), TRAIN_NODES="1", ENV_NODES="1", RAY_FLAGS="--no-such")
    assert job.status(LIMIT_S) == 1
    assert "env-0 on e0 has ended with status 2" in job.said
    assert "No such option" in job.said
    check_all_ended(job)


@pytest.mark.ray
@pytest.mark.slow
def test_it_trains(start: Any, tmp_path: Path) -> None:
    """With accelerate and TRL, and a small model that is really sampled; each step a batch."""
    pytest.importorskip("trl")
    from abut.demo.model import DemoRecipe, build_demo_model, load_demo_tokenizer

    model = tmp_path / "model"
    tokenizer = load_demo_tokenizer()
    build_demo_model(tokenizer, DemoRecipe()).save_pretrained(model)
    tokenizer.save_pretrained(model)
    shutil.copy(EXAMPLES / "ray" / "guess.py", tmp_path)
    settings = {
        "environment": "guess:GuessTheDigit",
        "environments": 8,
        "slots": 4,
        "env_cpus": 0.01,
        "rows": 16,
        "records": str(tmp_path / "rollouts"),
        "output_dir": str(tmp_path / "trained"),
        "num_generations": 4,
        "per_device_train_batch_size": 4,
        "max_completion_length": 64,
        "max_turn_tokens": 8,
        "max_turns": 3,
        "max_steps": 2,
        "logging_steps": 1,
        "use_vllm": True,
        "vllm_mode": "server",
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "retries": 2,
    }
    config = tmp_path / "grpo.yaml"
    config.write_text(json.dumps(settings))  # JSON is YAML
    log = tmp_path / "training.jsonl"
    accelerate = [sys.executable, "-m", "accelerate.commands.accelerate_cli"]
    job = start(
        config=str(config),
        commands={
            "vllm": [sys.executable, str(KIT / "servers" / "small_vllm.py")],
            "accelerate": accelerate,
        },
        MODEL=str(model),
        TRAIN=str(KIT / "training" / "train_on_cpu.py"),
        TRAINS="ray",
        TRAINING_LOG=str(log),
        MAIN_PORT=str(free_port()),
        HF_HUB_OFFLINE="1",
        TRL_EXPERIMENTAL_SILENCE="1",
    )
    assert job.status(400) == 0, f"{job.said}\n{job.log('train-0')[-6000:]}"
    check_all_ended(job)
    steps = [step for step in map(json.loads, log.read_text().splitlines()) if "reward" in step]
    assert len(steps) == 2
    for step in steps:
        assert step["sampling/sampling_logp_difference/mean"] < 1e-5, step
        assert step["rollout/error_frac"] == 0
    assert (tmp_path / "trained" / "model.safetensors").exists()
