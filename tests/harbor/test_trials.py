"""`harbor_tasks`: each rollout is a trial; what it scores, and what fails and what then."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("harbor")

from abut.agents.protocol import Endpoint, is_agent
from abut.envs.task import RolloutTask
from abut.errors import EnvError
from abut.gateway.server.gateway import Gateway
from abut.harbor import harbor_tasks
from abut.harbor.trial_agent import HarborTasks
from abut.rollout.rollout import Rollout
from tests.harbor.conftest import LOCAL, OWN
from tests.harbor.task_folders import CHECKS, write_task
from tests.kit.stage.agents import play_agents, says
from tests.kit.stage.rollouts import Played, Stage, check_exact, eventually

WRITES = "echo done > /app/answer.txt"
TWO_REWARDS = """#!/bin/bash
echo '{"style": 0.25, "works": 1}' > /logs/verifier/reward.json
"""
# The key of a rollout is `abut-` and 36 digits.
LOOKS_FOR_KEYS = """#!/bin/bash
env > /logs/verifier/environment.txt
cat /proc/[0-9]*/environ | tr '\\0' '\\n' > /logs/verifier/environments.txt 2>/dev/null
grep -rElI 'abut-[0-9a-f]{36}' /logs /app /tests /tmp /installed-agent > /logs/verifier/files.txt
echo 1 > /logs/verifier/reward.txt
"""


def local(path: Path, agent: str = "Asking", **options: Any) -> HarborTasks:
    """Tasks whose trials run here, played by an agent of `own_agents` or of Harbor."""
    agent = f"{OWN}:{agent}" if agent[0].isupper() else agent
    return harbor_tasks(path, agent=agent, environment=LOCAL, **options)


def play(
    stage: Stage, tasks: HarborTasks, *texts: str, rollouts: int = 1, **options: Any
) -> Played:
    """Play rollouts of the first task, with a policy that says each text in its turn."""
    row = tasks.dataset()[0]
    options = {"retries": 0, "max_failed_frac": 1.0} | options
    columns = [row] * rollouts
    return play_agents(
        stage, *[tasks] * rollouts, sampler=says(stage, *texts), columns=columns, **options
    )


def own_calls(played: Played, rollout: Rollout) -> list[Any]:
    return [c for c in played.sampler.calls if c[0].rollout_id.startswith(f"{rollout.rollout_id}.")]


def tried(tasks: HarborTasks, *, calls: int = 0) -> Any:
    """Run one trial without an engine, for agents that ask nothing."""
    endpoint = Endpoint("http://127.0.0.1:9/r/r0.0/v1", "k" * 16, "policy", "r0.0", lambda: calls)
    task = RolloutTask(0, "r0", None, [], "seed", 7, columns=tasks.dataset()[0])  # type: ignore[arg-type]

    async def run() -> Any:
        await tasks.start(Gateway())
        try:
            return await tasks.run(endpoint, task)
        finally:
            await tasks.stop()

    return asyncio.run(run())


def test_the_rows_are_the_tasks(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        write_task(tmp_path, name)
    tasks = local(tmp_path, name="mine")
    assert is_agent(tasks)
    rows = tasks.dataset()
    assert rows["row_id"] == ["a", "b", "c"]
    assert rows["environment"] == ["mine"] * 3
    assert rows["prompt"][0] == "Write 'done' into /app/answer.txt. (a)\n"
    assert json.loads(rows["harbor_task"][0]) == {"path": str(tmp_path / "a")}
    assert local(tmp_path / "b").dataset()["row_id"] == ["b"]
    assert len(tasks.dataset(2)) == 2
    shuffled = [tasks.dataset(shuffle=True, seed=seed)["row_id"] for seed in range(9)]
    assert len({tuple(names) for names in shuffled}) > 1
    assert tasks.dataset(shuffle=True, seed=3)["row_id"] == shuffled[3]


@pytest.mark.parametrize(("agent", "reward"), [("nop", 0.0), ("oracle", 1.0)])
def test_agents_that_ask_nothing_are_scored_too(tmp_path: Path, agent: str, reward: float) -> None:
    result = tried(local(write_task(tmp_path), agent))
    assert (result.reward, result.measured) == (reward, True)
    assert result.extras["write/reward/reward"] == reward


def test_an_own_agent_plays_a_trial_and_its_row_is_exact(stage: Stage, tmp_path: Path) -> None:
    played = play(stage, local(write_task(tmp_path)), f"{WRITES}; echo written", "done")
    rollout = played.one
    assert (rollout.error, rollout.reward, rollout.stop_reason) == (None, 1.0, "env_done")
    assert len(rollout.turns) == 2
    check_exact(rollout.columns, own_calls(played, rollout))
    assert [m["content"] for m in rollout.messages] == [
        "Write 'done' into /app/answer.txt. (write)\n",
        f"{WRITES}; echo written",
        "printed: written\n",
        "done",
    ]
    seconds = {name for name in rollout.extras if name.startswith("write/seconds/")}
    phases = ("environment_setup", "agent_setup", "agent_execution", "verifier")
    assert seconds == {f"write/seconds/{phase}" for phase in phases}


def test_sixteen_at_once_share_nothing(stage: Stage, tmp_path: Path) -> None:
    """Each trial's command would see the files of the others, in /app and in /tmp."""
    command = "ls /app /tmp | grep -c mine; touch /app/mine /tmp/mine"
    played = play(stage, local(write_task(tmp_path)), command, WRITES, rollouts=16)
    assert [rollout.reward for rollout in played.rollouts] == [1.0] * 16
    for rollout in played.rollouts:
        assert rollout.messages[2]["content"] == "printed: 0\n"
        check_exact(rollout.columns, own_calls(played, rollout))


def test_folders_of_trials_go_unless_they_are_wanted(stage: Stage, tmp_path: Path) -> None:
    task = write_task(tmp_path / "tasks")
    tasks = local(task)
    play(stage, tasks, WRITES)
    assert not tasks._trials_dir.exists()
    kept = tmp_path / "trials"
    played = play(stage, local(task, trials_dir=kept), WRITES)
    (folder,) = kept.iterdir()
    assert folder.name == f"write__{played.one.rollout_id}-0"
    assert played.one.extras["harbor_trial"] == folder.name
    config = (folder / "config.json").read_text()
    assert "<the rollout's key>" in config
    assert not [
        f for f in folder.rglob("*") if f.is_file() and b'"api_key": "abut-' in f.read_bytes()
    ]


def test_the_verifier_does_not_get_the_key(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ABUT_OF_THE_TRAINER", "mine")
    task = write_task(tmp_path / "tasks", test=LOOKS_FOR_KEYS)
    kept = tmp_path / "trials"
    played = play(stage, local(task, trials_dir=kept), "env; sleep 300 > /dev/null 2>&1 &", "true")
    assert played.one.reward == 1.0
    (folder,) = kept.iterdir()
    found = folder / "verifier"
    assert "PATH=" in (found / "environment.txt").read_text()
    for name in ("environment.txt", "environments.txt"):
        text = (found / name).read_text()
        assert "abut-" not in text.replace(str(tmp_path), "")
        assert "API_KEY" not in text
    assert (found / "files.txt").read_text() == ""
    assert "abut-" not in str(played.one.messages[2])


def test_several_rewards_need_a_choice(stage: Stage, tmp_path: Path) -> None:
    task = write_task(tmp_path, test=TWO_REWARDS)
    with pytest.raises(
        ValueError, match="write has 2 scores, so reward= must choose one: 'style', "
    ):
        play(stage, local(task), "true")
    assert play(stage, local(task, reward="style"), "true").one.reward == 0.25
    chosen = local(task, reward=lambda rewards: rewards["style"] + rewards["works"])
    rollout = play(stage, chosen, "true").one
    assert rollout.reward == 1.25
    assert rollout.extras["write/reward/style"] == 0.25
    with pytest.raises(ValueError, match="write has no score 'speed'"):
        play(stage, local(task, reward="speed"), "true")


@pytest.mark.parametrize(
    ("agent", "test", "error"),
    [
        ("Broken", CHECKS, "RuntimeError: boom"),
        ("Asking", "#!/bin/bash\nexit 0\n", "RewardFileNotFoundError: No reward file found"),
        (
            "Asking",
            "#!/bin/bash\necho nan > /logs/verifier/reward.txt\n",
            "VerifierOutputParseError",
        ),
    ],
)
def test_a_trial_in_which_something_failed_has_no_score(
    stage: Stage, tmp_path: Path, agent: str, test: str, error: str
) -> None:
    rollout = play(stage, local(write_task(tmp_path, test=test), agent), WRITES, "done").one
    assert (rollout.error, rollout.reward, rollout.measured) == (None, None, False)
    assert error in rollout.extras["harbor_error"]
    assert len(rollout.turns) == 2


def test_a_trial_that_fails_before_a_call_is_a_failed_rollout(stage: Stage, tmp_path: Path) -> None:
    rollout = play(stage, local(write_task(tmp_path), "NotInstalled"), "true", retries=1).one
    assert rollout.reward is None
    assert rollout.attempts == 2
    assert rollout.error is not None
    assert "the trial of write failed before the agent made a call: RuntimeError: no network" in (
        rollout.error
    )


def test_a_task_that_is_gone_costs_its_rollout(stage: Stage, tmp_path: Path) -> None:
    tasks = local(write_task(tmp_path))
    row = tasks.dataset()[0]
    columns = [row, {**row, "harbor_task": json.dumps({"path": str(tmp_path / "gone")})}]
    played = play_agents(
        stage,
        tasks,
        tasks,
        sampler=says(stage, WRITES),
        columns=columns,
        retries=0,
        max_failed_frac=1,
    )
    assert [rollout.reward for rollout in played.rollouts] == [1.0, None]
    assert "write: gone cannot be run" in str(played.rollouts[1].error)


def test_the_time_of_the_agent_is_over_and_the_verifier_scores(
    stage: Stage, tmp_path: Path
) -> None:
    tasks = local(write_task(tmp_path, agent_s=3.0), "Hanging")
    rollout = play(stage, tasks, WRITES, "done").one
    assert (rollout.error, rollout.reward, rollout.stop_reason) == (None, 1.0, "deadline")
    assert rollout.extras["harbor_error"].startswith("AgentTimeoutError: ")
    assert len(rollout.turns) == 2


def test_the_limit_of_a_rollout_is_shared_by_agent_and_verifier(tmp_path: Path) -> None:
    """900 s are the default; what is left for the agent is what the verifier may not need."""
    tasks = local(write_task(tmp_path, agent_s=3000.0, verifier_s=200.0))
    endpoint = Endpoint("http://127.0.0.1:9/r/r0.0/v1", "k" * 16, "policy", "r0.0", lambda: 0)
    gateway = Gateway()

    def limits(rollout_s: float) -> tuple[float, float]:
        gateway.registry.rollout_timeout_s = rollout_s
        asyncio.run(tasks.start(gateway))
        config = tasks._config(tmp_path / "write", endpoint)
        return config.agent.override_timeout_sec, config.verifier.override_timeout_sec

    assert limits(900.0) == (700.0, 200.0)
    assert limits(100.0) == (50.0, 50.0)
    assert limits(9000.0) == (3000.0, 200.0)
    asyncio.run(tasks.stop())


def test_a_rollout_that_is_given_up_leaves_nothing_behind(stage: Stage, tmp_path: Path) -> None:
    def sleepers() -> list[str]:
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                command = path.read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            found += [command] if command.startswith("sleep 12345") else []
        return found

    tasks = local(write_task(tmp_path), "Hanging")
    # The agent's own limit would be half of it, but it is in Harbor's clock as well.
    tasks._config = _without_limits(tasks._config)  # type: ignore[method-assign]
    rollout = play(stage, tasks, WRITES, "done", rollout_timeout_s=4.0).one
    assert rollout.reward is None
    assert eventually(lambda: not sleepers()), sleepers()
    assert not tasks._trials


def _without_limits(config: Any) -> Any:
    def made(*args: Any) -> Any:
        trial = config(*args)
        trial.agent.override_timeout_sec = None
        return trial

    return made


def test_an_agent_that_runs_into_the_budget_is_scored(stage: Stage, tmp_path: Path) -> None:
    """`max_calls` refuses its third call; it raises, and the verifier looks all the same."""
    tasks = local(write_task(tmp_path), agent_kwargs={"calls": 9})
    rollout = play(stage, tasks, WRITES, "true", max_calls=2).one
    assert (rollout.error, rollout.stop_reason, len(rollout.turns)) == (None, "max_calls", 2)
    assert (rollout.reward, rollout.measured) == (1.0, True)
    assert rollout.extras["harbor_error"].startswith("RuntimeError: refused: ")


def test_an_agent_that_asks_elsewhere_is_told_so(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ABUT_ELSEWHERE", "http://127.0.0.1:9/v1/chat/completions")
    rollout = play(stage, local(write_task(tmp_path), "Redirected"), "true").one
    assert rollout.error is not None
    assert "the trial of write failed before the agent made a call: " in rollout.error


def test_arguments_that_mean_nothing_are_refused(tmp_path: Path) -> None:
    task = write_task(tmp_path)
    with pytest.raises(ValueError, match="the folder does not exist\nhint: `harbor datasets downl"):
        harbor_tasks(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"no folder in it has a task\.toml"):
        harbor_tasks(tmp_path / "empty")
    with pytest.raises(ValueError, match="Agent name terminus-3 is not valid"):
        harbor_tasks(task, agent="terminus-3")
    with pytest.raises(ValueError, match="Unknown option 'episode_count'"):
        harbor_tasks(task, agent_kwargs={"episode_count": 3})
    for agent in ("cursor-cli", "gemini-cli"):
        with pytest.raises(
            ValueError,
            match=(
                "this agent to the policy, because its environment variables do not name an "
                "endpoint"
            ),
        ) as raised:
            harbor_tasks(task, agent=agent)
        assert 'hint: use agent="terminus-2", "claude-code" or "codex"' in str(raised.value)
    with pytest.raises(ValueError, match="expected one of Harbor's environments: docker, "):
        harbor_tasks(task, environment="podmann")
    with pytest.raises(ValueError, match="Failed to import module"):
        harbor_tasks(task, environment="nowhere:Env")
    (task / "task.toml").write_text("[agent]\ntimeout_sec = 'long'\n")
    with pytest.raises(ValueError, match=f"the task {task} cannot be read"):
        harbor_tasks(tmp_path)
    write_task(tmp_path)
    os.remove(task / "environment" / "Dockerfile")
    (task / "environment").rmdir()
    with pytest.raises(ValueError, match="neither a folder environment/ nor a docker_image"):
        harbor_tasks(tmp_path)


def test_a_row_of_another_dataset_ends_the_batch(stage: Stage, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs the column 'harbor_task' of its dataset"):
        play_agents(stage, local(write_task(tmp_path)), columns=[{"prompt": "hi"}])


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "localhost"])
def test_a_container_cannot_reach_a_gateway_on_the_loopback(
    stage: Stage, tmp_path: Path, host: str
) -> None:
    tasks = harbor_tasks(write_task(tmp_path), agent="codex")
    gateway = Gateway(host)
    try:
        with pytest.raises(EnvError, match="codex runs inside docker and cannot reach") as raised:
            play_agents(stage, tasks, gateway=gateway, columns=[tasks.dataset()[0]])
    finally:
        gateway.stop()
    assert 'public_url="http://172.17.0.1:8100"' in str(raised.value)


def test_docker_is_looked_for_before_the_first_batch(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """terminus-2 asks from this process, so the loopback does for it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    tasks = harbor_tasks(write_task(tmp_path / "tasks"))
    with pytest.raises(
        EnvError, match="write: no trial can run in docker: Docker is not installed"
    ):
        play_agents(stage, tasks, columns=[tasks.dataset()[0]])
