"""A trial in a container, where there is Docker and a registry of images."""

import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("harbor")

from abut.harbor import harbor_tasks
from tests.harbor.conftest import OWN
from tests.harbor.task_folders import write_task
from tests.harbor.test_trials import WRITES, own_calls, play
from tests.kit.stage.rollouts import Stage, check_exact


def docker_runs() -> bool:
    """Return whether there is a Docker daemon."""
    docker = shutil.which("docker")
    return (
        docker is not None and not subprocess.run([docker, "info"], capture_output=True).returncode
    )


@pytest.mark.slow
@pytest.mark.skipif(not docker_runs(), reason="no Docker daemon runs here")
def test_a_trial_in_a_container(stage: Stage, tmp_path: Path) -> None:
    """Its agent asks from this process, so a gateway on the loopback will do."""
    tasks = harbor_tasks(write_task(tmp_path), agent=f"{OWN}:Asking")
    played = play(stage, tasks, f"{WRITES}; cat /etc/os-release", "done", rollouts=2)
    for rollout in played.rollouts:
        assert (rollout.error, rollout.reward) == (None, 1.0)
        assert "Debian" in str(rollout.messages)
        check_exact(rollout.columns, own_calls(played, rollout))
