"""The gradient of `Returns` against the exact one: every group of three rollouts is enumerated.

A small policy chooses one of three actions at each turn; the first one ends the rollout, so there
are 15 trajectories of 1 to 3 turns. Estimators that are known to be wrong are measured beside it.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from abut.trl.credit import Returns, ScoredConversation, ScoredRollout, ScoredTurn, credited
from abut.trl.returns import Floats

GROUP = 3
SHRUNK = (GROUP - 1) / GROUP
"""The factor that a mean with the rollout itself in it leaves of the gradient."""

Advantages = Sequence[Sequence[Sequence[float]]]
Estimator = Callable[[list["Played"]], Advantages]


class Policy:
    """Softmax policies of states, with the derivative of each choice's logprob."""

    def __init__(self, actions: dict[str, int], seed: int) -> None:
        random = np.random.default_rng(seed)
        self._start: dict[str, int] = {}
        self._chances: dict[str, Floats] = {}
        for state, count in actions.items():
            self._start[state] = sum(map(len, self._chances.values()))
            weights = np.exp(random.normal(size=count))
            self._chances[state] = weights / weights.sum()
        self.size = sum(map(len, self._chances.values()))

    def chance(self, state: str, action: int) -> float:
        return float(self._chances[state][action])

    def slope(self, state: str, action: int) -> Floats:
        """Return `(size,)`: the derivative of the logprob by the logits."""
        slope = np.zeros(self.size)
        start = self._start[state]
        slope[start : start + len(self._chances[state])] = -self._chances[state]
        slope[start + action] += 1
        return slope


@dataclass
class Played:
    """One thing that can happen: its probability, its rewards, and the slopes of its choices."""

    chance: float
    reward: float
    conversations: list[ScoredConversation]
    slopes: list[list[Floats]]

    def scored(self) -> ScoredRollout:
        return ScoredRollout("r", self.reward, 0.0, self.conversations)


def trajectories(pays: Callable[[str], float], policy: Policy) -> list[Played]:
    """Return the 15 trajectories; `pays` is what a choice is paid at once, by its history."""
    found = []

    def go_on(path: str) -> None:
        if path and (path[-1] == "0" or len(path) == 3):
            ways = [(path[:k], int(path[k])) for k in range(len(path))]
            turns = [ScoredTurn(1, pays(path[: k + 1])) for k in range(len(path))]
            # A last reward that no turn was paid.
            reward = sum(turn.reward or 0.0 for turn in turns) + pays(f"end of {path}")
            found.append(
                Played(
                    math.prod(policy.chance(*way) for way in ways),
                    reward,
                    [ScoredConversation(None, None, turns)],
                    [[policy.slope(*way) for way in ways]],
                )
            )
            return
        for action in "012":
            go_on(path + action)

    go_on("")
    assert len(found) == 15
    return found


def a_policy(seed: int) -> Policy:
    states = ["", *"12", *("".join(two) for two in itertools.product("12", repeat=2))]
    return Policy(dict.fromkeys(states, 3), seed)


def random_pay(seed: int) -> Callable[[str], float]:
    paid: dict[str, float] = {}
    random = np.random.default_rng(seed)
    return lambda path: paid.setdefault(path, float(random.normal()))


def one_each(path: str) -> float:
    """Pay each turn 1, and nothing at the end."""
    return 0.0 if path.startswith("end") else 1.0


def true_gradient(plays: list[Played], discount: float = 1.0) -> Floats:
    """Return the expected sum over turns of return times slope, without any baseline."""
    total = np.zeros_like(plays[0].slopes[0][0])
    for played in plays:
        for conversation, slopes in zip(played.conversations, played.slopes, strict=True):
            paid = [turn.reward or 0.0 for turn in conversation.turns]
            paid[-1] += played.reward - sum(paid) - sum(r or 0.0 for r in conversation.before)
            for t, slope in enumerate(slopes):
                later = sum(discount ** (k - t) * paid[k] for k in range(t, len(paid)))
                total += played.chance * later * slope
    return total


def moments(plays: list[Played], estimate: Estimator) -> tuple[Floats, float]:
    """Return the expectation of a group's gradient, and its noise: exact, over all groups."""
    mean, square = np.zeros_like(plays[0].slopes[0][0]), 0.0
    assert math.isclose(sum(played.chance for played in plays), 1.0)
    groups = list(itertools.combinations_with_replacement(plays, GROUP))
    advantages = estimate([played for group in groups for played in group])
    for k, group in enumerate(groups):
        orders = len(set(itertools.permutations(map(id, group))))
        chance = orders * math.prod(played.chance for played in group)
        gradient = np.zeros_like(mean)
        of_group = advantages[k * GROUP : (k + 1) * GROUP]
        for played, of_rollout in zip(group, of_group, strict=True):
            for slopes, of_turns in zip(played.slopes, of_rollout, strict=True):
                for slope, advantage in zip(slopes, of_turns, strict=True):
                    gradient += slope * advantage / GROUP
        mean += chance * gradient
        square += chance * float(gradient @ gradient)
    return mean, math.sqrt(square - float(mean @ mean))


def bias(mean: Floats, true: Floats) -> float:
    """Return the relative error of a mean gradient at the learning rate that suits it best."""
    lengths = np.linalg.norm(mean) * np.linalg.norm(true)
    cosine = mean @ true / lengths if lengths else 0.0
    return math.sqrt(max(0.0, 1 - cosine**2))


# ---- estimators


def by_returns(discount: float = 1.0) -> Estimator:
    def estimate(plays: list[Played]) -> Advantages:
        rollouts = [played.scored() for played in plays]
        found = credited(Returns(discount), rollouts, num_generations=GROUP, scale_rewards="none")
        return found.advantages  # type: ignore[return-value]

    return estimate


def of_groups(estimate: Callable[[list[list[float]]], list[list[float]]]) -> Estimator:
    """Return an estimator that sees the rewards of a group's turns, of one conversation each."""

    def of_all(plays: list[Played]) -> Advantages:
        found: list[list[list[float]]] = []
        for k in range(0, len(plays), GROUP):
            paid = []
            for played in plays[k : k + GROUP]:
                (conversation,) = played.conversations
                paid.append([turn.reward or 0.0 for turn in conversation.turns])
                paid[-1][-1] += played.reward - sum(paid[-1])
            found += [[of_turns] for of_turns in estimate(paid)]
        return found

    return of_all


def _later(paid: list[float]) -> list[float]:
    return [sum(paid[t:]) for t in range(len(paid))]


def _less_mean_of_those_there(values: list[list[float]]) -> list[list[float]]:
    means = [
        np.mean([row[t] for row in values if t < len(row)]) for t in range(max(map(len, values)))
    ]
    return [[float(v - means[t]) for t, v in enumerate(row)] for row in values]


@of_groups
def summed_after_the_mean(paid: list[list[float]]) -> list[list[float]]:
    """Take the mean of rewards at each turn off, then sum."""
    return [_later(row) for row in _less_mean_of_those_there(paid)]


@of_groups
def among_those_there(paid: list[list[float]]) -> list[list[float]]:
    """Compare a return with those of the rollouts that got to this turn."""
    return _less_mean_of_those_there([_later(row) for row in paid])


@of_groups
def trajectory(paid: list[list[float]]) -> list[list[float]]:
    """One advantage for all turns, as GRPO has."""
    total = [sum(row) for row in paid]
    return [[t - sum(total) / GROUP] * len(row) for t, row in zip(total, paid, strict=True)]


@of_groups
def ended_as_zero(paid: list[list[float]]) -> list[list[float]]:
    """Count a rollout that has ended as a return of 0."""
    returns = [_later(row) for row in paid]
    return [
        [
            v - sum(other[t] for other in returns if t < len(other)) / GROUP
            for t, v in enumerate(row)
        ]
        for row in returns
    ]


# ---- one conversation


@pytest.mark.parametrize("discount", [1.0, 0.7, 0.0])
@pytest.mark.parametrize("pay", ["random", "one each"])
def test_the_gradient_is_unbiased(discount: float, pay: str) -> None:
    for seed in range(3):
        plays = trajectories(random_pay(seed) if pay == "random" else one_each, a_policy(seed))
        mean, _ = moments(plays, by_returns(discount))
        assert np.abs(mean - SHRUNK * true_gradient(plays, discount)).max() < 1e-12


@pytest.mark.parametrize("estimate", [trajectory, ended_as_zero])
def test_other_unbiased_estimators_are_found_unbiased(estimate: Estimator) -> None:
    plays = trajectories(random_pay(0), a_policy(0))
    mean, _ = moments(plays, estimate)
    assert np.abs(mean - SHRUNK * true_gradient(plays)).max() < 1e-12


@pytest.mark.parametrize(
    ("estimate", "least"), [(summed_after_the_mean, 0.05), (among_those_there, 0.01)]
)
@pytest.mark.parametrize("pay", ["random", "one each"])
def test_estimators_that_count_those_there_are_found_biased(
    estimate: Estimator, least: float, pay: str
) -> None:
    for seed in range(3):
        plays = trajectories(random_pay(seed) if pay == "random" else one_each, a_policy(seed))
        mean, _ = moments(plays, estimate)
        assert bias(mean, true_gradient(plays)) > least


def test_returns_have_less_noise_where_each_turn_is_paid() -> None:
    for seed in range(3):
        plays = trajectories(one_each, a_policy(seed))
        assert moments(plays, by_returns())[1] < 0.9 * moments(plays, trajectory)[1]


# ---- several conversations


def with_sub_agents(seed: int) -> list[Played]:
    """Rollouts whose first choice is how many sub-agents there are: 0, 1 or 2."""
    policy, pays = Policy({"main": 3, "sub": 2}, seed), random_pay(seed)
    found = []
    for count in range(3):
        for choices in itertools.product(range(2), repeat=count):
            ways = [("main", count), *(("sub", choice) for choice in choices)]
            found.append(
                Played(
                    math.prod(policy.chance(*way) for way in ways),
                    pays(f"{count} {choices}"),
                    [ScoredConversation(None, None, [ScoredTurn(1)]) for _ in ways],
                    [[policy.slope(*way)] for way in ways],
                )
            )
    return found


def over_rows(plays: list[Played]) -> Advantages:
    """Compare with the mean over the rows of the group, those of the rollout itself among them."""
    found: list[list[list[float]]] = []
    for k in range(0, len(plays), GROUP):
        group = plays[k : k + GROUP]
        rows = [played.reward for played in group for _ in played.conversations]
        mean = sum(rows) / len(rows)
        found += [[[played.reward - mean] for _ in played.conversations] for played in group]
    return found


def test_the_gradient_is_unbiased_for_any_number_of_conversations() -> None:
    plays = with_sub_agents(0)
    mean, _ = moments(plays, by_returns())
    assert np.abs(mean - SHRUNK * true_gradient(plays)).max() < 1e-12
    # Each choice keeps another share of its gradient if rows are compared, and not one for all.
    shares = moments(plays, over_rows)[0] / true_gradient(plays)
    assert shares.min() < 0.6
    assert shares.max() > 0.7


def with_a_fork(seed: int) -> list[Played]:
    """A first turn, which is paid, then two second turns: one goes on, the other is a fork."""
    policy = Policy({"first": 2, "main 0": 2, "main 1": 2, "fork 0": 2, "fork 1": 2}, seed)
    pays = random_pay(seed)
    found = []
    for a, b, c in itertools.product(range(2), repeat=3):
        ways = [("first", a), (f"main {a}", b), (f"fork {a}", c)]
        first, second, third = (policy.slope(*way) for way in ways)
        paid, in_main, in_fork = pays(f"{a}"), pays(f"{a} {b}"), pays(f"{a}  {c}")
        main = ScoredConversation(None, None, [ScoredTurn(1, paid), ScoredTurn(1, in_main)])
        fork = ScoredConversation(None, None, [ScoredTurn(1, in_fork)], before=[paid])
        found.append(
            Played(
                math.prod(policy.chance(*way) for way in ways),
                paid + in_main + in_fork + pays(f"{a} {b} {c}"),
                [main, fork],
                [[first, second], [third]],
            )
        )
    return found


def test_the_turns_before_a_fork_count_and_are_not_trained_in_it() -> None:
    plays = with_a_fork(0)
    mean, _ = moments(plays, by_returns())
    expected_reward = np.zeros_like(mean)
    for played in plays:
        slopes = [slope for of_conversation in played.slopes for slope in of_conversation]
        expected_reward += played.chance * played.reward * sum(slopes)
    assert np.abs(mean - SHRUNK * expected_reward).max() < 1e-12
