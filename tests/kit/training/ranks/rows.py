"""One rank of two that have different numbers of rows: the gradient of both together.

The rollouts of rank 0 have a conversation each, or a few; those of rank 1 have many.
"""

import importlib
import os
import random
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType, gather_object

from abut import Columns
from abut.trl import ModelTeacher, ReverseKL
from abut.trl.rows import pieces
from tests.kit.training.ranks import leave
from tests.kit.training.ranks.fsdp2 import shard_on_cpus
from tests.kit.training.row_cases import loss_of, scale_of
from tests.kit.training.row_oracle import (
    gradient_of,
    group_advantages,
    relative_error,
    reverse_kl_advantages,
)
from tests.kit.training.scripted_rows import (
    GROUP,
    RowsRun,
    float64_model,
    random_columns,
    rollout_of,
)

SHARDED: dict[str, dict[str, Any]] = {
    "ddp": {},
    "fsdp2": {
        "fsdp": True,
        "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": ["Qwen3DecoderLayer"]},
    },
    **{
        f"zero{stage}": {
            "deepspeed": {
                "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
                "zero_allow_untested_optimizer": True,
                "train_micro_batch_size_per_gpu": "auto",
                "gradient_accumulation_steps": "auto",
                "gradient_clipping": 0.0,  # 1.0 unless it is said
            },
        }
        for stage in (2, 3)
    },
}


def script(rng: random.Random, task: Any) -> Any:
    """Rollouts of the first group have no other conversation."""
    others = 0 if task.group == 0 else rng.randint(0, 4)
    columns = [random_columns(rng, turns=rng.randint(1, 3)) for _ in range(1 + others)]
    return rollout_of(task, round(rng.random(), 2), *columns)


def deepspeed_on_cpus() -> None:
    """Have accelerate heed `deepspeed`, which it passes over where it is told that it has a CPU."""
    # An extension for ranks of one machine, which each rank would compile; gloo does without.
    comm: Any = importlib.import_module("deepspeed.comm.torch")
    comm.build_shm_op = lambda: None
    # ZeRO-3 refuses float64 on a CPU that computes in float16, and takes it on others.
    accelerator: Any = importlib.import_module("deepspeed.accelerator").get_accelerator()
    accelerator.is_fp16_supported = lambda: False
    made = AcceleratorState.__init__

    def with_deepspeed(self: Any, *args: Any, deepspeed_plugin: Any = None, **named: Any) -> None:
        made(self, *args, deepspeed_plugin=deepspeed_plugin, **named)
        if deepspeed_plugin is not None:
            deepspeed_plugin.set_mixed_precision("no")
            deepspeed_plugin.select(_from_accelerator_state=True)
            self.distributed_type = DistributedType.DEEPSPEED
            self.deepspeed_plugins = deepspeed_plugin

    AcceleratorState.__init__ = with_deepspeed


WHOLE_ROWS: dict[str, Any] = {
    "importance_sampling_level": "sequence",
    "vllm_mode": "sequence_truncate",
    "num_iterations": 2,
    "max_steps": 2,
}
"""Ratios of whole rows, which padding has too."""


def write_metrics(folder: Path) -> None:
    """Train on one micro-step of each rank, and write down what was logged.

    Args:
        folder: for it.
    """
    run = RowsRun(folder, script, rollouts=4, piece=1, ddp_timeout=60, **WHOLE_ROWS).train()
    batch = run.trainer.abut_rows
    leave(
        folder,
        {"rows": [len(batch.places), batch.size], "logged": run.trainer.state.log_history},
    )
    os._exit(0)  # see `main`


def main(
    folder: Path, kind: str, loss_type: str = "", iterations: str = "", coef: str = ""
) -> None:
    """Train on one generation batch; write down how far each gradient is from the oracle's.

    Args:
        folder: for what is found.
        kind: how the model is trained; with "-unflagged", DeepSpeed may step after each piece.
            "metrics": see `write_metrics`.
        loss_type: of the trainer.
        iterations: over the batch; 1 with DeepSpeed, whose gradient is read off its step.
        coef: of the reverse KL from a teacher; without one there is no teacher.
    """
    teacher = float64_model(seed=5)[1] if coef else None
    credit = ReverseKL(ModelTeacher(teacher), coef=float(coef)) if coef else None
    if kind == "metrics":
        write_metrics(folder)
    kind, _, control = kind.partition("-")
    if kind == "fsdp2":
        shard_on_cpus()
    if kind.startswith("zero"):
        deepspeed_on_cpus()
    if control == "unflagged":
        pieces._without_sync = lambda trainer, model: nullcontext()  # type: ignore[assignment]
    run = RowsRun(
        folder,
        script,
        rollouts=4,
        accumulation=2,
        piece=1,
        loss_type=loss_type,
        num_iterations=int(iterations),
        max_steps=int(iterations),
        keeps=not kind.startswith("zero"),
        credit=credit,
        ddp_timeout=60,  # a rank that waits in vain fails after this, and the test with it
        **SHARDED[kind],
    )
    if kind.startswith("zero"):
        run.before = [float64_model()[1]]
    run.train()
    if kind.startswith("zero"):
        run.gradients = [_gradient_of_step(run)]
    batch = run.trainer.abut_rows
    every, rewards = everywhere(run.rollouts, run.rewards)
    loss = loss_of(run)
    advantages = group_advantages(rewards, GROUP, scale_of(run))
    if teacher is not None:
        advantages = reverse_kl_advantages(every, advantages, teacher, float(coef))
    # See `errors_of`; DeepSpeed is told of the accumulation, and does not divide by it.
    twice = 1 if kind.startswith("zero") else run.trainer.accelerator.gradient_accumulation_steps
    errors = [
        relative_error(found * twice, gradient_of(loss, model, every, advantages))
        for model, found in zip(run.before, run.gradients, strict=True)
    ]
    leave(
        folder,
        {
            "model": type(run.trainer.model_wrapped).__name__,
            "rows": [len(batch.places), batch.size],
            "errors": errors,
            "logged": run.logged(),
        },
    )
    # The groups of a mesh leave threads of gloo, which abort an interpreter that ends under them.
    os._exit(0)


def _gradient_of_step(run: RowsRun) -> Any:
    """Return what a step of plain descent went along; DeepSpeed has no gradients any more."""
    import deepspeed
    import torch

    parameters = list(run.trainer.model.parameters())
    with deepspeed.zero.GatheredParameters(parameters):
        after = torch.cat([parameter.detach().flatten() for parameter in parameters])
    before = torch.cat([parameter.detach().flatten() for parameter in run.before[0].parameters()])
    return (before - after.double()) / run.trainer.args.learning_rate


def everywhere(
    rollouts: list[list[Columns]], rewards: list[float | None]
) -> tuple[list[list[Columns]], list[float | None]]:
    """Return the rollouts and rewards of all ranks, in TRL's order."""
    names = ("prompt_ids", "completion_ids", "logprobs", "env_mask")
    plain = [[{name: getattr(c, name) for name in names} for c in rows] for rows in rollouts]
    return (
        [[Columns(**columns) for columns in rows] for rows in gather_object(plain)],
        gather_object(rewards),
    )
