"""One rank of a `GRPOTrainer` whose model accelerate shards with FSDP2.

The environments of rank 0 take one turn and those of rank 1 three. accelerate shards models on
accelerators alone, so it is told that the CPU is one; what shards and trains is its own code.
"""

import os
from pathlib import Path
from typing import Any

from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType
from torch.distributed.fsdp import FSDPModule

from tests.kit.stage.rollouts import Talk, env
from tests.kit.training.models import rank_model
from tests.kit.training.ranks import leave
from tests.kit.training.trl_run import Run


def shard_on_cpus() -> None:
    """Have accelerate heed `fsdp` where it would choose `DistributedDataParallel`."""
    made = AcceleratorState.__init__

    def sharded(self: Any, *args: Any, fsdp_plugin: Any = None, **named: Any) -> None:
        made(self, *args, fsdp_plugin=fsdp_plugin, **named)
        plugin = fsdp_plugin or self.__dict__.get("fsdp_plugin")
        if plugin is not None:
            self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, plugin

    AcceleratorState.__init__ = sharded


class Lettered(Talk):
    """Scores each answer by its letters, so that there is something to learn."""

    def step(self, action: str) -> Any:
        result = super().step(action)
        self.reward = sum(letter in "aeiou" for letter in action) / max(len(action), 1)
        return result


def weights_of(model: Any) -> list[float]:
    """The sum of each parameter, whole; after a pass some are gathered still."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
    return [float(weight.full_tensor().detach().sum()) for weight in model.parameters()]


def main(folder: Path) -> None:
    """Take two steps and one evaluation; write down what this rank got."""
    rank = int(os.environ["RANK"])
    shard_on_cpus()
    tokenizer, model = rank_model(num_hidden_layers=2)
    before = [float(weight.detach().sum()) for weight in model.parameters()]
    run = Run(
        tokenizer,
        model,
        folder,
        env(Lettered, turns=1 + 2 * rank),
        prompts=[f"p{k}" for k in range(4)],
        per_device_train_batch_size=2,
        per_device_eval_batch_size=2,
        num_generations=2,
        learning_rate=1e-2,
        fsdp=True,
        fsdp_config={"version": 2, "transformer_layer_cls_to_wrap": ["Qwen3DecoderLayer"]},
        ddp_timeout=60,  # a rank that waits in vain fails after this, and the test with it
    )
    run.trainer.train()
    run.trainer.evaluate()
    found = {
        "model": type(run.trainer.model_wrapped).__name__,
        "turns": [output["num_turns"] for output in run.outputs],
        "worst": run.worst(),
        "worst_one_late": run.worst(roll=1),
        "before": before,
        "after": weights_of(run.trainer.model_wrapped),
    }
    leave(folder, found)
    # The groups of a mesh leave threads of gloo, which abort an interpreter that ends under them.
    os._exit(0)
