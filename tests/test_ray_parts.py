"""`examples/ray`: its cluster file is one, and its parts start in order and end together.

The cluster is Ray's, with nodes of each kind in this machine; vLLM and accelerate are stubs.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.kit.checkout import EXAMPLES, KIT
from tests.kit.servers.free_port import free_port
from tests.kit.stage.rollouts import eventually
from tests.kit.training.job import is_running

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="on_node.py is for Linux")

RAY = EXAMPLES / "ray"
LIMIT_S = 300


def cluster_file() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    found: dict[str, Any] = yaml.safe_load((RAY / "train.yaml").read_text(encoding="utf-8"))
    return found


def test_the_cluster_file_has_the_kinds_that_parts_ask_for() -> None:
    kinds = cluster_file()["available_node_types"]
    for kind in ("train", "vllm"):
        # No actor of an environment fits there, and one part does.
        assert kinds[kind]["resources"] == {"CPU": 0, "GPU": 8, kind: 1}
    assert kinds["env"]["resources"]["CPU"] > 0
    assert kinds["head"]["resources"]["CPU"] == 0
    most = sum(kind.get("max_workers", 0) for kind in kinds.values())
    assert cluster_file()["max_workers"] == most


@pytest.mark.ray
def test_ray_takes_the_cluster_file_and_refuses_a_wrong_one() -> None:
    pytest.importorskip("ray", reason="no ray: make test-ray")
    from ray.autoscaler._private.util import prepare_config, validate_config

    validate_config(prepare_config(cluster_file()))
    wrong = prepare_config(cluster_file())
    wrong["available_node_types"]["train"]["min_nodes"] = 2
    with pytest.raises(Exception, match="min_nodes"):
        validate_config(wrong)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: Any) -> Iterator[Any]:
    """A head, one node that trains and one for vLLM; what they run is found in the folder."""
    pytest.importorskip("ray", reason="no ray: make test-ray")
    from tests.kit.servers.ray_cluster import a_cluster, a_node

    folder: Path = tmp_path_factory.mktemp("stubs")
    for kind in ("vllm", "accelerate"):
        stub = folder / kind
        stub.write_text(
            f'#!/bin/sh\nexec {sys.executable} {KIT / "training" / "stub_part.py"} {kind} "$@"\n'
        )
        stub.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        patch.setenv("SLURMD_NODENAME", "n")
        patch.setenv("STUB_FOLDER", str(folder))
        patch.setenv("RAY_raylet_start_wait_time_s", str(LIMIT_S))
        with a_cluster(nodes=1) as cluster:
            a_node(cluster, train=1)
            a_node(cluster, vllm=1)
            cluster.folder = folder
            yield cluster


@pytest.fixture
def start(cluster: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Starts `parts.py`; its output goes to the file `said`."""
    for left in cluster.folder.glob("*.json"):
        left.unlink()
    (cluster.folder / "finish").unlink(missing_ok=True)
    with ExitStack() as stack:

        def start(*words: str) -> "subprocess.Popen[bytes]":
            given = ["--model", "m", "--gpus", "1", "--vllm-port", str(free_port()), *words]
            said = stack.enter_context((tmp_path / "said").open("wb"))
            job = subprocess.Popen(
                [sys.executable, str(RAY / "parts.py"), *given, "--", "grpo.yaml", "--seed", "3"],
                env={**os.environ, "RAY_ADDRESS": cluster.address},
                stdout=said,
                stderr=subprocess.STDOUT,
            )
            stack.callback(job.wait)
            stack.callback(job.kill)
            return job

        yield start


def noted(cluster: Any, kind: str, job: Any, said: Path) -> dict[str, Any]:
    """Wait for the notes of a stub, and return them."""
    file = cluster.folder / f"{kind}-n.json"
    assert eventually(lambda: file.exists() or job.poll() is not None, LIMIT_S), said.read_text()
    assert file.exists(), said.read_text()
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def check_ended(*parts: dict[str, Any]) -> None:
    for part in parts:
        assert eventually(lambda part=part: not is_running(part["pid"]))
        assert eventually(lambda part=part: not is_running(part["left"]))


@pytest.mark.ray
def test_training_starts_when_the_rest_is_ready_and_ends_all(
    start: Any, cluster: Any, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    job = start()
    trainer = noted(cluster, "accelerate", job, said)
    vllm = noted(cluster, "vllm", job, said)
    (cluster.folder / "finish").write_text("0")
    assert job.wait(LIMIT_S) == 0, said.read_text()
    text = said.read_text()
    order = ["vllm-0 starts", "vllm-0 is ready", "train-0 starts", "train-0 has ended"]
    order += ["training is done", "all parts have ended"]
    assert [text.index(each) for each in order] == sorted(text.index(each) for each in order)
    told = " ".join(trainer["words"])
    assert told.endswith("--seed 3")
    assert f"{RAY}/train.py --config grpo.yaml --model_name_or_path m" in told
    check_ended(trainer, vllm)


@pytest.mark.ray
def test_a_part_that_dies_ends_the_job_with_what_it_said(
    start: Any, cluster: Any, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    job = start()
    trainer = noted(cluster, "accelerate", job, said)
    vllm = noted(cluster, "vllm", job, said)
    os.kill(vllm["pid"], signal.SIGKILL)
    assert job.wait(LIMIT_S) == 1, said.read_text()
    text = said.read_text()
    assert "vllm-0 has ended with status 137; its last output:\nvllm runs on n" in text
    assert "all parts have ended" in text  # Ray shows what it forwards when it likes
    check_ended(trainer, vllm)


@pytest.mark.ray
def test_who_ends_the_job_ends_all_of_it(start: Any, cluster: Any, tmp_path: Path) -> None:
    said = tmp_path / "said"
    job = start()
    trainer = noted(cluster, "accelerate", job, said)
    vllm = noted(cluster, "vllm", job, said)
    job.terminate()
    assert job.wait(LIMIT_S) == 143, said.read_text()
    assert "the job was told to end (SIGTERM)" in said.read_text()
    check_ended(trainer, vllm)


@pytest.mark.ray
def test_too_few_nodes_are_said(start: Any, tmp_path: Path) -> None:
    assert start("--train", "2", "--limit-s", "20").wait(LIMIT_S) == 1
    text = (tmp_path / "said").read_text()
    # Which are there by then depends on the machine; of those that train there is one in all.
    said = re.search(r"[01] of [12] nodes with the resource '\w+' are available; the cluster", text)
    assert said, text
