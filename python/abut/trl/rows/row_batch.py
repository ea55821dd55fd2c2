"""The rows of a generation batch: those that TRL knows, and the other conversations behind them.

TRL has one row for each prompt, the rollout's *main* row. The rows of the other conversations
follow, then as many padding rows as every rank needs for the same number of rows. The numbers of
rows are positions in this order, and -1 for padding.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from abut.errors import RolloutError
from abut.rollout.rollout import Branch, Rollout
from abut.trl.credit import Credit
from abut.trl.rows.columns import conversations_of, is_measured

COLUMNS = ("prompt_ids", "completion_ids", "logprobs", "env_mask")
"""The lists of a `rollout_func` that TRL makes rows of."""

ROW, WEIGHT = "abut_row", "abut_weight"
"""The columns that abut adds to TRL's inputs: `(N,)` int64 numbers of rows, and `(N,)` factors on
their gradients, which are there only where a KL term keeps them out of advantages."""


class RowPlace(NamedTuple):
    """The rollout of a row, and which of its conversations the row is; 0 is the main one."""

    rollout: int
    conversation: int


class RowCounts(NamedTuple):
    """The rows of one rank, without padding, and the most rows that one of its rollouts has."""

    rollouts: int
    rows: int
    most: int
    own_rewards: bool
    """True if any conversation has a reward of its own."""


@dataclass
class RowBatch:
    """The rows of this rank in one generation batch.

    Attributes:
        rollouts: one for each prompt.
        columns: their main rows, as TRL got them.
        conversations: those of each rollout that are rows, the main one first.
        padding_id: the token that padding rows are made of.
        by_agents: whether an agent could have played any of them; the same on all ranks.
        credit: see `make_rollout_func`; the same on all ranks.
        scores_run: for each rollout, whether the rewards of its turns are a running score.
        rows: how many rows this rank has with its padding, the same on all ranks.
        own_rewards: whether a conversation of any rank has a reward of its own.
        rewards: `(rollouts of all ranks, reward functions)`, as TRL computed them.
        weights: the factor on the loss of each row, without padding; empty where there are main
            rows alone.
        advantages: of each row, without padding, those of its own turns; empty where they are
            their rollout's.
        places: of each row without padding.
        lists: by the names of `columns`, all rows without padding.
    """

    rollouts: Sequence[Rollout]
    columns: Mapping[str, list[Any]]
    conversations: Sequence[Sequence[Branch]]
    padding_id: int
    by_agents: bool = False
    credit: Credit = None
    scores_run: Sequence[bool] = ()
    rows: int = 0
    own_rewards: bool = False
    rewards: Any = None
    weights: list[float] = field(default_factory=list)
    advantages: list[list[float]] = field(default_factory=list)
    places: list[RowPlace] = field(init=False)
    lists: dict[str, list[Any]] = field(init=False)

    def __post_init__(self) -> None:
        """Make the rows of the other conversations."""
        of_rollouts = list(enumerate(self.conversations))
        self.places = [RowPlace(k, 0) for k, _ in of_rollouts]
        self.places += [RowPlace(k, j) for k, every in of_rollouts for j in range(1, len(every))]
        self.rows = self.rows or len(self.rollouts)
        longest = max(map(len, self.columns["prompt_ids"]), default=0)
        others = [
            _row_of(self.conversations[k][j], longest) for k, j in self.places[len(self.rollouts) :]
        ]
        self.lists = {
            name: [*self.columns[name], *(row[name] for row in others)] for name in COLUMNS
        }

    @property
    def has_others(self) -> bool:
        """True if any rank has a row that is not a main one."""
        return self.rows > len(self.rollouts)

    @property
    def counts(self) -> "RowCounts":
        """Return the counts that the ranks tell each other."""
        every = [conversation for of_one in self.conversations for conversation in of_one]
        return RowCounts(
            rollouts=len(self.rollouts),
            rows=len(self.places),
            most=max(1, *map(len, self.conversations)),
            own_rewards=any(conversation.reward is not None for conversation in every),
        )

    @property
    def has_credit(self) -> bool:
        """True if rows have other advantages than their rollouts; the same on all ranks."""
        return self.credit is not None or self.own_rewards

    @property
    def numbers(self) -> list[int]:
        """The numbers of all rows, -1 for padding, as long as nothing is shuffled."""
        return [*range(len(self.places)), *[-1] * self.padding_rows]

    @property
    def padding_rows(self) -> int:
        """How many rows are padding."""
        return self.rows - len(self.places)

    def rows_of(self, rollout: int, advantage: float | None) -> list[dict[str, Any]]:
        """Return the rows of a rollout as its record has them, the main one first.

        Args:
            rollout: its number.
            advantage: TRL's; None if it is not known.
        """
        branches = {id(branch): k for k, branch in enumerate(self.rollouts[rollout].branches)}
        found = []
        for row, (k, j) in enumerate(self.places):
            if k == rollout and j < len(self.conversations[k]):
                conversation = self.conversations[k][j]
                turns = 0 if advantage is None else len(conversation.turns)
                found.append(
                    {
                        "branch": branches.get(id(conversation)),
                        "weight": self.weights[row] if self.weights else 1.0,
                        "advantages": self.advantages[row]
                        if self.advantages
                        else [advantage] * turns,
                    }
                )
        return found

    def lengthened(self, returned: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return what TRL's `_generate` returned, with all rows in place of the main ones.

        The lists are found by their identity: where they are in the tuple depends on the version.

        Raises:
            RolloutError: a list is not there.
        """
        end = self.padding_id
        # Two tokens: TRL takes completions of one for numbers of whole rows, see `pieces.trimmed`.
        padding: dict[str, list[Any]] = {"prompt_ids": [end], "completion_ids": [end] * 2}
        padding |= {"logprobs": [0.0] * 2, "env_mask": [0] * 2}
        longer = {}
        for name, rows in self.lists.items():
            row = padding[name]
            more = [[*row] for _ in range(self.padding_rows)]
            longer[id(self.columns[name])] = rows + more
        if missing := longer.keys() - {id(part) for part in returned}:
            names = [name for name in COLUMNS if id(self.columns[name]) in missing]
            raise RolloutError(
                f"TRL did not hand on {', '.join(map(repr, names))} of the rollout_func as it was, "
                "so the other conversations of its rollouts have no place\n"
                "hint: pass make_rollout_func(…) itself, and change no list that it returns; or "
                'RolloutConfig(branch="longest"), which needs no other rows'
            )
        return tuple(longer.get(id(part), part) for part in returned)


class ForwardRows(NamedTuple):
    """Rows of a batch that go through a model, in the order of its inputs.

    TRL may cut them into several calls of the model, one after the other.
    """

    batch: RowBatch
    numbers: Sequence[int]
    """Of each row: `batch.places` says which conversation it is; -1 for padding."""
    weights: Any = None
    """`(rows,)` factors on the gradients of their logprobs, a tensor; None: there are none."""


def rows_of_batch(
    rollouts: Sequence[Rollout],
    columns: Mapping[str, list[Any]],
    *,
    takes_all: bool,
    can_score: Callable[[Rollout], bool],
    padding_id: int,
    by_agents: bool,
    credit: Credit = None,
    scores_run: Sequence[bool] = (),
) -> RowBatch:
    """Return the rows of a generation batch.

    Args:
        rollouts: of this rank.
        columns: what the `rollout_func` returns.
        takes_all: whether each conversation is a row; otherwise there are main rows alone.
        can_score: whether a rollout that was measured can get a reward. The others have their main
            row alone, as those that failed.
        padding_id: see `RowBatch`.
        by_agents: see `RowBatch`.
        credit: see `RowBatch`.
        scores_run: see `RowBatch`.
    """
    conversations = []
    for rollout in rollouts:
        every = conversations_of(rollout)
        has_score = can_score(rollout) or any(one.reward is not None for one in every)
        trains = not rollout.failed and is_measured(rollout) and has_score
        conversations.append(every if takes_all and trains else every[:1])
    lists = {name: columns[name] for name in COLUMNS}
    return RowBatch(rollouts, lists, conversations, padding_id, by_agents, credit, scores_run)


def _row_of(conversation: Branch, longest_prompt: int) -> dict[str, list[Any]]:
    """Return the row of a conversation as TRL takes it.

    TRL pads prompts and completions to the longest of each. A late fork, whose prompt is nearly the
    whole conversation, would make all prompts as long as itself; so the part beyond the longest
    main prompt becomes the beginning of the completion, which trains nothing there.
    """
    columns = conversation.columns
    prompt = columns.prompt_ids.tolist()
    surplus = prompt[longest_prompt:]
    return {
        "prompt_ids": prompt[:longest_prompt],
        "completion_ids": surplus + columns.completion_ids.tolist(),
        "logprobs": [0.0] * len(surplus) + columns.logprobs.tolist(),
        "env_mask": [0] * len(surplus) + columns.env_mask.tolist(),
    }
