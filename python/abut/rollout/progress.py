"""The progress of a batch or stream: a bar on a terminal, and lines in the log.

All calls come from the batch's loop, except for `Progress()` and `close`.
"""

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from abut.rollout.rollout import Rollout

logger = logging.getLogger(__name__)


class Progress:
    """Counts the rollouts of a batch or stream.

    Args:
        total: the number of rollouts; None in a stream, where it is unknown.
        bar: show a bar, if standard error is a terminal.
        log_every_s: seconds between two lines in the log; None: no lines.
    """

    def __init__(
        self, total: int | None, *, bar: bool = False, log_every_s: float | None = None
    ) -> None:
        self._total = total
        self._log_every_s = log_every_s
        self._ended = self._turns = self._failed = 0
        self._began: dict[str, float] = {}
        """The start times of the rollouts that are playing, earliest first."""
        self._bar: Any = None
        if bar:
            from tqdm.auto import tqdm

            form = "{desc} |{bar}| {elapsed}"
            self._bar = tqdm(
                total=total, desc=self.text, bar_format=form, leave=False, disable=None
            )

    @property
    def text(self) -> str:
        """`rollouts 37/64 · turns 142 · failed 1`; counts the turns of rollouts that ended."""
        of_total = "" if self._total is None else f"/{self._total}"
        return f"rollouts {self._ended}{of_total} · turns {self._turns} · failed {self._failed}"

    @property
    def line(self) -> str:
        """The text, and which rollout has played the longest, and for how long."""
        if not self._began:
            return f"{self.text} · playing 0"
        slowest, began = next(iter(self._began.items()))
        return (
            f"{self.text} · playing {len(self._began)}, the slowest for "
            f"{time.monotonic() - began:.0f} s: {slowest}"
        )

    @contextmanager
    def plays(self, rollout_id: str) -> Iterator[None]:
        """Count a rollout as playing."""
        self._began[rollout_id] = time.monotonic()
        try:
            yield
        finally:
            del self._began[rollout_id]

    def add(self, rollout: Rollout) -> None:
        """Count a rollout that ended."""
        self._ended += 1
        self._turns += len(rollout.turns)
        self._failed += rollout.failed
        if self._bar is not None:
            self._bar.set_description_str(self.text, refresh=False)
            self._bar.update()

    async def log(self) -> None:
        """Log a line every `log_every_s` seconds, until cancelled."""
        while self._log_every_s is not None:
            await asyncio.sleep(self._log_every_s)
            # Without a logging setup Python shows only warnings, but the user has requested these
            # lines.
            level = logging.INFO if logger.isEnabledFor(logging.INFO) else logging.WARNING
            logger.log(level, "%s", self.line)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()
