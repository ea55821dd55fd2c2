"""The ranks of a training run: exchanges when they start, and after each batch.

Invariant: every rank takes part in the exchange of failures, whatever happened to it, so that no
rank waits for a rank that has given up. If one rank raises, all ranks raise. The other exchanges of
a batch come after this one.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from abut.errors import EnvError, RolloutError, text_of
from abut.gateway.server.gateway import Gateway
from abut.rollout.failures import Failures, Tally

T = TypeVar("T")


@dataclass(frozen=True)
class _Report:
    rank: int
    tally: Tally | None
    error: str | None


def judged(
    accelerator: Any, max_failed_frac: float, play: Callable[[], tuple[T, Failures, Tally]]
) -> T:
    """Play this rank's part of a batch, and judge the failures of all ranks together.

    Args:
        accelerator: of the trainer.
        max_failed_frac: the largest share of failed rollouts that does not raise.
        play: returns the result, and the failures.

    Raises:
        RolloutError: too many rollouts failed, over all ranks; or another rank raised, and is
            named.
        Exception: any error of `play`.
    """
    if accelerator.num_processes == 1:
        played, failures, tally = play()
        failures.judge([tally], max_failed_frac)
        return played
    from accelerate.utils import gather_object

    rank = accelerator.process_index
    error: Exception | None = None
    report = _Report(rank, None, None)
    try:  # a Ctrl-C is not caught: a rank that is interrupted alone must not wait for the others
        played, failures, tally = play()
        report = _Report(rank, tally, None)
    except Exception as raised:
        error = raised
        report = _Report(rank, None, text_of(raised))
    reports: list[_Report] = gather_object([report])
    if error is not None:
        raise error
    for other in reports:
        if other.error is not None:
            raise RolloutError(f"training ended on rank {other.rank}: {other.error}")
    tallies = [other.tally for other in reports if other.tally is not None]
    failures.judge(tallies, max_failed_frac, logs=rank == 0)
    return played


def gathered(accelerator: Any, value: T) -> list[T]:
    """Return the value of each rank, in the order of ranks; all ranks must call it."""
    if accelerator.num_processes == 1:
        return [value]
    from accelerate.utils import gather_object

    return gather_object([value])  # type: ignore[no-any-return]


def of_all_ranks(accelerator: Any, names: Iterable[str]) -> list[str]:
    """Return the names that any rank has, in the same order everywhere; all ranks must call it."""
    if accelerator.num_processes == 1:
        return list(names)
    from accelerate.utils import gather_object

    return sorted(set(gather_object(list(names))))


def serve_ranks(gateway: Gateway, run_id: str, trainer: Any) -> None:
    """Start this rank's gateway, and send its address to the other ranks.

    Every rank takes part in this exchange when its engine is built; after that, no rank waits for
    another here.

    Raises:
        EnvError: a rank cannot listen on its address; raised on all ranks.
    """
    accelerator = trainer.accelerator
    if accelerator.num_processes == 1:
        gateway.registry.join_run(run_id)
        gateway.start()
        return
    from accelerate.utils import broadcast_object_list, gather_object

    rank = accelerator.process_index
    (key,) = broadcast_object_list([gateway.key])
    gateway.registry.join_run(run_id, rank=rank, key=key)
    error: Exception | None = None
    try:
        gateway.start()
    except Exception as raised:
        error = raised
    said = (rank, gateway.base_url.removesuffix("/v1") if error is None else "", str(error or ""))
    told = gather_object([said])
    gateway.registry.peers = {other: url for other, url, _ in told if other != rank}
    if error is not None:
        raise error
    for other, _, trouble in told:
        if trouble:
            raise EnvError(f"rank {other}: {trouble}")
