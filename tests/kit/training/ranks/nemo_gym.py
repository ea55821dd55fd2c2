"""One rank that trains on NeMo Gym.

Gym knows the gateway of rank 0 alone, by its fixed port and the key of the environment.
"""

from pathlib import Path
from typing import Any

from trl import GRPOConfig, GRPOTrainer

from abut._native import Tokenizer
from abut.gateway import Gateway
from abut.nemo_gym import NemoGym
from abut.trl import env_reward, make_rollout_func
from tests.kit.stage.nemo_gym import AGENTS, Plays
from tests.kit.training.example_run import CPU
from tests.kit.training.models import forced_policy, rank_model
from tests.kit.training.ranks import leave

PER_RANK, GENERATIONS = 6, 4


def main(folder: Path, head_url: str, port: str) -> None:
    """Take two steps; write down what this rank got."""
    tokenizer, model = rank_model(max_position_embeddings=4096)
    gym = NemoGym(head_url)
    files = sorted(folder.glob("gym/*.jsonl"))
    gateway = Gateway(port=int(port))
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
        "peers": sorted(gateway.registry.peers),
        "port": int(gateway.base_url.rpartition(":")[2].partition("/")[0]),
        "log": trainer.state.log_history,
    }
    leave(folder, found)
