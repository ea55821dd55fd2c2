"""One rank that trains on Eval Protocol.

Groups are of four; "cut" gives each rank six rollouts, the other scenarios four.
"""

from pathlib import Path
from typing import Any

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from abut.demo.model import DemoRecipe, build_demo_model, load_demo_tokenizer
from abut.eval_protocol import create_openenv_vllm_rollout_func, eval_test
from abut.trl import env_reward, make_rollout_func
from tests.kit.training.example_run import CPU
from tests.kit.training.ranks import leave


def grouped() -> tuple[Any, Any]:
    """A test that scores groups, and its rows."""
    test = eval_test("ep_own.shortest", log=None)
    return make_rollout_func(test), test.dataset()


def rotating() -> tuple[Any, Any]:
    """A game whose container is told its task."""
    from ep_own.scored_game import Game, action_parser

    class Told(Game):
        def reset(self) -> Any:
            first = super().reset()
            first.observation["text"] = self.made["env_vars"]["TASK"]
            return first

    rollout_func = create_openenv_vllm_rollout_func(
        None,
        lambda observation, step, history: observation["text"],
        action_parser,
        env_client_cls=Told,
        tasks=list("ABCDE"),
        task_var="TASK",
        completion_params={"max_tokens": 4},
    )
    return rollout_func, Dataset.from_dict({"prompt": ["go"] * 16})


def main(folder: Path, scenario: str) -> None:
    """Take two steps; write down what this rank got."""
    tokenizer = load_demo_tokenizer()
    rollout_func, dataset = rotating() if scenario == "rotating" else grouped()
    found: dict[str, Any] = {"outputs": []}

    def keep(prompts: Any, trainer: Any) -> Any:
        output = rollout_func(prompts, trainer)
        names = ("rollout_id", "messages", "env_reward", "eval_score", "error")
        found["outputs"].append({name: output[name] for name in names})
        return dict(output)

    trainer = GRPOTrainer(
        model=build_demo_model(tokenizer, DemoRecipe()),
        args=GRPOConfig(
            str(folder),
            **CPU,
            max_steps=2,
            per_device_train_batch_size=6 if scenario == "cut" else 4,
            num_generations=4,
            steps_per_generation=1,
            max_completion_length=128,
            logging_steps=1,
        ),
        processing_class=tokenizer,
        reward_funcs=env_reward,
        train_dataset=dataset,
        rollout_func=keep,
    )
    try:
        trainer.train()
    except Exception as error:
        found["raised"] = f"{type(error).__name__}: {error}"
    leave(folder, found)
