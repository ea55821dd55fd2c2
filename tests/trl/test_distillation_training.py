"""`AsyncDistillationTrainer` with our worker: agents, epochs, checkpoints and two ranks."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")
pytest.importorskip("aiohttp")

from datasets import Dataset  # noqa: E402

from abut import AgentResult, agent  # noqa: E402
from abut.trl import ModelTeacher  # noqa: E402
from abut.trl.version import ASYNC_WORKER, trl_version  # noqa: E402

if trl_version() < ASYNC_WORKER:
    pytest.skip("this TRL has no AsyncDistillationTrainer", allow_module_level=True)

from tests.kit.stage.agents import Client, user  # noqa: E402
from tests.kit.training.async_cpu import PolicyServer  # noqa: E402
from tests.kit.training.distill_cpu import (  # noqa: E402
    DistillRun,
    distill_args,
    independent,
    loss_of,
    on_cpu,
)
from tests.kit.training.ranks import run_ranks  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("no_thread_stays"),
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers"),
]


@pytest.fixture(scope="module")
def build(tiny_model: Any) -> Any:
    def build(seed: int = 0) -> Any:
        model = tiny_model(seed)
        with torch.no_grad():
            model.lm_head.weight.div_(5)
        return model

    return build


@pytest.fixture
def run(build: Any, hf_tokenizer: Any, tmp_path: Path) -> Iterator[Any]:
    build().save_pretrained(tmp_path / "student")
    hf_tokenizer.save_pretrained(tmp_path / "student")
    with PolicyServer(build()) as server, on_cpu():

        def begin(*given: Any, **settings: Any) -> DistillRun:
            folder, model = tmp_path / "run", tmp_path / "student"
            teacher = settings.pop("teacher", None) or ModelTeacher(build(1))
            return DistillRun(folder, model, server, hf_tokenizer, teacher, *given, **settings)

        yield begin


@agent
async def three(endpoint: Any, prompt: Any) -> AgentResult:
    async with Client(endpoint) as asks:
        for text in ("one", "two", "three"):
            await asks.ask([user(f"{text} {prompt}")])
    return AgentResult(1.0)


def test_all_conversations_of_an_agent_are_trained_by_their_own_scores(
    run: Any, build: Any
) -> None:
    ours = run(three, per_device_train_batch_size=6)
    ours.trainer.train()
    assert len(ours.steps) == 2
    for step in ours.steps:
        right = independent(ours, step, build(), build(1))
        assert right.rows == 6
        assert step.loss == pytest.approx(right.loss, abs=2e-6)
    assert ours.logs[0]["rollout/teacher_unscored_frac"] == 0
    assert ours.logs[0]["reward"] == 1
    sampled = sum(r.sampled_tokens + r.dropped_tokens for r, _ in ours.kept.rollouts)
    assert sum(row.trained_tokens for row in ours.pushed) <= sampled


def test_an_epoch_of_an_agent_trains_every_prompt(run: Any) -> None:
    ours = run(
        three,
        dataset=Dataset.from_dict({"prompt": [f"say {k}" for k in range(4)]}),
        per_device_train_batch_size=3,
        max_steps=-1,
        num_train_epochs=1,
        max_inflight_tasks=1,  # else the fifth prompt may be trained before the fourth
    )
    ours.trainer.train()
    assert ours.trainer.state.global_step == 4
    trained = {ids for step in ours.steps for ids in ours.trained_ids()}
    groups = [r.group_id for r in ours.pushed if tuple(np.asarray(r.input_ids)) in trained]
    assert groups == [group for group in (0, 1, 2, 3) for _ in range(3)]


def test_a_resumed_run_trains_no_row_twice_and_loses_none(run: Any, build: Any) -> None:
    # Four rows of groups of three: the checkpoint cuts a group, whose other rows are scored again.
    settings = {
        "make": {"rollouts_per_prompt": 3},
        "max_staleness": 100,
        "max_inflight_tasks": 6,
        "save_strategy": "steps",
        "save_steps": 2,
    }
    first = run(max_steps=2, **settings)
    first.trainer.train()
    kept = first.trainer.state.stateful_callbacks["AbutRollouts"]["attributes"]
    assert kept["rows"], "a group was cut"
    assert all("teacher_topk_ids" not in row for row in kept["rows"])
    assert {row["teacher_id"] for row in kept["rows"]} == {"default"}
    second = run(max_steps=4, **settings)
    second.trainer.train(resume_from_checkpoint=True)
    assert second.trainer.state.global_step == 4
    for step in second.steps:
        right = independent(second, step, build(), build(1))
        assert step.loss == pytest.approx(right.loss, abs=2e-6)
    of_rows: list[int] = []
    for ours in first, second:  # rows are trained in the order in which they were pushed
        trained = ours.pushed[: 2 * 4]
        ids = [tuple(np.asarray(row.input_ids).tolist()) for row in trained]
        assert sorted(ids) == sorted(ours.trained_ids())
        of_rows += [row.group_id for row in trained]
    state = second.worker.position.state(1)
    of_rows += [row["group_id"] for row in state["rows"]]
    assert max(of_rows.count(group) for group in of_rows) == 3, "no row twice"
    assert all(of_rows.count(group) == 3 for group in range(state["first"])), "and none lost"
    assert state["first"] >= 3


def test_two_ranks_train_as_one(tmp_path: Path) -> None:
    from tests.kit.training.ranks.distill import ROWS, teacher_model

    found = run_ranks("distill", tmp_path)
    assert [rank["model"] for rank in found] == ["DistributedDataParallel"] * 2
    assert found[0]["pushed"] > 0 == found[1]["pushed"]
    ranks = [torch.load(tmp_path / f"rank{rank}.pt", weights_only=False) for rank in (0, 1)]
    masks = ranks[0]["masks"]
    from tests.kit.training.models import rank_model

    for one, other in zip(ranks[0]["steps"], ranks[1]["steps"], strict=True):
        assert len(one["rows"]) + len(other["rows"]) == 2 * ROWS
        assert one["rows"] != other["rows"]
        teacher = teacher_model()
        rows = [(ids, masks[ids], teacher) for ids in [*one["rows"], *other["rows"]]]
        _, student = rank_model()
        student.load_state_dict(one["state"])
        right = loss_of(distill_args(tmp_path), rows, student)
        assert (one["loss"] + other["loss"]) / 2 == pytest.approx(right.loss, abs=2e-6)
        for name, gradient in right.gradient.items():
            for rank in (one, other):
                difference = float((gradient - rank["gradient"][name].double()).abs().max())
                assert difference < 1e-6, name
