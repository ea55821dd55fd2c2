"""One rank of a sharded vision-language model: rank 0 shows images, rank 1 takes more turns."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from abut import ChatTemplateProcessor, Tokenizer
from abut.samplers.transformers import TransformersSampler
from abut.template import ImageProcessor
from tests.kit.stage.rollouts import Stage, Talk, env
from tests.kit.training.ranks import leave
from tests.kit.training.vision import llava, model_of, picture


def sharded(model: Any) -> Any:
    """The model as accelerate shards it: the layers of both towers, and then all else."""
    mesh = init_device_mesh("cpu", (2,))
    for part in list(model.modules()):
        if type(part).__name__.endswith(("EncoderLayer", "DecoderLayer")):
            fully_shard(part, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def play(kind: str) -> list[list[int]]:
    """Play a batch; return the completions."""
    rank = torch.distributed.get_rank()
    family = llava()
    model = model_of(family)
    if kind == "fsdp2":
        model = sharded(model)
    images = ImageProcessor(family.processor)
    stage = Stage(
        Tokenizer.from_pretrained(family.processor),
        ChatTemplateProcessor(family.processor, images=images),
    )
    pad = family.processor.tokenizer.pad_token_id
    sampler = TransformersSampler(model, pad_token_id=pad, images=images)
    shown = [{"type": "image", "image": picture(1)}, {"type": "text", "text": "What?"}]
    made = env(Talk, turns=1 + 2 * rank, texts=("What?",) if rank else (shown,))
    played = stage.play(made, made, sampler=sampler, max_turn_tokens=4 + 3 * rank)
    return [[*map(int, rollout.columns.completion_ids)] for rollout in played.rollouts]  # type: ignore[union-attr]


def main(folder: Path) -> None:
    """Play with each kind of model, and write down what was sampled."""
    # A rank that waits in vain fails after this, and the test with it.
    torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=60))
    leave(folder, {kind: play(kind) for kind in ("whole", "fsdp2")})
    # The groups of a mesh leave threads of gloo, which abort an interpreter that ends under them.
    os._exit(0)
