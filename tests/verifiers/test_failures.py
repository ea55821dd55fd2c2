"""Episodes that fail, stop, or have no score: what becomes of their rollouts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
trl = pytest.importorskip("trl")

from abut import RolloutConfig  # noqa: E402
from abut.verifiers import verifiers_env  # noqa: E402
from tests.kit.training.episode_run import SHORT, EpisodeRun  # noqa: E402


def played(folder: Path, *kinds: str, **settings: Any) -> dict[str, Any]:
    """The rollout of each kind of task, by the kind."""
    wayward = verifiers_env("abut_wayward")
    dataset = wayward.dataset().filter(lambda row: row["row_id"] in kinds)
    run = EpisodeRun(
        wayward,
        dataset,
        folder,
        **{"per_device_train_batch_size": 2 * len(kinds)} | settings,
    ).train()
    found = dict(zip(dataset["row_id"], run.played[::2], strict=True))
    twins = zip(run.played[::2], run.played[1::2], strict=True)
    assert all((one.error is None) == (other.error is None) for one, other in twins)
    assert run.worst() < 1e-5
    return found


def test_each_failure_and_each_stop(tmp_path: Path) -> None:
    failures = {
        "setup": "the setup is broken",
        "run": "the run is broken",
        "reward": "the reward is broken",
        "finalize": "the judgement is broken",
        "stop again": "the exchange is over",
    }
    unscored = ("nan", "infinite", "unscored")
    found = played(tmp_path, "fine", *failures, *unscored, "empty", "stop")
    assert found["fine"].reward == 0.75
    for kind, said in failures.items():
        rollout = found[kind]
        assert rollout.failed
        assert said in rollout.error, kind
        assert rollout.reward is None
    for kind in unscored:
        rollout = found[kind]
        assert rollout.error is None, kind
        assert rollout.reward is None
        assert not rollout.measured
        assert not rollout.row_trained
    # A taskset that gives no rewards leaves the score to reward functions.
    assert (found["empty"].reward, found["empty"].measured) == (None, True)
    assert found["empty"].rewards == {}
    assert found["stop"].reward == 0.75
    assert len(found["stop"].turns) == 1


def test_a_failed_episode_is_played_again_and_says_where_it_failed(tmp_path: Path) -> None:
    config = RolloutConfig(max_turn_tokens=6, retries=1, max_failed_frac=1.0)
    rollout = played(tmp_path, "run", config=config)["run"]
    assert rollout.attempts == 2
    assert "abut_wayward.py" in rollout.attempt_tracebacks[-1]
    assert "abut_wayward: RuntimeError: the run is broken; EnvError: WaywardEnv.run()" in (
        rollout.error
    )


def test_an_episodes_own_deadline_is_a_failure(tmp_path: Path) -> None:
    wayward = verifiers_env("abut_wayward", config={"timeout": {"episode": 5.0}})
    dataset = wayward.dataset().filter(lambda row: row["row_id"] == "slow")
    run = EpisodeRun(wayward, dataset, tmp_path, per_device_train_batch_size=2).train()
    assert all("exceeded its 5s deadline" in (error or "") for error in run.errors())


def test_the_runs_deadline_ends_an_episode(tmp_path: Path) -> None:
    config = RolloutConfig(max_turn_tokens=6, retries=0, max_failed_frac=1.0, rollout_timeout_s=8.0)
    rollout = played(tmp_path, "slow", config=config)["slow"]
    assert rollout.failed
    assert "rollout_timeout_s" in rollout.error


def test_a_seats_limit_is_a_stop_and_scored(tmp_path: Path) -> None:
    talk = verifiers_env("abut_talk", seats={"agent": {"max_turns": 2}})
    run = EpisodeRun(talk, talk.dataset(), tmp_path).train()
    assert run.errors() == [None] * 4
    assert [len(rollout.turns) for rollout in run.played] == [2] * 4
    assert all(rollout.reward is not None for rollout in run.played)
    assert run.worst() < 1e-5


def test_a_budget_that_is_used_up_ends_an_episode_with_its_score(tmp_path: Path) -> None:
    talk = verifiers_env("abut_talk")
    run = EpisodeRun(talk, talk.dataset(), tmp_path, max_completion_length=40).train()
    assert run.errors() == [None] * 4
    assert run.worst() < 1e-5
    for rollout in run.played:
        assert rollout.stop_reason == "max_completion_tokens"
        assert 1 <= len(rollout.turns) < 3
        assert rollout.reward is not None
        assert rollout.row_trained


def test_a_refused_call_of_one_seat_fails_the_episode(tmp_path: Path) -> None:
    """Both seats have rewards all the same, and the other one's trace is ok."""
    duel = verifiers_env("abut_duel", seats={"player1": {"sampling": {"logit_bias": {"5": 1}}}})
    run = EpisodeRun(duel, duel.dataset(4), tmp_path, per_device_train_batch_size=8).train()
    for k, rollout in enumerate(run.played):
        if k // 2 % 2:  # player1 was not asked
            assert rollout.error is None
            assert rollout.reward == -1
        else:
            assert rollout.failed
            assert "logit_bias" in rollout.error
            assert rollout.reward is None


def test_an_environment_that_asks_after_the_runs_limit_is_cut_short(tmp_path: Path) -> None:
    """It raises, but the limit is why: nothing failed, and nothing has a score."""
    rollout = played(tmp_path / "all", "asks on")["asks on"]
    assert (rollout.error, rollout.reward, len(rollout.turns)) == (None, 0.75, 3)
    rollout = played(tmp_path / "cut", "asks on", config=replace(SHORT, max_calls=1))["asks on"]
    assert (rollout.error, rollout.reward, rollout.measured) == (None, None, False)
    assert rollout.stop_reason == "max_calls"
    assert [*rollout.names.values()] == ["agent"]
    assert not rollout.row_trained


def test_a_simulated_user_does_not_stand_for_a_rollout_without_a_score(tmp_path: Path) -> None:
    """Even if it said more than the assistant, which was cut."""
    helpdesk = verifiers_env("abut_sums", env="user-sim", config={"user": {"max_turns": 3}})
    config = replace(SHORT, max_calls=2)
    run = EpisodeRun(helpdesk, helpdesk.dataset(2), tmp_path, config=config).train()
    for rollout in run.played:
        assert rollout.name == "assistant"
        assert {one.name for one in rollout.branches} == {"user"}
