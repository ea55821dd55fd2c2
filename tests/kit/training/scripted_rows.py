"""A real `GRPOTrainer` in float64 whose rollouts are scripted: conversations of random tokens."""

import dataclasses
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback

from abut import Columns
from abut.gateway import Gateway
from abut.gateway.play.played_agent import AgentSource
from abut.rollout.config import RolloutConfig
from abut.rollout.player import AgentPlayer
from abut.rollout.rollout import Branch, Rollout, StopReason, TurnRecord
from abut.trl import env_reward, make_rollout_func
from tests.kit.training.example_run import CPU
from tests.kit.training.models import rank_model
from tests.kit.training.row_oracle import flat_gradient, whole

GROUP = 4
MOST_TOKENS = 64
Script = Callable[[random.Random, Any], Rollout]
"""Makes the rollout of a task with random draws of its own."""


class _PieceOf(TrainerCallback):  # type: ignore[misc]
    """Has a piece hold so many rows, where a micro-step has more rollouts than that."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def on_train_begin(self, args: Any, *_: Any, **kwargs: Any) -> None:
        # Not before: transformers 4 makes the batches of the dataset by it when training begins.
        args.per_device_train_batch_size = self._rows


def random_ids(rng: random.Random, count: int) -> list[int]:
    """Ordinary ids of the demo's tokenizer."""
    return [rng.randrange(3, 400) for _ in range(count)]


def random_columns(
    rng: random.Random, *, prompt: Sequence[int] | None = None, turns: int = 2, end: int = 505
) -> Columns:
    """A conversation: turns of a few tokens, and replies between them."""
    prompt = random_ids(rng, rng.randint(1, 6)) if prompt is None else prompt
    ids, mask = [], []
    for turn in range(turns):
        if turn:
            reply = random_ids(rng, rng.randint(1, 4))
            ids, mask = ids + reply, mask + [0] * len(reply)
        said = [*random_ids(rng, rng.randint(0, 5)), end]
        ids, mask = ids + said, mask + [1] * len(said)
    return columns_of(prompt, ids, mask, rng)


def columns_of(
    prompt: Sequence[int], ids: Sequence[int], mask: Sequence[int], rng: random.Random
) -> Columns:
    """Columns with random logprobs where the mask is 1, as a model that knows nothing has them."""
    logprobs = [rng.uniform(-6.5, -6.0) if one else 0.0 for one in mask]
    return Columns(
        prompt_ids=np.asarray(prompt, np.int64),
        completion_ids=np.asarray(ids, np.int64),
        logprobs=np.asarray(logprobs, np.float32),
        env_mask=np.asarray(mask, np.uint8),
    )


def rollout_of(task: Any, reward: float | None, main: Columns, *others: Columns) -> Rollout:
    """A rollout with these conversations, one turn for each run of sampled tokens."""
    return Rollout(
        task.rollout_id,
        task.index,
        columns=main,
        prompt_ids=main.prompt_ids,
        branches=[Branch(columns, cause="new", turns=turns_of(columns)) for columns in others],
        reward=reward,
        turns=turns_of(main),
        messages=[{"role": "user", "content": "go"}, {"role": "assistant", "content": "yes"}],
        stop_reason=StopReason.ENV_DONE,
    )


def turns_of(columns: Columns) -> list[TurnRecord]:
    """One turn for each run of sampled tokens."""
    start, turns = len(columns.prompt_ids), list[TurnRecord]()
    mask = [0, *columns.env_mask.tolist()]
    for k in range(1, len(mask)):
        if mask[k] and not mask[k - 1]:
            turns.append(TurnRecord(start + k - 1, start + k - 1, "stop"))
        if mask[k]:
            turns[-1].end = start + k
    return turns


def branching(rng: random.Random, task: Any) -> Rollout:
    """A conversation with sub-agents, and late forks of itself, as many as it draws."""
    main = random_columns(rng, turns=rng.randint(1, 3))
    others = []
    for _ in range(rng.choice([0, 1, 1, 2, 4])):
        late = rng.random() < 0.5
        whole = [*main.prompt_ids.tolist(), *main.completion_ids.tolist()]
        others.append(random_columns(rng, prompt=whole if late else None, turns=rng.randint(1, 2)))
    return rollout_of(task, round(rng.random(), 2), main, *others)


def alone(rng: random.Random, task: Any) -> Rollout:
    """One conversation."""
    return rollout_of(task, round(rng.random(), 2), random_columns(rng, turns=rng.randint(1, 3)))


class Scripted(AgentSource):
    """Stands where an agent would; `played` has what it played, by the rollout's number."""

    def __init__(self, script: Script, seed: int = 0) -> None:
        super().__init__(agent=None, gateway=Gateway())  # type: ignore[arg-type]
        self.script, self.seed = script, seed
        self.played: list[Rollout] = []

    def bind(self, processor: Any) -> Any:
        return _Player(self)

    def play(self, task: Any) -> Rollout:
        rng = random.Random(f"{self.seed} {task.group} {task.member} {task.mode}")
        rollout = self.script(rng, task)
        self.played.append(rollout)
        return rollout


class _Player(AgentPlayer):
    def __init__(self, source: Scripted) -> None:
        self._source = source

    def complete(self, task: Any) -> Any:
        return dataclasses.replace(task, source=self)

    @asynccontextmanager
    async def for_batch(self, batch: Any) -> AsyncIterator[None]:
        yield

    def episode(self, batch: Any, task: Any, attempt: int) -> Any:
        return _Episode(self._source, task)


class _Episode:
    may_have_clashed = False

    def __init__(self, source: Scripted, task: Any) -> None:
        self.request_id, self._source, self._task = task.rollout_id, source, task
        self.rollout = Rollout(task.rollout_id, task.index)

    async def run(self, clock: Any) -> Rollout:
        self.rollout = self._source.play(self._task)
        return self.rollout

    def spared_s(self) -> float:
        return 0.0

    def end(self) -> None:
        return

    def where(self) -> str:
        return ""

    def as_failed(self, error: str) -> Rollout:
        return Rollout(self._task.rollout_id, self._task.index, error=error)


def float64_model(folder: Path | None = None, *, seed: int = 0, **changes: Any) -> tuple[Any, Any]:
    """The demo's tokenizer and a random Qwen3 of two layers in float64.

    Args:
        folder: saves the model, so that TRL can load a reference model.
        seed: of a change to the weights; 0: there is none.
        changes: of the model's configuration.
    """
    small = {"hidden_size": 16, "intermediate_size": 16, "head_dim": 8, "num_hidden_layers": 2}
    tokenizer, model = rank_model(**small | changes)
    model = model.double()
    draws = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(8)
                if seed:
                    noise = torch.randn(parameter.shape, generator=draws, dtype=torch.float64)
                    parameter.add_(noise * 0.1)
    if folder is not None:
        model.config._name_or_path = str(folder)
        model.save_pretrained(folder)
    return tokenizer, model


class RowsRun:
    """Trains on scripted rollouts.

    Attributes:
        trainer: of the class that was asked for.
        played: the rollouts of each generation batch.
        before: the weights before each optimizer step, as models.
        gradients: of each optimizer step, in one vector.
        losses: what each micro-step returned.
    """

    def __init__(
        self,
        folder: Path,
        script: Script = branching,
        *,
        trainer_class: Any = None,
        extend: bool = False,
        accumulation: int = 1,
        rollouts: int = 8,
        seed: int = 0,
        config: RolloutConfig | None = None,
        reward_funcs: Any = env_reward,
        model: Any = None,
        peft_config: Any = None,
        vllm_mode: str | None = None,
        piece: int | None = None,
        recorder: Any = None,
        wrap: Any = None,
        credit: Any = None,
        keeps: bool = True,
        **args: Any,
    ) -> None:
        import trl
        from datasets import Dataset

        import abut.trl

        beta = args.get("beta", 0.0)
        # TRL loads a reference model, if not for an adapter, from where the model came from.
        tokenizer, made = float64_model(folder / "model" if beta and not peft_config else None)
        self.source = Scripted(script, seed)
        self.rollout_func = make_rollout_func(
            self.source,  # type: ignore[arg-type]
            config=config,
            sampler=_never(),
            gateway=self.source.gateway,
            recorder=recorder,
            credit=credit,
        )
        settings = {
            **CPU,
            "output_dir": str(folder),
            "max_steps": 1,
            "per_device_train_batch_size": rollouts // accumulation,
            "per_device_eval_batch_size": rollouts,
            "gradient_accumulation_steps": accumulation,
            "num_generations": GROUP,
            "max_completion_length": MOST_TOKENS,
            "max_grad_norm": 0.0,
            "learning_rate": 0.05,
            "lr_scheduler_type": "constant",
            "optim": "sgd",
            "logging_steps": 1,
            "gradient_checkpointing": False,
            "loss_type": "grpo",
        }
        dataset = Dataset.from_dict({"prompt": ["go"] * 64})
        self.trainer = (trainer_class or (trl if extend else abut.trl).GRPOTrainer)(
            model=model or made,
            args=trl.GRPOConfig(**settings | args),
            processing_class=tokenizer,
            reward_funcs=reward_funcs,
            train_dataset=dataset,
            eval_dataset=dataset.select(range(rollouts)),
            rollout_func=wrap(self.rollout_func) if wrap else self.rollout_func,
            peft_config=peft_config,
        )
        if extend:
            assert abut.trl.extend(self.trainer) is self.trainer
        if piece is not None:
            self.trainer.add_callback(_PieceOf(piece))
        self._rollouts = rollouts
        # An adapter's reference is the model without it.
        self.reference = float64_model(seed=0 if peft_config else 1)[1]
        if beta and not peft_config:
            self.trainer.ref_model.double()
            self.trainer.ref_model.load_state_dict(self.reference.state_dict())
        if vllm_mode is not None:
            fake_vllm(self.trainer, vllm_mode)
        self._peft_config = peft_config
        self.before: list[Any] = []
        self.gradients: list[Any] = []
        if keeps:
            self.trainer.add_callback(self._keeper())

    def _keeper(self) -> Any:
        run = self

        class Keep(TrainerCallback):  # type: ignore[misc]
            def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
                model = run.trainer.accelerator.unwrap_model(run.trainer.model)
                run.gradients.append(flat_gradient(model))
                weights = {name: whole(value) for name, value in model.state_dict().items()}
                run.before.append(run.plain(weights))

        return Keep()

    def plain(self, weights: Any) -> Any:
        """Return a model with these weights that TRL has not touched: it patches its own one."""
        _, model = float64_model()
        if self._peft_config is not None:
            from peft import get_peft_model

            model = get_peft_model(model, self._peft_config)
        model.load_state_dict(weights)
        return model

    def train(self, **named: Any) -> "RowsRun":
        """Train, then end the gateway."""
        try:
            self.trainer.train(**named)
        finally:
            self.rollout_func._tasks.route.gateway.stop()
        return self

    @property
    def rollouts(self) -> list[list[Columns]]:
        """The conversations of each rollout of the first batch, in the order of prompts."""
        first = sorted(self.source.played[: self._rollouts], key=lambda rollout: rollout.index)
        return [[r.columns, *(b.columns for b in r.branches if b.delivered)] for r in first]

    @property
    def rewards(self) -> list[float | None]:
        """Their rewards."""
        first = sorted(self.source.played[: self._rollouts], key=lambda rollout: rollout.index)
        return [rollout.reward for rollout in first]

    def logged(self) -> dict[str, Any]:
        """The first entry of TRL's log."""
        return dict(self.trainer.state.log_history[0])


def fake_vllm(trainer: Any, mode: str) -> None:
    """Have TRL correct for a vLLM that sampled; no engine is there."""
    trainer.use_vllm, trainer.vllm_mode = True, "colocate"
    trainer.vllm_importance_sampling_correction = True
    trainer.vllm_importance_sampling_mode = mode
    trainer.vllm_generation = SimpleNamespace(sync_weights=lambda: None)
    trainer._last_loaded_step = -1


def kept_outputs(trainer: Any) -> list[dict[str, Any]]:
    """What is scored from here on, as it goes to shuffle and split."""
    kept: list[dict[str, Any]] = []
    score = trainer._generate_and_score_completions

    def keep(inputs: Any) -> Any:
        kept.append(score(inputs))
        return kept[-1]

    trainer._generate_and_score_completions = keep
    return kept


def _never() -> Any:
    from abut.samplers.scripted import ScriptedSampler

    return ScriptedSampler(lambda request: [])
