"""Harnesses that Harbor installs in a trial, the real programs: each speaks its own protocol."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("harbor")

from abut.harbor import harbor_tasks
from tests.harbor.conftest import LOCAL
from tests.harbor.task_folders import write_task
from tests.harbor.test_trials import LOOKS_FOR_KEYS, own_calls
from tests.kit.clients.conversation import Script
from tests.kit.clients.template_stage import stage_of
from tests.kit.stage.agents import a_call, play_agents
from tests.kit.stage.rollouts import Recording, check_exact

PROGRAMS = os.environ.get("ABUT_PROGRAMS")
"""The folder of environments that have the programs, because nothing is installed in a trial."""
PLACES = (
    "coding/lib/python3.*/site-packages/claude_agent_sdk/_bundled",
    "coding/lib/python3.*/site-packages/codex_cli_bin/bin",
    "harnesses/bin",
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAMS is None, reason="ABUT_PROGRAMS is unset: make test-harbor"),
]
WRITES = "echo done > /app/answer.txt"
SUBMITS = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
SAYS = {
    "claude-code": (a_call("Bash", description="a step", command=WRITES), "It is written."),
    "codex": (a_call("exec_command", cmd=WRITES), "It is written."),
    "mini-swe-agent": (a_call("bash", command=WRITES), a_call("bash", command=SUBMITS)),
}


@pytest.fixture
def on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    places = [str(found) for place in PLACES for found in Path(str(PROGRAMS)).glob(place)]
    assert len(places) == len(PLACES)
    # Behind ours: a `python` of theirs is not meant.
    monkeypatch.setenv("PATH", os.pathsep.join([os.environ["PATH"], *places]))


@pytest.fixture
def play(on_path: None) -> Callable[..., Any]:
    """Plays rollouts of a task with an installed harness."""

    def play(
        task: Path, agent: str, *, rollouts: int = 1, trials: Any = None, **limits: Any
    ) -> Any:
        stage = stage_of("demo")
        says = SAYS[agent]
        script = Script(stage.tokenizer, says)
        sampler = Recording(
            lambda request: [
                *stage.tokenizer.encode(script(request), added="parse"),
                stage.processor.close_token_id,
            ]
        )
        tasks = harbor_tasks(
            task,
            agent=agent,
            agent_kwargs={"skip_install": True},
            environment=LOCAL,
            trials_dir=trials,
        )
        row = tasks.dataset()[0]
        limits = {"completion": 20_000, "retries": 0, "max_failed_frac": 1.0} | limits
        return play_agents(
            stage, *[tasks] * rollouts, sampler=sampler, columns=[row] * rollouts, **limits
        )

    return play


@pytest.mark.parametrize("agent", [*SAYS])
def test_a_harness_plays_a_trial_and_its_row_is_exact(
    play: Callable[..., Any], tmp_path: Path, agent: str
) -> None:
    played = play(write_task(tmp_path), agent, rollouts=2)
    for rollout in played.rollouts:
        assert (rollout.error, rollout.extras["harbor_error"]) == (None, None)
        assert (rollout.reward, rollout.stop_reason) == (1.0, "env_done")
        assert len(rollout.turns) == 2
        assert rollout.branches == []
        check_exact(rollout.columns, own_calls(played, rollout))
        assert any("into /app/answer.txt. (write)" in str(m["content"]) for m in rollout.messages)


@pytest.mark.parametrize("agent", [*SAYS])
def test_its_key_is_gone_when_the_verifier_looks(
    play: Callable[..., Any], tmp_path: Path, agent: str
) -> None:
    task = write_task(tmp_path / "tasks", test=LOOKS_FOR_KEYS)
    played = play(task, agent, trials=tmp_path / "trials")
    assert (played.one.error, played.one.reward) == (None, 1.0)
    (folder,) = (tmp_path / "trials").iterdir()
    found = folder / "verifier"
    for name in ("environment.txt", "environments.txt"):
        text = (found / name).read_text()
        assert "PATH=" in text
        assert "API_KEY" not in text
    assert (found / "files.txt").read_text() == ""


@pytest.mark.parametrize("agent", ["claude-code", "codex"])
def test_one_that_is_told_that_there_is_no_more_is_scored(
    play: Callable[..., Any], tmp_path: Path, agent: str
) -> None:
    rollout = play(write_task(tmp_path), agent, max_calls=1).one
    assert (rollout.error, rollout.stop_reason, len(rollout.turns)) == (None, "max_calls", 1)
    assert (rollout.reward, rollout.measured) == (1.0, True)
    assert rollout.extras["harbor_error"] is not None
