"""The failures of a batch, counted by kind and judged as a whole.

One failed rollout is data: its record and the log have the error and the traceback. A batch in
which more than `max_failed_frac` failed is an error, with a histogram of the errors. Errors that
differ only in numbers, addresses or ids are of the same kind.
"""

import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from abut.errors import RolloutError, text_of, trace_of
from abut.rollout.rollout import Rollout

logger = logging.getLogger(__name__)

_KINDS = 8
# A limit, because each error text that quotes the policy is its own kind.
_LOGGED_KINDS = 32
_ANY = re.compile(
    r"0x[0-9a-fA-F]+"  # an address
    r"|\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"
    r"|\b(?=\w*[^\W\d])(?=\w*\d\w*\d)\w{8,}\b"  # an id: letters, and digits among them
    r"|(?:(?<![\w)\]])[-+])?\d+(?:[.,]\d+)*(?:[eE][-+]?\d+)?"
)


class Failures:
    """The failures of one batch.

    Args:
        logged: the kinds that were logged in full, including those of earlier batches.
    """

    def __init__(self, logged: set[str]) -> None:
        self._logged = logged
        self._causes: dict[str, BaseException] = {}
        self._lost: dict[str, str] = {}

    def next(self) -> "Failures":
        """Return an empty count for the next rollouts; it remembers what was logged."""
        return Failures(self._logged)

    def note(self, error: Exception, rollout_id: str, attempt: int) -> tuple[str, str]:
        """Log the error of an attempt, the first of a kind as a warning.

        Returns:
            Its text, and its traceback.
        """
        text = text_of(error)
        trace = getattr(error, "trace", "") or trace_of(error, own=True)
        self._causes.setdefault(kind_of_error(text), error)
        said = "rollout %s failed in attempt %d: %s\n%s%s"
        level, more = self._level(text, "\nFurther errors of this kind are logged at level DEBUG")
        more = f"{more}; a recorder keeps all of them." if more else ""
        logger.log(level, said, rollout_id, attempt + 1, text, trace, more)
        return text, trace

    def lose(self, rollout_id: str, text: str) -> None:
        """Count a rollout as failed, although it did not fail, because a part of it was lost.

        Args:
            rollout_id: of the rollout.
            text: the part that was lost, and why; the first of a kind is logged as a warning.
        """
        self._lost[rollout_id] = text
        level, more = self._level(text, "\nFurther errors of this kind are logged at level DEBUG.")
        logger.log(level, "rollout %s: %s%s", rollout_id, text, more)

    def _level(self, text: str, more: str) -> tuple[int, str]:
        """Return the level at which to log an error, and `more` for the first of its kind."""
        kind = kind_of_error(text)
        if kind in self._logged or len(self._logged) >= _LOGGED_KINDS:
            return logging.DEBUG, ""
        self._logged.add(kind)
        return logging.WARNING, more

    def cause_of(self, error: str | None) -> BaseException | None:
        """Return the first error of the same kind."""
        return self._causes.get(kind_of_error(error or ""))

    def tally(self, rollouts: Sequence[Rollout]) -> "Tally":
        """Count the failed rollouts, and those of which a part was lost."""
        errors = [
            rollout.error or "" if rollout.failed else self._lost[rollout.rollout_id]
            for rollout in rollouts
            if rollout.failed or rollout.rollout_id in self._lost
        ]
        kinds = Counter(map(kind_of_error, errors))
        shown = {kind: _shown(kind, errors) for kind in kinds}
        hints = {kind: _hints(kind, errors) for kind in kinds}
        return Tally(len(rollouts), kinds, shown, hints)

    def judge(
        self, tallies: Sequence["Tally"], max_failed_frac: float, *, logs: bool = True
    ) -> None:
        """Warn about rollouts that failed, or raise if there are too many.

        Args:
            tallies: one for each rank that has played a part of the batch.
            max_failed_frac: the largest share of failures that does not raise.
            logs: whether to log the warning; only one of several ranks does.

        Raises:
            RolloutError: too many failed; its cause is the first error of the most frequent kind.
        """
        kinds: Counter[str] = Counter()
        shown: dict[str, str] = {}
        for tally in tallies:
            kinds += tally.kinds
            for kind, text in tally.shown.items():
                shown[kind] = text if shown.setdefault(kind, text) == text else kind
        failed, rollouts = kinds.total(), sum(tally.rollouts for tally in tallies)
        if not failed:
            return
        lines = "\n".join(f"  {count} x {shown[kind]}" for kind, count in kinds.most_common(_KINDS))
        where = f" on {len(tallies)} ranks" if len(tallies) > 1 else ""
        if failed <= max_failed_frac * rollouts:
            if logs:
                logger.warning("%d of %d rollouts%s failed:\n%s", failed, rollouts, where, lines)
            return
        most = kinds.most_common(1)[0][0]
        hints = next(tally.hints[most] for tally in tallies if most in tally.hints)
        raise RolloutError(
            f"{failed} of {rollouts} rollouts{where} failed, more than max_failed_frac="
            f"{max_failed_frac:g} allows:\n{lines}\n"
            + "\n".join(hints or ["hint: fix what failed, or raise max_failed_frac"])
        ) from self._causes.get(most)


@dataclass(frozen=True)
class Tally:
    """The failures of one rank, in the form that ranks exchange.

    Attributes:
        rollouts: how many were played.
        kinds: how many rollouts failed of each kind.
        shown: the text of each kind: the error text if all are equal, otherwise the kind.
        hints: what to do about each kind.
    """

    rollouts: int
    kinds: Counter[str]
    shown: Mapping[str, str]
    hints: Mapping[str, Sequence[str]]


def kind_of_error(error: str) -> str:
    """Return the kind of an error: its first line, without numbers, addresses and ids."""
    return _ANY.sub("…", error.partition("\n")[0])


def _shown(kind: str, errors: Sequence[str]) -> str:
    """Return the text of a kind: the error text if all are equal, otherwise the kind."""
    texts = {error.partition("\n")[0] for error in errors if kind_of_error(error) == kind}
    return texts.pop() if len(texts) == 1 else kind


def _hints(kind: str, errors: Sequence[str]) -> list[str]:
    """Return the hints of the first error of a kind."""
    message = next(error for error in errors if kind_of_error(error) == kind)
    return [line for line in message.splitlines() if line.startswith("hint: ")]
