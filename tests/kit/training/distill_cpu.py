"""`AsyncDistillationTrainer` on a CPU, and its loss computed a second time.

The second computation knows the rows' ids and masks, the two models and the settings, and nothing
of the candidates that went to the trainer. It is in float64, row by row.
"""

import copy
import importlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from abut import RolloutConfig
from tests.kit.stage.rollouts import Talk
from tests.kit.training.async_cpu import Kept, Weights, pushed_by
from tests.kit.training.example_run import CPU

TRAINER = "trl.experimental.async_distillation.async_distillation_trainer"


@contextmanager
def on_cpu() -> Iterator[None]:
    """Take out of TRL what asks for a server of vLLM or a GPU."""
    trainer = importlib.import_module(TRAINER)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "VLLMClient", lambda *_, **__: None)
        if hasattr(trainer, "get_peak_flops_per_device"):
            patch.setattr(trainer, "get_peak_flops_per_device", lambda *_: None)
        # This attention separates packed rows by their position ids. Up to 1.14 TRL names its own.
        load = trainer.AutoModelForCausalLM.from_pretrained

        def load_on_cpu(*given: Any, **named: Any) -> Any:
            return load(*given, **named | {"attn_implementation": "sdpa"})

        patch.setattr(trainer.AutoModelForCausalLM, "from_pretrained", load_on_cpu)
        yield


def distill_args(folder: Any, url: str = "http://127.0.0.1:1", **settings: Any) -> Any:
    from trl.experimental.async_distillation import AsyncDistillationConfig

    small = {
        "per_device_train_batch_size": 4,
        "max_completion_length": 64,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "gradient_checkpointing": False,
        "max_grad_norm": 1e9,
        "max_staleness": 2,
        "token_budget": -1,
        "max_steps": 2,
        "logging_steps": 1,
        "vllm_server_base_url": url,
    }
    return AsyncDistillationConfig(str(folder), **CPU | small | settings)


def distill_worker(env: Any, args: Any, dataset: Any, hf_tokenizer: Any, **make: Any) -> Any:
    from abut.trl import make_distillation_worker

    config = RolloutConfig(max_turn_tokens=4, max_turns=3, retries=0)
    return make_distillation_worker(
        env,
        args=args,
        train_dataset=dataset,
        processing_class=hf_tokenizer,
        **{"config": config} | make,
    )


class Step(NamedTuple):
    """One micro-batch: its inputs, loss and gradient, and the weights that it was taken at."""

    inputs: Mapping[str, Any]
    loss: float
    state: Mapping[str, Any]
    gradient: dict[str, Any]
    """Of the step that it was the last one of."""


class DistillRun:
    """One run of an `AsyncDistillationTrainer`, and what went through it.

    Attributes:
        worker: the rollout worker.
        pushed: the rows that it pushed, in order.
        kept: what it recorded.
        steps: the micro-batches.
    """

    def __init__(
        self,
        folder: Any,
        model_path: Any,
        server: Any,
        hf_tokenizer: Any,
        teacher: Any,
        env: Any = Talk,
        *,
        dataset: Any = None,
        make: Mapping[str, Any] | None = None,
        callbacks: Any = (),
        **settings: Any,
    ) -> None:
        from datasets import Dataset
        from transformers import PrinterCallback, TrainerCallback

        if dataset is None:
            dataset = Dataset.from_dict({"prompt": [f"say {k}" for k in range(32)]})
        self.args = distill_args(folder, server.url, **settings)
        self.kept = Kept()
        self.steps: list[Step] = []
        self.worker = distill_worker(
            env,
            self.args,
            dataset,
            hf_tokenizer,
            **{"recorder": self.kept, "teacher": teacher} | dict(make or {}),
        )
        self.pushed = pushed_by(self.worker)
        self.trainer = importlib.import_module(TRAINER).AsyncDistillationTrainer(
            model=str(model_path),
            args=self.args,
            train_dataset=dataset,
            processing_class=hf_tokenizer,
            rollout_worker=self.worker,
            weight_transfer=Weights(server),
            callbacks=[self.worker.callback, *callbacks],
        )
        self.trainer.remove_callback(PrinterCallback)
        compute_loss = self.trainer.compute_loss

        def keep(model: Any, inputs: Any, *given: Any, **named: Any) -> Any:
            loss = compute_loss(model, inputs, *given, **named)
            kept = {name: v.clone() for name, v in inputs.items() if torch.is_tensor(v)}
            plain = self.trainer.accelerator.unwrap_model(model)
            state = {name: v.detach().clone() for name, v in plain.state_dict().items()}
            self.steps.append(Step(kept, loss.item(), state, {}))
            return loss

        self.trainer.compute_loss = keep
        steps, trainer = self.steps, self.trainer

        class Gradients(TrainerCallback):  # type: ignore[misc]
            def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
                for name, weight in trainer.model.named_parameters():
                    steps[-1].gradient[name] = weight.grad.clone()

        self.trainer.add_callback(Gradients())

    @property
    def logs(self) -> list[dict[str, Any]]:
        return [log for log in self.trainer.state.log_history if "jsd" in log]

    def trained_ids(self) -> list[tuple[int, ...]]:
        """The ids of the rows that were trained, in order."""
        return [row for step in self.steps for row in packed_rows(step.inputs)]


def packed_rows(inputs: Mapping[str, Any]) -> list[tuple[int, ...]]:
    """The rows in a micro-batch of one rank: a row begins where positions do."""
    real = inputs["attention_mask"][0].bool()
    ids, positions = inputs["input_ids"][0][real].tolist(), inputs["position_ids"][0][real].tolist()
    cuts = [k for k, position in enumerate(positions) if position == 0] + [len(ids)]
    return [tuple(ids[a:b]) for a, b in itertools.pairwise(cuts)]


class Independent(NamedTuple):
    """A loss and its gradient, and over how many tokens it was taken."""

    loss: float
    gradient: dict[str, Any]
    tokens: int
    rows: int


def independent(
    run: DistillRun, step: Step, student: Any, teacher: Any, **teacher_says: Any
) -> Independent:
    """Compute the loss of a micro-batch of a run on one rank; see `loss_of`.

    Args:
        run: has the rows and the settings.
        step: says which rows, and at which weights.
        student: a model of that shape.
        teacher: a model, or several by name.
        **teacher_says: as of `loss_of`.
    """
    by_ids = {tuple(np.asarray(row.input_ids).tolist()): row for row in run.pushed}
    student.load_state_dict(step.state)
    rows = [by_ids[ids] for ids in packed_rows(step.inputs)]
    models = [teacher[row.teacher_id] if isinstance(teacher, dict) else teacher for row in rows]
    given = [
        (np.asarray(row.input_ids).tolist(), row.completion_mask, model)
        for row, model in zip(rows, models, strict=True)
    ]
    return loss_of(run.args, given, student, **teacher_says)


def loss_of(
    args: Any,
    rows: Sequence[tuple[Sequence[int], Any, Any]],
    student: Any,
    *,
    missing: Callable[[int], bool] = lambda position: False,
    dropped: Callable[[int], bool] = lambda id_: False,
) -> Independent:
    """Compute the loss of rows from their ids and masks.

    Args:
        args: the trainer's.
        rows: ids and mask of each, and the model that teaches it.
        student: a model, with its weights.
        missing: positions at which the teacher says nothing.
        dropped: ids of which it says NaN.
    """
    student = student.double().eval()
    student.zero_grad()
    loss, tokens = torch.zeros((), dtype=torch.float64), 0
    for row, mask, of_row in rows:
        ids, teacher = torch.tensor([list(row)]), copy.deepcopy(of_row).double().eval()
        ours = _logprobs(student, ids, args.teacher_temperature)
        with torch.no_grad():
            theirs = _logprobs(teacher, ids, args.teacher_temperature)
        for position in np.flatnonzero(mask).tolist():
            tokens += 1
            if missing(position):
                continue
            at = position - 1
            support = _support(theirs[at], row[position], args, len(ours[0]), dropped)
            if support:
                loss = loss + _divergence(ours[at][support], theirs[at][support], args)
    loss = loss / tokens / args.gradient_accumulation_steps
    loss.backward()
    gradient = {name: weight.grad for name, weight in student.named_parameters()}
    return Independent(float(loss.detach()), gradient, tokens, len(rows))


def _logprobs(model: Any, ids: Any, temperature: float) -> Any:
    return (model(input_ids=ids).logits[0] / temperature).log_softmax(-1)


def _support(
    theirs: Any, drawn: int, args: Any, vocabulary: int, dropped: Callable[[int], bool]
) -> list[int]:
    """The tokens that the divergence is over: by TRL's documentation of `beta`."""
    best = theirs.topk(min(args.teacher_top_k, len(theirs))).indices.tolist()
    known = [id_ for id_ in dict.fromkeys([*best, drawn]) if id_ < vocabulary and not dropped(id_)]
    known.sort(key=lambda id_: -float(theirs[id_]))
    if args.beta == 0:
        return known
    of_drawn = [drawn] if drawn in known else []
    if args.beta == 1:
        return of_drawn
    first = [id_ for id_ in best[:1] if id_ in known]  # no other one is asked for
    return list(dict.fromkeys([*first, *of_drawn]))


def _divergence(ours: Any, theirs: Any, args: Any) -> Any:
    p, q = ours.exp(), theirs.exp()
    if args.add_tail_bucket:
        p = torch.cat([p, (1 - p.sum()).clamp_min(1e-7)[None]])
        q = torch.cat([q, (1 - q.sum()).clamp_min(1e-7)[None]])
    else:
        p, q = p / p.sum(), q / q.sum()

    def kl(a: Any, b: Any) -> Any:
        return (a * (a / b).log()).sum()

    if args.beta == 0:
        return kl(q, p)
    if args.beta == 1:
        return kl(p, q)
    middle = args.beta * q + (1 - args.beta) * p
    return args.beta * kl(q, middle) + (1 - args.beta) * kl(p, middle)
