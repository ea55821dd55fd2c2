"""Ranks that run one model together, each for rollouts of its own.

Invariant: between two steps of the model every rank hears of every rank, in the order of ranks. So
all do the same, in the same order, and all leave in the same round.
"""

import threading
from dataclasses import dataclass, field
from typing import Any

from abut.errors import SamplerError
from abut.samplers.sampler import SampleRequest

# How long a rank whose last report does not get through keeps its error to itself.
_LAST_REPORT_S = 10.0


@dataclass(frozen=True)
class RankReport:
    """One rank's news for the others, between two steps."""

    requests: dict[str, SampleRequest] = field(default_factory=dict)
    """The turns that join, by name, in their order."""
    given_up: list[str] = field(default_factory=list)
    """The turns that nobody waits for any more."""
    is_done: bool = False
    """True if no turn will come from that rank any more."""
    error: str | None = None
    """Why its batch failed."""


class Alone:
    """One rank, with the whole model: what `Ranks` is where there are no others."""

    rank = 0
    wait_s = None
    """How long a rank with nothing to do waits for turns; None: until one comes."""

    def exchange(self, report: RankReport) -> list[RankReport]:
        """Return the reports of all ranks, in their order."""
        return [report]

    def leave(self, error: BaseException) -> None:
        """Tell the others that this rank failed between two exchanges."""


class Ranks:
    """The ranks of a tensor-parallel group; each calls `exchange` equally often.

    Args:
        group: a process group of `torch.distributed` for objects on the CPU.
    """

    wait_s = 0.005
    """Others may have turns meanwhile, and cannot step before all have exchanged."""

    def __init__(self, group: Any) -> None:
        import torch.distributed

        self._distributed = torch.distributed
        self._group = group
        self._is_whole = True
        self.rank = torch.distributed.get_rank(group)

    def exchange(self, report: RankReport) -> list[RankReport]:
        """Return the reports of all ranks, in their order.

        Raises:
            SamplerError: a rank is gone, or another one's batch failed.
        """
        reports: list[Any] = [None] * self._distributed.get_world_size(self._group)
        try:
            self._distributed.all_gather_object(reports, report, group=self._group)
        except RuntimeError as error:
            self._is_whole = False
            raise SamplerError(
                f"rank {self.rank} of the tensor-parallel group does not reach the others: "
                f"{error}\nhint: look for the first error of the other ranks"
            ) from error
        failed = [rank for rank, one in enumerate(reports) if one.error is not None]
        self._is_whole = not failed
        if failed and self.rank not in failed:
            raise SamplerError(
                f"rank {failed[0]} of the tensor-parallel group failed, and the others cannot go "
                f"on without it: {reports[failed[0]].error}"
            )
        return reports

    def leave(self, error: BaseException) -> None:
        """Tell the others that this rank failed between two exchanges; wait for them, not long."""
        if not self._is_whole:
            return
        report = RankReport(error=f"{type(error).__name__}: {error}")
        # A rank that hangs in a step of the model never hears it, and then this one has to end.
        last = threading.Thread(target=self._report, args=(report,), name="abut-leave", daemon=True)
        last.start()
        last.join(_LAST_REPORT_S)

    def _report(self, report: RankReport) -> None:
        try:
            self.exchange(report)
        except SamplerError:
            return  # they have failed as well
