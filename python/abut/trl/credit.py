"""Credit by turn: rewards of turns and conversations become advantages of turns.

Invariant: every rank computes the same advantages, from the rollouts of all ranks.

A conversation's *path* is all of its turns, including those before a fork. Only its *own* turns,
those after the fork, are trained in its row.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from abut.trl.returns import Floats, PathReturns, Scale, compared, path_of
from abut.trl.teachers.teacher import Teacher

_SHAPE = (
    "hint: return nested lists, indexed by rollout, conversation (the main one first) and own "
    "turn; each value is a finite number, or an array with one for each sampled token of the turn"
)


@dataclass(frozen=True)
class ScoredTurn:
    """A turn of a conversation.

    Attributes:
        tokens: the number of its sampled tokens.
        reward: the reward of this turn alone, times the weight of `env_reward` among the reward
            functions; None: the turn has no reward.
    """

    tokens: int
    reward: float | None = None


@dataclass(frozen=True)
class ScoredConversation:
    """A conversation that is a row.

    Attributes:
        name: the name of its calls; None if they have no name.
        reward: its own reward; None: it shares the reward of the rollout.
        turns: its own turns, which are trained in its row.
        before: the rewards of the turns before them on its path; empty if it is not a fork.
    """

    name: str | None
    reward: float | None
    turns: Sequence[ScoredTurn]
    before: Sequence[float | None] = ()


@dataclass(frozen=True)
class ScoredRollout:
    """A rollout of a group, after the reward functions.

    Attributes:
        rollout_id: see `abut.Rollout`.
        reward: the sum over the reward functions, with the trainer's weights; None: no score.
        advantage: the advantage that the trainer computed.
        conversations: the conversations that are rows, the main one first. A credit function gets
            only conversations with turns, so no conversation of a failed rollout, and no main one
            that is not trained.
    """

    rollout_id: str
    reward: float | None
    advantage: float
    conversations: Sequence[ScoredConversation]


@dataclass(frozen=True)
class Returns:
    """Credit by discounted returns: a turn is responsible for the rewards from that turn on.

    A turn's advantage is its return minus the mean return of the other rollouts of its group at the
    same turn, or at their last turn if they ended earlier. If the only reward is at the last turn
    and `discount` is 1, each turn gets the advantage that TRL gives the rollout.

    The rewards of turns divide the rollout's reward (the weighted sum over the reward functions)
    and do not add to it. They are parts of the environment's or agent's reward, so they have the
    weight of `env_reward` in `reward_weights`, or 1 if it is not among the functions. The rest of
    the reward, such as the rewards of other functions, counts at the last turn.

    Attributes:
        discount: the factor on a reward for each turn between the turn and the reward; 0 to 1,
            default 1.
    """

    discount: float = 1.0

    def __post_init__(self) -> None:
        """Check the discount.

        Raises:
            ValueError: the discount is not between 0 and 1.
        """
        if not 0 <= self.discount <= 1:
            raise ValueError(f"Returns(discount={self.discount!r}): must be between 0 and 1")


@dataclass(frozen=True)
class ReverseKL:
    """Credit by the reverse KL from a teacher: tokens that the teacher finds unlikely get less.

    In every row of a rollout that has a reward, a token's advantage is `A - coef * (logprob -
    teacher logprob)`, where `logprob` is the one it was sampled with. The teacher scores a rollout
    after it has ended, while the rollout keeps its slot; a row that the teacher does not score is
    not trained. Trainer and teacher must both use temperature 1.

    Attributes:
        teacher: scores the sampled tokens: `VllmTeacher`, `ModelTeacher` or your own `Teacher`.
        coef: the weight of one nat relative to A; more than 0, default 1.
        credit: the source of A: None (the default) for the trainer's advantage of the rollout,
            `Returns(…)`, or a function.
    """

    teacher: Teacher
    coef: float = field(default=1.0, kw_only=True)
    credit: "Returns | CreditFunction | None" = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Check the arguments.

        Raises:
            TypeError: `teacher` has no method `score`, or `credit` has a wrong type.
            ValueError: `coef` is not a finite number above 0.
        """
        if isinstance(self.teacher, type) or not isinstance(self.teacher, Teacher):
            raise TypeError(
                f"ReverseKL({self.teacher!r}): a teacher must have a method `async score(ids, "
                "positions, top_k, name)`\n"
                'hint: use VllmTeacher("http://…:8001") or ModelTeacher(model)'
            )
        if not (math.isfinite(self.coef) and self.coef > 0):
            raise ValueError(f"ReverseKL(coef={self.coef!r}): must be more than 0")
        if isinstance(checked_credit(self.credit), ReverseKL):
            raise TypeError(
                "ReverseKL(credit=ReverseKL(…)): the inner credit must be None, Returns(…) or a "
                "function"
            )


CreditFunction: TypeAlias = Callable[[Sequence[ScoredRollout]], Sequence[Sequence[Sequence[Any]]]]
"""A function from a group to `[rollout][conversation][own turn]`: a number, or `(tokens,)` floats.
"""

TurnCredit: TypeAlias = Returns | CreditFunction | None
"""The part of a credit that computes advantages from rewards."""
Credit: TypeAlias = ReverseKL | TurnCredit


@dataclass(frozen=True)
class Credited:
    """The advantages of a batch.

    Attributes:
        advantages: `[rollout][conversation][own turn]`: a number, or `(tokens,)` float64.
        alone: for each rollout, whether one of its conversations has the advantage 0 because no
            other rollout of the group has a reward to compare with.
    """

    advantages: list[list[list[float | Floats]]]
    alone: list[bool]


def checked_credit(credit: Any) -> Credit:
    """Return the argument `credit`.

    Raises:
        TypeError: it has a wrong type.
    """
    if credit is None or isinstance(credit, Returns | ReverseKL):
        return credit
    if credit is Returns:
        raise TypeError("credit=Returns is the class, not an instance\nhint: credit=Returns()")
    if credit is ReverseKL:
        raise TypeError(
            "credit=ReverseKL is the class, not an instance\nhint: credit=ReverseKL(teacher)"
        )
    if not callable(credit):
        raise TypeError(
            f"credit={credit!r}: must be None, Returns(discount=…), ReverseKL(teacher) or a "
            "function that gets a group of rollouts and returns the advantages of their turns"
        )
    return credit  # type: ignore[no-any-return]


def turn_credit(credit: Credit) -> TurnCredit:
    """Return the part of a credit that computes advantages from rewards."""
    return credit.credit if isinstance(credit, ReverseKL) else credit


def credited(
    credit: TurnCredit,
    rollouts: Sequence[ScoredRollout],
    *,
    num_generations: int,
    scale_rewards: Scale,
) -> Credited:
    """Return the advantages of a batch, the same on every rank.

    A conversation with its own reward is judged by that reward alone, whatever `credit` is: all its
    turns have one advantage, compared with the conversations of the same name in the other rollouts
    of the group that also have their own reward.

    Args:
        credit: None: the trainer's advantage for each turn.
        rollouts: of all ranks, in TRL's order.
        num_generations: how many consecutive rollouts are a group.
        scale_rewards: as in TRL: divide differences by the standard deviation of the group or of
            the batch, or do not divide.

    Raises:
        ValueError: a reward is not finite, or the result of `credit` has a wrong shape or is not
            finite; names rollout and conversation.
        Exception: any error of `credit`.
    """
    _check_rewards(rollouts)
    advantages: list[list[list[float | Floats]]] = [
        [[r.advantage] * len(c.turns) for c in r.conversations] for r in rollouts
    ]
    if credit is not None and not isinstance(credit, Returns):
        for start in range(0, len(rollouts), num_generations):
            group = rollouts[start : start + num_generations]
            advantages[start : start + num_generations] = _given(credit, group)
    paths: dict[tuple[bool, str | None], list[PathReturns]] = defaultdict(list)
    for place, conversation in _places(rollouts):
        if not conversation.turns and len(rollouts[place[0]].conversations) > 1:
            continue  # a main row that is not trained, while other rows are
        path = _path(credit, place, conversation, rollouts[place[0]].reward, num_generations)
        if path is not None:
            paths[conversation.reward is not None, conversation.name].append(path)
        elif rollouts[place[0]].reward is None:
            advantages[place[0]][place[1]] = [0.0] * len(conversation.turns)
    alone = [False] * len(rollouts)
    for of_name in paths.values():
        for path, of_turns, is_alone in compared(of_name, scale_rewards):
            k, j = path.place
            # One number where all turns of the conversation share its return.
            shape = len(rollouts[k].conversations[j].turns)
            advantages[k][j] = np.broadcast_to(of_turns, shape).tolist()
            alone[k] |= is_alone
    return Credited(advantages, alone)


def _given(
    credit: CreditFunction, group: Sequence[ScoredRollout]
) -> list[list[list[float | Floats]]]:
    """Return the advantages that a function gives a group.

    The function does not get conversations without turns, such as those of a failed rollout, so it
    may use `turns[-1]`.
    """
    asked = [replace(r, conversations=[c for c in r.conversations if c.turns]) for r in group]
    found = _checked(credit(asked), asked)
    each = [iter(of_rollout) for of_rollout in found]
    return [
        [next(given) if conversation.turns else [] for conversation in rollout.conversations]
        for rollout, given in zip(group, each, strict=True)
    ]


def _path(
    credit: TurnCredit,
    place: tuple[int, int],
    conversation: ScoredConversation,
    of_rollout: float | None,
    num_generations: int,
) -> PathReturns | None:
    """Return the path that decides a conversation's advantages; None if it has no path."""
    group = place[0] // num_generations
    if conversation.reward is not None:
        return path_of(place, group, conversation.reward)
    if of_rollout is None or not isinstance(credit, Returns):
        return None
    return path_of(
        place,
        group,
        of_rollout,
        of_turns=[*conversation.before, *(turn.reward for turn in conversation.turns)],
        before=len(conversation.before),
        discount=credit.discount,
    )


def token_advantages(turns: Sequence[ScoredTurn], advantages: Sequence[float | Floats]) -> Floats:
    """Return `(sampled tokens of all turns,)`, in order: the advantage of each token."""
    of_turns = [
        np.broadcast_to(np.asarray(advantage, np.float64), turn.tokens)
        for turn, advantage in zip(turns, advantages, strict=True)
    ]
    return np.concatenate(of_turns) if of_turns else np.zeros(0)


def _places(
    rollouts: Sequence[ScoredRollout],
) -> Iterable[tuple[tuple[int, int], ScoredConversation]]:
    for k, rollout in enumerate(rollouts):
        for j, conversation in enumerate(rollout.conversations):
            yield (k, j), conversation


def _check_rewards(rollouts: Sequence[ScoredRollout]) -> None:
    for place, conversation in _places(rollouts):
        rollout = rollouts[place[0]]
        of_turns = [*conversation.before, *(turn.reward for turn in conversation.turns)]
        named = [
            ("the reward", rollout.reward),
            ("the conversation's reward", conversation.reward),
            *((f"the reward of turn {k}", reward) for k, reward in enumerate(of_turns)),
        ]
        for what, reward in named:
            if reward is not None and not math.isfinite(reward):
                where = _where(rollout, place[1])
                raise ValueError(
                    f"{where}: {what} is {reward}\nhint: use None where there is no score"
                )


def _checked(returned: Any, group: Sequence[ScoredRollout]) -> list[list[list[float | Floats]]]:
    """Return the result of a credit function for a group, as lists of numbers and arrays.

    Raises:
        ValueError: it has a wrong shape, or a number is not finite.
    """
    _check_count(returned, len(group), "credit", "rollout of the group")
    found: list[list[list[float | Floats]]] = []
    for rollout, of_rollout in zip(group, returned, strict=True):
        what = f"credit for rollout {rollout.rollout_id!r}"
        _check_count(of_rollout, len(rollout.conversations), what, "conversation")
        found.append([])
        for j, conversation in enumerate(rollout.conversations):
            what = f"credit for {_where(rollout, j)}"
            _check_count(of_rollout[j], len(conversation.turns), what, "own turn")
            of_turns = [
                _checked_turn(value, turn, f"{what}, turn {k}")
                for k, (value, turn) in enumerate(
                    zip(of_rollout[j], conversation.turns, strict=True)
                )
            ]
            found[-1].append(of_turns)
    return found


def _check_count(returned: Any, count: int, what: str, of_each: str) -> None:
    try:
        found = len(returned)
    except TypeError:
        found = None
    if found != count:
        given = f"a {type(returned).__name__}" if found is None else found
        raise ValueError(
            f"{what}: expected one value for each {of_each}, {count} in total, got {given}\n"
            f"{_SHAPE}"
        )


def _checked_turn(value: Any, turn: ScoredTurn, what: str) -> float | Floats:
    try:
        numbers = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{what}: {value!r} is not a number\n{_SHAPE}") from None
    if numbers.shape not in ((), (turn.tokens,)):
        raise ValueError(
            f"{what}: the array has shape {numbers.shape}, but the turn has {turn.tokens} "
            "sampled tokens\n"
            f"{_SHAPE}"
        )
    if not np.isfinite(numbers).all():
        raise ValueError(f"{what}: {value!r} is not finite\n{_SHAPE}")
    return numbers if numbers.ndim else float(numbers)


def _where(rollout: ScoredRollout, conversation: int) -> str:
    name = rollout.conversations[conversation].name
    of_name = "" if name is None else f" ({name!r})"
    return f"rollout {rollout.rollout_id!r}, conversation {conversation}{of_name}"
