"""GRPO with a real vLLM server: what TRL computes again is what the server has sampled.

TRL sends weights by NCCL, which needs a GPU. Here they go by way of a file; all else is TRL's.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.kit.training.vllm_training import LEARNING, a_trainer, check_learning, send


@pytest.mark.parametrize(
    ("synced", "lora"),
    [(True, False), (False, False), (True, True), (False, True)],
    ids=["synced", "without sync", "LoRA", "LoRA without sync"],
)
@pytest.mark.filterwarnings("ignore")  # of TRL and vLLM among themselves
def test_the_trainer_computes_the_logprobs_that_were_sampled(
    synced: bool,
    lora: bool,
    own_server: Any,
    tiny_model: Any,
    hf_tokenizer: Any,
    tmp_path: Path,
    monkeypatch: Any,
) -> None:
    from peft import LoraConfig
    from trl.generation.vllm_client import VLLMClient

    model = tiny_model(seed=3, tie_word_embeddings=False, head_dim=32)

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
        peft_config=LoraConfig(lora_alpha=32, target_modules="all-linear") if lora else None,
        **LEARNING,
    )
    trainer.train()
    check_learning(trainer, outputs, synced=synced)
