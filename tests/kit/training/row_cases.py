"""The cases in which the gradient of all rows is compared with the oracle's."""

import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest
from trl import GRPOConfig

from abut.rollout.rollout import Rollout
from abut.trl.version import COUNTS_ALL_ROWS, LUSPO_MASKS_PADDING, trl_version
from tests.kit.training.row_oracle import (
    Loss,
    Rows,
    gradient_of,
    group_advantages,
    relative_error,
)
from tests.kit.training.scripted_rows import GROUP, RowsRun, random_columns, rollout_of

WORST = 2e-6
"""The largest relative error that float32 in advantages and sampled logprobs explains."""

_FIELDS = {field.name for field in dataclasses.fields(GRPOConfig)}

LOSS_TYPES = ["grpo", "sapo", "dr_grpo", "dapo", "cispo"]
if trl_version() >= LUSPO_MASKS_PADDING:
    LOSS_TYPES.append("luspo")


def check_gradients(folder: Path, *, peft_config: Any = None, **settings: Any) -> RowsRun:
    """Train on one generation batch, and compare the gradient of each optimizer step."""
    steps = settings.get("num_iterations", 1)
    peft_config = peft_config and peft_config()
    run = RowsRun(folder, max_steps=steps, peft_config=peft_config, **settings).train()
    errors = errors_of(run)
    assert len(errors) == steps
    assert max(errors) < WORST, errors
    return run


def loss_of(run: RowsRun) -> Loss:
    """Return the loss that the trainer is set to."""
    trainer = run.trainer
    found = Loss(
        trainer.loss_type,
        beta=trainer.beta,
        epsilon_high=trainer.epsilon_high,
        sequence_level=trainer.importance_sampling_level == "sequence",
        max_completion_length=trainer.max_completion_length,
    )
    if trainer.num_iterations > 1 or trainer.use_vllm:
        found.old = run.before[0]
    if trainer.use_vllm:
        found.correction = trainer.vllm_importance_sampling_mode
    if trainer.beta:
        found.reference = run.reference
        found.corrects_divergence = trainer.args.use_bias_correction_kl
    return found


def partly_truncated(rng: random.Random, task: Any) -> Rollout:
    """Some conversations end on another token than a stop token, and in one rollout all do."""
    all_of_them = task.member == 1
    main, *others = (
        random_columns(rng, end=7 if all_of_them or rng.random() < 0.4 else 505)
        for _ in range(rng.randint(2, 4))
    )
    return rollout_of(task, round(rng.random(), 2), main, *others)


def lora() -> Any:
    """An adapter that is not 0 at its start."""
    peft = pytest.importorskip("peft")

    modules = ["q_proj", "v_proj", "o_proj", "up_proj"]
    return peft.LoraConfig(r=4, lora_alpha=8, target_modules=modules, init_lora_weights=False)


def tokens_of(rollouts: Rows) -> int:
    """Return how many tokens are trained."""
    return sum(int(columns.env_mask.sum()) for rows in rollouts for columns in rows)


def scale_of(run: RowsRun) -> str:
    """Return what rewards are scaled by."""
    return str(run.trainer.scale_rewards)


def errors_of(run: RowsRun, **changes: Any) -> list[float]:
    """Return the relative error of the gradient of each optimizer step of the first batch.

    Args:
        run: has trained on it.
        changes: of the loss; controls are of a wrong one.
    """
    trainer = run.trainer
    advantages = group_advantages(run.rewards, GROUP, scale_of(run))
    loss = dataclasses.replace(loss_of(run), **changes)
    # TRL 0.29 with its transformers divides by the accumulation twice.
    twice = trainer.accelerator.gradient_accumulation_steps
    rollouts = run.rollouts
    share = 1.0
    if trainer.mask_truncated_completions:
        rollouts = [[c for c in rows if c.completion_ids[-1] != 7] for rows in rollouts]
        if trainer.loss_type == "dapo" and trl_version() < COUNTS_ALL_ROWS:
            share = tokens_of(rollouts) / tokens_of(run.rollouts)  # it divides by masked ones too
    return [
        relative_error(found * twice, gradient_of(loss, model, rollouts, advantages) * share)
        for model, found in zip(run.before, run.gradients, strict=True)
    ]


# Later than TRL 0.29.
PADDED = {"pad_to_multiple_of": 8} if "pad_to_multiple_of" in _FIELDS else {}

OTHER_CASES: dict[str, dict[str, Any]] = {
    **{
        f"beta-{loss_type}": {"loss_type": loss_type, "beta": 0.3, "accumulation": 2}
        for loss_type in LOSS_TYPES
    },
    "beta-second": {"beta": 0.3, "num_iterations": 2, "accumulation": 2},
    **{
        f"vllm-{mode}-{loss_type}": {"vllm_mode": mode, "loss_type": loss_type, "accumulation": 2}
        for mode in ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
        for loss_type in ("grpo", "dapo")
    },
    "bnpo": {"loss_type": "bnpo", "num_iterations": 2},
    "bnpo-pieces": {"loss_type": "bnpo", "piece": 2},
    "pieces": {"piece": 3, "num_iterations": 2},
    "pieces-dapo": {"loss_type": "dapo", "piece": 1},
    "truncated": {"script": partly_truncated, "mask_truncated_completions": True},
    "truncated-dapo": {
        "script": partly_truncated,
        "mask_truncated_completions": True,
        "loss_type": "dapo",
        "accumulation": 2,
    },
    "unscaled": {"scale_rewards": "none", "accumulation": 2},
    "scaled-by-batch": {"scale_rewards": "batch", "accumulation": 2},
    "sequence-level": {"importance_sampling_level": "sequence", "num_iterations": 2},
    "lora": {"peft_config": lora, "accumulation": 2, "num_iterations": 2},
    "lora-beta": {"peft_config": lora, "beta": 0.3, "loss_type": "dapo"},
    "padded-to-multiples": {**PADDED, "accumulation": 2},
}
"""What else changes a gradient, by name: arguments of `check_gradients`."""
