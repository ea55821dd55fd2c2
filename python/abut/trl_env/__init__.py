"""The names of trl-env 0.1.20 on abut's engine: change `trl_env` to `abut.trl_env`.

Invariant: each name takes and returns the same as in trl-env. The rows are exact;
`docs/how-to/tools.md` lists the differences.
"""

from abut.trl_env.decoder import RolloutDecoder, RolloutDecoderFactory
from abut.trl_env.decoder_transformer import TransformerDecoderFactory
from abut.trl_env.decoder_vllm import VLLMDecoderFactory
from abut.trl_env.environment import Action, Delta, Env, Seed
from abut.trl_env.processor import (
    Processor,
    Type1Processor,
    Type1ProcessorConfig,
    deepseekr1_processor,
    gemma4_instruct_processor,
    gemma4_processor,
    qwen3_instruct_processor,
    qwen3_processor,
)
from abut.trl_env.rollout import make_reward_func, make_rollout_func
from abut.trl_env.rollout_mp import make_rollout_func_mp
from abut.trl_env.tokenizer import Tokenizer, TransformerTokenizer

__all__ = [
    "Action",
    "Delta",
    "Env",
    "Processor",
    "RolloutDecoder",
    "RolloutDecoderFactory",
    "Seed",
    "Tokenizer",
    "TransformerDecoderFactory",
    "TransformerTokenizer",
    "Type1Processor",
    "Type1ProcessorConfig",
    "VLLMDecoderFactory",
    "deepseekr1_processor",
    "gemma4_instruct_processor",
    "gemma4_processor",
    "make_reward_func",
    "make_rollout_func",
    "make_rollout_func_mp",
    "qwen3_instruct_processor",
    "qwen3_processor",
]
