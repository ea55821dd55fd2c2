"""The result of every side: for each of TRL's columns one list per rollout.

Making the lists is timed, because a trainer takes lists, and not every peer has arrays first.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

from abut import Columns

Lists: TypeAlias = dict[str, list[list[Any]]]
"""`prompt_ids`, `completion_ids`, `env_mask` and `logprobs`."""


def as_lists(rollouts: Sequence[Columns | None]) -> Lists:
    """Return the columns of abut's rollouts as lists; a failed rollout (None) is an error."""
    names = ("prompt_ids", "completion_ids", "env_mask", "logprobs")
    return {name: [getattr(columns, name).tolist() for columns in rollouts] for name in names}
