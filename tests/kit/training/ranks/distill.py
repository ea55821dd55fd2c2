"""One rank of an `AsyncDistillationTrainer`: rank 0 plays and has rows scored, both train."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from abut.trl import ModelTeacher
from tests.kit.training.async_cpu import PolicyServer
from tests.kit.training.distill_cpu import DistillRun, on_cpu, packed_rows
from tests.kit.training.models import rank_model
from tests.kit.training.ranks import leave

ROWS, STEPS = 2, 2


def main(folder: Path) -> None:
    """Train two steps; write down the rows, the gradient and the weights of each."""
    rank = int(os.environ["RANK"])
    tokenizer, model = rank_model()
    path = folder / f"student{rank}"
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    with PolicyServer(model) as server, on_cpu():
        run = DistillRun(
            folder / "run",
            path,
            server,
            tokenizer,
            ModelTeacher(teacher_model()),
            per_device_train_batch_size=ROWS,
            max_steps=STEPS,
        )
        run.trainer.train()
    steps: list[dict[str, Any]] = [
        {
            "rows": packed_rows(step.inputs),
            "gradient": step.gradient,
            "state": {name.removeprefix("module."): w for name, w in step.state.items()},
            "loss": step.loss,
        }
        for step in run.steps
    ]
    masks = {
        tuple(np.asarray(row.input_ids).tolist()): np.asarray(row.completion_mask).tolist()
        for row in run.pushed
    }
    torch.save({"steps": steps, "masks": masks}, folder / f"rank{rank}.pt")
    leave(folder, {"pushed": len(run.pushed), "model": type(run.trainer.model_wrapped).__name__})


def teacher_model() -> Any:
    """Return the same one on each rank, which is surer of some tokens than the student."""
    _, model = rank_model(hidden_size=64)
    with torch.no_grad():
        model.lm_head.weight.mul_(10)
    return model
