"""What every side hands over: for each of TRL's columns one list per rollout.

Making them is part of the time: a trainer takes lists, and not every peer has arrays before.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

from abut import Columns

Lists: TypeAlias = dict[str, list[list[Any]]]
"""`prompt_ids`, `completion_ids`, `env_mask` and `logprobs`."""


def as_lists(rollouts: Sequence[Columns | None]) -> Lists:
    """The columns of abut's rollouts; None, of a rollout that failed, is an error."""
    names = ("prompt_ids", "completion_ids", "env_mask", "logprobs")
    return {name: [getattr(columns, name).tolist() for columns in rollouts] for name in names}
