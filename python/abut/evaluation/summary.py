"""The results of an evaluation: mean reward, standard error, pass@k, failures.

Invariant: a rollout that failed or has no score is counted, and adds no reward of its own; only
`failed="zero"` makes a failure a reward of 0.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from abut.rollout.failures import Failures
from abut.rollout.rollout import Rollout
from abut.trl.route import ROUTE

FailedRollouts: TypeAlias = Literal["leave_out", "zero"]


class PassAt(Mapping[int, float]):
    """The probability that at least one of `j` rollouts of a row is a success, by `j` (pass@k).

    For a row with n rollouts, of which c are successes, the estimate is 1 - C(n - c, j) / C(n, j),
    which is unbiased (Chen et al. 2021, arXiv 2107.03374). The rows' estimates are averaged.

    Args:
        counts: n and c of each row. n includes failed rollouts, but not those without a score.
    """

    def __init__(self, counts: Sequence[tuple[int, int]]) -> None:
        self._counts = counts

    def __getitem__(self, j: int) -> float:
        """Return the estimate.

        Raises:
            ValueError: `j` is not positive, or a row has fewer rollouts.
        """
        if not isinstance(j, int) or j < 1 or not self._counts:
            raise ValueError(
                f"pass_at[{j!r}]: expected a whole number of at least 1 and an evaluation with rows"
            )
        for row, (played, _) in enumerate(self._counts):
            if played < j:
                raise ValueError(
                    f"pass_at[{j}] needs {j} rollouts of each row, but row {row} has {played}\n"
                    f"hint: pass k={j} or more; a rollout without a score counts only if it failed"
                )
        return sum(1 - comb(n - c, j) / comb(n, j) for n, c in self._counts) / len(self._counts)

    def __iter__(self) -> Iterator[int]:
        """Yield each `j` for which every row has enough rollouts."""
        return iter(range(1, len(self) + 1))

    def __len__(self) -> int:
        return min((played for played, _ in self._counts), default=0)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The rollouts of a policy and their statistics; `print` shows a table.

    Attributes:
        rollouts: all of them, row by row.
        rewards: `(rows, k)` float64; NaN where a rollout failed (0 with `failed="zero"`), has no
            score, or did not end.
        successes: for each row, how many rollouts count for `pass_at`, and how many succeeded.
        environments: the environment of each row; empty if rows name none.
    """

    rollouts: Sequence[Rollout]
    rewards: NDArray[np.float64]
    successes: Sequence[tuple[int, int]]
    environments: Sequence[Any] = ()

    @classmethod
    def of(
        cls,
        rollouts: Sequence[Rollout],
        rows: Sequence[Mapping[str, Any]],
        k: int,
        *,
        success: float = 1.0,
        failed: FailedRollouts = "leave_out",
    ) -> "Evaluation":
        """Make an evaluation from rollouts of `play`, some of which may be missing.

        Args:
            rollouts: in any order; the `index` of each gives its row and its place.
            rows: all rows.
            k: how often each row was to be played.
            success: as in `evaluate`.
            failed: as in `evaluate`.
        """
        rewards = np.full((len(rows), k), np.nan)
        judged = np.zeros(rewards.shape, bool)
        succeeded = np.zeros(rewards.shape, bool)
        for rollout in rollouts:
            at = divmod(rollout.index, k)
            # With RolloutConfig(on_failure="zero") a failed rollout has a reward too.
            reward = None if rollout.failed else rollout.reward
            judged[at] = rollout.failed or reward is not None
            succeeded[at] = reward is not None and reward >= success
            if rollout.failed and failed == "zero":
                reward = 0.0
            if reward is not None:
                rewards[at] = reward
        counts = zip(judged.sum(1).tolist(), succeeded.sum(1).tolist(), strict=True)
        environments = [row.get(ROUTE) for row in rows]
        named = any(name is not None for name in environments)
        return cls(rollouts, rewards, list(counts), environments if named else ())

    @property
    def mean_reward(self) -> float | None:
        """The mean of the row means, over rows that have a score; None if no row has one."""
        means = self.row_means[~np.isnan(self.row_means)]
        return float(means.mean()) if len(means) else None

    @property
    def standard_error(self) -> float | None:
        """The standard error of `mean_reward`, from the row means; None for fewer than two."""
        means = self.row_means[~np.isnan(self.row_means)]
        return float(means.std(ddof=1) / np.sqrt(len(means))) if len(means) > 1 else None

    @property
    def row_means(self) -> NDArray[np.float64]:
        """The mean reward of each row, `(rows,)` float64; NaN where it has no score."""
        counts = (~np.isnan(self.rewards)).sum(1)
        # Not `nanmean`, which warns about rows without a score.
        return np.where(counts, np.nansum(self.rewards, 1) / np.maximum(counts, 1), np.nan)

    @property
    def pass_at(self) -> PassAt:
        """The probability that at least one of `j` rollouts succeeds: `pass_at[j]`, `j` ≤ `k`.

        A failed rollout counts as one that did not succeed.
        """
        return PassAt(self.successes)

    @property
    def failed(self) -> int:
        """How many rollouts failed."""
        return sum(rollout.failed for rollout in self.rollouts)

    @property
    def unscored(self) -> int:
        """How many rollouts did not fail but have no score."""
        return sum(not one.failed and one.reward is None for one in self.rollouts)

    @property
    def mean_turns(self) -> float | None:
        """The mean number of turns per rollout, over all of its conversations."""
        return _mean(
            len(rollout.turns) + sum(len(branch.turns) for branch in rollout.branches)
            for rollout in self.rollouts
        )

    @property
    def mean_tokens(self) -> float | None:
        """The mean number of sampled tokens per rollout, over all of its conversations.

        For a hosted model, the tokens that the host reports; for a `TextSampler` that reports none,
        tokens of the demo's tokenizer.
        """
        return _mean(
            rollout.usage.get("completion_tokens", rollout.sampled_tokens + rollout.dropped_tokens)
            for rollout in self.rollouts
        )

    @property
    def stop_reasons(self) -> dict[str, int]:
        """How many rollouts ended for each reason, most frequent first."""
        return dict(Counter(str(one.stop_reason) for one in self.rollouts).most_common())

    @property
    def failures(self) -> dict[str, int]:
        """How many rollouts failed with each kind of error, most frequent first."""
        tally = Failures(set()).tally(self.rollouts)
        return {tally.shown[kind]: count for kind, count in tally.kinds.most_common()}

    @property
    def by_environment(self) -> "dict[Any, Evaluation]":
        """A separate evaluation for each environment that the rows name."""
        return {name: self._of_environment(name) for name in dict.fromkeys(self.environments)}

    def _of_environment(self, name: Any) -> "Evaluation":
        rows = [row for row, other in enumerate(self.environments) if other == name]
        k = self.rewards.shape[1]
        return Evaluation(
            [one for one in self.rollouts if self.environments[one.index // k] == name],
            self.rewards[rows],
            [self.successes[row] for row in rows],
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything except the rollouts, as JSON values; NaN becomes None."""
        values: dict[str, Any] = {
            "rewards": [
                [None if np.isnan(reward) else reward for reward in row]
                for row in self.rewards.tolist()
            ],
            "mean_reward": self.mean_reward,
            "standard_error": self.standard_error,
            "pass_at": {str(j): chance for j, chance in self.pass_at.items()},
            "rollouts": len(self.rollouts),
            "failed": self.failed,
            "unscored": self.unscored,
            "mean_turns": self.mean_turns,
            "mean_tokens": self.mean_tokens,
            "stop_reasons": self.stop_reasons,
            "failures": self.failures,
        }
        if self.environments:
            values["by_environment"] = {
                str(name): one.to_dict() for name, one in self.by_environment.items()
            }
        return values

    def __str__(self) -> str:
        rows, k = self.rewards.shape
        lines = [
            ("rollouts", f"{len(self.rollouts)} of {rows} rows, each played {k} ×"),
            ("reward", _with_error(self.mean_reward, self.standard_error)),
            ("pass", ", ".join(f"@{j} {_figure(chance)}" for j, chance in self.pass_at.items())),
            ("not scored", f"{self.failed} failed, {self.unscored} without a score"),
            ("turns", f"{_figure(self.mean_turns)} a rollout"),
            ("tokens", f"{_figure(self.mean_tokens)} sampled a rollout"),
            ("ended by", ", ".join(f"{why} {count}" for why, count in self.stop_reasons.items())),
            *(("failure", f"{count} × {error}") for error, count in self.failures.items()),
            *(
                (
                    str(name),
                    f"{_with_error(one.mean_reward, one.standard_error)} of "
                    f"{len(one.rollouts)} rollouts",
                )
                for name, one in self.by_environment.items()
            ),
        ]
        width = max(len(label) for label, _ in lines)
        return "\n".join(f"{label:{width}}  {value}" for label, value in lines if value)


def _mean(values: Iterable[float]) -> float | None:
    values = list(values)
    return sum(values) / len(values) if values else None


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _with_error(mean: float | None, error: float | None) -> str:
    return _figure(mean) + ("" if error is None else f" ± {_figure(error)}")
