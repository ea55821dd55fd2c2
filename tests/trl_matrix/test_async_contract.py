"""What `AsyncGRPOTrainer` makes of our rows, in every version of TRL that takes our worker.

1.11 and 1.14 take lists, 1.16 takes arrays; 1.15 cannot train on a CPU. Older versions have no such
worker, and are refused by name.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from abut.errors import MissingExtraError  # noqa: E402
from abut.trl import make_rollout_worker  # noqa: E402
from abut.trl.version import ARRAYS_IN_ROWS, ASYNC_WORKER, trl_version  # noqa: E402

TAKES_OURS = trl_version() >= ASYNC_WORKER
ours = pytest.mark.skipif(not TAKES_OURS, reason="this version of TRL takes no such worker")


@pytest.mark.skipif(TAKES_OURS, reason="this version of TRL takes our worker")
def test_an_older_version_is_refused() -> None:
    with pytest.raises(MissingExtraError, match=r"make_rollout_worker needs TRL 1\.11 or later"):
        make_rollout_worker(object, args=None, train_dataset=[], processing_class=None)


@pytest.fixture(scope="module")
def run(hf_tokenizer: Any, tiny_model: Any, tmp_path_factory: Any) -> Iterator[Any]:
    """Four steps, of which the second writes a checkpoint; and two more that go on from there."""
    from tests.kit.training.async_cpu import AsyncRun, PolicyServer, on_cpu

    folder: Path = tmp_path_factory.mktemp("async")
    model = tiny_model()
    with torch.no_grad():
        model.lm_head.weight.div_(20)  # as it was made: a sharper one samples some rows twice
    model.save_pretrained(folder / "model")
    hf_tokenizer.save_pretrained(folder / "model")
    settings = {
        "per_device_train_batch_size": 6,
        "max_staleness": 100,
        "max_inflight_tasks": 8,
        "save_strategy": "steps",
        "save_steps": 2,
    }
    with PolicyServer(model) as server, on_cpu():

        def begin(steps: int) -> AsyncRun:
            path = folder / "model"
            return AsyncRun(folder / "run", path, server, hf_tokenizer, max_steps=steps, **settings)

        first, second = begin(2), begin(4)
        first.trainer.train()
        second.trainer.train(resume_from_checkpoint=True)
        second.first = first  # type: ignore[attr-defined]
        yield second


@ours
def test_the_fields_are_those_of_this_version(run: Any) -> None:
    from dataclasses import fields

    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

    row = run.pushed[0]
    for field in fields(RolloutSample):
        assert hasattr(row, field.name), field.name
    kind = np.ndarray if trl_version() >= ARRAYS_IN_ROWS else list
    assert {type(row.input_ids), type(row.completion_mask), type(row.old_log_probs)} == {kind}


@ours
def test_the_first_step_is_on_policy(run: Any) -> None:
    assert abs(run.first.logs[0]["ratio"] - 1) < 1e-4
    assert abs(run.first.logs[1]["ratio"] - 1) > 1e-4, "the negative control: a step behind"


@ours
def test_metrics_are_logged(run: Any) -> None:
    logged = run.first.logs[0] | run.first.logs[1]
    assert logged["rollout/turns/mean"] == 2
    assert logged["rollout/stop/env_done"] == 1
    assert logged["rewards/env_reward"] > 0


@ours
def test_a_resumed_run_trains_no_row_twice_and_loses_none(run: Any) -> None:
    trained = [*run.first.trained_rows(), *run.trained_rows()]
    rows = [tuple(np.asarray(row.old_log_probs).tolist()) for row in trained]
    assert len({*rows}) == len(rows) == 4 * 6
    state = run.worker.position.state(1)
    groups = [row.group_id for row in trained] + [row["group_id"] for row in state["rows"]]
    assert state["first"] >= 3
    assert all(groups.count(group) == 4 for group in range(state["first"]))
