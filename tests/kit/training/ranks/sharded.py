"""One rank of sharded models.

The environments of rank 0 take one turn and those of rank 1 three, so the ranks have unequal
numbers of turns to sample.
"""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

from abut import ChatTemplateProcessor, Tokenizer
from abut.samplers.transformers import TransformersSampler
from tests.kit.stage.rollouts import Stage, Talk, env
from tests.kit.training.models import rank_model
from tests.kit.training.ranks import leave

KINDS = ("whole", "fsdp2", "fsdp1")


def sharded(model: Any, kind: str) -> Any:
    """The model as FSDP shards it, on the CPU; `whole` as it is."""
    layers = model.model.layers
    if kind == "fsdp2":
        mesh = init_device_mesh("cpu", (2,))
        for layer in layers:
            fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    if kind == "fsdp1":
        for number, layer in enumerate(layers):
            layers[number] = FullyShardedDataParallel(layer, device_id=torch.device("cpu"))
    return model


def play(kind: str) -> list[list[list[int]]]:
    """Play two batches and train once after each; returns the completions of each batch."""
    rank = torch.distributed.get_rank()
    hf_tokenizer, model = rank_model(num_hidden_layers=2)
    model = sharded(model, kind)
    tokenizer = Tokenizer.from_pretrained(hf_tokenizer)
    stage = Stage(tokenizer, ChatTemplateProcessor(hf_tokenizer))
    sampler = TransformersSampler(model, pad_token_id=hf_tokenizer.pad_token_id)
    made = env(Talk, turns=1 + 2 * rank)
    played: list[list[list[int]]] = []
    for _ in range(2):
        rollouts = stage.play(made, made, sampler=sampler, max_turn_tokens=4 + 3 * rank).rollouts
        played.append([[*map(int, rollout.columns.completion_ids)] for rollout in rollouts])  # type: ignore[union-attr]
        model(torch.ones((1, 4), dtype=torch.long)).logits.sum().backward()
    return played


def main(folder: Path) -> None:
    """Play with each kind of model, and write down what was sampled."""
    # A rank that waits in vain fails after this, and the test with it.
    torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=60))
    leave(folder, {kind: play(kind) for kind in KINDS})
    # The groups of a mesh leave threads of gloo, which abort an interpreter that ends under them.
    os._exit(0)
