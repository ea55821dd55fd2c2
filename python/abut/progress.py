"""A progress bar for a batch of rollouts."""

from typing import Any

from abut.rollout import Rollout


class Progress:
    """`rollouts 37/64 · turns 142 · failed 1`, where somebody watches."""

    def __init__(self, total: int, enabled: bool) -> None:
        self._bar: Any = None
        self._turns = self._failed = 0
        if enabled:
            from tqdm.auto import tqdm

            self._bar = tqdm(total=total, desc="rollouts", leave=False, disable=None)

    def add(self, rollout: Rollout) -> None:
        """Count a rollout that ended."""
        self._turns += len(rollout.turns)
        self._failed += rollout.failed
        if self._bar is not None:
            self._bar.set_postfix_str(f"turns {self._turns} · failed {self._failed}", refresh=False)
            self._bar.update()

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()
