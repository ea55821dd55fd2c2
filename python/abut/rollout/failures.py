"""What failed in a batch, counted by kind and judged as a whole.

One rollout that failed is data. A batch in which more than `max_failed_frac` failed is an error,
with a histogram of what they failed of.
"""

import logging
import re
from collections import Counter
from collections.abc import Sequence

from abut.errors import RolloutError, text_of
from abut.rollout.rollout import Rollout

logger = logging.getLogger(__name__)

_KINDS = 8


class Failures:
    """Of one batch."""

    def __init__(self) -> None:
        self._causes: dict[str, BaseException] = {}

    def note(self, error: Exception) -> str:
        """Keep the first error of each kind; returns its text."""
        text = text_of(error)
        self._causes.setdefault(_kind_of(text), error)
        return text

    def judge(self, rollouts: Sequence[Rollout], max_failed_frac: float) -> None:
        """Warn of rollouts that failed.

        Raises:
            RolloutError: more failed than may; its cause is the first of the most frequent kind.
        """
        errors = [rollout.error or "" for rollout in rollouts if rollout.failed]
        if not errors:
            return
        kinds = Counter(map(_kind_of, errors))
        lines = "\n".join(f"  {count} x {kind}" for kind, count in kinds.most_common(_KINDS))
        if len(errors) <= max_failed_frac * len(rollouts):
            logger.warning("%d of %d rollouts failed:\n%s", len(errors), len(rollouts), lines)
            return
        most = kinds.most_common(1)[0][0]
        message = next(error for error in errors if _kind_of(error) == most)
        hints = [line for line in message.splitlines() if line.startswith("hint: ")]
        raise RolloutError(
            f"{len(errors)} of {len(rollouts)} rollouts failed, more than max_failed_frac="
            f"{max_failed_frac:g} allows:\n{lines}\n"
            + "\n".join(hints or ["hint: mend what failed, or raise max_failed_frac"])
        ) from self._causes.get(most)


def _kind_of(error: str) -> str:
    """The first line of an error, without the addresses of objects: what a histogram counts."""
    return re.sub(r"0x[0-9a-fA-F]+", "0x…", error.partition("\n")[0])
