"""`AsyncGRPOTrainer` with a real vLLM server, which is paused, gets weights and goes on.

TRL sends weights by NCCL, and that needs a GPU: its `WeightTransferClient` ends where it opens the
NCCL group (`init_weight_transfer`, before the first sync), and a build of vLLM for the CPU has no
such engine. So here weights go by way of a file, through TRL's own door for another transfer; the
pause, the requests that it keeps, the versions and all of training are as with a GPU.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kit.training.vllm_training import Vowels, send

STEPS = 8


class FileTransfer:
    """`WeightTransferProtocol`: a file instead of NCCL; all else as TRL's own does it."""

    def __init__(self, server: Any, folder: Path, *, sends: bool = True) -> None:
        self.server, self.folder, self.sends = server, folder, sends

    def init_weight_transfer(self) -> None: ...

    def pause(self) -> None:
        self.server.post("/pause?mode=keep", b"")

    def send_weights(self, iterator: Any) -> None:
        named = list(iterator)  # to its end, always
        if self.sends:
            send(self.server, self.folder, named)
            self.server.post("/reset_prefix_cache")

    def resume(self) -> None:
        self.server.post("/resume", b"")

    def destroy(self) -> None: ...


@pytest.mark.parametrize("synced", [True, False], ids=["synced", "without sync"])
@pytest.mark.filterwarnings("ignore")  # of TRL and vLLM among themselves
def test_the_trainer_computes_the_logprobs_that_were_sampled(
    synced: bool, own_server: Any, model_folder: Path, hf_tokenizer: Any, tmp_path: Path
) -> None:
    from tests.kit.training.async_cpu import AsyncRun, on_cpu

    weights = FileTransfer(own_server, tmp_path, sends=synced)
    with on_cpu():
        run = AsyncRun(
            tmp_path / "out",
            model_folder,
            own_server,
            hf_tokenizer,
            Vowels,
            weights=weights,
            max_steps=STEPS,
            # One that samples with the weights of now: what it trains is a step behind at most.
            max_staleness=1,
            max_inflight_tasks=8,
            learning_rate=3e-3,
        )
        run.trainer.train()
    ratios = [abs(log["ratio"] - 1) for log in run.logs]
    assert len(ratios) == STEPS
    assert ratios[0] < 1e-4, "the first step is on policy"
    assert all(rollout.error is None for rollout, _ in run.kept.rollouts)
    versions = {row.model_version for row in run.pushed}
    assert len(versions) > 1, "weights went to the server in the middle of it"
    assert min(versions) == 1
    # Without its weights a server stays where it was, and the trainer leaves it behind for good.
    # With them most steps are on policy again, and not all: rows may be a step behind.
    kl = [log["kl"] for log in run.logs[-5:]]
    assert (np.median(kl) < 0.05) == synced, kl
