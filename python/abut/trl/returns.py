"""Returns of turns, compared with the other rollouts of the group.

Invariant: a rollout is compared only with the other rollouts of its group, and at each turn with
all of them. So its baseline does not depend on anything it did itself, not even on when it ended,
and the gradient points in the direction in which the expected return grows.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Scale: TypeAlias = Literal["group", "batch", "none"]

_LEAST = 1e-4
"""The number that TRL adds to each standard deviation."""


@dataclass(frozen=True)
class PathReturns:
    """The returns of a conversation.

    Attributes:
        place: its rollout in the batch, and its number there.
        group: the group of the rollout.
        returns: `(turns of the path,)` float64.
        own: the index of its first own turn.
    """

    place: tuple[int, int]
    group: int
    returns: Floats
    own: int


def path_of(
    place: tuple[int, int],
    group: int,
    reward: float,
    *,
    of_turns: Sequence[float | None] = (),
    before: int = 0,
    discount: float = 1.0,
) -> PathReturns:
    """Return the path of a conversation; without turns it has a single return, the reward.

    Args:
        place: see `PathReturns`.
        group: see `PathReturns`.
        reward: the total reward of the conversation.
        of_turns: the part of the reward that each turn of the path got; None: nothing. The rest
            counts at the last turn.
        before: how many of these turns are not its own.
        discount: the factor on a reward that is one turn later.
    """
    # A rollout that failed may have a reward and no turn, and still counts among the others.
    paid = np.array([value or 0.0 for value in of_turns] or [0.0])
    paid[-1] += reward - paid.sum()
    for k in range(len(paid) - 2, -1, -1):
        paid[k] += discount * paid[k + 1]
    return PathReturns(place, group, paid, min(before, len(paid) - 1))


def compared(
    paths: Sequence[PathReturns], scale: Scale
) -> Iterable[tuple[PathReturns, Floats, bool]]:
    """Yield each path with the advantages of its own turns, and whether it is alone.

    Args:
        paths: of one name, over the whole batch.
        scale: as in `credited`.

    Shapes: P paths of M rollouts in G groups, T turns of the longest path.
    """
    # A path stays at its last return, so that every rollout has one at every turn. Comparing a turn
    # with those that got there would be biased, because a rollout chooses when it ends.
    length = np.array([len(path.returns) for path in paths])
    turns = np.arange(length.max())
    returns = np.stack([path.returns[np.minimum(turns, len(path.returns) - 1)] for path in paths])
    first_own = np.array([path.own for path in paths])
    own = (turns >= first_own[:, None]) & (turns < length[:, None])
    rollout_ids, rollout = np.unique([path.place[0] for path in paths], return_inverse=True)
    group_of_path = np.unique([path.group for path in paths], return_inverse=True)[1]
    group = np.zeros(len(rollout_ids), np.intp)
    group[rollout] = group_of_path
    count = np.bincount(group)
    # Less the group's first rollout, so that equal returns leave exactly nothing.
    first = _means(returns, rollout)[np.unique(group, return_index=True)[1]]
    centered = returns - first[group_of_path]
    of_rollout = _means(centered, rollout)
    of_others = (_sums(of_rollout, group)[group] - of_rollout) / np.maximum(count - 1, 1)[
        group, None
    ]
    # The factor makes it TRL's advantage, whose mean has the rollout itself in it.
    factor = ((count - 1) / count)[group_of_path, None]
    differences = factor * (centered - of_others[rollout])
    if scale == "none":
        divisor = np.ones(len(count))
    elif scale == "group":
        squares = _mean_squares(differences, own, rollout)
        divisor = np.sqrt(_sums(squares, group)[:, 0] / np.maximum(count - 1, 1)) + _LEAST
    else:
        squares = _mean_squares(returns - _means(returns, rollout).mean(0), own, rollout)
        divisor = np.full(len(count), np.sqrt(squares.sum() / max(len(squares) - 1, 1)) + _LEAST)
    for k, path in enumerate(paths):
        at = group_of_path[k]
        yield path, differences[k, own[k]] / divisor[at], bool(count[at] == 1)


def _mean_squares(values: Floats, own: NDArray[np.bool_], rollout: NDArray[np.intp]) -> Floats:
    """Return `(M, 1)`: the mean square over own turns, then over a rollout's paths."""
    of_paths = (values**2).sum(1, where=own) / own.sum(1)
    return _means(of_paths[:, None], rollout)


def _sums(rows: Floats, of: NDArray[np.intp]) -> Floats:
    """Return the sum of the rows with each number in `of`."""
    sums = np.zeros((of.max() + 1, rows.shape[1]))
    np.add.at(sums, of, rows)
    return sums


def _means(rows: Floats, of: NDArray[np.intp]) -> Floats:
    return _sums(rows, of) / np.bincount(of)[:, None]


def increments(scores: Iterable[float | None]) -> list[float | None]:
    """Return how much each turn added to a running score; None where there was no score."""
    found: list[float | None] = []
    last = 0.0
    for score in scores:
        found.append(None if score is None else score - last)
        last = last if score is None else score
    return found
