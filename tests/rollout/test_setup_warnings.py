"""What trains to no purpose is said once, with what to do; what is as it should be, never."""

import logging
from typing import Any, get_args

import numpy as np
import pytest

from abut import Columns
from abut.rollout.rollout import Branch, BranchCause, Rollout, TurnRecord
from abut.rollout.setup_warnings import SetupWarnings
from tests.kit.stage.rollouts import BOTH, Recording, Stage, Talk, env

pytestmark = pytest.mark.usefixtures("no_thread_stays")


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


def play(stage: Stage, cls: Any, *, batches: int = 2, script: str = "yes", **options: Any) -> None:
    engine = stage.engine(Recording(stage.says(script)), **options)
    for _ in range(batches):
        engine.run(stage.tasks([cls] * 32))


@BOTH
def test_a_reward_of_nan_is_told_once(stage: Stage, twin: Any, caplog: Any) -> None:
    class Silent(Talk):
        reward = property(lambda self: float("nan"), lambda self, value: None)  # type: ignore[assignment]

    play(stage, env(twin(Silent)))
    assert said(caplog) == [
        "Silent.reward is NaN, so the rollout counts as unscored and is not trained\n"
        "hint: fix the computation of the reward; use None where there is no score"
    ]


def test_no_score_is_not_told(stage: Stage, caplog: Any) -> None:
    class Unscored(Talk):
        reward = property(lambda self: None, lambda self, value: None)  # type: ignore[assignment]

    play(stage, Unscored)
    assert not said(caplog)


def test_an_environment_that_never_ends_an_episode_is_told_once(stage: Stage, caplog: Any) -> None:
    """Beside one that does."""
    engine = stage.engine(Recording(stage.says()), max_turns=3)
    endless, fine = env(turns=99), env(turns=2)
    endless.__name__ = "Endless"
    for _ in range(3):
        engine.run(stage.tasks([endless, fine] * 16))
    assert said(caplog) == [
        "all 32 rollouts of Endless reached max_turns=3: the environment never ended an episode "
        "itself\n"
        "hint: set self.alive = False in the step that ends an episode; if episodes need more "
        "turns, raise RolloutConfig.max_turns"
    ]


def test_an_environment_that_ended_one_episode_itself_is_not_told(
    stage: Stage, caplog: Any
) -> None:
    engine = stage.engine(Recording(stage.says()), max_turns=3)
    for turns in (2, *[99] * 40):
        engine.run(stage.tasks([env(turns=turns)]))
    assert not said(caplog)


def test_one_turn_may_be_all_that_is_wanted(stage: Stage, caplog: Any) -> None:
    play(stage, Talk, max_turns=1)
    assert not said(caplog)


@pytest.mark.parametrize(
    ("limits", "shown"),
    [
        ({"completion": 2}, "max_completion_tokens=2, max_context_tokens=None"),  # cut
        ({"completion": 9}, "max_completion_tokens=9, max_context_tokens=None"),  # no second one
        ({"context": 14}, "max_completion_tokens=2000, max_context_tokens=14"),
    ],
)
def test_a_limit_that_no_turn_fits_into_is_told_once(
    stage: Stage, caplog: Any, limits: dict[str, int], shown: str
) -> None:
    play(stage, Talk, script="yes yes yes", **limits)
    assert said(caplog) == [
        "all 32 rollouts ended in their first turn, because it was cut or left no room for a "
        f"second turn ({shown})\n"
        "hint: raise GRPOConfig.max_completion_length, which must hold all turns of a rollout "
        "and all replies; to limit a single turn, set RolloutConfig.max_turn_tokens"
    ]


def test_turns_that_are_cut_by_their_own_limit_are_not_told(stage: Stage, caplog: Any) -> None:
    play(stage, Talk, script="yes yes yes", max_turn_tokens=2)
    play(stage, env(turns=1), script="yes yes yes", max_turn_tokens=2)
    assert not said(caplog)


def test_a_budget_that_ends_most_rollouts_of_a_batch_is_told_once(
    stage: Stage, caplog: Any
) -> None:
    engine = stage.engine(Recording(stage.says("yes yes")), completion=20)
    for _ in range(2):
        rollouts = engine.run(stage.tasks([env(turns=99)] * 9 + [env(turns=1)]))
    turns = len(rollouts[0].turns)
    assert turns > 1
    assert said(caplog) == [
        f"9 of 10 rollouts of a batch were cut by max_completion_tokens=20, after {turns} turns "
        "(median)\n"
        "hint: raise GRPOConfig.max_completion_length, which must hold all turns of a rollout "
        "and all replies"
    ]


def test_a_few_rollouts_that_a_budget_ends_are_not_told(stage: Stage, caplog: Any) -> None:
    engine = stage.engine(Recording(stage.says("yes yes")), completion=20)
    engine.run(stage.tasks([env(turns=99)] * 7))
    engine.run(stage.tasks([env(turns=99)] * 8 + [env(turns=1)] * 2))
    assert not said(caplog)


COLUMNS = Columns(
    prompt_ids=np.array([1]),
    completion_ids=np.array([2]),
    logprobs=np.array([-1.0], np.float32),
    env_mask=np.array([1], np.uint8),
)


@pytest.mark.parametrize("cause", get_args(BranchCause))
def test_conversations_that_train_nothing_are_told_whatever_their_cause(
    cause: BranchCause, caplog: Any
) -> None:
    rollout = Rollout("r", 0, columns=COLUMNS, turns=[TurnRecord(1, 2)])
    rollout.branches = [Branch(COLUMNS, cause=cause)]
    SetupWarnings().dropped([rollout])
    (text,) = said(caplog)
    assert "50% of the 2 tokens" in text


def test_what_was_not_received_followed_or_meant_to_be_trained_is_not_told(caplog: Any) -> None:
    rollout = Rollout("r", 0, columns=COLUMNS, turns=[TurnRecord(1, 2)])
    rollout.branches = [
        Branch(COLUMNS, cause="new", **changes)
        for changes in ({"delivered": False}, {"followed": False}, {"trained": False})
    ]
    SetupWarnings().dropped([rollout])
    assert said(caplog) == []
