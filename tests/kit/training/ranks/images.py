"""One rank of two, of which only the first has images: logprobs and gradients of the vision tower.

The model's weights are compared with those of an equal model that no rank has a part of.
"""

import os
import random
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from abut.trl.rows import row_images
from tests.kit.training.image_run import ImageRun, Writer, rollout_with_images, tiny_model
from tests.kit.training.ranks import leave
from tests.kit.training.ranks.fsdp2 import shard_on_cpus
from tests.kit.training.ranks.rows import SHARDED, deepspeed_on_cpus
from tests.kit.training.row_oracle import whole
from tests.kit.training.scripted_rows import Scripted
from tests.kit.training.vision import FAMILIES, picture

FAMILY = "qwen2_5_vl"  # each of its weights takes part in a pass with an image
WRAPPED = ["Qwen2_5_VLDecoderLayer", "Qwen2_5_VLVisionBlock"]
FSDP2 = {"fsdp": True, "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": WRAPPED}}


def main(folder: Path, kind: str) -> None:
    """Train on one generation batch; write down what this rank got.

    Args:
        folder: for what is found.
        kind: how the model is trained: "ddp", which does not look for unused parameters, "fsdp2",
            "zero2" or "zero3"; with "-spareless", rows without an image get no spare row.
    """
    kind, _, control = kind.partition("-")
    writer = Writer(FAMILY)

    def script(rng: random.Random, task: Any) -> Any:
        shown = [[picture(1)], [], [picture(2)]] if task.group == 0 else [[], []]
        others = [writer.talk(rng, [[]]) for _ in range(task.index)]
        return rollout_with_images(task, rng.random(), writer.talk(rng, shown), *others)

    if kind == "fsdp2":
        shard_on_cpus()
    if kind.startswith("zero"):
        deepspeed_on_cpus()
    if control == "spareless":
        row_images._ImagePasses._with_spare_row = lambda self, given, spans: (given, spans)  # type: ignore[method-assign]
    plain = tiny_model(FAMILIES[FAMILY]())  # before ZeRO-3 is set up, which would have a part of it
    run = ImageRun(
        FAMILY,
        folder / os.environ["RANK"],
        env=Scripted(script),
        prompts=["go"] * 2,
        max_steps=2,
        per_device_train_batch_size=2,
        per_device_eval_batch_size=2,
        gradient_accumulation_steps=1,
        piece=1,
        num_iterations=2,
        gradient_checkpointing=True,
        ddp_find_unused_parameters=False,  # as transformers has it with checkpointing, in the end
        learning_rate=0.0,
        max_grad_norm=0.0,
        eval_strategy="steps",
        eval_steps=1,
        ddp_timeout=60,  # a rank that waits in vain fails after this, and the test with it
        **(FSDP2 if kind == "fsdp2" else SHARDED[kind]),
    )
    trainer = run.trainer
    trainer.plain = plain
    gradients: dict[str, float] = {}

    def keep(gradient_of: Any) -> None:
        for name, parameter in trainer.accelerator.unwrap_model(trainer.model).named_parameters():
            if (gradient := gradient_of(parameter)) is not None:
                gradients[name] = float(gradient.norm())

    if kind.startswith("zero"):
        keep_before_steps(keep)
    else:
        trainer.add_callback(Keep(keep))
    run.train()
    found = {
        "model": type(trainer.model_wrapped).__name__,
        "images": sorted({(c.purpose, c.images) for c in trainer.compared}),
        "worst": run.worst()[0],
        "gradients": gradients,
    }
    leave(folder, found)
    # The groups of a mesh leave threads of gloo, which abort an interpreter that ends under them.
    os._exit(0)


class Keep(TrainerCallback):  # type: ignore[misc]
    """Shows the gradients of each optimizer step."""

    def __init__(self, keep: Any) -> None:
        self._keep = keep

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        self._keep(lambda parameter: None if parameter.grad is None else whole(parameter.grad))


def keep_before_steps(keep: Any) -> None:
    """Show the gradients of each step of DeepSpeed, which takes it while it goes backward."""
    from deepspeed.runtime.engine import DeepSpeedEngine
    from deepspeed.utils import safe_get_full_grad

    step = DeepSpeedEngine.step

    def kept(engine: Any, *args: Any, **kwargs: Any) -> Any:
        if engine.is_gradient_accumulation_boundary():
            keep(safe_get_full_grad)
        return step(engine, *args, **kwargs)

    DeepSpeedEngine.step = kept
