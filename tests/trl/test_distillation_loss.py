"""The loss of TRL's `AsyncDistillationTrainer` on our rows, computed a second time.

It equals one of the ids, the masks and the two models alone, and so does its gradient. TRL is
unchanged, from 1.11 on.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")
pytest.importorskip("aiohttp")

from abut.trl import ModelTeacher, VllmTeacher  # noqa: E402
from abut.trl.version import ARRAYS_IN_ROWS, ASYNC_WORKER, trl_version  # noqa: E402

if trl_version() < ASYNC_WORKER:
    pytest.skip("this TRL has no AsyncDistillationTrainer", allow_module_level=True)

from tests.kit.training.async_cpu import PolicyServer  # noqa: E402
from tests.kit.training.distill_cpu import DistillRun, independent, on_cpu  # noqa: E402
from tests.kit.training.teacher_server import TeacherServer  # noqa: E402

DIFFERENT = 1e-3
"""Of a loss: a thousand times what equal losses differ by. Which rows come first is a matter of
time, so a loss has no fixed size."""

pytestmark = [
    pytest.mark.usefixtures("no_thread_stays"),
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers"),
]


@pytest.fixture(scope="module")
def build(tiny_model: Any) -> Any:
    def build(seed: int = 0, **changes: Any) -> Any:
        model = tiny_model(seed, **changes)
        with torch.no_grad():
            model.lm_head.weight.div_(5)  # so that no candidate has all of the probability
        return model

    return build


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: Any, build: Any, hf_tokenizer: Any) -> Path:
    folder = tmp_path_factory.mktemp("student")
    build().save_pretrained(folder)
    hf_tokenizer.save_pretrained(folder)
    return folder  # type: ignore[no-any-return]


@pytest.fixture
def server(build: Any) -> Iterator[PolicyServer]:
    with PolicyServer(build()) as server, on_cpu():
        yield server


@pytest.fixture
def run(server: Any, model_path: Any, hf_tokenizer: Any, tmp_path: Path) -> Any:
    def begin(teacher: Any, **settings: Any) -> DistillRun:
        ours = DistillRun(tmp_path, model_path, server, hf_tokenizer, teacher, **settings)
        ours.trainer.train()
        return ours

    return begin


def compare(ours: DistillRun, build: Any, teacher: Any, **more: Any) -> None:
    """Each micro-batch, and the gradient of each step that is one micro-batch."""
    assert ours.steps
    for step in ours.steps:
        right = independent(ours, step, build(), teacher, **more)
        assert right.rows == ours.args.per_device_train_batch_size
        assert step.loss == pytest.approx(right.loss, abs=2e-6)
        if ours.args.gradient_accumulation_steps > 1:
            continue
        most = max(float(g.abs().max()) for g in right.gradient.values())
        assert most > 1e-4
        for name, gradient in right.gradient.items():
            difference = float((gradient - step.gradient[name].double()).abs().max())
            assert difference < 1e-7 + 2e-6 * most, name


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("top_k", [1, 8])
def test_a_teacher_behind_a_server(
    run: Any, build: Any, hf_tokenizer: Any, beta: float, top_k: int
) -> None:
    teacher = build(1)
    with TeacherServer(teacher, hf_tokenizer) as asked:
        ours = run(VllmTeacher(asked.url), beta=beta, teacher_top_k=top_k)
    compare(ours, build, teacher)
    row = ours.pushed[0]
    width = {0.0: top_k + 1, 0.5: 2, 1.0: 1}[beta]
    if trl_version() >= ARRAYS_IN_ROWS:
        assert row.teacher_topk_ids.shape == (len(row.input_ids), width)
        assert (row.teacher_topk_ids[row.completion_mask == 0] == -1).all()
    else:
        masked = zip(row.teacher_topk_ids, row.completion_mask, strict=True)
        assert all(0 < len(ids) <= width if mask else not ids for ids, mask in masked)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_a_teacher_in_this_process(run: Any, build: Any, beta: float, temperature: float) -> None:
    teacher = build(1)
    ours = run(
        ModelTeacher(teacher, temperature=temperature), beta=beta, teacher_temperature=temperature
    )
    compare(ours, build, teacher)


@pytest.mark.parametrize(
    "settings",
    [
        {"beta": 0.0, "teacher_top_k": 0},
        {"beta": 0.0, "teacher_top_k": 512},
        {"beta": 0.0, "add_tail_bucket": False},
        {"beta": 0.5, "add_tail_bucket": False},
        {"beta": 0.3, "gradient_accumulation_steps": 2},
    ],
    ids=str,
)
def test_widths_tails_and_micro_batches(run: Any, build: Any, settings: Any) -> None:
    teacher = build(1)
    compare(run(ModelTeacher(teacher), **settings), build, teacher)


def test_each_row_has_the_loss_of_the_teacher_that_it_names(run: Any, build: Any) -> None:
    from datasets import Dataset

    names = ["math", "code"]
    rows = {"prompt": [f"say {k}" for k in range(16)], "teacher_id": names * 8}
    teachers = {name: build(seed) for name, seed in zip(names, (1, 2), strict=True)}
    ours = run(
        ModelTeacher(teachers),
        dataset=Dataset.from_dict(rows),
        teacher_server_urls=dict.fromkeys(names, "http://nobody"),
    )
    compare(ours, build, teachers)
    assert {row.teacher_id for row in ours.pushed} == {*names}
    crossed = dict(zip(names, reversed([*teachers.values()]), strict=True))
    with pytest.raises(AssertionError):
        compare(ours, build, crossed)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_positions_that_are_not_scored_train_nothing_and_count(
    run: Any, build: Any, hf_tokenizer: Any, beta: float
) -> None:
    def change(said: list[Any]) -> None:
        said[::3] = [None] * len(said[::3])

    teacher = build(1)
    with TeacherServer(teacher, hf_tokenizer, change=change) as asked:
        ours = run(VllmTeacher(asked.url), beta=beta)
    compare(ours, build, teacher, missing=lambda position: position % 3 == 0)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_nan_is_no_candidate(run: Any, build: Any, hf_tokenizer: Any, beta: float) -> None:
    def change(said: list[Any]) -> None:
        for entry in filter(None, said):
            for id_, each in entry.items():
                if int(id_) % 4 == 0:
                    each["logprob"] = float("nan")

    teacher = build(1)
    with TeacherServer(teacher, hf_tokenizer, change=change) as asked:
        ours = run(VllmTeacher(asked.url), beta=beta)
    assert all(torch.isfinite(w).all() for w in ours.trainer.model.parameters())
    compare(ours, build, teacher, dropped=lambda id_: id_ % 4 == 0)


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_ids_beyond_the_students_vocabulary_are_no_candidates(
    run: Any, build: Any, beta: float
) -> None:
    teacher = build(1, vocab_size=544)
    with torch.no_grad():
        teacher.lm_head.weight[512:] *= 2  # they are among the best
    ours = run(ModelTeacher(teacher), beta=beta)
    best = teacher(input_ids=torch.tensor([ours.trained_ids()[0]])).logits.argmax(-1)
    assert (best >= 512).any()
    compare(ours, build, teacher)


# ---- controls: what the loss does see


@pytest.mark.parametrize("beta", [0.5, 1.0])
def test_another_order_another_token_and_a_shift_change_the_loss(
    run: Any, build: Any, beta: float
) -> None:
    ours = run(ModelTeacher(build(1)), beta=beta, max_steps=1)
    (step,) = ours.steps[:1]
    ours.trainer.model.load_state_dict(step.state)

    def loss(**changes: Any) -> float:
        with torch.no_grad():
            inputs = {name: v.clone() for name, v in step.inputs.items()} | changes
            return float(ours.trainer._compute_loss(ours.trainer.model, inputs))

    ids, logprobs = (step.inputs[f"teacher_topk_{name}"] for name in ("ids", "logprobs"))
    assert loss() == pytest.approx(step.loss, abs=1e-6)
    if beta == 0.5:
        # Up to 1.15 the batch is as wide as `teacher_top_k` says; two of its candidates count.
        both = (ids[..., :2] >= 0).all(-1, keepdim=True)
        swapped = [
            torch.where(both, torch.cat([v[..., :2].flip(-1), v[..., 2:]], -1), v)
            for v in (ids, logprobs)
        ]
        others = {"teacher_topk_ids": swapped[0], "teacher_topk_logprobs": swapped[1]}
        assert abs(loss(**others) - step.loss) > 1e-4
    shifted = {"teacher_topk_ids": ids.roll(1, 1), "teacher_topk_logprobs": logprobs.roll(1, 1)}
    assert abs(loss(**shifted) - step.loss) > DIFFERENT * step.loss


def test_another_teacher_has_another_loss(run: Any, build: Any) -> None:
    ours = run(ModelTeacher(build(1)), max_steps=1)
    right = independent(ours, ours.steps[0], build(), build(2))
    assert abs(ours.steps[0].loss - right.loss) > DIFFERENT * right.loss


def test_rows_are_trained_by_their_masks(run: Any, build: Any) -> None:
    ours = run(ModelTeacher(build(1)), max_steps=1)
    for row in ours.pushed:
        row.completion_mask = np.ones_like(row.completion_mask)
        row.completion_mask[0] = 0
    right = independent(ours, ours.steps[0], build(), build(1))
    assert abs(ours.steps[0].loss - right.loss) > DIFFERENT * right.loss
