"""One step of a real `abut.trl.GRPOTrainer` on the rollouts of a real client."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from abut import Columns, RolloutConfig, Tokenizer
from tests.kit.clients.conversation import Says, Script
from tests.kit.stage.agents import check_tree
from tests.kit.training.models import forced_policy, rank_model

ROLLOUTS = 2


class Trained:
    """Trains on two rollouts of an agent, whose policy says the same texts in each.

    Attributes:
        calls: the requests to the policy, and what it said.
        rows: those that the loss was taken over, without padding; their logprobs are left out.
        batch: the trainer's own, of all rows.
    """

    def __init__(
        self,
        agent: Any,
        says: Says,
        folder: Path,
        *,
        completion_length: int = 50_000,
        **config: Any,
    ) -> None:
        import trl
        from datasets import Dataset

        import abut.trl
        from tests.kit.training.example_run import CPU

        hf_tokenizer, model = rank_model(max_position_embeddings=100_000)
        self.rows: list[Columns] = []
        rollout_func = abut.trl.make_rollout_func(
            agent, config=RolloutConfig(retries=0, max_failed_frac=0.0, **config)
        )
        trainer = abut.trl.GRPOTrainer(
            model=model,
            args=trl.GRPOConfig(
                **CPU,
                output_dir=str(folder),
                max_steps=1,
                per_device_train_batch_size=ROLLOUTS,
                num_generations=ROLLOUTS,
                max_completion_length=completion_length,
            ),
            processing_class=hf_tokenizer,
            reward_funcs=abut.trl.env_reward,
            train_dataset=Dataset.from_dict({"prompt": ["go"] * ROLLOUTS}),
            rollout_func=rollout_func,
        )
        compute_loss = trainer.compute_loss

        def noted(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            self.rows += _rows_of(inputs)
            return compute_loss(model, inputs, *args, **kwargs)

        trainer.compute_loss = noted
        tokenizer = Tokenizer.from_pretrained(hf_tokenizer)
        script = Script(tokenizer, says)

        def ids_of(text: str) -> list[int]:
            return [*tokenizer.encode(text, added="parse").tolist(), hf_tokenizer.eos_token_id]

        self._ids_of = ids_of
        try:
            with forced_policy(lambda asked: ids_of(script(asked)), drawn_tokens=1) as self.calls:
                trainer.train()
            self.batch = trainer.abut_rows
        finally:
            rollout_func._tasks.route.gateway.stop()

    def check(self, rows: int, *, untrained: Sequence[str] = ()) -> None:
        """Each sampled token is trained once, in so many rows of each rollout.

        Args:
            rows: of each rollout.
            untrained: what the policy said in conversations that are not to be trained.
        """
        assert len(self.rows) == rows * ROLLOUTS
        left_out = [self._ids_of(text) for text in untrained]
        calls = [
            (request, dataclasses.replace(sample, logprobs=np.zeros(len(sample.ids), np.float32)))
            for request, sample in self.calls
            if sample.ids.tolist() not in left_out
        ]
        assert len(calls) == len(self.calls) - len(untrained) * ROLLOUTS
        first, *others = self.rows
        branches = [SimpleNamespace(columns=columns) for columns in others]
        check_tree(SimpleNamespace(columns=first, branches=branches), calls)  # type: ignore[arg-type]


def _rows_of(inputs: Any) -> list[Columns]:
    """Return the rows of a micro-step that are trained, without padding tokens."""
    rows = []
    masks = inputs["completion_mask"] * inputs["tool_mask"]
    for k, mask in enumerate(masks.bool()):
        if mask.any():
            end = int(mask.nonzero().max()) + 1
            rows.append(
                Columns(
                    prompt_ids=inputs["prompt_ids"][k][inputs["prompt_mask"][k].bool()].numpy(),
                    completion_ids=inputs["completion_ids"][k][:end].numpy(),
                    logprobs=np.zeros(end, np.float32),
                    env_mask=mask[:end].numpy().astype(np.uint8),
                )
            )
    return rows
