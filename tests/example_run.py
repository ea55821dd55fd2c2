"""Runs an example in this process: one import of TRL, and the trainer stays to be asked."""

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
CPU = {"use_cpu": True, "bf16": False, "report_to": "none", "save_strategy": "no"}
SMALL = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "num_generations": 4}


def run_example(
    patch: pytest.MonkeyPatch, name: str, *arguments: str, **settings: Any
) -> tuple[Any, dict[str, Any]]:
    """Its trainer, and what it gave `GRPOConfig` before `settings` took the place of some."""
    import trl

    asked: dict[str, Any] = {}
    trainers: list[Any] = []
    GRPOConfig, GRPOTrainer = trl.GRPOConfig, trl.GRPOTrainer

    def config(output_dir: str, **given: Any) -> Any:
        asked.update(given)
        return GRPOConfig(**{"output_dir": output_dir} | given | settings)

    def trainer(*given: Any, **named: Any) -> Any:
        trainers.append(GRPOTrainer(*given, **named))
        return trainers[-1]

    with patch.context() as patched:
        patched.setattr(trl, "GRPOConfig", config)
        patched.setattr(trl, "GRPOTrainer", trainer)
        patched.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return trainers[0], asked
