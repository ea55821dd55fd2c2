"""An environment that scores whole episodes is asked once, at the end, whatever ended it."""

from typing import Any

import pytest

from tests.kit.stage.rollouts import BOTH, Recording, Stage, Talk, assert_done, asynced, env


class Scored(Talk):
    """Its reward is the number of messages, once it knows them."""

    asked: "list[list[Any]]"

    def score_episode(self, messages: Any) -> None:
        self.asked.append(messages)
        self.reward = float(len(messages))


def scored(twin: Any = lambda cls: cls, **attributes: Any) -> Any:
    """`Scored`, or its twin, with a list of its own."""
    cls = env(Scored, asked=[], **attributes)
    if twin is not asynced:
        return cls

    async def score_episode(self: Any, messages: Any) -> None:
        Scored.score_episode(self, messages)

    return env(asynced(cls), score_episode=score_episode)


@BOTH
@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({}, "env_done"),
        ({"max_turns": 2}, "max_turns"),
        ({"completion": 20}, "max_completion_tokens"),
    ],
)
def test_it_is_asked_once_with_all_messages(
    stage: Stage, twin: Any, config: Any, reason: str
) -> None:
    cls = scored(twin)
    rollout = stage.play(cls, **config).one
    assert (rollout.error, rollout.stop_reason) == (None, reason)
    assert cls.asked == [rollout.messages]
    assert rollout.reward == float(len(rollout.messages))
    assert rollout.step_rewards[:-1] == [1 / 3, 2 / 3][: len(rollout.turns) - 1]


def test_an_empty_sample_is_no_turn_to_score(stage: Stage) -> None:
    cls = scored()
    said = stage.says()
    sampler = Recording(lambda request: said(request) if request.turn == 0 else [])
    rollout = stage.play(cls, sampler=sampler).one
    assert rollout.stop_reason == "empty_sample"
    assert (rollout.reward, len(cls.asked)) == (3.0, 1)


def test_nothing_sampled_is_nothing_to_score(stage: Stage) -> None:
    cls = scored()
    rollout = stage.play(cls, sampler=Recording(lambda request: [])).one
    assert (rollout.reward, cls.asked) == (None, [])


def test_an_async_score_of_a_sync_environment_is_refused(stage: Stage) -> None:
    async def score_episode(self: Any, messages: Any) -> None: ...

    played = stage.play(scored(score_episode=score_episode), retries=0, max_failed_frac=1)
    assert played.one.error == (
        "EnvError: Scored.score_episode returned an awaitable\n"
        "hint: make reset and step both `async def`"
    )


def test_a_score_that_raises_is_tried_again_with_the_whole_episode(stage: Stage) -> None:
    def score_episode(self: Any, messages: Any) -> None:
        self.asked.append(messages)
        if len(self.asked) == 1:
            raise OSError("the judge is gone")
        self.reward = 1.0

    rollout = stage.play(scored(score_episode=score_episode)).one
    assert_done(rollout)
    assert (rollout.reward, rollout.attempts) == (1.0, 2)
    assert rollout.attempt_errors == [
        "EnvError: Scored.score_episode raised OSError: the judge is gone"
    ]
