"""The figures of an evaluation, each against what it is by hand or by counting all cases."""

import json
import math
from collections.abc import Iterator, Sequence
from itertools import combinations, product
from statistics import mean, stdev
from typing import Any

import numpy as np
import pytest

import abut
from abut.demo.model import ASSETS
from abut.evaluation import Evaluation, PassAt
from abut.rollout.rollout import Rollout, StopReason, TurnRecord
from abut.samplers import ScriptedReplies

FAILED = "failed"


def rollouts_of(outcomes: Sequence[Sequence[Any]]) -> Iterator[Rollout]:
    """A rollout for each outcome: a reward, None without a score, `FAILED`, or `...` for none."""
    k = len(outcomes[0])
    for row, played in enumerate(outcomes):
        for member, outcome in enumerate(played):
            rollout = Rollout(f"{row}-{member}", row * k + member, turns=[TurnRecord(0, 5)])
            if outcome is FAILED:
                rollout.error = f"EnvError: no answer after {row} s"
                rollout.reward = 0.0  # as RolloutConfig(on_failure="zero") leaves it
            else:
                rollout.stop_reason, rollout.reward = StopReason.ENV_DONE, outcome
            if outcome is not ...:
                yield rollout


def evaluated(outcomes: Sequence[Sequence[Any]], **options: Any) -> Evaluation:
    rows = [{"prompt": str(row)} for row in range(len(outcomes))]
    return Evaluation.of(list(rollouts_of(outcomes)), rows, len(outcomes[0]), **options)


def test_mean_and_error_are_those_of_the_rows() -> None:
    one = evaluated([[1.0, 0.0], [0.5, 0.5], [1.0, 1.0]])
    means = [0.5, 0.5, 1.0]
    assert one.rewards.tolist() == [[1.0, 0.0], [0.5, 0.5], [1.0, 1.0]]
    assert one.mean_reward == pytest.approx(mean(means))
    assert one.standard_error == pytest.approx(stdev(means) / math.sqrt(3))
    assert evaluated([[1.0, 0.0]]).standard_error is None


def test_what_failed_or_has_no_score_is_counted_and_no_reward() -> None:
    one = evaluated([[1.0, FAILED], [None, 0.0], [FAILED, None]])
    assert np.isnan(one.rewards).tolist() == [[False, True], [True, False], [True, True]]
    assert (one.mean_reward, one.failed, one.unscored) == (0.5, 2, 2)
    assert one.failures == {"EnvError: no answer after … s": 2}
    assert one.stop_reasons == {"env_done": 4, "error": 2}
    zero = evaluated([[1.0, FAILED], [None, 0.0], [FAILED, None]], failed="zero")
    assert zero.rewards[0].tolist() == [1.0, 0.0]
    assert zero.mean_reward == pytest.approx((0.5 + 0.0 + 0.0) / 3)


def test_nothing_scored_has_no_mean() -> None:
    one = evaluated([[None], [FAILED]])
    assert (one.mean_reward, one.standard_error) == (None, None)
    assert "reward      -" in str(one)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_pass_at_is_the_share_of_draws_with_a_success(n: int) -> None:
    """Of all ways to draw `j` of a row's rollouts, without replacement."""
    for successes in product([True, False], repeat=n):
        chances = PassAt([(n, sum(successes))])
        for j in range(1, n + 1):
            drawn = [any(some) for some in combinations(successes, j)]
            assert chances[j] == pytest.approx(mean(drawn))
    assert list(PassAt([(n, 0), (n + 1, 1)])) == list(range(1, n + 1))


def test_a_success_has_the_reward_and_no_failure_is_one() -> None:
    """With `success=0` a failed rollout that counts as 0 would be one."""
    outcomes = [[1.0, 0.0, FAILED, -1.0]]
    assert evaluated(outcomes).pass_at[1] == 0.25
    assert evaluated(outcomes, success=0.0, failed="zero").pass_at[1] == 0.5
    assert evaluated(outcomes, success=0.0).pass_at[4] == 1.0


def test_a_row_with_fewer_rollouts_raises() -> None:
    """A rollout without a score, or that did not end, is none of them."""
    one = evaluated([[1.0, 0.0], [None, 1.0], [0.0, ...]])
    assert dict(one.pass_at) == {1: pytest.approx((0.5 + 1 + 0) / 3)}
    with pytest.raises(ValueError, match=r"pass_at\[2\] needs 2 .* row 1 has 1"):
        one.pass_at[2]
    with pytest.raises(ValueError, match="whole number"):
        one.pass_at[0]


def test_each_environment_has_the_same_figures() -> None:
    outcomes = [[1.0, 0.0], [0.5, FAILED], [1.0, 1.0]]
    rows = [{"environment": name} for name in ("a", "b", "a")]
    one = Evaluation.of(list(rollouts_of(outcomes)), rows, 2)
    a, b = one.by_environment["a"], one.by_environment["b"]
    assert (a.mean_reward, a.failed, len(a.rollouts)) == (0.75, 0, 4)
    assert (b.mean_reward, b.failed, b.pass_at[1]) == (0.5, 1, 0.0)
    assert dict(a.pass_at) == {1: 0.75, 2: 1.0}
    assert "b           0.5 of 2 rollouts" in str(one)
    assert one.to_dict()["by_environment"]["b"]["failed"] == 1


def test_the_values_are_json_without_nan() -> None:
    one = evaluated([[1.0, FAILED], [None, 0.0]])
    values = json.loads(json.dumps(one.to_dict(), allow_nan=False))
    assert values["rewards"] == [[1.0, None], [None, 0.0]]
    assert values["mean_turns"] == 1.0
    assert values["mean_tokens"] == 5.0


class Echo:
    """The reward is 1 for the prompt's last word."""

    def reset(self, seed: str) -> tuple[Any, str]:
        self.word, self.alive, self.reward = seed.split()[-1], True, 0.0
        return self, "say it"

    def step(self, action: str) -> tuple[Any, str]:
        self.alive, self.reward = False, float(action == self.word)
        return self, ""


def test_evaluate_plays_and_sums_up() -> None:
    pytest.importorskip("transformers", reason="the tokenizer is transformers'")
    rows = [{"prompt": f"word {word}"} for word in "aab"]
    one = abut.evaluate(
        Echo, rows, k=2, sampler=ScriptedReplies(["a"]), tokenizer=str(ASSETS), success=0.5
    )
    assert one.rewards.tolist() == [[1.0, 1.0], [1.0, 1.0], [0.0, 0.0]]
    assert one.pass_at[2] == pytest.approx(2 / 3)
    assert str(one).splitlines()[0] == "rollouts    6 of 3 rows, each played 2 ×"
    with pytest.raises(ValueError, match="failed='skip'"):
        abut.evaluate(Echo, rows, sampler=None, failed="skip")  # type: ignore[arg-type]
