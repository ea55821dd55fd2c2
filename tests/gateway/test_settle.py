"""`settle`: an agent that scores its rollouts together, when all of a batch have ended."""

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")

from abut import AgentResult, agent
from abut.trl import make_rollout_func
from abut.trl.metrics import log_extra_metrics
from abut.trl.ranks import of_all_ranks
from abut.trl.rows.columns import fill_extras
from tests.kit.stage.agents import Client, play_agents, user
from tests.kit.stage.rollouts import Stage
from tests.kit.training.trl_run import a_trainer


class Ranked:
    """The longest answer of a batch gets 1; the third rollout fails."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def start(self, gateway: Any) -> None:
        self.calls.append("start")

    async def stop(self) -> None:
        self.calls.append("stop")

    async def run(self, endpoint: Any, task: Any) -> AgentResult:
        async with Client(endpoint) as client:
            await client.ask([user("hi")])
        if task.index == 2:
            raise ValueError("boom")
        self.calls.append("run")
        return AgentResult(None, {"place": task.index})

    async def settle(self, played: Any, tokenizer: Any) -> None:
        self.calls.append("settle")
        self.texts = [
            None if rollout.columns is None else tokenizer.decode(rollout.columns.completion_ids)
            for _, rollout in played
        ]
        for task, rollout in played:
            if not rollout.failed:
                rollout.reward = float(task.index == 1)
                rollout.extras = {**rollout.extras, "rank/of": len(played)}
                rollout.turns[-1].reward = rollout.reward


@agent
async def another(endpoint: Any) -> float:
    async with Client(endpoint) as client:
        await client.ask([user("hi")])
    return 0.5


def test_rollouts_are_scored_together_before_anything_is_made_of_them(stage: Stage) -> None:
    ranked = Ranked()
    played = play_agents(stage, ranked, ranked, ranked, another, retries=0, max_failed_frac=0.5)
    rollouts = played.rollouts
    assert [rollout.reward for rollout in rollouts] == [0.0, 1.0, None, 0.5]
    assert [rollout.step_rewards for rollout in rollouts[:2]] == [[0.0], [1.0]]
    assert rollouts[1].extras == {"place": 1, "rank/of": 3}
    assert "yes" in ranked.texts[0]
    assert ranked.calls == ["start", "run", "run", "settle", "stop"]


def test_a_reward_that_settle_changes_was_never_that_of_the_last_turn(stage: Stage) -> None:
    """Or `credit` would take the old one for a part of the new one."""

    class Changes(Ranked):
        async def run(self, endpoint: Any, task: Any) -> AgentResult:
            await super().run(endpoint, task)
            return AgentResult(1.0)

        async def settle(self, played: Any, tokenizer: Any) -> None:
            for _, rollout in played:
                rollout.reward = 0.25

    rollout = play_agents(stage, Changes()).one
    assert rollout.reward == 0.25
    assert rollout.step_rewards == [None]


def test_what_settle_raises_ends_the_batch_and_stop_comes_nevertheless(stage: Stage) -> None:
    class Raises(Ranked):
        async def settle(self, played: Any, tokenizer: Any) -> None:
            raise KeyError("no score")

    raises = Raises()
    with pytest.raises(Exception, match=r"Raises.settle raised KeyError: 'no score'"):
        play_agents(stage, raises)
    assert raises.calls[-1] == "stop"


def test_a_reward_that_settle_sets_is_a_reward(stage: Stage) -> None:
    class Wrong(Ranked):
        async def settle(self, played: Any, tokenizer: Any) -> None:
            for _, rollout in played:
                rollout.reward = self.value

    wrong = Wrong()
    wrong.value = float("nan")  # type: ignore[attr-defined]
    assert play_agents(stage, wrong).one.reward is None
    wrong.value = "much"  # type: ignore[attr-defined]
    with pytest.raises(Exception, match=r"Wrong.settle returned str: expected a number"):
        play_agents(stage, wrong)


def test_rollouts_know_their_step_and_whether_their_group_is_whole() -> None:
    tasks = make_rollout_func(Ranked())._tasks
    made = tasks.of_batch(["a", "a", "b"], a_trainer(None), "train")
    assert [task.whole_group for task in made] == [True, True, False]
    assert {(task.step, task.mode) for task in made} == {(0, "train")}
    assert {task.run_id for task in made} == {tasks.run_id}


def test_metrics_are_means_over_those_that_have_one() -> None:
    logged: dict[str, float] = {}
    columns = {"eval/a": [1.0, None, 3.0], "eval/none": [None, None, None], "plain": [1.0] * 3}
    log_extra_metrics(columns, logged.__setitem__)
    assert logged["eval/a"] == 2.0
    assert logged["eval/none"] != logged["eval/none"]  # NaN, which TRL leaves out of means
    assert "plain" not in logged


def test_a_metric_of_another_rank_is_a_column_here_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL averages each name over all ranks without asking who has it."""
    from types import SimpleNamespace

    import accelerate.utils

    monkeypatch.setattr(accelerate.utils, "gather_object", lambda own: [*own, "eval/theirs"])
    names = of_all_ranks(SimpleNamespace(num_processes=2), ["eval/ours"])
    rows: dict[str, list[Any]] = {"rollout_id": ["a", "b"], "eval/ours": [1.0, 2.0]}
    fill_extras(rows, names)
    assert rows["eval/theirs"] == [None, None]
    assert rows["eval/ours"] == [1.0, 2.0]
