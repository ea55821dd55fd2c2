"""`examples/nemo_gym/train.py` where there is no GPU: TRL's weights go to `small_vllm.py` by HTTP.

Two methods of TRL's client stand for NCCL. What the trainer logs is appended to $TRAINING_LOG.
"""

import json
import os
import runpy
from typing import Any

import torch
from safetensors.torch import save
from transformers import Trainer
from trl.generation import vllm_client, vllm_generation

from assets import EXAMPLES


def send(self: Any, metadata: Any, named_params: Any) -> None:
    """Send all weights."""
    tensors = {name: tensor.detach().clone() for name, tensor in named_params}
    self.session.post(f"{self.base_url}/weights", data=save(tensors)).raise_for_status()


def keep(self: Any, logs: dict[str, Any], *args: Any, **named: Any) -> None:
    """Append what is logged, then log it."""
    if self.is_world_process_zero():
        with open(os.environ["TRAINING_LOG"], "a", encoding="utf-8") as file:
            file.write(json.dumps({"step": self.state.global_step, **logs}) + "\n")
    log(self, logs, *args, **named)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for module in (vllm_client, vllm_generation):
        module.is_vllm_available = lambda *_, **__: True
    vllm_client.VLLMClient.init_communicator = lambda self, device: None
    vllm_client.VLLMClient.update_named_params = send
    log, Trainer.log = Trainer.log, keep
    runpy.run_path(str(EXAMPLES / "nemo_gym" / "train.py"), run_name="__main__")
