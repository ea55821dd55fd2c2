"""A progress bar for a batch of rollouts, where somebody watches: on a terminal, in a notebook."""

from typing import Any

from abut.rollout.rollout import Rollout


class Progress:
    """`rollouts 37/64 · turns 142 · failed 1`."""

    def __init__(self, total: int, enabled: bool) -> None:
        self._bar: Any = None
        self._total = total
        self._ended = self._turns = self._failed = 0
        if enabled:
            from tqdm.auto import tqdm

            form = "{desc} |{bar}| {elapsed}"
            self._bar = tqdm(
                total=total, desc=self.text, bar_format=form, leave=False, disable=None
            )

    @property
    def text(self) -> str:
        """What stands beside the bar; the turns are those of rollouts that ended."""
        return f"rollouts {self._ended}/{self._total} · turns {self._turns} · failed {self._failed}"

    def add(self, rollout: Rollout) -> None:
        """Count a rollout that ended."""
        self._ended += 1
        self._turns += len(rollout.turns)
        self._failed += rollout.failed
        if self._bar is not None:
            self._bar.set_description_str(self.text, refresh=False)
            self._bar.update()

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()
