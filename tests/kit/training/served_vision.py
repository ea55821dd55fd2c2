"""Tiny vision-language models in folders from which vLLM serves them, and rollouts of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

from abut import ChatTemplateProcessor, RolloutConfig, Tokenizer
from abut.envs.task import RolloutTask
from abut.images import Image
from abut.rollout.engine import Engine
from abut.template import ImageProcessor
from tests.kit.stage.shown_images import SHOWN, Shows, sampled
from tests.kit.training.vision import Family, llava, model_of, own_logprobs, qwen2_5_vl

# Attention on the CPU has no heads of fewer than 32 dimensions.
_ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 6, 6]}
MADE: dict[str, Callable[[], Family]] = {
    "llava": lambda: llava(head_dim=32),
    "qwen2_5_vl": lambda: qwen2_5_vl(hidden_size=128, rope_parameters=_ROPE),
}


class Served(NamedTuple):
    """A family, its model, and the folder from which vLLM has it."""

    name: str
    family: Family
    images: ImageProcessor
    model: Any
    folder: Path

    def weights(self) -> dict[str, torch.Tensor]:
        """Write the folder; returns the weights by the names of checkpoints, which vLLM knows."""
        self.model.save_pretrained(self.folder)
        (file,) = self.folder.glob("*.safetensors")
        inner = "vision_tower.vision_model."
        tensors = {
            name if inner in name else name.replace("vision_tower.", inner): tensor
            for name, tensor in load_file(file).items()
        }
        save_file(tensors, file, {"format": "pt"})
        return tensors


def served(name: str, folder: Path) -> Served:
    """Make a model of a family in a folder."""
    made = MADE[name]()
    processor = made.processor
    if name == "qwen2_5_vl":  # which is made without its part for videos
        processor = transformers.Qwen2_5_VLProcessor(
            processor.image_processor,
            processor.tokenizer,
            transformers.Qwen2VLVideoProcessor(patch_size=4, merge_size=2),
            chat_template=processor.chat_template,
        )
    processor.save_pretrained(folder)
    # Read as vLLM reads it: with torchvision the pixels would be others, and logprobs by 2e-4.
    family = Family(transformers.AutoProcessor.from_pretrained(folder), made.model)
    model = model_of(family)
    head = model.lm_head.weight
    # Wider models have larger logits, of which float32 keeps fewer digits behind the point.
    head.data *= (32 / head.shape[1]) ** 0.5
    one = Served(name, family, ImageProcessor(family.processor), model, folder)
    one.weights()
    return one


def play(served: Served, sampler: Any, all_shown: Any = SHOWN) -> list[Any]:
    """Play a rollout for each of `all_shown`: the images of its turns."""
    hf = served.family.processor
    engine = Engine(
        Tokenizer.from_pretrained(hf),
        ChatTemplateProcessor(hf, images=served.images),
        sampler,
        RolloutConfig(max_completion_tokens=700, max_turn_tokens=5, max_turns=3),
    )
    tasks = [
        RolloutTask(k, f"r{k}", lambda shown=shown: Shows(shown), [], "", 0)
        for k, shown in enumerate(all_shown)
    ]
    return engine.run(tasks)


def worst(
    served: Served, rollouts: list[Any], seen: Callable[[Image], Image] = lambda image: image
) -> float:
    """The largest difference of a sampled logprob to transformers' own, which sees pictures so."""
    most = 0.0
    for rollout in rollouts:
        assert rollout.error is None
        columns = rollout.columns
        row = np.concatenate([columns.prompt_ids, columns.completion_ids])
        pictures = [seen(span.image).to_pil() for span in rollout.images]
        never = served.images.never_token_ids
        own = own_logprobs(served.model, served.family.processor, row, pictures, never=never)
        ours = sampled(rollout, columns.logprobs)
        assert len(ours) > 3
        most = max(most, float(np.abs(ours - sampled(rollout, own)).max()))
    print(f"{served.name}: {most:.2g}")
    return most
