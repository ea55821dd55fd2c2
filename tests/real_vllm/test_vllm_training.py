"""GRPO with a real vLLM server: what TRL computes again is what the server has sampled.

TRL sends weights by NCCL, which needs a GPU. Here they go by way of a file; all else is TRL's.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from training import DIFFERENCE, a_trainer
from vllm_server import VLLMServer

STEPS = 4


@pytest.fixture(scope="module")
def own_server(model_folder: Path) -> Iterator[Any]:
    server = VLLMServer(model_folder).start()
    try:
        yield server.ready()
    finally:
        server.kill()


def send(server: Any, folder: Path, params: Any) -> None:
    from safetensors.torch import save_file

    save_file({name: p.detach().contiguous() for name, p in params}, folder / "model.safetensors")
    rpc = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
    server.post("/collective_rpc", json.dumps(rpc).encode())


@pytest.mark.parametrize("synced", [True, False], ids=["synced", "without sync"])
@pytest.mark.filterwarnings("ignore")  # of TRL and vLLM among themselves
def test_the_trainer_computes_the_logprobs_that_were_sampled(
    synced: bool,
    own_server: Any,
    tiny_model: Any,
    hf_tokenizer: Any,
    tmp_path: Path,
    monkeypatch: Any,
) -> None:
    from trl.generation.vllm_client import VLLMClient

    model = tiny_model(seed=3, tie_word_embeddings=False, head_dim=32)
    send(own_server, tmp_path, model.named_parameters())  # another run may have changed them
    own_server.post("/reset_prefix_cache")

    def update(client: Any, metadata: Any, params: Any) -> None:
        if synced:
            send(own_server, tmp_path, params)

    monkeypatch.setattr(VLLMClient, "init_communicator", lambda client, **_: None)
    monkeypatch.setattr(VLLMClient, "update_named_params", update)
    trainer, outputs = a_trainer(
        model,
        hf_tokenizer,
        tmp_path / "out",
        vllm_mode="server",
        vllm_server_base_url=own_server.url,
        max_steps=STEPS,
    )
    trainer.train()
    differences = [log[DIFFERENCE] for log in trainer.state.log_history if DIFFERENCE in log]
    assert len(differences) == len(outputs) == STEPS
    assert all(turns == 3 for output in outputs for turns in output["num_turns"])
    sampled = [np.sum(mask) / len(mask) for o in outputs for mask in o["env_mask"]]
    assert 0.1 < np.mean(sampled) < 0.9, "tokens of the environment stand between the turns"
    assert differences[0] < 1e-5
    if synced:
        assert max(differences) < 1e-5, differences
    else:
        assert min(differences[1:]) > 1e-3, differences
