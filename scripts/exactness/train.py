"""One run: a task, an arm and a seed, trained with TRL's `GRPOTrainer`, with measurements."""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from abut import RolloutConfig
from scripts.exactness.boxes import scores
from scripts.exactness.calls import Call, RecordingSampler, Row
from scripts.exactness.measures import compared
from scripts.exactness.tasks import ENVS, Task
from scripts.exactness.usual import ReRendering


class Watch:
    """Keeps the rows of each batch and measures them, without changing the training."""

    def __init__(self, task: Task, arm: str, trainer: Any) -> None:
        self._task, self._arm, self._trainer = task, arm, trainer
        self._generated: Any = None
        self.rollout_ids: list[str] = []
        self._turns: list[Call] = []
        self.counts: list[list[int]] = []
        self.probes: list[dict[str, Any]] = []
        self._score = trainer._generate_and_score_completions
        self._generate = trainer._generate
        trainer._generate_and_score_completions = self._watched
        trainer._generate = self._kept
        if arm == "trl":
            self._single_turn = trainer._generate_single_turn
            trainer._generate_single_turn = self._heard

    def _kept(self, prompts: Any) -> Any:
        self._generated = self._generate(prompts)
        return self._generated

    def _heard(self, prompt_ids: Any, *args: Any, **keywords: Any) -> Any:
        sampled, logprobs = self._single_turn(prompt_ids, *args, **keywords)
        self._turns += [
            Call([*prompt], [*ids], None) for prompt, ids in zip(prompt_ids, sampled, strict=True)
        ]
        return sampled, logprobs

    def _watched(self, inputs: Any) -> Any:
        rollout_func = self._trainer.rollout_func
        self._turns.clear()
        if isinstance(rollout_func, ReRendering):
            rollout_func.given = inputs
        output = self._score(inputs)
        rows = self.rows()
        rewards = output["advantages"].tolist()
        for row, advantage in zip(rows, rewards, strict=True):
            row.advantage = advantage
        self.counts.append(sum(row.counts() for row in rows).tolist())
        step = self._trainer.state.global_step
        if step % self._task.probe_every == 0:
            self.probes.append({"step": step, **compared(self._trainer.model, rows)})
        return output

    def rows(self) -> list[Row]:
        """Return the rows of the batch as the trainer receives them."""
        rollout_func = self._trainer.rollout_func
        if isinstance(rollout_func, ReRendering):
            return rollout_func.rows
        prompts, completions, masks, _, logprobs, *_ = self._generated
        calls = _by_rollout(self._turns, len(prompts)) if self._arm == "trl" else self._recorded()
        told = logprobs or [None] * len(prompts)
        return [
            Row(
                [*prompt, *completion],
                [False] * len(prompt) + [bool(one) for one in mask],
                None if one is None else [0.0] * len(prompt) + [*map(float, one)],
                of_row,
            )
            for prompt, completion, mask, one, of_row in zip(
                prompts, completions, masks, told, calls, strict=True
            )
        ]

    def _recorded(self) -> list[list[Call]]:
        sampler = self._trainer.recording_sampler
        return [sampler.calls.pop(name.partition(".")[0]) for name in self.rollout_ids]


def _by_rollout(turns: Sequence[Call], rollouts: int) -> list[list[Call]]:
    """Return the calls of each rollout of TRL's loop, which samples in the order of rollouts."""
    calls = [[call] for call in turns[:rollouts]]
    at = 0
    for call in turns[rollouts:]:
        for _ in range(rollouts):
            before = calls[at][-1]
            begun = before.prompt + before.sampled
            at = (at + 1) % rollouts
            if len(call.prompt) > len(begun) and call.prompt[: len(begun)] == begun:
                calls[at - 1].append(call)
                break
        else:
            raise ValueError("a request of TRL's loop continues no rollout")
    return calls


def train(task: Task, arm: str, seed: int, folder: Path) -> dict[str, Any]:
    """Train once, and return the curves."""
    import torch
    from datasets import Dataset
    from transformers import PrinterCallback
    from trl import GRPOConfig, GRPOTrainer

    from abut.trl import make_rollout_func, scored_only

    torch.set_num_threads(1)
    began = time.process_time()
    tokenizer, model = task.tokenizer(), task.model(folder)
    sampler = RecordingSampler(model, tokenizer.pad_token_id)
    rollout_ids: list[str] = []

    def reward(completions: Any, **columns: Any) -> list[float]:
        if arm == "abut":
            rollout_ids[:] = columns["rollout_id"]
        if "score" in columns:
            return columns["score"]
        if task.name == "copy":
            return columns["env_reward"]
        return scores(completions, **columns)

    how: dict[str, Any]
    if arm == "trl":
        how = {"environment_factory": ENVS[task.name]}
    elif arm == "abut":
        config = RolloutConfig(
            max_turns=task.turns, max_turn_tokens=task.recipe.max_turn_tokens or None, seed=seed
        )
        how = {"rollout_func": make_rollout_func(ENVS[task.name], config=config, sampler=sampler)}
    else:
        how = {"rollout_func": ReRendering(task, arm, seed, tokenizer, sampler)}
    with tempfile.TemporaryDirectory() as output:
        trainer = GRPOTrainer(
            model=model,
            processing_class=tokenizer,
            reward_funcs=scored_only(reward) if arm == "abut" else reward,
            args=GRPOConfig(
                output,
                logging_steps=1,
                disable_tqdm=True,
                log_level="error",
                max_tool_calling_iterations=task.turns - 1,
                **{**task.recipe.grpo_arguments(), "seed": seed},
            ),
            train_dataset=Dataset.from_list(task.rows()),
            **how,
        )
        trainer.remove_callback(PrinterCallback)
        trainer.recording_sampler = sampler
        watch = Watch(task, arm, trainer)
        watch.rollout_ids = rollout_ids
        trainer.train()
    logs = [log for log in trainer.state.log_history if "reward" in log]
    return {
        "task": task.name,
        "arm": arm,
        "seed": seed,
        "reward": [round(log["reward"], 4) for log in logs],
        "entropy": [round(log["entropy"], 4) for log in logs],
        "counts": watch.counts,
        "probes": watch.probes,
        "cpu_s": round(time.process_time() - began, 1),
    }
