"""Environments that fork train: none of their forks hangs the trainer."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from assets import IMPORT_PATH

pytest.importorskip("trl")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")

IN_A_PROCESS = """
import faulthandler, multiprocessing, subprocess, sys
from pathlib import Path
faulthandler.dump_traceback_later(100, exit=True)  # threads that hang in a fork say where
from abut.rollout.config import RolloutConfig
from rank_model import rank_model
from stage import Talk
from trl_run import Run

class Forks(Talk):
    def step(self, action):
        process = multiprocessing.get_context("fork").Process(target=print)
        process.start()
        subprocess.run([sys.executable, "-S", "-c", ""], check=True)
        process.join()
        return super().step(action)

config = RolloutConfig(max_turn_tokens=2, retries=0)
run = Run(*rank_model(), Path(sys.argv[1]), Forks, prompts=["go"] * 32, max_steps=1,
          per_device_train_batch_size=32, num_generations=8, make={"config": config})
run.trainer.train()
(rows,) = run.outputs
print("rewards", sum(rows["env_reward"]), "of", len(rows["env_reward"]), flush=True)
"""


def test_many_environments_that_fork_train(tmp_path: Path) -> None:
    """In a process of its own, since where such a run hangs, no thread of it can end it."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", IN_A_PROCESS, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": IMPORT_PATH},
        capture_output=True,
        text=True,
    )
    assert "rewards 32.0 of 32" in done.stdout, done.stderr[-3000:]
