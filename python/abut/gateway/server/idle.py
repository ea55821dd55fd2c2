"""Rollouts that ended because nothing came any more, for whose reward there is still time.

Invariant: a rollout is known here for an hour at most, and is scored once.
"""

import time
from collections import OrderedDict
from typing import Any

from abut.rollout.rollout import Rollout

KEPT_S = 3600.0
MOST = 10_000


class IdleRollouts:
    """The rollouts that have gone idle, oldest first."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[float, dict[str, Any]]] = OrderedDict()

    def __contains__(self, id_: object) -> bool:
        self._drop_old()
        return id_ in self._kept

    def add(self, id_: str, rollout: Rollout) -> None:
        """Keep what its end is answered with."""
        self._kept[id_] = time.monotonic(), said_of(rollout)
        self._drop_old()
        while len(self._kept) > MOST:
            self._kept.popitem(last=False)

    def scored(self, id_: str, reward: float) -> dict[str, Any]:
        """The answer to who ends it with a reward; it is then forgotten."""
        return self._kept.pop(id_)[1] | {"reward": reward}

    def _drop_old(self) -> None:
        before = time.monotonic() - KEPT_S
        while self._kept and next(iter(self._kept.values()))[0] < before:
            self._kept.popitem(last=False)


def said_of(rollout: Rollout) -> dict[str, Any]:
    """Return the answer to the end of a rollout."""
    return {
        "rollout_id": rollout.rollout_id,
        "reward": rollout.reward,
        "turns": len(rollout.turns),
        "branches": len(rollout.branches),
        "stop_reason": rollout.stop_reason.value,
        "error": rollout.error,
    }
