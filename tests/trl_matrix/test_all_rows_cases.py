"""The gradient of all rows in every case, on one version of TRL."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from abut.trl.version import trl_version  # noqa: E402
from tests.kit.training.row_cases import (  # noqa: E402
    LOSS_TYPES,
    OTHER_CASES,
    WORST,
    check_gradients,
    loss_of,
)
from tests.kit.training.row_oracle import (  # noqa: E402
    gradient_of,
    group_advantages,
    relative_error,
)
from tests.kit.training.scripted_rows import GROUP, RowsRun  # noqa: E402


@pytest.mark.parametrize("iterations", [1, 2])
@pytest.mark.parametrize("accumulation", [1, 2, 4, 8])
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_the_gradient_is_that_of_each_token_trained_once(
    tmp_path: Path, loss_type: str, accumulation: int, iterations: int
) -> None:
    check_gradients(
        tmp_path, loss_type=loss_type, accumulation=accumulation, num_iterations=iterations
    )


@pytest.mark.parametrize("case", sorted(OTHER_CASES))
def test_the_gradient_under_other_settings(tmp_path: Path, case: str) -> None:
    check_gradients(tmp_path, **OTHER_CASES[case])


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_two_optimizer_steps_share_a_generation_batch(tmp_path: Path, loss_type: str) -> None:
    """Each takes half of the rows, as TRL shuffled them; the mean is the gradient of all."""
    run = RowsRun(
        tmp_path,
        accumulation=2,
        loss_type=loss_type,
        per_device_train_batch_size=2,
        steps_per_generation=4,
        max_steps=2,
        learning_rate=0.0,
    ).train()
    assert len(run.gradients) == 2
    factor = run.trainer.accelerator.gradient_accumulation_steps / 2
    if loss_type in ("dapo", "cispo") and trl_version() < (1, 10):
        factor *= 2  # divides by the tokens of the generation batch, not of an optimizer step
    found: Any = (run.gradients[0] + run.gradients[1]) * factor
    loss = loss_of(run)
    right = gradient_of(loss, run.before[0], run.rollouts, group_advantages(run.rewards, GROUP))
    assert relative_error(found, right) < WORST
