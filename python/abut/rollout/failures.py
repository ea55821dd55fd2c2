"""What failed in a batch, counted by kind and judged as a whole.

One rollout that failed is data: its record has the error and the traceback, and so has the log. A
batch in which more than `max_failed_frac` failed is an error, with a histogram of what they failed
of. Errors that differ only in numbers, addresses or ids are of one kind.
"""

import logging
import re
from collections import Counter
from collections.abc import Sequence

from abut.errors import RolloutError, text_of, trace_of
from abut.rollout.rollout import Rollout

logger = logging.getLogger(__name__)

_KINDS = 8
# Texts that hold what the policy said are all of other kinds.
_LOGGED_KINDS = 32
_ANY = re.compile(
    r"0x[0-9a-fA-F]+"  # an address
    r"|\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"
    r"|\b(?=\w*[^\W\d])(?=\w*\d\w*\d)\w{8,}\b"  # an id: letters, and digits among them
    r"|(?:(?<![\w)\]])[-+])?\d+(?:[.,]\d+)*(?:[eE][-+]?\d+)?"
)


class Failures:
    """Of one batch.

    Args:
        logged: the kinds that were logged in full, in the batches before as well.
    """

    def __init__(self, logged: set[str]) -> None:
        self._logged = logged
        self._causes: dict[str, BaseException] = {}

    def note(self, error: Exception, rollout_id: str, attempt: int) -> tuple[str, str]:
        """Log what an attempt failed of, the first of a kind as a warning.

        Returns:
            its text, and its traceback.
        """
        text = text_of(error)
        trace = getattr(error, "trace", "") or trace_of(error, own=True)
        kind = _kind_of(text)
        self._causes.setdefault(kind, error)
        level, more = logging.DEBUG, ""
        if kind not in self._logged and len(self._logged) < _LOGGED_KINDS:
            self._logged.add(kind)
            level = logging.WARNING
            more = "\nOthers of its kind are in the debug log, and in the records."
        said = "rollout %s, attempt %d, failed of %s\n%s%s"
        logger.log(level, said, rollout_id, attempt + 1, text, trace, more)
        return text, trace

    def cause_of(self, error: str | None) -> BaseException | None:
        """The first error of the same kind."""
        return self._causes.get(_kind_of(error or ""))

    def judge(self, rollouts: Sequence[Rollout], max_failed_frac: float) -> None:
        """Warn of rollouts that failed.

        Raises:
            RolloutError: more failed than may; its cause is the first of the most frequent kind.
        """
        errors = [rollout.error or "" for rollout in rollouts if rollout.failed]
        if not errors:
            return
        kinds = Counter(map(_kind_of, errors))
        lines = "\n".join(
            f"  {count} x {_shown(kind, errors)}" for kind, count in kinds.most_common(_KINDS)
        )
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
    """What a histogram counts: the first line of an error, without what differs each time."""
    return _ANY.sub("…", error.partition("\n")[0])


def _shown(kind: str, errors: Sequence[str]) -> str:
    """A kind as all of its errors say it, where they say the same."""
    texts = {error.partition("\n")[0] for error in errors if _kind_of(error) == kind}
    return texts.pop() if len(texts) == 1 else kind
