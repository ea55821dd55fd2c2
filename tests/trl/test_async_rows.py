"""Rows, scores and the place in the dataset, without a trainer."""

import json
import math
from typing import Any

import numpy as np
import pytest

import abut
from abut.errors import RolloutError
from abut.rollout.rollout import Branch, Rollout, StopReason, TurnRecord
from abut.trl import env_reward
from abut.trl.route import EnvRoute
from abut.trl.rows.columns import conversations_of
from abut.trl.streaming.dataset_position import DatasetGroups, DatasetPosition
from abut.trl.streaming.group_scores import (
    GroupScores,
    RowAdvantages,
    advantages_of,
    reward_functions,
    row_advantages,
    scores_of,
)
from abut.trl.streaming.training_row import (
    RolloutRow,
    RowMetrics,
    can_be_scored,
    conversation_of,
    recorded_rows,
    rows_of_rollout,
)
from abut.trl.tasks import Tasks
from tests.kit.stage.rollouts import Talk


def columns(prompt: list[int], completion: list[int], mask: list[int]) -> Any:
    logprobs = np.where(np.array(mask) == 1, -0.5, 0.0).astype(np.float32)
    return abut.Columns(
        prompt_ids=np.array(prompt),
        completion_ids=np.array(completion),
        logprobs=logprobs,
        env_mask=np.array(mask, np.uint8),
    )


def turn(start: int, end: int, *versions: int) -> TurnRecord:
    return TurnRecord(start, end, "stop", 0.1, streams={"versions": np.array(versions)})


def rows(rollout: Rollout, **changes: Any) -> list[RolloutRow]:
    named = {"group_id": 7, "metrics": {"reward": 1.0}, "version": 9, "as_lists": False}
    advantages = [0.5] * len(conversations_of(rollout))
    return rows_of_rollout(rollout, **{"advantages": advantages} | named | changes)  # type: ignore[arg-type]


BRANCHED = Rollout(
    "r",
    0,
    columns=columns([1, 2], [3, 4, 5], [1, 0, 1]),
    turns=[turn(2, 3, 4), turn(4, 5, 6)],
    stop_reason=StopReason.ENV_DONE,
    branches=[
        Branch(columns([1, 2, 3], [8], [1]), turns=[turn(3, 4, 5)]),
        Branch(columns([1], [9], [1]), delivered=False, turns=[turn(1, 2, 5)]),
    ],
)


def test_a_row_is_prompt_and_completion_in_one() -> None:
    row, branch = rows(BRANCHED)
    assert row.input_ids.tolist() == [1, 2, 3, 4, 5]
    assert row.completion_mask.tolist() == [0, 0, 1, 0, 1]
    assert row.old_log_probs.tolist() == [0, 0, -0.5, 0, -0.5]
    assert (row.input_ids.dtype, row.completion_mask.dtype) == (np.int64, np.int64)
    assert row.old_log_probs.dtype == np.float32
    assert (row.trained_tokens, row.advantage, row.group_id) == (2, 0.5, 7)
    assert branch.input_ids.tolist() == [1, 2, 3, 8]
    assert branch.completion_mask.tolist() == [0, 0, 0, 1]
    assert branch.advantage == row.advantage


def test_a_row_is_as_old_as_the_oldest_token_that_it_trains() -> None:
    assert [row.model_version for row in rows(BRANCHED)] == [4, 5]


def test_what_nobody_heard_is_no_row() -> None:
    assert len(rows(BRANCHED)) == 2


def test_each_row_has_metrics_of_its_own() -> None:
    one, other = rows(BRANCHED)
    one.metrics["reward"] = 3.0
    assert other.metrics == {"reward": 1.0}


def test_lists_for_a_trainer_that_takes_lists() -> None:
    row = rows(BRANCHED, as_lists=True)[0]
    for value in (row.input_ids, row.completion_mask, row.old_log_probs):
        assert type(value) is list


def test_each_row_has_an_advantage_of_its_own_and_without_one_is_none() -> None:
    assert [row.advantage for row in rows(BRANCHED, advantages=[0.5, -1.0])] == [0.5, -1.0]
    (other,) = rows(BRANCHED, advantages=[None, -1.0])
    assert other.input_ids.tolist() == [1, 2, 3, 8]


def test_a_row_without_a_trained_token_is_none() -> None:
    """A micro-batch of such rows ends training."""
    empty = Rollout("r", 0, columns=columns([1, 2], [3], [0]), stop_reason=StopReason.ENV_DONE)
    alone = Rollout("r", 0, columns=columns([], [3], [1]), stop_reason=StopReason.ENV_DONE)
    assert rows(empty) == rows(alone) == []


def test_what_failed_or_was_ended_has_no_score() -> None:
    scored = columns([1], [2], [1])
    assert can_be_scored(Rollout("r", 0, columns=scored, stop_reason=StopReason.MAX_TURNS))
    assert not can_be_scored(Rollout("r", 0, columns=scored, stop_reason=StopReason.STALE))
    assert not can_be_scored(Rollout("r", 0, columns=scored, stop_reason=StopReason.ERROR))
    assert not can_be_scored(Rollout("r", 0, stop_reason=StopReason.ENV_DONE))


def test_the_completion_begins_with_the_policys_first_turn() -> None:
    def said(*roles: str) -> list[Any]:
        return [{"role": role, "content": str(k)} for k, role in enumerate(roles)]

    messages = said("user", "assistant", "user", "assistant", "user", "assistant")
    two = [turn(2, 3), turn(4, 5)]
    prompt, completion = conversation_of(Rollout("r", 0, messages=messages, turns=two))
    assert (len(prompt), len(completion)) == (3, 3)
    assert conversation_of(Rollout("r", 0, messages=messages)) == (messages, [])


def trls_advantages(rewards: list[float]) -> Any:
    values = np.array(rewards, float)
    scored = ~np.isnan(values)
    advantages = np.zeros_like(values)
    some = values[scored]
    advantages[scored] = (some - some.mean()) / (some.std() + 1e-8)
    return advantages


@pytest.mark.parametrize(
    "rewards", [[1.0, 0.0, 0.5], [1.0, math.nan, 0.0, 3.0], [0.1] * 8, [2.0], [-1e9, 1e9, 0]]
)
def test_advantages_are_those_of_trls_own_worker(rewards: list[float]) -> None:
    ours = advantages_of([None if math.isnan(r) else r for r in rewards])[0]
    assert ours == pytest.approx(trls_advantages(rewards).tolist(), abs=1e-12)


@pytest.mark.parametrize("rewards", [[1e308, -1e308, 1e308], [1e200, 0.0], [], [None, None]])
def test_advantages_are_finite(rewards: list[Any]) -> None:
    advantages, *_ = advantages_of(rewards)
    assert np.isfinite(advantages).all()
    if rewards[:1] == [1e308]:
        assert advantages == pytest.approx([0.7071, -1.4142, 0.7071], abs=1e-3)


# ---- rewards of conversations


def seat(name: str | None, reward: float | None, *, trained: bool = True) -> Branch:
    return Branch(columns([1], [9], [1]), name=name, reward=reward, trained=trained)


def of_group(
    *rollouts: list[Branch], rewards: list[float | None], can: list[bool] | None = None
) -> RowAdvantages:
    scores = GroupScores({}, rewards, *advantages_of(rewards))
    return row_advantages(rollouts, scores, can or [True] * len(rollouts))


def test_conversations_without_a_reward_share_that_of_their_rollout() -> None:
    rewards = [1.0, 0.0, None]
    found = of_group(
        [seat(None, None), seat("a", None)], [seat(None, None)], [seat("a", None)], rewards=rewards
    )
    one, other, _ = advantages_of(rewards)[0]
    assert found.advantages == [[one, one], [other], [None]]
    assert found.alone == [False, False, False]


def test_a_reward_of_its_own_is_compared_as_trl_compares_rollouts() -> None:
    """Whatever the rollouts' rewards are."""
    own = [1.0, 0.0, 0.5, 3.0]
    found = of_group(*([seat("a", reward)] for reward in own), rewards=[9.0, None, 9.0, 0.0])
    trls = trls_advantages(own).tolist()
    assert [of_rollout[0] for of_rollout in found.advantages] == pytest.approx(trls, abs=1e-7)


def test_two_players_have_two_baselines() -> None:
    first, second = [2.0, -1.0, -1.0], [-200.0, 100.0, 100.0]
    found = of_group(
        *([seat("x", a), seat("y", b)] for a, b in zip(first, second, strict=True)),
        rewards=[None] * 3,
    )
    for k, rewards in enumerate((first, second)):
        ours = [of_rollout[k] for of_rollout in found.advantages]
        assert ours == pytest.approx(trls_advantages(rewards).tolist(), abs=1e-7)


def test_siblings_of_a_rollout_are_one_in_the_baseline_of_others() -> None:
    """Two conversations of one name in the first rollout, one in each of the others."""
    found = of_group(
        [seat("a", 4.0), seat("a", 2.0)], [seat("a", 1.0)], [seat("a", 0.0)], rewards=[None] * 3
    )
    means = np.array([3.0, 1.0, 0.0])
    others = (means.sum() - means) / 2
    differences = [
        [2 / 3 * (4.0 - others[0]), 2 / 3 * (2.0 - others[0])],
        [2 / 3 * (1.0 - others[1])],
        [2 / 3 * (0.0 - others[2])],
    ]
    squares = [np.mean(np.square(of_rollout)) for of_rollout in differences]
    std = np.sqrt(np.mean(squares)) + 1e-8
    for ours, right in zip(found.advantages, differences, strict=True):
        assert ours == pytest.approx([value / std for value in right])


def test_what_is_not_trained_or_cannot_be_scored_is_not_a_row_and_in_no_baseline() -> None:
    found = of_group(
        [seat("a", 1.0), seat("judge", None, trained=False)],
        [seat("a", 0.0), seat("a", None, trained=False)],
        [seat("a", 100.0)],
        rewards=[1.0, 1.0, None],
        can=[True, True, False],
    )
    assert found.advantages == [
        [pytest.approx(1.0), None],
        [pytest.approx(-1.0), None],
        [None],
    ]


def test_a_conversation_without_others_to_compare_with_has_the_advantage_0() -> None:
    found = of_group([seat("a", 1.0)], [seat("b", 1.0)], [seat("b", 1.0)], rewards=[1.0, 2.0, 3.0])
    assert found.advantages == [[0.0], [0.0], [0.0]]
    assert found.alone == [True, False, False]


def test_advantages_of_huge_rewards_of_conversations_are_finite() -> None:
    found = of_group([seat("a", 1e308)], [seat("a", -1e308)], rewards=[None, None])
    assert found.advantages == [[pytest.approx(1.0)], [pytest.approx(-1.0)]]


def test_rows_are_recorded_with_their_branch_and_an_advantage_for_each_turn() -> None:
    rollout = Rollout(
        "r",
        0,
        columns=columns([1, 2], [3, 4, 5], [1, 0, 1]),
        turns=[turn(2, 3), turn(4, 5)],
        branches=[
            Branch(columns([1], [9], [1]), delivered=False),
            Branch(columns([1], [8], [1]), turns=[turn(1, 2)]),
            Branch(columns([1], [7], [1]), turns=[turn(1, 2)]),
        ],
        stop_reason=StopReason.ENV_DONE,
    )
    assert recorded_rows(rollout, [0.5, None, -1.0], by_reward=True) == [
        {"row": None, "branch": None, "weight": 1.0, "advantages": [0.5, 0.5]},
        {"row": None, "branch": 2, "weight": 1.0, "advantages": [-1.0]},
    ]


async def ask(*functions: Any, can: list[bool], **columns: Any) -> Any:
    async def on_loop(call: Any) -> Any:
        return await call()

    return await scores_of(functions, columns, can, on_loop)


def scores(*functions: Any, can: Any = (True, True), **columns: Any) -> Any:
    import asyncio

    return asyncio.run(ask(*functions, can=list(can), **columns))


def ones(completions: Any = (), **_: Any) -> list[Any]:
    return [1.0, 2.0]


async def later(**_: Any) -> list[Any]:
    return [None, 5.0]


def test_rewards_of_several_functions_are_added() -> None:
    scored = scores(ones, later)
    assert scored.rewards == [1.0, 7.0]
    assert scored.by_function == {"ones": [1.0, 2.0], "later": [None, 5.0]}


def test_what_cannot_be_scored_has_no_reward_whatever_a_function_says() -> None:
    scored = scores(ones, can=[False, True])
    assert (scored.rewards, scored.advantages) == ([None, 2.0], [0.0, 0.0])


@pytest.mark.parametrize("value", [math.nan, math.inf, None])
def test_a_reward_that_is_no_number_is_none(value: Any) -> None:
    assert scores(lambda **_: [value, 1.0]).rewards == [None, 1.0]


def boom(**_: Any) -> Any:
    raise KeyError("answer")


def test_a_reward_function_that_raises_is_named() -> None:
    with pytest.raises(RolloutError, match="the reward function boom raised KeyError: 'answer'"):
        scores(boom)


def test_a_reward_for_each_rollout() -> None:
    message = "the reward function ones returned 2 rewards for a group of 3 rollouts"
    with pytest.raises(RolloutError, match=message):
        scores(ones, can=[True] * 3)


def test_reward_functions_are_functions() -> None:
    assert reward_functions(env_reward) == reward_functions([env_reward]) == [env_reward]
    with pytest.raises(TypeError, match="'a/model', which is not a function\nhint: call a reward"):
        reward_functions(["a/model"])
    with pytest.raises(ValueError, match="reward_funcs is empty, so there is nothing to"):
        reward_functions([])


# ---- the place in the dataset


def pushed(place: DatasetPosition, group: int, count: int, version: int = 1) -> list[RolloutRow]:
    made = [
        RolloutRow(
            [],
            [],
            np.arange(3),
            np.array([0, 1, 1]),
            np.array([0, -0.25, -1 / 3], np.float32),
            0.5,
            version,
            group,
            RowMetrics(reward=1.0, odd=math.nan),
        )
        for _ in range(count)
    ]
    place.deliver(group, made)
    return made


def a_place() -> DatasetPosition:
    place = DatasetPosition()
    place.is_followed = True
    return place


def train(place: DatasetPosition, *batches: list[RolloutRow]) -> None:
    for batch in batches:
        place.collated([{"metrics": row.metrics} for row in batch])
    for _ in batches:
        place.trained()


def saved(place: DatasetPosition, version: int = 3) -> Any:
    return json.loads(json.dumps(place.state(version)))


def test_a_group_is_done_when_all_of_its_rows_were_trained() -> None:
    place = a_place()
    groups = [place.begin() for _ in range(3)]
    first, second = pushed(place, groups[0], 2), pushed(place, groups[2], 2)
    place.collated([[{"metrics": row.metrics} for row in [*first, *second]]])
    assert saved(place)["first"] == 0, "collated is not trained"
    place.trained()
    assert saved(place) == {"first": 1, "done": [2], "rows": [], "groups_trained": 2}


def test_groups_that_were_not_trained_are_played_again() -> None:
    place = a_place()
    for group in (place.begin(), place.begin(), place.begin()):
        made = pushed(place, group, 2)
        if group == 1:
            train(place, made)
    other = a_place()
    assert other.restore(saved(place), 1, as_lists=False) == []
    # Group 0 was taken before group 1, and was not among what was trained: dropped as too old.
    assert [other.begin() for _ in range(3)] == [2, 3, 4]


def test_groups_that_end_later_than_the_next_are_not_lost() -> None:
    place = a_place()
    place.begin()
    train(place, pushed(place, place.begin(), 2))
    other = a_place()
    other.restore(saved(place), 1, as_lists=False)
    assert [other.begin() for _ in range(3)] == [0, 2, 3]


def test_the_rest_of_a_group_is_kept() -> None:
    place = a_place()
    made = pushed(place, place.begin(), 3, version=2)
    train(place, made[:1])
    state = saved(place, version=3)
    other = a_place()
    kept = other.restore(state, 1, as_lists=False)
    assert [row.input_ids.tolist() for row in kept] == [[0, 1, 2]] * 2
    assert kept[0].old_log_probs.tolist() == made[1].old_log_probs.tolist()
    assert kept[0].completion_mask.dtype == kept[0].input_ids.dtype == np.int64
    assert (kept[0].model_version, kept[0].advantage) == (0, 0.5), "as old as it was"
    assert kept[0].metrics["reward"] == 1.0
    assert math.isnan(kept[0].metrics["odd"])
    assert [other.begin() for _ in range(2)] == [1, 2], "and is not played again"
    # Until they are trained, a further checkpoint keeps them as well.
    other.deliver(0, kept)
    assert len(saved(other)["rows"]) == 2
    train(other, kept)
    assert saved(other) == {"first": 1, "done": [], "rows": [], "groups_trained": 1}


def test_the_kept_rest_of_a_later_group_leaves_the_earlier_ones() -> None:
    place = a_place()
    place.begin()
    made = pushed(place, place.begin(), 2)
    train(place, made[:1])
    other = a_place()
    (kept,) = other.restore(saved(place), 1, as_lists=False)
    assert kept.group_id == 1
    assert [other.begin() for _ in range(2)] == [0, 2]


def test_a_group_without_rows_is_done() -> None:
    place = a_place()
    pushed(place, place.begin(), 0)
    assert saved(place)["first"] == 1


def test_where_nobody_follows_nothing_is_kept() -> None:
    place = DatasetPosition()
    pushed(place, place.begin(), 2)
    assert not place._rows


def groups_of(dataset: Any, place: DatasetPosition | None = None) -> DatasetGroups:
    tasks = Tasks(EnvRoute(Talk), seed=0, system_prompt=None)
    tasks.run_id = "run"
    return DatasetGroups(dataset, tasks, place or a_place(), lambda task: task, 2)


class Endless:
    """Rows that can only be had one after the other, as of an `IterableDataset`."""

    def __iter__(self) -> Any:
        return iter([{"prompt": "a"}, {"prompt": "b"}])


@pytest.mark.parametrize("dataset", [[{"prompt": "a"}, {"prompt": "b"}], Endless()])
def test_the_dataset_is_played_in_its_order_again_and_again(dataset: Any) -> None:
    place = a_place()
    place.restore({"first": 1, "done": [3], "rows": [], "groups_trained": 2}, 1, as_lists=False)
    groups = groups_of(dataset, place)
    tasks = [next(groups) for _ in range(3)]
    assert [group[0].seed for group in tasks] == ["b", "a", "a"]
    assert [group[0].group for group in tasks] == [1, 2, 4]


def test_the_rollouts_of_a_group_share_their_episode_and_differ_in_their_samples() -> None:
    one, other = next(groups_of([{"prompt": "a"}]))
    assert one.episode_seed == other.episode_seed
    assert one.sample_key != other.sample_key
    assert (one.rollout_id, other.rollout_id) == ("train-0-0-run", "train-0-1-run")


def test_a_resumed_run_goes_on_with_the_same_episodes() -> None:
    place = a_place()
    place.begin()
    groups = groups_of([{"prompt": "a"}])
    next(groups)
    assert next(groups_of([{"prompt": "a"}], place))[0].episode_seed == next(groups)[0].episode_seed


@pytest.mark.parametrize("dataset", [[], iter(())])
def test_an_empty_dataset_is_refused(dataset: Any) -> None:
    with pytest.raises(ValueError, match="train_dataset has no rows"):
        next(groups_of(dataset))


def test_a_row_without_a_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="the row of group 0 has no column 'prompt', only 'text'"):
        next(groups_of([{"text": "a"}]))
