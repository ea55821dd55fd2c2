"""One rank that trains on a task of Inspect: groups of four, and six rollouts on each rank."""

from pathlib import Path
from typing import Any

from inspect_ai import Task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, mean, scorer
from trl import GRPOConfig, GRPOTrainer

from abut.demo.model import DemoRecipe, build_demo_model, load_demo_tokenizer
from abut.inspect_ai import inspect_task
from abut.trl import env_reward, make_rollout_func
from tests.kit.training.example_run import CPU
from tests.kit.training.ranks import leave


@scorer(metrics=[mean()])
def length() -> Any:
    """The length of what was said, which tells rollouts apart."""

    async def score(state: Any, target: Any) -> Score:
        return Score(value=len(state.output.completion))

    return score


def main(folder: Path) -> None:
    """Take two steps; write down what this rank got."""
    tokenizer = load_demo_tokenizer()
    samples = [Sample(input=f"{k}+{k}?", target=str(2 * k)) for k in range(6)]
    agent = inspect_task(
        Task(name="sums", dataset=samples, scorer=length()), log_dir=str(folder / "logs")
    )
    rollout_func = make_rollout_func(agent)
    found: dict[str, Any] = {"outputs": []}

    def keep(prompts: Any, trainer: Any) -> Any:
        output = rollout_func(prompts, trainer)
        names = ("rollout_id", "messages", "env_reward", "error")
        found["outputs"].append({name: output[name] for name in names})
        return dict(output)

    trainer = GRPOTrainer(
        model=build_demo_model(tokenizer, DemoRecipe()),
        args=GRPOConfig(
            str(folder),
            **CPU,
            max_steps=2,
            per_device_train_batch_size=6,
            num_generations=4,
            steps_per_generation=1,
            max_completion_length=64,
            logging_steps=1,
        ),
        processing_class=tokenizer,
        reward_funcs=env_reward,
        train_dataset=agent.dataset(),
        rollout_func=keep,
    )
    trainer.train()
    leave(folder, found)
