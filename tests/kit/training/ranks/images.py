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
from tests.kit.training.row_oracle import whole
from tests.kit.training.scripted_rows import Scripted
from tests.kit.training.vision import FAMILIES, picture

FAMILY = "qwen2_5_vl"  # each of its weights takes part in a pass with an image
FSDP2 = {
    "fsdp": True,
    "fsdp_config": {
        "version": 2,
        "transformer_layer_cls_to_wrap": ["Qwen2_5_VLDecoderLayer", "Qwen2_5_VLVisionBlock"],
    },
}


def main(folder: Path, kind: str) -> None:
    """Train on one generation batch; write down what this rank got.

    Args:
        folder: for what is found.
        kind: how the model is trained: "ddp", which does not look for unused parameters, or
            "fsdp2"; with "-spareless", rows without an image get no spare row.
    """
    kind, _, control = kind.partition("-")
    writer = Writer(FAMILY)

    def script(rng: random.Random, task: Any) -> Any:
        shown = [[picture(1)], [], [picture(2)]] if task.group == 0 else [[], []]
        others = [writer.talk(rng, [[]]) for _ in range(task.index)]
        return rollout_with_images(task, rng.random(), writer.talk(rng, shown), *others)

    if kind == "fsdp2":
        shard_on_cpus()
    if control == "spareless":
        row_images._ImagePasses._with_spare_row = lambda self, given, spans: (given, spans)  # type: ignore[method-assign]
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
        **(FSDP2 if kind == "fsdp2" else {}),
    )
    trainer = run.trainer
    trainer.plain = tiny_model(FAMILIES[FAMILY]())
    gradients: dict[str, float] = {}

    class Keep(TrainerCallback):  # type: ignore[misc]
        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            for name, parameter in trainer.accelerator.unwrap_model(
                trainer.model
            ).named_parameters():
                if parameter.grad is not None:
                    gradients[name] = float(whole(parameter.grad).norm())

    trainer.add_callback(Keep())
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
