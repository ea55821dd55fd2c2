"""The `rollout_func` examples of docs/how-to/distillation.md do what the page says."""

import functools
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
trl = pytest.importorskip("trl")

import abut.trl  # noqa: E402
from abut.trl.rows.main_rows import with_main_rows  # noqa: E402
from abut.trl.version import DISTILLS_SAMPLED_TOKENS, trl_version  # noqa: E402
from tests.kit.training.example_run import CPU, blocks_of, run_block  # noqa: E402

GIVEN = """
from datasets import Dataset
from tests.kit.stage.rollouts import Talk as MyEnv
rows = Dataset.from_dict({"prompt": ["go"] * 8})
"""


def block_with(text: str) -> str:
    """The example of the page that has a text, with an environment and rows."""
    (block,) = [block for block in blocks_of("distillation.md") if text in block]
    return f"{GIVEN}{block}"


def test_reverse_kl_beside_a_reward(
    hf_tokenizer: Any, tiny_model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    teacher = abut.trl.ModelTeacher(tiny_model(1))
    monkeypatch.setattr(abut.trl, "VllmTeacher", lambda url: teacher)
    small = {"max_steps": 1, "per_device_train_batch_size": 8, "num_generations": 4}
    block = f"{block_with('ReverseKL(teacher, coef=0.5)')}trainer.train()\n"
    variables, _ = run_block(
        monkeypatch, block, hf_tokenizer, tiny_model(), logging_steps=1, **small
    )
    logged = variables["trainer"].state.log_history[0]
    assert logged["rollout/reverse_kl/mean"] != 0
    assert logged["rollout/teacher_unscored_frac"] == 0


@pytest.mark.skipif(trl_version() < DISTILLS_SAMPLED_TOKENS, reason="its loss takes no mask")
def test_the_whole_vocabulary(
    hf_tokenizer: Any, tiny_model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    models = {"model": tiny_model(), "teacher_model": tiny_model(1)}
    made, config = with_main_rows(trl.DistillationTrainer), trl.DistillationConfig
    monkeypatch.setattr(
        abut.trl,
        "distillation_trainer",
        lambda: lambda **given: made(**given | models, processing_class=hf_tokenizer),
    )
    small = {"max_steps": 1, "per_device_train_batch_size": 4, "max_completion_length": 64}
    monkeypatch.setattr(
        trl, "DistillationConfig", functools.partial(config, **small, **CPU, logging_steps=1)
    )
    variables: dict[str, Any] = {}
    exec(compile(block_with("teacher_model="), "block.py", "exec"), variables)
    variables["trainer"].train()
    logged = variables["trainer"].state.log_history[0]
    assert logged["loss"] > 0
    assert logged["rollout/sampled_tokens/mean"] > 0
