"""Scores become a reward and extras; a score that is missing is None, never 0.0."""

import math
from typing import Any

import pytest

from tests.kit.stage.evals import Batch
from tests.kit.stage.rollouts import Stage

pytest.importorskip("inspect_ai")

from inspect_ai.scorer import Score, includes, mean, scorer

from abut.envs.signatures import UnplayableRow
from abut.inspect_ai import inspect_task
from abut.inspect_ai.sample_scores import scores_of
from tests.kit.stage.inspect_tasks import does, gives, play_tasks, sums


def played(stage: Stage, scorers: Any, reward: Any = None, **options: Any) -> Batch:
    agent = inspect_task(
        sums(scorer=scorers),
        log_dir=None,
        limit=1,
        reward=reward,
        values=options.pop("values", None),
    )
    return play_tasks(stage, agent, generations=1, **options)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        ("C", 1.0),
        ("P", 0.5),
        ("I", 0.0),
        ("N", 0.0),
        ("yes", 1.0),
        ("False", 0.0),
        ("0.25", 0.25),
        (True, 1.0),
        (3, 3.0),
        (0.5, 0.5),
        ("B", 0.8),
        ("other", None),
        (math.nan, None),
        (math.inf, None),
        ("nan", None),
        ([1.0, 0.0], None),
    ],
)
def test_a_value_is_a_number_or_none(value: Any, number: float | None) -> None:
    assert scores_of({"s": Score(value=value)}, {"B": 0.8}) == {"s": number}


def test_the_only_score_is_the_reward(stage: Stage) -> None:
    batch = played(stage, gives("B"), values={"B": 0.8})
    assert batch.rewards == [0.8]
    assert batch.one.extras == {"sums/gives": 0.8, "sums/limit": 0.0}
    assert batch.one.measured


@pytest.mark.parametrize("value", ["other", math.nan])
def test_a_score_that_is_no_number_is_none(stage: Stage, value: Any) -> None:
    batch = played(stage, gives(value))
    assert batch.rewards == [None]
    assert batch.one.error is None
    assert batch.one.extras == {"sums/limit": 0.0}


def test_a_task_without_scores_has_no_reward(stage: Stage) -> None:
    assert played(stage, None).rewards == [None]


def test_a_dict_has_parts(stage: Stage) -> None:
    parts = gives({"utility": "I", "security": "C"})
    assert played(stage, parts, "gives/security").rewards == [1.0]
    batch = played(stage, parts, lambda scores: sum(scores.values()) / 4)
    assert batch.rewards == [0.25]
    assert batch.one.extras == {
        "sums/gives/utility": 0.0,
        "sums/gives/security": 1.0,
        "sums/limit": 0.0,
    }
    with pytest.raises(UnplayableRow) as raised:
        played(stage, parts)
    assert (
        "sums has 2 scores, so reward= must choose one: 'gives/utility', 'gives/security'\n"
        "hint: set "
    ) in str(raised.value)


def test_two_scorers_of_one_name_are_numbered(stage: Stage) -> None:
    two = [includes(), includes(ignore_case=False)]
    with pytest.raises(UnplayableRow, match="choose one: 'includes', 'includes1'"):
        played(stage, two)
    batch = played(stage, two, "includes1")
    assert batch.rewards == [1.0]
    assert batch.one.extras["sums/includes"] == 1.0
    with pytest.raises(UnplayableRow, match="sums has no score 'exact'\nhint: its scores are "):
        played(stage, two, "exact")


@scorer(metrics=[mean()])
def even() -> Any:
    async def score(state: Any, target: Any) -> Score | None:
        return Score(value=1.0) if int(target.text) % 4 == 0 else None

    return score


def test_a_scorer_that_gives_a_sample_no_score(stage: Stage) -> None:
    """Whichever sample is scored first; a name that no scorer has is still an error."""
    agent = inspect_task(sums(scorer=[includes(), even()]), log_dir=None, reward="even")
    assert play_tasks(stage, agent, generations=1).rewards == [1.0, None]
    alone = sums(scorer=[includes(), even()])
    alone.dataset = [sample for sample in alone.dataset if int(sample.target) % 4]
    agent = inspect_task(alone, log_dir=None, reward="even")
    assert set(play_tasks(stage, agent, generations=1).rewards) == {None}
    with pytest.raises(UnplayableRow, match="sums has no score 'odd'"):
        play_tasks(
            stage, inspect_task(sums(scorer=[includes(), even()]), log_dir=None, reward="odd")
        )


def test_a_reward_function_that_raises_fails_its_rollout(stage: Stage) -> None:
    batch = played(stage, gives(1.0), lambda scores: 1 / 0, retries=0, max_failed_frac=1.0)
    assert "ZeroDivisionError" in str(batch.one.error)
    assert batch.rewards == [None]


def test_a_solver_may_score(stage: Stage) -> None:
    async def scores(state: Any, generate: Any) -> Any:
        state = await generate(state)
        state.scores = {"own": Score(value=0.75)}
        return state

    agent = inspect_task(sums(solver=does(scores), scorer=None), log_dir=None)
    assert play_tasks(stage, agent).rewards == [0.75] * 4


def test_samples_keep_what_scorers_look_for(stage: Stage) -> None:
    """A sample is the task's own: its metadata may hold anything."""
    from inspect_ai.dataset import Sample

    seen: list[Any] = []

    @scorer(metrics=[mean()])
    def looks() -> Any:
        async def score(state: Any, target: Any) -> Score:
            seen.append((state.metadata["pair"], state.metadata["abut_rollout"], target.text))
            return Score(value=1.0)

        return score

    sample = Sample(input="2+2?", target="4", metadata={"pair": (1, 2)})
    agent = inspect_task(sums(dataset=[sample], scorer=looks()), log_dir=None)
    play_tasks(stage, agent)
    assert sorted(seen) == [((1, 2), f"r{k}-run0.0", "4") for k in range(2)]
    assert sample.metadata == {"pair": (1, 2)}
