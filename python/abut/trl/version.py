"""The installed version of TRL, and the versions in which its behaviour changed."""

import warnings
from importlib.metadata import PackageNotFoundError, version

from abut.errors import MissingExtraError

NONE_IS_UNSCORED = (1, 6)
"""Since this version TRL leaves a row out of its group if every reward is None; before, None was 0.
"""

ASYNC_WORKER = (1, 11)
"""Since this version `AsyncGRPOTrainer` takes a rollout worker with a queue of metrics."""
DISTILLS_SAMPLED_TOKENS = (1, 11)
"""Since this version `DistillationTrainer` masks env tokens; before, it had no tools."""
ARRAYS_IN_ROWS = (1, 16)
"""Since this version a worker's rows are arrays; before, lists."""

COUNTS_ALL_ROWS = (1, 9)
"""Since this version `num_items_in_batch` counts all trained rows; before, only main rows."""
METRICS_OF_TOKENS = (1, 9)
"""Since this version a loss logs means over tokens or rows of all ranks, and minima over rows;
before, means and minima of each rank's mean, which is 0 for a rank without trained tokens.
"""
TABLES_OF_MAIN_ROWS = (1, 15)
"""Since this version the table of completions has the rows of `_generate`; before, all rows."""
LIGER_IS_LOGPROBS = (1, 14)
"""Since this version liger computes logprobs; before, it computed the loss itself."""
LUSPO_MASKS_PADDING = (1, 10)
"""Since this version the loss `luspo` leaves padding out."""

_OLDEST = (0, 29, 1)
_NEWEST = (1, 16)


def trl_version() -> tuple[int, ...]:
    """Return the numbers of the installed version; a suffix such as `.dev0` is left out.

    Raises:
        MissingExtraError: TRL is not installed.
    """
    numbers = []
    for piece in trl_version_text().split("."):
        if not piece.isdigit():
            break
        numbers.append(int(piece))
    return tuple(numbers)


def trl_version_text() -> str:
    """Return the installed version as a string.

    Raises:
        MissingExtraError: TRL is not installed.
    """
    try:
        return version("trl")
    except PackageNotFoundError:
        raise MissingExtraError("abut.trl needs TRL: pip install 'abut[trl]'") from None


def check_trl_version(*, stacklevel: int) -> None:
    """Refuse a TRL that is too old; warn about one that abut was not tested with.

    Raises:
        MissingExtraError: TRL is not installed, or older than 0.29.1.
    """
    found, text = trl_version(), trl_version_text()
    if found < _OLDEST:
        raise MissingExtraError(
            f"abut.trl needs TRL 0.29.1 or later, found {text}\nhint: pip install 'trl>=0.29.1'"
        )
    if found[:2] > _NEWEST:
        warnings.warn(
            f"found TRL {text}, but abut.trl was tested only up to TRL 1.16",
            stacklevel=stacklevel + 1,
        )
