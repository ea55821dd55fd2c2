"""One rank of a training run with groups that the ranks share.

Three prompts on each rank, groups of two: the middle group is cut by the ranks. The environments
of rank 1 fail now and then, so that the ranks have different things to log.
"""

from pathlib import Path
from typing import Any

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from abut.rollout.config import RolloutConfig
from abut.trl import env_reward, make_rollout_func
from tests.kit.stage.rollouts import Talk
from tests.kit.training.example_run import training_on
from tests.kit.training.models import rank_model
from tests.kit.training.ranks import leave


class Noted(Talk):
    """Notes what it was made for; breaks on rank 1 where it is told to."""

    got: list[Any]
    rank = 0

    def reset(self, seed: str, *, episode_seed: int, level: int) -> Any:
        self.got.append({"seed": seed, "episode_seed": episode_seed, "level": level})
        if self.rank == 1 and self.fail_at == len(self.got):
            raise ValueError("boom")
        return super().reset(seed)

    fail_at = 2


def main(folder: Path, on_failure: Any, device: str = "cpu") -> None:
    """Take two steps and one evaluation; write down what this rank got."""
    tokenizer, model = rank_model()
    names = [f"p{k}" for k in range(6)]
    dataset = Dataset.from_dict({"prompt": names, "level": range(6)})
    Noted.got = []
    rollout_func = make_rollout_func(
        Noted,
        config=RolloutConfig(max_turn_tokens=3, retries=0, on_failure=on_failure),
        recorder=folder / "rollouts",
    )
    outputs: list[dict[str, Any]] = []

    def keep(prompts: Any, trainer: Any) -> Any:
        Noted.rank = trainer.accelerator.process_index
        outputs.append(rollout_func(prompts, trainer) | {"prompts": prompts})
        return {name: values for name, values in outputs[-1].items() if name != "prompts"}

    trainer = GRPOTrainer(
        model=model,
        args=GRPOConfig(
            output_dir=str(folder),
            max_steps=2,
            per_device_train_batch_size=3,
            per_device_eval_batch_size=3,
            num_generations=2,
            steps_per_generation=1,
            max_completion_length=64,
            logging_steps=1,
            **training_on(device),
        ),
        processing_class=tokenizer,
        reward_funcs=env_reward,
        train_dataset=dataset,
        eval_dataset=dataset.select(range(3)),
        rollout_func=keep,
    )
    trainer.train()
    trainer.evaluate()
    found = {"outputs": outputs, "got": Noted.got, "log": trainer.state.log_history}
    leave(folder, found)
