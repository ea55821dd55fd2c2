"""The code of a user, brought to the nodes by the runtime environment."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="no ray: make test-ray")

from tests.kit.checkout import IMPORT_PATH

MODULE = """
import os
from abut import agent
from tests.kit.stage.ray_agents import asked, said
from tests.kit.stage.ray_envs import Far
from words import WORD

class Here(Far):
    def reset(self, seed):
        return self, f"{WORD} in {os.getcwd()}"

@agent
def plays(endpoint):
    asked(endpoint, [said("user", WORD)])
    return float(len(WORD))
"""

SCRIPT = """
import asyncio
from transformers import AutoTokenizer
import abut
from abut.envs.task import RolloutTask
from abut.ray import RayPool
from tests.kit.stage.agents import play_agents
from tests.kit.checkout import DEMO_ASSETS
from mine import Here, plays
from tests.kit.stage.rollouts import Stage

async def play():
    env = await pool.lend(RolloutTask(0, "r0", pool, [], "seed", 7))
    print("said:", (await env.reset("seed"))[1])

options = {"size": 2, "slots": 1, "runtime_env": {"working_dir": "."}}
with RayPool(Here, **options) as pool, RayPool(plays, **options) as agents:
    asyncio.run(play())
    hf_tokenizer = AutoTokenizer.from_pretrained(DEMO_ASSETS)
    processor = abut.ChatTemplateProcessor(hf_tokenizer)
    stage = Stage(abut.Tokenizer.from_pretrained(hf_tokenizer), processor)
    print("reward:", play_agents(stage, agents).one.reward)
"""


def test_a_folder_is_sent_along_and_its_modules_are_imported(cluster: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "words.py").write_text("WORD = 'brought'\n")
    (tmp_path / "main.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "main.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": IMPORT_PATH, "RAY_ADDRESS": cluster.address},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    lines = done.stdout.splitlines()
    (said,) = [line for line in lines if line.startswith("said: ")]
    word, _, folder = said.removeprefix("said: ").partition(" in ")
    assert word == "brought"
    assert Path(folder) != tmp_path, "a copy, as another machine has it"
    assert "reward: 7.0" in lines
