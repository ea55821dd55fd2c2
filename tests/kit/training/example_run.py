"""Runs examples in this process: one import of TRL, and what they made stays to be asked."""

import functools
import runpy
import sys
from typing import Any

import pytest

from tests.kit.checkout import EXAMPLES
from tests.kit.page_run import page_blocks

DOCS = EXAMPLES.parent / "docs"
CPU = {
    "use_cpu": True,
    "bf16": False,
    "report_to": "none",
    "save_strategy": "no",
    "disable_tqdm": True,
}


def training_on(device: str) -> dict[str, Any]:
    """Arguments for `GRPOConfig` that train in float32 on "cpu" or "cuda"."""
    return CPU | {"use_cpu": device == "cpu"}


SMALL = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "num_generations": 4}


def run_example(
    patch: pytest.MonkeyPatch, name: str, *arguments: str, **settings: Any
) -> tuple[Any, dict[str, Any]]:
    """Its trainer, and what it gave `GRPOConfig` before `settings` took the place of some."""
    import trl

    import abut.trl
    from abut.trl.rows.all_rows import with_all_rows

    asked: dict[str, Any] = {}
    trainers: list[Any] = []
    GRPOConfig, GRPOTrainer = trl.GRPOConfig, trl.GRPOTrainer

    def config(output_dir: str, **given: Any) -> Any:
        asked.update(given)
        return GRPOConfig(**{"output_dir": output_dir} | given | settings)

    def trainer(*given: Any, **named: Any) -> Any:
        trainers.append(GRPOTrainer(*given, **named))
        return trainers[-1]

    def all_rows(*given: Any, **named: Any) -> Any:
        trainers.append(with_all_rows(GRPOTrainer)(*given, **named))
        return trainers[-1]

    with patch.context() as patched:
        patched.setattr(trl, "GRPOConfig", config)
        patched.setattr(trl, "GRPOTrainer", trainer)
        patched.setattr(abut.trl, "grpo_trainer", lambda: all_rows)
        patched.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return trainers[0], asked


def blocks_of(page: str) -> list[str]:
    """The Python of a page of the documentation."""
    return [block.text for block in page_blocks(page) if block.language == "python"]


def run_block(
    patch: pytest.MonkeyPatch, block: str, hf_tokenizer: Any, model: Any, **settings: Any
) -> tuple[dict[str, Any], list[Any]]:
    """What a block defined, and what its rollout_func returned, with a model that is here."""
    import trl

    import abut.trl
    from abut.trl.rollout_func import RolloutFunc
    from abut.trl.rows.all_rows import with_all_rows

    outputs: list[Any] = []
    GRPOConfig, GRPOTrainer, call = trl.GRPOConfig, trl.GRPOTrainer, RolloutFunc.__call__
    small = {"model": model, "processing_class": hf_tokenizer}
    all_rows = with_all_rows(GRPOTrainer)

    def keep(self: Any, prompts: Any, trainer: Any) -> Any:
        outputs.append(call(self, prompts, trainer))
        return outputs[-1]

    variables: dict[str, Any] = {}
    with patch.context() as patched:
        patched.setattr(trl, "GRPOConfig", functools.partial(GRPOConfig, **CPU, **settings))
        patched.setattr(trl, "GRPOTrainer", lambda **given: GRPOTrainer(**given | small))
        patched.setattr(abut.trl, "grpo_trainer", lambda: lambda **given: all_rows(**given | small))
        patched.setattr(RolloutFunc, "__call__", keep)
        exec(compile(block, "block.py", "exec"), variables)
    return variables, outputs
