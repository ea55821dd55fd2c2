"""One rank of a training run that plays on a cluster: environments, and agents beside them."""

from pathlib import Path
from typing import Any

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from abut.ray import RayPool
from abut.rollout.config import RolloutConfig
from abut.trl import env_reward, make_rollout_func
from tests.kit.stage.ray_agents import Talker
from tests.kit.stage.ray_envs import Far
from tests.kit.training.example_run import CPU
from tests.kit.training.models import rank_model
from tests.kit.training.ranks import leave


def main(folder: Path) -> None:
    """Take two steps; write down what this rank got."""
    tokenizer, model = rank_model()
    outputs: list[dict[str, Any]] = []
    rows = [
        {"prompt": f"p{k}", "environment": name, "question": f"What is {k}?", "folder": ""}
        for k in range(4)
        for name in ("far", "talks")
    ]
    with RayPool(Far, size=4, slots=2) as pool, RayPool(Talker(1.0), size=4) as agents:
        rollout_func = make_rollout_func(
            {"far": pool, "talks": agents},
            config=RolloutConfig(max_turn_tokens=3, retries=2, step_timeout_s=120),
        )

        def keep(prompts: Any, trainer: Any) -> Any:
            outputs.append(rollout_func(prompts, trainer))
            return outputs[-1]

        trainer = GRPOTrainer(
            model=model,
            args=GRPOConfig(
                output_dir=str(folder),
                max_steps=2,
                per_device_train_batch_size=4,
                num_generations=2,
                steps_per_generation=1,
                max_completion_length=256,
                logging_steps=1,
                **CPU,
            ),
            processing_class=tokenizer,
            reward_funcs=env_reward,
            train_dataset=Dataset.from_list(rows),
            rollout_func=keep,
        )
        trainer.train()
        found = {
            "slots": sum(pool._actors._slots),
            "ids": [i for output in outputs for i in output["rollout_id"]],
            "stop_reasons": [r for output in outputs for r in output["stop_reason"]],
            "pids": [pid for output in outputs for pid in output["pid"]],
            "log": trainer.state.log_history,
        }
    leave(folder, found)
