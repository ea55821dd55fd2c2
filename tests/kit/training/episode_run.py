"""A real trainer in float64 on an agent with a dataset of its own; rows are replayed."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import trl
from transformers import TrainerCallback

import abut.trl
from abut import Columns, RolloutConfig
from abut.trl import env_reward, make_rollout_func
from tests.kit.training.example_run import CPU
from tests.kit.training.models import Says, forced_policy
from tests.kit.training.row_oracle import flat_gradient
from tests.kit.training.scripted_rows import float64_model

SHORT = RolloutConfig(max_turn_tokens=6, retries=0, max_failed_frac=1.0)


class EpisodeRun:
    """Trains on episodes; the weights stay as they are, so that rows can be replayed afterwards.

    Attributes:
        trainer: a `GRPOTrainer`.
        rollouts: of each batch; only where the trainer is abut's.
        outputs: what the `rollout_func` returned for each batch.
        gradients: of each optimizer step, in one vector.
        model: a copy of the trained model, which TRL has not touched.
    """

    def __init__(
        self,
        agent: Any,
        dataset: Any,
        folder: Path,
        *,
        trainer_class: Any = None,
        config: RolloutConfig = SHORT,
        says: Says | None = None,
        make: dict[str, Any] | None = None,
        context: int | None = None,
        **args: Any,
    ) -> None:
        changes = {} if context is None else {"max_position_embeddings": context}
        tokenizer, model = float64_model(**changes)
        self.tokenizer, self.model = tokenizer, float64_model(**changes)[1]
        self.rollouts: list[list[Any]] = []
        self.outputs: list[dict[str, Any]] = []
        self.gradients: list[Any] = []
        self.rollout_func = make_rollout_func(agent, config=config, **(make or {}))
        self._says = says
        settings = {
            **CPU,
            "output_dir": str(folder),
            "max_steps": 1,
            "per_device_train_batch_size": 4,
            "per_device_eval_batch_size": 4,
            "num_generations": 2,
            "max_completion_length": 512,
            "max_grad_norm": 0.0,
            "learning_rate": 0.0,
            "logging_steps": 1,
            "gradient_checkpointing": False,
            "shuffle_dataset": False,
            "loss_type": "grpo",
        }
        self.trainer = (trainer_class or abut.trl.GRPOTrainer)(
            model=model,
            args=trl.GRPOConfig(**settings | args),
            processing_class=tokenizer,
            reward_funcs=env_reward,
            train_dataset=dataset,
            eval_dataset=dataset,
            rollout_func=self._keep,
        )
        if take := getattr(self.trainer, "take_rows", None):

            def keep_rollouts(scoring: Any) -> None:
                self.rollouts.append([*scoring.batch.rollouts])
                take(scoring)

            self.trainer.take_rows = keep_rollouts
        self.trainer.add_callback(_Keeper(self))

    def _keep(self, prompts: Any, trainer: Any) -> Any:
        self.outputs.append(self.rollout_func(prompts, trainer))
        return dict(self.outputs[-1])

    def train(self, *, stop: bool = True) -> "EpisodeRun":
        """Train, and stop the gateway unless told otherwise."""
        try:
            with self._policy():
                self.trainer.train()
        finally:
            if stop:
                self.stop()
        return self

    def evaluate(self) -> dict[str, Any]:
        """Evaluate, and stop the gateway."""
        try:
            with self._policy():
                return dict(self.trainer.evaluate())
        finally:
            self.stop()

    def stop(self) -> None:
        """Stop the gateway."""
        self.rollout_func._tasks.route.gateway.stop()

    def _policy(self) -> Any:
        return forced_policy(self._says, drawn_tokens=6) if self._says else nullcontext()

    @property
    def played(self) -> list[Any]:
        """The rollouts of all batches."""
        return [rollout for batch in self.rollouts for rollout in batch]

    def text_of(self, columns: Columns) -> str:
        """All of a conversation as text."""
        ids = [*columns.prompt_ids.tolist(), *columns.completion_ids.tolist()]
        return str(self.tokenizer.decode(ids))

    def errors(self) -> list[str | None]:
        """The error of each rollout."""
        return [error for output in self.outputs for error in output["error"]]

    def worst(self, *, roll: int = 0) -> float:
        """Return the largest difference of a sampled logprob to a forward pass, in nats.

        Args:
            roll: of the logprobs within each row, as a control.
        """
        most = 0.0
        for columns in self._rows():
            sampled = torch.tensor(columns.env_mask.tolist(), dtype=torch.bool)
            if not sampled.any():
                continue
            ids = torch.tensor([[*columns.prompt_ids.tolist(), *columns.completion_ids.tolist()]])
            start = len(columns.prompt_ids)
            with torch.no_grad():
                logits = self.model(ids).logits[0, start - 1 : -1] / self.trainer.args.temperature
            right = logits.log_softmax(-1).gather(1, ids[0, start:, None])[:, 0][sampled]
            ours = torch.tensor(columns.logprobs.tolist(), dtype=torch.float64)[sampled]
            most = max(most, float((ours.roll(roll) - right).abs().max()))
        return most

    def _rows(self) -> Iterator[Columns]:
        if self.rollouts:
            for rollout in self.played:
                if rollout.columns is not None:
                    yield rollout.columns
                yield from (branch.columns for branch in rollout.branches)
            return
        names = ("prompt_ids", "completion_ids", "logprobs", "env_mask")
        for output in self.outputs:
            for row in zip(*(output[name] for name in names), strict=True):
                yield Columns(**dict(zip(names, row, strict=True)))


class _Keeper(TrainerCallback):  # type: ignore[misc]
    def __init__(self, run: EpisodeRun) -> None:
        self._run = run

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        self._run.gradients.append(flat_gradient(self._run.trainer.model))
