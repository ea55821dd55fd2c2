"""`submit.sbatch` on nodes: two train, one samples, two have Gym; and one of these is cut off.

The nodes are network namespaces, with nothing between them but their links. What runs on them is
real: accelerate, TRL, the gateways, Gym's servers; only Slurm has stand-ins, and vLLM has one that
samples a small model on the CPU.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kit.checkout import KIT
from tests.kit.servers.network import Network
from tests.kit.stage.nemo_gym import ENVIRONMENTS, versions
from tests.kit.training.job import Job

pytest.importorskip("torch")
pytest.importorskip("trl")

from abut.demo.model import DemoRecipe, build_demo_model, load_demo_tokenizer
from abut.records.read import read_records

pytestmark = [
    pytest.mark.nodes,
    pytest.mark.skipif(not versions(), reason="make test-nodes has servers of NeMo Gym"),
    pytest.mark.skipif(
        sys.platform != "linux" or os.geteuid() != 0, reason="network namespaces need root"
    ),
]

NODES = ("t0", "t1", "v0", "g0", "g1")
CONFIGS = (
    "resources_servers/mcqa/configs/mcqa.yaml",
    "resources_servers/example_multi_turn_gymnasium/configs/example_multi_turn_gymnasium.yaml",
)
LIMIT_S = 300
VLLM = "http://10.77.0.3:8000"
PROMPTS = {f"{name} {number}" for name in ("choices", "follow_ups") for number in ("one", "two")}
# Rows that a model which says anything at all is sometimes right about: what there is to learn.
CHOICES = {
    "expected_answer": "E",
    "options": [{"A": "a"}, {"E": "e"}],
    "template_metadata": {"output_regex": "([ae])"},
    "agent_ref": {"type": "responses_api_agents", "name": "mcqa_simple_agent"},
}
FOLLOW_UPS = {
    "follow_ups": ["And one more?"],
    "expected_answer": "a",
    "agent_ref": {"type": "responses_api_agents", "name": "example_multi_turn_gymnasium_agent"},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: Any) -> Path:
    """The demo's model and its tokenizer, as a folder."""
    folder: Path = tmp_path_factory.mktemp("model")
    tokenizer = load_demo_tokenizer()
    build_demo_model(tokenizer, DemoRecipe()).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def network() -> Iterator[Network]:
    with Network(NODES) as network:
        yield network


def a_job(
    folder: Path, network: Network, model: Path, version: str = "0.4.0", **options: Any
) -> Job:
    """A job that trains on the five nodes; `version` is that of NeMo Gym."""
    files = []
    for name, row in (("choices", CHOICES), ("follow_ups", FOLLOW_UPS)):
        rows = [
            {"responses_create_params": {"input": [{"role": "user", "content": text}]}, **row}
            for text in (f"{name} one", f"{name} two")
        ]
        files.append(folder / f"{name}.jsonl")
        files[-1].write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    settings = {
        "files": [str(file) for file in files],
        "records": str(folder / "rollouts"),
        "output_dir": str(folder / "model"),
        # Four rows are a batch: two groups of each Gym, half of them on each rank.
        "num_generations": 4,
        "per_device_train_batch_size": 8,
        "max_completion_length": 96,
        "max_turn_tokens": 24,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "use_vllm": True,
        "vllm_mode": "server",
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "max_failed_frac": 0.5,
        **options,
    }
    config = folder / "train.yaml"
    config.write_text(json.dumps(settings), encoding="utf-8")  # JSON is YAML
    python = str(Path(ENVIRONMENTS or "") / version / "bin" / "python")
    commands = {
        "vllm": [sys.executable, str(KIT / "servers" / "small_vllm.py")],
        "gym": ["env", "-u", "PYTHONPATH", python, str(KIT / "servers" / "nemo_gym_servers.py")],
    }
    return Job(
        folder,
        NODES,
        commands,
        str(config),
        before=network.on("t0"),
        NODES_PREFIX=network.prefix,
        MODEL=str(model),
        GPUS="1",
        GYM_NODES="2",
        GYM_CONFIGS=" ".join(CONFIGS),
        INTERFACE="eth0",
        TRAIN=str(KIT / "training" / "train_on_cpu.py"),
        TRAINING_LOG=str(folder / "training.jsonl"),
        TRL_EXPERIMENTAL_SILENCE="1",
        HF_HUB_OFFLINE="1",
    )


def steps(job: Job) -> list[dict[str, Any]]:
    """What was logged of each step so far."""
    file = job.folder / "training.jsonl"
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    whole = text.rpartition("\n")[0].splitlines()  # the last line may be half written
    return [log for log in map(json.loads, whole) if "reward" in log]


def wait_for(job: Job, what: str, holds: Any) -> None:
    """Wait until it holds, as long as the job runs."""
    deadline = time.monotonic() + LIMIT_S
    while not holds() and job.process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    assert holds(), f"never: {what}\n{job.said}\n{job.log('train-0')[-6000:]}"


def recorded(job: Job, step: int) -> list[dict[str, Any]]:
    """The rollouts of a step."""
    return [each for each in read_records(job.folder / "rollouts") if each["step"] == step]


@contextmanager
def all_rollouts_asking(job: Job, network: Network) -> Iterator[None]:
    """All of a batch wait for the policy, until the block ends."""

    def vllm(method: str, path: str) -> str:
        words = ("curl", "--silent", "--fail", "--request", method, f"{VLLM}/{path}")
        said: str = network.run("v0", *words).stdout
        return said

    vllm("POST", "hold")
    wait_for(job, "all rollouts ask", lambda: int(vllm("GET", "held")) == 16)
    yield
    vllm("POST", "release")


def check_steps(logs: list[dict[str, Any]]) -> None:
    """The weights that sampled are those that were trained."""
    for log in logs:
        assert log["sampling/sampling_logp_difference/mean"] < 1e-5, log
    # Nothing is learned in a step where all rewards of each group are equal.
    assert max(log["grad_norm"] for log in logs) > 0


def check_nothing_runs(network: Network) -> None:
    """No node has a process."""
    assert {node: network.pids(node) for node in NODES} == {node: [] for node in NODES}


@pytest.mark.parametrize("version", versions())
def test_a_job_trains_on_its_nodes_and_leaves_nothing(
    tmp_path: Path, network: Network, model: Path, version: str
) -> None:
    with a_job(tmp_path, network, model, version, max_steps=3) as job:
        status = job.status(LIMIT_S)
    assert status == 0, f"{job.said}\n{job.log('train-0')[-6000:]}"
    assert "training is done" in job.said
    logs = steps(job)
    assert len(logs) == 3
    check_steps(logs)
    assert {log["rollout/error_frac"] for log in logs} == {0}
    rollouts = recorded(job, 1)
    assert {rollout["rank"] for rollout in rollouts} == {0, 1}
    assert {rollout["seed"] for rollout in rollouts} == PROMPTS
    assert len({rollout["reward"] for rollout in rollouts}) > 1
    assert (tmp_path / "model" / "model.safetensors").exists()
    check_nothing_runs(network)
    for part in ("train-0", "train-1", "vllm-0", "gym-0", "gym-1"):
        assert (job.logs / f"{part}.log").exists()


def test_a_node_that_is_cut_off_costs_its_own_rollouts(
    tmp_path: Path, network: Network, model: Path
) -> None:
    """In the middle of a batch, with rollouts in flight; and it is used again when it is back."""
    with a_job(tmp_path, network, model, max_steps=100) as job:
        wait_for(job, "two steps", lambda: len(steps(job)) >= 2)
        with all_rollouts_asking(job, network):
            network.cut("g1")
            cut_at = len(steps(job))
        wait_for(job, "two steps without it", lambda: len(steps(job)) >= cut_at + 2)
        lost, without = recorded(job, cut_at), recorded(job, cut_at + 1)
        network.mend("g1")
        mended_at = len(steps(job))

        def is_back() -> bool:
            return any(log["rollout/error_frac"] == 0 for log in steps(job)[mended_at:])

        wait_for(job, "a step with it again", is_back)
        job.process.terminate()  # as scancel does it
        assert job.status() == 143, job.said
        logs = steps(job)
    check_steps(logs)
    for rollouts in (lost, without):
        failed = [rollout for rollout in rollouts if rollout["error"] is not None]
        assert len(rollouts) == 16
        assert len(failed) == 8
        assert {rollout["rank"] for rollout in failed} == {0, 1}
        assert len({rollout["seed"] for rollout in failed}) == 2
        for rollout in failed:
            assert rollout["reward"] is None
            # The agent does not answer, or what it needs did not before the second attempt.
            assert " of g1 " in rollout["error"]
            assert " at http://10.77.0.5:" in rollout["error"]
        assert all(r["reward"] is not None for r in rollouts if r not in failed)
    for log in logs[cut_at : cut_at + 2]:
        assert log["rollout/error_frac"] == 0.5
    said = job.log("train-0")
    assert "8 of 16 rollouts" in said
    assert "g1 at http://10.77.0.5:" in said
    check_nothing_runs(network)


def test_a_policy_that_is_cut_off_ends_the_job(
    tmp_path: Path, network: Network, model: Path
) -> None:
    """Nobody can sample any more: training ends, and with it everything else."""
    with a_job(tmp_path, network, model, max_steps=100, vllm_server_timeout=1) as job:
        wait_for(job, "a step", lambda: steps(job))
        with all_rollouts_asking(job, network):
            network.cut("v0")
        status = job.status(LIMIT_S)
    assert status == 1, job.said
    assert "has ended with status 1; the end of " in job.said
    assert "SamplerError: no server has answered for give_up_s=1:" in job.said
    assert "  http://10.77.0.3:8000 " in job.said
    check_nothing_runs(network)
