"""`DistillationTrainer` with rollouts: the divergence over sampled tokens, and nothing else."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
trl = pytest.importorskip("trl")

from abut.trl.version import DISTILLS_SAMPLED_TOKENS, trl_version  # noqa: E402

if trl_version() < DISTILLS_SAMPLED_TOKENS:
    pytest.skip("its loss takes no mask", allow_module_level=True)

from datasets import Dataset  # noqa: E402
from transformers import TrainerCallback  # noqa: E402

import abut.trl  # noqa: E402
from abut import Columns, RolloutConfig  # noqa: E402
from abut.errors import MissingExtraError  # noqa: E402
from abut.records.read import read_records  # noqa: E402
from abut.rollout.rollout import Rollout  # noqa: E402
from abut.trl import MainRows, ModelTeacher, ReverseKL, make_rollout_func  # noqa: E402
from abut.trl.rows.main_rows import with_main_rows  # noqa: E402
from tests.kit.stage.rollouts import Talk  # noqa: E402
from tests.kit.training.example_run import CPU  # noqa: E402
from tests.kit.training.row_cases import WORST  # noqa: E402
from tests.kit.training.row_oracle import divergences, flat_gradient, relative_error  # noqa: E402
from tests.kit.training.scripted_rows import (  # noqa: E402
    Scripted,
    branching,
    float64_model,
)

CONFIG = RolloutConfig(max_turn_tokens=5, retries=0)


class Kept:
    """A recorder that keeps the rollouts."""

    def __init__(self) -> None:
        self.rollouts: list[Rollout] = []

    def write(self, rollout: Rollout, /, **extra: Any) -> None:
        self.rollouts.append(rollout)


class Distilled:
    """Trains one step.

    Attributes:
        losses: what each micro-step returned.
        before: the weights before the step, as a model.
        gradient: of the step, in one vector.
    """

    def __init__(
        self,
        folder: Path,
        source: Any = Talk,
        *,
        trainer_class: Any = None,
        recorder: Any = None,
        config: RolloutConfig = CONFIG,
        credit: Any = None,
        teacher: Any = None,
        accumulation: int = 2,
        rollout_func: Any = None,
        settings: Any = None,
        named: dict[str, Any] | None = None,
        **args: Any,
    ) -> None:
        tokenizer, model = float64_model()
        self.teacher = teacher or float64_model(seed=5)[1]
        self.kept = Kept()
        self.rollout_func = rollout_func or make_rollout_func(
            source,
            config=config,
            recorder=recorder or self.kept,
            credit=credit,
            **({"gateway": source.gateway} if isinstance(source, Scripted) else {}),
        )
        dataset = Dataset.from_dict({"prompt": ["go"] * 16})
        given = {"teacher_model": self.teacher, "rollout_func": self.rollout_func}
        self.trainer = (trainer_class or abut.trl.DistillationTrainer)(
            model=model,
            args=(settings or trl.DistillationConfig)(
                str(folder),
                **{
                    **CPU,
                    "max_steps": 1,
                    "per_device_train_batch_size": 4,
                    "per_device_eval_batch_size": 4,
                    "gradient_accumulation_steps": accumulation,
                    "max_completion_length": 64,
                    "learning_rate": 0.05,
                    "lr_scheduler_type": "constant",
                    "optim": "sgd",
                    "max_grad_norm": 0.0,
                    "logging_steps": 1,
                    "gradient_checkpointing": False,
                }
                | args,
            ),
            train_dataset=dataset,
            eval_dataset=dataset.select(range(4)),
            processing_class=tokenizer,
            **{name: value for name, value in (given | (named or {})).items() if value is not None},
        )
        self.losses: list[float] = []
        run, compute = self, self.trainer.compute_loss

        def keep(*args: Any, **kwargs: Any) -> Any:
            loss = compute(*args, **kwargs)
            run.losses.append(loss.item())
            return loss

        self.trainer.compute_loss = keep

        class Keep(TrainerCallback):  # type: ignore[misc]
            def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
                run.gradient = flat_gradient(run.trainer.model)
                run.before = float64_model()[1]
                run.before.load_state_dict(run.trainer.model.state_dict())

        self.trainer.add_callback(Keep())

    def train(self) -> "Distilled":
        self.trainer.train()
        return self


def check(run: Distilled, beta: float, rows: list[Columns]) -> None:
    """Loss and gradient are those of the sampled tokens of these rows."""
    of_rows = [divergences(run.before, run.teacher, columns, beta) for columns in rows]
    loss = torch.cat(of_rows).mean()
    loss.backward()
    assert sum(run.losses) == pytest.approx(loss.item(), rel=1e-6)
    assert relative_error(run.gradient, flat_gradient(run.before)) < WORST


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_the_loss_is_the_divergence_over_sampled_tokens(tmp_path: Path, beta: float) -> None:
    run = Distilled(tmp_path, beta=beta).train()
    rows = [rollout.columns for rollout in run.kept.rollouts]
    assert len(rows) == 8
    assert all(0 < columns.env_mask.sum() < len(columns.env_mask) for columns in rows)
    with torch.no_grad():
        every = [
            divergences(run.before, run.teacher, columns, beta, mask)
            for columns in rows
            for mask in (0, 1)
        ]
    wrong = float(torch.cat(every).mean())
    assert sum(run.losses) != pytest.approx(wrong, rel=1e-2), "the control: tokens of environments"
    check(run, beta, rows)


def test_a_failed_rollout_has_no_weight(tmp_path: Path) -> None:
    class Breaks(Talk):
        made = 0

        def __init__(self) -> None:
            super().__init__()
            type(self).made += 1
            self.breaks = self.made % 4 == 2

        def step(self, action: str) -> Any:
            if self.breaks and len(self.actions) == 1:
                raise ValueError("boom")
            return super().step(action)

    run = Distilled(tmp_path, Breaks).train()
    assert sum(rollout.failed for rollout in run.kept.rollouts) == 2
    check(run, 1.0, [r.columns for r in run.kept.rollouts if not r.failed])
    logged = run.trainer.state.log_history[0]
    assert logged["rollout/error_frac"] == 0.25
    lengths = [0 if r.failed else r.sampled_tokens for r in run.kept.rollouts]
    assert logged["completions/mean_length"] == sum(lengths) / 8
    assert (logged["completions/min_length"], logged["completions/max_length"]) == (
        0,
        max(lengths),
    )


def test_only_main_conversations_are_trained_and_that_is_said_once(
    tmp_path: Path, caplog: Any
) -> None:
    source = Scripted(branching)
    try:
        run = Distilled(tmp_path, source).train()
    finally:
        source.gateway.stop()
    assert any(rollout.branches for rollout in source.played)
    check(run, 1.0, [rollout.columns for rollout in source.played])
    warned = [r.getMessage() for r in caplog.records if "are not trained" in r.getMessage()]
    assert len(warned) == 1
    assert "or the worker of an asynchronous trainer" in warned[0]


def test_evaluation_and_records(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    run = Distilled(tmp_path, recorder=path, log_completions=True).train()
    found = run.trainer.evaluate()
    assert found["eval_loss"] > 0
    assert run.trainer.state.log_history[-1]["eval_rollout/turns/mean"] == 3
    records = list(read_records(path))
    assert [record["mode"] for record in records] == ["train"] * 8 + ["eval"] * 4
    assert {record["rewards"] for record in records} == {None}, "nothing is scored"
    assert {record["reward"] for record in records} == {1.0}, "the environment's own is kept"


def test_without_a_rollout_func_it_is_trls_bit_for_bit(tmp_path: Path) -> None:
    found = []
    for trainer_class in (trl.DistillationTrainer, abut.trl.DistillationTrainer):
        named = {"rollout_func": None}
        run = Distilled(tmp_path, trainer_class=trainer_class, named=named).train()
        found.append((run.losses, run.gradient.tolist()))
    assert found[0] == found[1]


def test_a_teacher_on_a_server_is_refused_with_the_reason(tmp_path: Path) -> None:
    experimental = pytest.importorskip("trl.experimental.server_distillation")
    with pytest.raises(TypeError, match=r"without teacher_model=") as raised:
        Distilled(
            tmp_path,
            trainer_class=with_main_rows(experimental.ServerDistillationTrainer),
            settings=experimental.ServerDistillationConfig,
            named={"teacher_model": None},
            teacher_model_server_url="http://localhost:1",
        )
    assert str(raised.value) == (
        "ServerDistillationTrainer(rollout_func=…) without teacher_model=: "
        "ServerDistillationTrainer trains every token of a completion, including env tokens, "
        "because its loss ignores the mask\n"
        "hint: to train only sampled tokens, use AsyncDistillationTrainer with "
        "make_distillation_worker, abut.trl.GRPOTrainer with make_rollout_func(…, "
        "credit=ReverseKL(teacher)), or abut.trl.DistillationTrainer, whose teacher_model runs "
        "in this process"
    )


def test_another_vocabulary_is_refused(tmp_path: Path) -> None:
    larger = float64_model(vocab_size=640)[1]
    with pytest.raises(ValueError, match="vocab_size 640"):
        Distilled(tmp_path, teacher=larger)


def test_what_one_row_cannot_train_is_refused(tmp_path: Path) -> None:
    config = RolloutConfig(branch="all")
    with pytest.raises(TypeError) as raised:
        Distilled(tmp_path, config=config).train()
    assert str(raised.value) == (
        "RolloutConfig(branch='all') does not work with DistillationTrainer, which takes one row "
        "for each rollout\n"
        "hint: use AsyncDistillationTrainer with abut.trl.make_distillation_worker"
    )
    credit = ReverseKL(ModelTeacher(float64_model()[1]))
    with pytest.raises(TypeError, match="which has no advantages\nhint: "):
        Distilled(tmp_path, credit=credit).train()


def test_tools_of_the_trainer_are_refused(tmp_path: Path) -> None:
    run = Distilled(tmp_path)
    run.trainer.tools = [print]
    with pytest.raises(ValueError, match=r"^DistillationTrainer\(tools=…\) and rollout_func"):
        run.train()


def test_images_are_refused(tmp_path: Path) -> None:
    run = Distilled(tmp_path)
    pixels = torch.zeros(4, 4, 3, dtype=torch.uint8).numpy()
    blocks = [{"type": "image", "image": pixels}, {"type": "text", "text": "?"}]
    prompt = [{"role": "user", "content": blocks}]
    with pytest.raises(TypeError, match="DistillationTrainer does not pass pixels"):
        run.rollout_func([prompt] * 4, run.trainer)


def test_the_weights_are_synced_before_a_rollout(tmp_path: Path) -> None:
    run = Distilled(tmp_path)
    synced: list[int] = []
    run.trainer.use_vllm, run.trainer._last_loaded_step = True, -1
    run.trainer.vllm_generation = SimpleNamespace(sync_weights=lambda: synced.append(1))
    run.trainer.rollout_func = lambda prompts, trainer: {
        "prompt_ids": [[1]] * 2,
        "completion_ids": [[2, 3]] * 2,
        "env_mask": [[1, 0]] * 2,
        "logprobs": [[0.0, 0.0]] * 2,
        "synced": synced.copy(),
    }
    for _ in range(2):
        returned = run.trainer._generate(["go"] * 2)
        assert returned == ([[1]] * 2, [[2, 3]] * 2, [[1, 0]] * 2, None, [None] * 2)
    assert synced == [1], "once for a step"


def test_an_older_trl_is_refused(monkeypatch: Any) -> None:
    module = "abut.trl.rows.main_rows"
    monkeypatch.setattr(f"{module}.trl_version", lambda: (1, 10))
    monkeypatch.setattr(f"{module}.trl_version_text", lambda: "1.10.0")
    with pytest.raises(MissingExtraError) as raised:
        _ = abut.trl.DistillationTrainer
    assert str(raised.value) == (
        "abut.trl.DistillationTrainer needs TRL 1.11 or later, found 1.10.0: in earlier versions "
        "its loss does not mask env tokens\n"
        "hint: pip install 'trl>=1.11'"
    )


def test_the_class_is_trls_with_the_mixin() -> None:
    made = abut.trl.DistillationTrainer
    assert made.__mro__[1:3] == (MainRows, trl.DistillationTrainer)
    assert made is abut.trl.DistillationTrainer


@pytest.mark.slow
def test_two_ranks_train_as_one(tmp_path: Path) -> None:
    """Their rollouts have different numbers of turns, so of tokens as well."""
    from tests.kit.training.ranks import run_ranks

    ranks = run_ranks("distilled", tmp_path)
    assert ranks[0]["tokens"] != ranks[1]["tokens"]
    for rank in ranks:
        assert rank["model"] == "DistributedDataParallel"
        assert rank["error"] < WORST
        assert rank["control"] > 0.01, "a mean of the ranks' means is another one"
        assert rank["mean_length"] == sum(each["tokens"] for each in ranks) / 8
