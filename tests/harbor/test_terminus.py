"""terminus-2, Harbor's own agent: it asks from this process, and types into a tmux of its trial."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("harbor")

from abut.harbor import harbor_tasks
from tests.harbor.conftest import LOCAL
from tests.harbor.task_folders import write_task
from tests.harbor.test_trials import own_calls, play
from tests.kit.stage.rollouts import Stage, check_exact

pytestmark = pytest.mark.skipif(
    shutil.which("tmux") is None, reason="no tmux: apt-get install tmux"
)


def types(*keystrokes: str, complete: bool = False) -> str:
    """What terminus-2 takes for an answer."""
    commands = [{"keystrokes": f"{keys}\n", "duration": 0.5} for keys in keystrokes]
    said = {"analysis": "a", "plan": "p", "commands": commands, "task_complete": complete}
    return json.dumps(said)


SAYS = (types("echo done > /app/answer.txt", "ls /tmp/mine; touch /tmp/mine"), types(complete=True))


@pytest.mark.slow
def test_two_at_once_have_a_terminal_each(stage: Stage, tmp_path: Path) -> None:
    tasks = harbor_tasks(write_task(tmp_path), environment=LOCAL)
    played = play(stage, tasks, *SAYS, rollouts=2, completion=20_000)
    for rollout in played.rollouts:
        assert (rollout.error, rollout.reward, rollout.stop_reason) == (None, 1.0, "env_done")
        assert len(rollout.turns) == 3  # it asks whether the task is complete
        assert not rollout.branches
        check_exact(rollout.columns, own_calls(played, rollout))
        terminal = str(rollout.messages[2]["content"])
        assert "ls: cannot access '/tmp/mine'" in terminal


@pytest.mark.slow
def test_a_full_conversation_ends_it_and_is_scored(stage: Stage, tmp_path: Path) -> None:
    """Without summaries: it stops where the gateway says that there is no room."""
    tasks = harbor_tasks(write_task(tmp_path), environment=LOCAL)
    played = play(stage, tasks, SAYS[0], types("true"), completion=20_000, max_turns=2)
    rollout = played.one
    assert (rollout.error, rollout.stop_reason, len(rollout.turns)) == (None, "max_turns", 2)
    assert (rollout.reward, rollout.measured, rollout.branches) == (1.0, True, [])
    assert rollout.extras["harbor_error"].startswith("ContextLengthExceededError")


def test_summaries_and_recordings_are_off_unless_they_are_asked_for(tmp_path: Path) -> None:
    task = write_task(tmp_path)

    def arguments(**kwargs: Any) -> Any:
        from abut.harbor.agent_connection import _EXAMPLE

        connection = harbor_tasks(task, environment=LOCAL, agent_kwargs=kwargs)._connection
        config = connection.config(_EXAMPLE)
        assert config.env == {}  # its terminal would have it
        return config.kwargs

    asked = arguments(enable_summarize=True, llm_kwargs={"timeout": 9}, max_turns=3)
    assert asked["enable_summarize"] is True
    assert asked["record_terminal_session"] is False
    assert asked["llm_kwargs"] == {"timeout": 9, "api_key": "abut-key"}
    assert arguments() == {
        "enable_summarize": False,
        "record_terminal_session": False,
        "api_base": "http://gateway/r/rollout.0/v1",
        "llm_kwargs": {"api_key": "abut-key"},
    }
