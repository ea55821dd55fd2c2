"""The rows of a generation batch: those that TRL knows, followed by the other conversations.

TRL has one row for each prompt, the rollout's *main* row. The rows of the other conversations
follow, then as many padding rows as every rank needs for the same number of rows. The numbers of
rows are positions in this order, and -1 for padding.

Invariant: a `RowBatch` never changes and has only the tokens of its rollouts, because it lives as
long as its rows are trained. Data that is needed only until TRL has scored the rows is in a
`RowScoring`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from abut.errors import RolloutError
from abut.rollout.rollout import Branch, Rollout
from abut.template.image_processor import ImageProcessor
from abut.trl.credit import Credit
from abut.trl.rows.columns import COLUMNS, conversations_of, is_measured, trained_branches

ROW, WEIGHT = "abut_row", "abut_weight"
"""The columns that abut adds to TRL's inputs: `(N,)` int64 numbers of rows, and `(N,)` factors on
their gradients, which exist only if a KL term keeps them out of the advantages.
"""


class RowPlace(NamedTuple):
    """The rollout of a row, and which of its conversations the row is; 0 is the main one."""

    rollout: int
    conversation: int


@dataclass(frozen=True, eq=False)
class RowBatch:
    """The rows of this rank in one generation batch.

    Attributes:
        rollouts: one for each prompt.
        conversations: for each rollout the conversations that are rows, the main one first; empty
            for a rollout that failed before it had one, whose row is a stop token.
        size: the number of rows of this rank with padding, the same on all ranks.
        weights: the factor on the loss of each row, without padding; empty if there are only main
            rows, and before they are scored.
        advantages: for each row, without padding, the advantages of its own turns; empty if they
            equal the rollout's, and before they are scored.
        images: computes the tensors of their images; None if there cannot be images.
        has_images: whether a row of any rank has an image.
    """

    rollouts: Sequence[Rollout]
    conversations: Sequence[Sequence[Branch]]
    size: int
    weights: Sequence[float] = ()
    advantages: Sequence[Sequence[float]] = ()
    images: ImageProcessor | None = None
    has_images: bool = False

    @cached_property
    def places(self) -> list[RowPlace]:
        """The places of all rows without padding, by their numbers."""
        others = [
            RowPlace(k, j)
            for k, every in enumerate(self.conversations)
            for j in range(1, len(every))
        ]
        return [*(RowPlace(k, 0) for k in range(len(self.rollouts))), *others]

    @property
    def others(self) -> list[Branch]:
        """The conversations of the rows after the main ones."""
        return [self.conversations[k][j] for k, j in self.places[len(self.rollouts) :]]

    @property
    def has_others(self) -> bool:
        """True if any rank has a row that is not a main one."""
        return self.size > len(self.rollouts)

    @property
    def padding_rows(self) -> int:
        """How many rows are padding."""
        return self.size - len(self.places)

    @property
    def numbers(self) -> list[int]:
        """The numbers of all rows, -1 for padding, before shuffling."""
        return [*range(len(self.places)), *[-1] * self.padding_rows]

    def conversation_of(self, row: int) -> Branch | None:
        """Return the conversation of a row; None for padding and for a rollout that failed."""
        if row < 0:
            return None
        k, j = self.places[row]
        return None if self.rollouts[k].failed else self.conversations[k][j]

    def recorded_rows(self, rollout: int, advantage: float | None) -> list[dict[str, Any]]:
        """Return the rows of a rollout as `score_record` takes them, the main one first.

        Args:
            rollout: its position among `rollouts`.
            advantage: TRL's; None if it is not known.
        """
        conversations = self.conversations[rollout]
        branches = [None, *trained_branches(self.rollouts[rollout])]
        found = []
        for number, (k, j) in enumerate(self.places):
            if k == rollout and j < len(conversations):
                shared = [advantage] * (advantage is not None) * len(conversations[j].turns)
                found.append(
                    {
                        "row": number,
                        "branch": branches[j],
                        "weight": self.weights[number] if self.weights else 1.0,
                        "advantages": self.advantages[number] if self.advantages else shared,
                    }
                )
        return found


class ForwardRows(NamedTuple):
    """Rows of a batch that go through a model, in the order of its inputs.

    TRL may split them over several consecutive calls of the model.
    """

    batch: RowBatch
    numbers: Sequence[int]
    """The number of each row, an index into `batch.places`; -1 for padding."""
    weights: Any = None
    """`(rows,)` tensor of factors on the gradients of their logprobs; None without factors."""


class RowCounts(NamedTuple):
    """The number of rows of one rank, without padding, and the most rows of one of its rollouts."""

    rollouts: int
    rows: int
    most: int
    tokens: int
    """The prompt and sampled tokens of the rows that are not main rows."""
    own_rewards: bool
    """True if any conversation has its own reward."""

    @classmethod
    def of(cls, batch: RowBatch) -> "RowCounts":
        """Return the counts that the ranks exchange."""
        every = [conversation for of_one in batch.conversations for conversation in of_one]
        columns = [conversation.columns for conversation in batch.others]
        return cls(
            rollouts=len(batch.rollouts),
            rows=len(batch.places),
            most=max(1, *map(len, batch.conversations)),
            tokens=sum(len(one.prompt_ids) + int(one.env_mask.sum()) for one in columns),
            own_rewards=any(conversation.reward is not None for conversation in every),
        )


@dataclass
class RowScoring:
    """A generation batch from the `rollout_func` until TRL has scored it; the mixin writes it.

    Attributes:
        batch: its rows.
        columns: lists of all rows, by the names of `COLUMNS`; until `lengthen`, only of main rows,
            as TRL got them.
        padding_id: the token of padding rows.
        by_agents: whether an agent could have played any of them; the same on all ranks.
        credit: see `make_rollout_func`; the same on all ranks.
        scores_run: for each rollout, whether the rewards of its turns are a running score.
        own_rewards: whether a conversation of any rank has its own reward.
        rewards: `(rollouts of all ranks, reward functions)`, as TRL computed them.
    """

    batch: RowBatch
    columns: Mapping[str, list[Any]]
    padding_id: int
    by_agents: bool = False
    credit: Credit = None
    scores_run: Sequence[bool] = ()
    own_rewards: bool = False
    rewards: Any = None

    @property
    def has_credit(self) -> bool:
        """True if rows have other advantages than their rollouts; the same on all ranks."""
        return self.credit is not None or self.own_rewards

    def lengthen(self, returned: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the result of TRL's `_generate` with all rows instead of the main ones.

        The lists are found by identity, because their positions in the tuple depend on the version.

        Raises:
            RolloutError: a list is missing.
        """
        if missing := [
            name for name in COLUMNS if not any(part is self.columns[name] for part in returned)
        ]:
            raise RolloutError(
                f"{', '.join(map(repr, missing))} from the rollout_func was changed or copied "
                "before it reached the loss, so abut cannot add the rows of the other "
                "conversations\n"
                "hint: pass make_rollout_func(…) itself and do not change the lists that it "
                'returns, or set RolloutConfig(branch="longest"), which needs no other rows'
            )
        main, self.columns = self.columns, self._all_rows()
        return tuple(
            next((self.columns[name] for name in COLUMNS if main[name] is part), part)
            for part in returned
        )

    def _all_rows(self) -> dict[str, list[Any]]:
        end, longest = self.padding_id, max(map(len, self.columns["prompt_ids"]), default=0)
        others = [_row_of(conversation, longest) for conversation in self.batch.others]
        # Two tokens: TRL takes completions of one for numbers of whole rows, see `pieces.trimmed`.
        padding: dict[str, list[Any]] = {"prompt_ids": [end], "completion_ids": [end] * 2}
        padding |= {"logprobs": [0.0] * 2, "env_mask": [0] * 2}
        return {
            name: [
                *self.columns[name],
                *(row[name] for row in others),
                *([*padding[name]] for _ in range(self.batch.padding_rows)),
            ]
            for name in COLUMNS
        }


def rows_of_batch(
    rollouts: Sequence[Rollout],
    *,
    takes_all: bool,
    can_score: Callable[[Rollout], bool],
    images: ImageProcessor | None = None,
) -> RowBatch:
    """Return the rows of a generation batch, without padding.

    Args:
        rollouts: of this rank.
        takes_all: whether each conversation is a row; otherwise there are only main rows.
        can_score: for each rollout, whether it can get a reward. Other rollouts have only their
            main row, like failed ones.
        images: see `RowBatch`.
    """
    conversations = []
    for rollout in rollouts:
        every = conversations_of(rollout)
        has_score = can_score(rollout) or any(one.reward is not None for one in every)
        trains = not rollout.failed and is_measured(rollout) and has_score
        conversations.append(every if takes_all and trains else every[:1])
    batch = RowBatch(rollouts, conversations, size=len(rollouts), images=images)
    of_rows = map(batch.conversation_of, batch.numbers)
    return replace(batch, has_images=any(row is not None and row.images for row in of_rows))


def _row_of(conversation: Branch, longest_prompt: int) -> dict[str, list[Any]]:
    """Return the row of a conversation in TRL's format.

    TRL pads prompts and completions to the longest of each. A late fork, whose prompt is nearly the
    whole conversation, would pad all prompts to its length. So the part beyond the longest main
    prompt becomes the beginning of the completion, where it is masked.
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
