"""One gateway for each rank, and one address for all.

Invariant: every rank takes part in the exchange, once, when its engine is built; after that no rank
waits for another one here.
"""

from typing import Any

from abut.errors import EnvError
from abut.gateway.server import Gateway


def serve_ranks(gateway: Gateway, run_id: str, trainer: Any) -> None:
    """Start this rank's gateway, and tell the others where it is.

    Raises:
        EnvError: the address cannot be had; on all ranks.
    """
    accelerator = trainer.accelerator
    if accelerator.num_processes == 1:
        gateway.desk.belongs_to(run_id)
        gateway.start()
        return
    from accelerate.utils import broadcast_object_list, gather_object

    rank = accelerator.process_index
    (key,) = broadcast_object_list([gateway.key])
    gateway.desk.belongs_to(run_id, rank=rank, key=key)
    error: Exception | None = None
    try:
        gateway.start()
    except Exception as raised:
        error = raised
    said = (rank, gateway.base_url.removesuffix("/v1") if error is None else "", str(error or ""))
    told = gather_object([said])
    gateway.desk.peers = {other: url for other, url, _ in told if other != rank}
    if error is not None:
        raise error
    for other, _, trouble in told:
        if trouble:
            raise EnvError(f"rank {other}: {trouble}")
