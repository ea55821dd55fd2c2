"""A `train.py` of `examples/` where there is no GPU: TRL's weights go to `small_vllm.py` by HTTP.

Stands for TRL's client of vLLM, whose weights take NCCL. What the trainer logs is appended to
$TRAINING_LOG. $TRAINS is the folder of the script; `nemo_gym` unless set.
"""

import json
import os
import runpy
import urllib.request
from collections.abc import Iterable
from typing import Any

from safetensors.torch import save
from transformers import Trainer
from trl.generation import vllm_generation

from tests.kit.checkout import EXAMPLES


class Client:
    """What TRL asks of its client while it trains."""

    def __init__(self, base_url: str, **_: Any) -> None:
        self.base_url = base_url

    def init_communicator(self, device: Any) -> None:
        """There is nothing to open."""

    def update_named_params(self, metadata: Any, named: Iterable[tuple[str, Any]]) -> None:
        tensors = {name: tensor.detach().clone() for name, tensor in named}
        self._ask("/weights", save(tensors))

    def reset_prefix_cache(self) -> None:
        self._ask("/reset_prefix_cache", b"")

    def get_server_info(self) -> Any:
        return self._ask("/server_info")["vllm_config"]

    def _ask(self, path: str, body: bytes | None = None) -> Any:
        with urllib.request.urlopen(self.base_url + path, body, timeout=60) as reply:
            return json.load(reply)


def keep(self: Any, logs: dict[str, Any], *args: Any, **named: Any) -> None:
    """Append what is logged, then log it."""
    if self.is_world_process_zero():
        with open(os.environ["TRAINING_LOG"], "a", encoding="utf-8") as file:
            file.write(json.dumps({"step": self.state.global_step, **logs}) + "\n")
    log(self, logs, *args, **named)


if __name__ == "__main__":
    vllm_generation.is_vllm_available = lambda *_, **__: True
    vllm_generation.VLLMClient = Client
    log, Trainer.log = Trainer.log, keep
    runpy.run_path(
        str(EXAMPLES / os.environ.get("TRAINS", "nemo_gym") / "train.py"), run_name="__main__"
    )
