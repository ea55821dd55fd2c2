r"""Train a language model to play Wordle with GRPO, an OpenEnv game server, and vLLM.

Needs two GPUs, one for vLLM and one for training; or one GPU with --vllm-mode colocate.

    pip install 'abut[trl,vllm,openenv]' 'trl[vllm]'
    VLLM_SERVER_DEV_MODE=1 CUDA_VISIBLE_DEVICES=0 vllm serve Qwen/Qwen3-1.7B --max-logprobs -1 \
        --logprobs-mode processed_logprobs --weight-transfer-config '{"backend": "nccl"}'
    CUDA_VISIBLE_DEVICES=1 python wordle_grpo.py

The game server is public, so games may have to wait. To start your own server, use
--env docker:registry.hf.space/openenv-wordle:latest. wordle_cpu.py runs without a GPU.
"""

import argparse

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from abut import RolloutConfig
from abut.openenv import OpenEnv
from abut.trl import env_reward, make_rollout_func

SYSTEM = """You play Wordle. Answer with one English word of five letters, like [crane], and nothing
else. Keep green letters in place, move yellow ones, drop wrong ones, and repeat no guess."""

if __name__ == "__main__":
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument(
        "--model", default="Qwen/Qwen3-1.7B", help="training the default needs 28 GB"
    )
    parser.add_argument("--env", default="hf:openenv/wordle", help="a target of abut.openenv")
    parser.add_argument("--vllm-mode", default="server", choices=["server", "colocate"])
    parser.add_argument("--vllm-url", default="http://localhost:8000", help="address of the server")
    parser.add_argument("--max-steps", type=int, default=200, help="training steps of 64 games")
    given = parser.parse_args()
    args = GRPOConfig(
        "wordle-grpo", max_steps=given.max_steps, learning_rate=5e-6, max_completion_length=2048,
        per_device_train_batch_size=4, gradient_accumulation_steps=16, num_generations=8,
        use_vllm=True, vllm_mode=given.vllm_mode, vllm_server_base_url=given.vllm_url,
        chat_template_kwargs={"enable_thinking": False}, logging_steps=1,
    )  # fmt: skip
    # Six guesses, with an invalid one before each.
    config = RolloutConfig(max_turns=12, max_turn_tokens=32)
    games = make_rollout_func(OpenEnv(given.env), config=config, system_prompt=SYSTEM)
    rows = Dataset.from_dict(
        {"prompt": ["Wordle"] * 1024}
    )  # only a seed; the game explains its rules
    GRPOTrainer(given.model, env_reward, args, rows, rollout_func=games).train()
