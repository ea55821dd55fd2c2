"""The model of ranks that train: small, and the same on each of them."""

from typing import Any

import torch
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from abut.demo.model import ASSETS


def rank_model(**changes: Any) -> tuple[Any, Any]:
    """The demo's tokenizer and a model of its vocabulary, on one thread.

    Args:
        changes: of the model's configuration.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(ASSETS)
    config: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
    }
    return tokenizer, Qwen3ForCausalLM(Qwen3Config(**config | changes))
