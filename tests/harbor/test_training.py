"""Trials of Harbor under a real trainer: rows by replay, rewards, metrics and ranks."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("harbor")
torch = pytest.importorskip("torch")
trl = pytest.importorskip("trl")

from abut import RolloutConfig  # noqa: E402
from abut.demo.model import load_demo_tokenizer  # noqa: E402
from abut.harbor import harbor_tasks  # noqa: E402
from abut.harbor.trial_agent import HarborTasks  # noqa: E402
from tests.harbor.conftest import LOCAL, OWN  # noqa: E402
from tests.harbor.task_folders import write_task  # noqa: E402
from tests.kit.training.episode_run import EpisodeRun  # noqa: E402
from tests.kit.training.ranks import run_ranks  # noqa: E402

pytestmark = pytest.mark.slow

EXACT = 1e-5
COUNTS = """#!/bin/bash
wc -c < /app/answer.txt > /logs/verifier/reward.txt
"""


def writing(folder: Path, count: int = 2, **options: Any) -> HarborTasks:
    """Tasks whose reward is the number of tokens that were sampled."""
    for number in range(count):
        write_task(folder, f"count{number}", test=COUNTS)
    return harbor_tasks(folder, agent=f"{OWN}:Writing", environment=LOCAL, **options)


def check_rows(run: EpisodeRun, rollouts: int) -> None:
    """Nothing failed, each row is what was sampled, and the check finds what is not."""
    assert run.errors() == [None] * rollouts
    assert run.worst() < EXACT < 1e-2 < run.worst(roll=1)


def test_sixteen_trials_at_once(tmp_path: Path) -> None:
    tasks = writing(tmp_path / "tasks", 8, name="count")
    run = EpisodeRun(
        tasks, tasks.dataset(), tmp_path, per_device_train_batch_size=16, num_generations=2
    ).train()
    check_rows(run, 16)
    for rollout in run.played:
        assert len(rollout.turns) == 2
        assert rollout.branches == []
        assert rollout.reward == rollout.sampled_tokens
    assert len({rollout.reward for rollout in run.played}) > 1
    log = run.trainer.state.log_history[0]
    rewards = [rollout.reward for rollout in run.played]
    assert log["count/reward/reward"] == pytest.approx(sum(rewards) / 16)
    assert log["reward"] == pytest.approx(sum(rewards) / 16)
    assert log["count/seconds/verifier"] > 0
    trials = {name for output in run.outputs for name in output["harbor_trial"]}
    assert len(trials) == 16
    assert not tasks._trials_dir.exists()


def test_under_trls_own_trainer_too(tmp_path: Path) -> None:
    tasks = writing(tmp_path / "tasks")
    run = EpisodeRun(
        tasks, tasks.dataset(), tmp_path, trainer_class=trl.GRPOTrainer, max_steps=2
    ).train()
    check_rows(run, 8)


def test_evaluation_plays_trials(tmp_path: Path) -> None:
    tasks = writing(tmp_path / "tasks", name="count")
    run = EpisodeRun(tasks, tasks.dataset(), tmp_path)
    found = run.evaluate()
    assert found["eval_count/reward/reward"] == pytest.approx(found["eval_reward"])


def test_a_trial_without_a_score_is_not_trained(tmp_path: Path) -> None:
    """Of two tasks the verifier of one fails: its rows have no weight."""
    writing(tmp_path / "tasks")
    (tmp_path / "tasks" / "count1" / "tests" / "test.sh").write_text("#!/bin/bash\nexit 1\n")
    tasks = harbor_tasks(tmp_path / "tasks", agent=f"{OWN}:Writing", environment=LOCAL)
    run = EpisodeRun(tasks, tasks.dataset(), tmp_path).train()
    assert run.errors() == [None] * 4
    (output,) = run.outputs
    assert output["measured"] == [True, True, False, False]
    assert output["env_reward"][2:] == [None, None]
    assert all("RewardFileNotFoundError" in error for error in output["harbor_error"][2:])
    assert not any(any(mask) for mask in output["env_mask"][2:])


@pytest.mark.skipif(shutil.which("tmux") is None, reason="no tmux: apt-get install tmux")
def test_two_terminals_at_once(tmp_path: Path) -> None:
    """terminus-2 answers only to its own JSON, so a policy that knows it is forced to say it."""
    command = {"keystrokes": "echo done > /app/answer.txt\n", "duration": 0.2}
    texts = [
        json.dumps({"analysis": "a", "plan": "p", "commands": commands, "task_complete": done})
        for commands, done in (([command], False), ([], True))
    ]

    tokenizer = load_demo_tokenizer()

    def says(request: Any) -> list[int]:
        text = texts[min(request.turn, 1)]
        return [*tokenizer(text).input_ids, tokenizer.eos_token_id]

    write_task(tmp_path / "tasks")
    tasks = harbor_tasks(tmp_path / "tasks", environment=LOCAL)
    run = EpisodeRun(
        tasks,
        tasks.dataset(),
        tmp_path,
        says=says,
        config=RolloutConfig(retries=0),  # turns of any length
        context=16_384,
        per_device_train_batch_size=2,
        max_completion_length=8192,
        temperature=1.0,
    ).train()
    check_rows(run, 2)
    for rollout in run.played:
        assert (rollout.reward, len(rollout.turns), rollout.branches) == (1.0, 3, [])


def test_two_ranks(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks"
    writing(tasks, 4)
    ranks = run_ranks("harbor_trials", tmp_path, tasks, timeout_s=500)
    trials: set[str] = set()
    for rank in ranks:
        assert rank["errors"] == [None] * 4
        assert rank["worst"] < EXACT
        assert rank["rewards"] == rank["sampled"]
        trials |= {*rank["trials"]}
    assert len(trials) == 8
    assert ranks[0]["log"] == ranks[1]["log"]
