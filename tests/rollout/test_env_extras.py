"""The extras of environments: read where they live, the last reading counts, and checked."""

from typing import Any

import numpy as np
import pytest

from abut.envs.attributes import env_extras
from abut.errors import EnvError
from abut.records.recorder import JsonlRecorder
from abut.rollout.rollout import StopReason
from tests.kit.stage.rollouts import BOTH, Recording, Stage, Talk, asynced, env


class Counts(Talk):
    """Says how many actions there were, and how it began."""

    def reset(self, seed: str) -> Any:
        self.extras: Any = {"begun/at": 7, "said": None}
        return super().reset(seed)

    def step(self, action: str) -> Any:
        self.extras = {"count": np.float32(len(self.actions) + 1), "said": f"{action}!"}
        return super().step(action)


@BOTH
def test_the_last_reading_counts(stage: Stage, twin: Any) -> None:
    played = stage.play(twin(Counts))
    said = played.one.messages[-2]["content"]
    assert played.one.extras == {"count": 3.0, "said": f"{said}!"}
    assert type(played.one.extras["count"]) is float


@BOTH
def test_reset_alone_may_set_them(stage: Stage, twin: Any) -> None:
    silent = stage.play(twin(Counts), sampler=Recording(lambda request: []))
    assert silent.one.stop_reason is StopReason.EMPTY_SAMPLE
    assert silent.one.extras == {"begun/at": 7.0, "said": None}


@BOTH
def test_the_score_of_the_episode_has_the_last_word(stage: Stage, twin: Any) -> None:
    def score(self: Any, messages: Any) -> None:
        self.extras = {"heard": len(messages)}

    async def score_async(self: Any, messages: Any) -> None:
        score(self, messages)

    scores = twin(env(Counts))
    scores.score_episode = score if twin is not asynced else score_async
    played = stage.play(scores)
    assert played.one.extras == {"heard": len(played.one.messages)}


def test_a_failed_rollout_and_an_environment_without_any_have_none(stage: Stage) -> None:
    def fails(self: Any, action: str) -> Any:
        raise ValueError("gone")

    played = stage.play(env(Counts, step=fails), Talk, retries=0)
    assert [rollout.failed for rollout in played.rollouts] == [True, False]
    assert [dict(rollout.extras) for rollout in played.rollouts] == [{}, {}]


def test_the_record_keeps_them(stage: Stage, tmp_path: Any) -> None:
    from abut.records import read_records

    recorder = JsonlRecorder(tmp_path / "rollouts.jsonl")
    stage.engine(Recording(stage.says())).run(stage.tasks([Counts]), on_rollout=recorder.write)
    (record,) = read_records(tmp_path / "rollouts.jsonl")
    assert record["extras"]["count"] == 3.0


class Loud:
    def __float__(self) -> float:
        raise SystemExit


@pytest.mark.parametrize(
    ("extras", "text"),
    [
        (
            [1],
            (
                "type.extras must be a dict from names to numbers and strings, got list of 1: "
                "['int']"
            ),
        ),
        ({1: 2}, "type.extras has a key that is not a string: int: '1'"),
        ({"a": [1]}, "type.extras['a'] must be a number, a string or None, got list of 1: ['int']"),
        ({"a": Loud()}, "type.extras['a'] must be a number, a string or None, got Loud: "),
    ],
)
def test_other_extras_are_named(extras: Any, text: str) -> None:
    with pytest.raises(EnvError) as raised:
        env_extras(type("type", (), {"extras": extras}))
    assert str(raised.value).startswith(text)


def test_a_property_that_raises_fails_its_rollout_alone(stage: Stage) -> None:
    def broken(self: Any) -> Any:
        raise SystemExit("no extras")

    played = stage.play(env(extras=property(broken)), Talk, retries=0)
    assert played.rollouts[0].error == "EnvError: Talk.extras raised SystemExit: no extras"
    assert not played.rollouts[1].failed


@pytest.mark.parametrize(
    ("name", "whose"),
    [("messages", "abut or TRL"), ("completion", "abut or TRL"), ("level", "the dataset")],
)
def test_a_name_that_is_taken_ends_the_batch(stage: Stage, name: str, whose: str) -> None:
    tasks = stage.tasks([env(extras={name: 1.0}), Talk], columns={"level": 3})
    with pytest.raises(EnvError) as raised:
        stage.engine(Recording(stage.says()), retries=3).run(tasks)
    assert str(raised.value) == (
        f"Talk: extras has {name!r}, which is a column of {whose}\nhint: use another name in extras"
    )
