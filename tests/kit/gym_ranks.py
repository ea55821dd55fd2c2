"""One rank that trains on NeMo Gym: `torchrun … gym_ranks.py FOLDER HEAD PORT`.

Gym knows the gateway of rank 0 alone, by its fixed port and the key of the environment.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from trl import GRPOConfig, GRPOTrainer

from abut._native import Tokenizer
from abut.gateway import Gateway
from abut.nemo_gym import NemoGym
from abut.trl import env_reward, make_rollout_func
from example_run import CPU
from forced_policy import forced_policy
from gym_scripts import Plays
from nemo_gym_stage import AGENTS
from rank_model import rank_model

PER_RANK, GENERATIONS = 6, 4


def main() -> None:
    """Take two steps; write down what this rank got."""
    folder, head_url, port = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    tokenizer, model = rank_model(max_position_embeddings=4096)
    gym = NemoGym(head_url)
    files = sorted(folder.glob("gym/*.jsonl"))
    gateway = Gateway(port=port)
    rollout_func = make_rollout_func(gym, gateway=gateway)
    outputs: list[dict[str, Any]] = []

    def keep(prompts: Any, trainer: Any) -> Any:
        outputs.append(rollout_func(prompts, trainer))
        return dict(outputs[-1])

    trainer = GRPOTrainer(
        model=model,
        args=GRPOConfig(
            output_dir=str(folder),
            max_steps=2,
            per_device_train_batch_size=PER_RANK,
            num_generations=GENERATIONS,
            steps_per_generation=1,
            max_completion_length=400,
            logging_steps=1,
            **CPU,
        ),
        processing_class=tokenizer,
        reward_funcs=env_reward,
        train_dataset=gym.dataset(files, agent=[AGENTS[file.stem] for file in files]),
        rollout_func=keep,
    )
    rank = trainer.accelerator.process_index
    plays = Plays(
        Tokenizer.from_pretrained(tokenizer),
        tokenizer.eos_token_id,
        lambda rollout_id: int(rollout_id.split("-")[3]) % 2 == 0,
    )
    with forced_policy(plays, drawn_tokens=6) as calls:
        trainer.train()
    found = {
        "outputs": outputs,
        "calls": [
            [r.rollout_id, r.prompt_ids.tolist(), s.ids.tolist(), s.logprobs.tolist()]
            for r, s in calls
        ],
        "peers": sorted(gateway.desk.peers),
        "port": int(gateway.base_url.rpartition(":")[2].partition("/")[0]),
        "log": trainer.state.log_history,
    }
    (folder / f"rank{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    # The threads of gloo must not meet an interpreter that ends: it aborts the process.
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
