r"""Train a language model with AsyncGRPO: rollouts stream from vLLM while the trainer trains.

Needs two GPUs, one for vLLM and one for training:

    pip install 'abut[trl,vllm]' 'trl[vllm]' kernels
    VLLM_SERVER_DEV_MODE=1 CUDA_VISIBLE_DEVICES=0 vllm serve Qwen/Qwen3-1.7B --max-logprobs -1 \
        --logprobs-mode processed_logprobs --weight-transfer-config '{"backend": "nccl"}'
    CUDA_VISIBLE_DEVICES=1 python async_grpo.py

To continue a run that was stopped: python async_grpo.py --resume.
See docs/integrations/async_grpo.md.
"""

import argparse

from datasets import Dataset
from transformers import AutoTokenizer
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

from abut import RolloutConfig
from abut.envs import WordGuessEnv
from abut.trl import make_rollout_worker

SYSTEM = "You play a word game. Answer with one word, like [stone], and nothing else."

if __name__ == "__main__":
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument(
        "--model", default="Qwen/Qwen3-1.7B", help="the model that the server serves"
    )
    parser.add_argument(
        "--vllm-url", default="http://localhost:8000", help="address of the vLLM server"
    )
    parser.add_argument("--max-steps", type=int, default=200, help="training steps of 64 games")
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint")
    given = parser.parse_args()
    args = AsyncGRPOConfig(
        "async-grpo", max_steps=given.max_steps, learning_rate=5e-6, num_generations=8,
        per_device_train_batch_size=4, gradient_accumulation_steps=16, max_completion_length=2048,
        vllm_server_base_url=given.vllm_url, chat_template_kwargs={"enable_thinking": False},
        max_staleness=4, save_steps=20,
    )  # fmt: skip
    rows = Dataset.from_dict({"prompt": ["Guess the word"] * 1024})  # the game chooses its word
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    worker = make_rollout_worker(
        WordGuessEnv, args=args, train_dataset=rows, processing_class=tokenizer,
        config=RolloutConfig(max_turns=6, max_turn_tokens=32), system_prompt=SYSTEM,
        recorder="async-grpo/rollouts",
    )  # fmt: skip
    AsyncGRPOTrainer(
        given.model, args=args, train_dataset=rows, processing_class=tokenizer,
        rollout_worker=worker, callbacks=[worker.callback],
    ).train(resume_from_checkpoint=given.resume)  # fmt: skip
