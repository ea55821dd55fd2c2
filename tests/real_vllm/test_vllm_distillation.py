"""A teacher behind a real vLLM server: its scores, its refusals, and what a run makes of them."""

import asyncio
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from abut.errors import TeacherError
from abut.trl import TeacherScores, VllmTeacher
from abut.trl.teachers.teacher import Student, opened, score_row
from tests.kit.stage.rollouts import eventually

pytestmark = pytest.mark.filterwarnings("ignore")  # of TRL and vLLM among themselves

IDS = np.array([5, 300, 7, 7, 41, 511, 2, 90, 33, 34])
AT = np.array([2, 3, 6, 9])


def asked(server: Any, student: Student, ids: Any = IDS, at: Any = AT) -> TeacherScores:
    async def ask() -> TeacherScores:
        teacher = VllmTeacher(server.url, give_up_s=120)
        async with opened(teacher, student):
            return await score_row(teacher, ids, at, student.top_k, "default", 512)

    return asyncio.run(ask())


@pytest.mark.parametrize("top_k", [0, 1, 8, 20])
def test_it_scores_as_transformers_does(
    server: Any, untied: Any, hf_tokenizer: Any, top_k: int
) -> None:
    import torch

    scores = asked(server, Student(hf_tokenizer, top_k, 1000))
    with torch.no_grad():
        logits = untied(input_ids=torch.tensor([IDS.tolist()])).logits[0].double()
    right = logits.log_softmax(-1)[AT - 1].numpy()
    for k, drawn in enumerate(IDS[AT].tolist()):
        best = np.argsort(-right[k], kind="stable")[:top_k].tolist()
        expected = best + [drawn] * (drawn not in best)
        found = scores.ids[k][scores.ids[k] >= 0].tolist()
        assert found == expected
        assert scores.logprobs[k][: len(found)] == pytest.approx(right[k][found], abs=1e-5)
        assert scores.drawn[k] == pytest.approx(right[k, drawn], abs=1e-5)


def test_what_it_cannot_score_is_refused_before_the_first_row(
    server: Any, hf_tokenizer: Any
) -> None:
    with pytest.raises(TeacherError, match="hint: start the server with --max-logprobs 21"):
        asked(server, Student(hf_tokenizer, 21, 64))
    with pytest.raises(TeacherError, match="has a context of 1024 tokens but needs 1025"):
        asked(server, Student(hf_tokenizer, 1, 1024))
    other = copy.deepcopy(hf_tokenizer)
    other.add_tokens(["brown fox"])
    with pytest.raises(TeacherError, match="has a different tokenizer than the student: token"):
        asked(server, Student(other, 1, 64))


def test_a_row_that_it_cannot_score_ends_the_run_with_its_words(
    server: Any, hf_tokenizer: Any
) -> None:
    with pytest.raises(TeacherError, match=r"answers 400 to .*: .*out of vocabulary"):
        asked(server, Student(hf_tokenizer, 1, None), ids=np.append(IDS, 600))
    with pytest.raises(TeacherError, match="maximum context length") as raised:
        asked(server, Student(hf_tokenizer, 1, None), ids=np.tile(IDS, 103))
    assert "hint: lower RolloutConfig(max_context_tokens=…)" in str(raised.value)


@pytest.fixture
def run(tmp_path: Path, tiny_model: Any, hf_tokenizer: Any) -> Iterator[Any]:
    """Runs whose student is sampled by a small server of our own."""
    import torch

    from tests.kit.training.async_cpu import PolicyServer
    from tests.kit.training.distill_cpu import DistillRun, on_cpu

    def build() -> Any:
        model = tiny_model()
        with torch.no_grad():
            model.lm_head.weight.div_(5)
        return model

    build().save_pretrained(tmp_path / "student")
    hf_tokenizer.save_pretrained(tmp_path / "student")
    with PolicyServer(build()) as policy, on_cpu():

        def begin(teacher: Any, **settings: Any) -> DistillRun:
            folder = tmp_path / "run"
            ours = DistillRun(
                folder, tmp_path / "student", policy, hf_tokenizer, teacher, **settings
            )
            ours.build = build  # type: ignore[attr-defined]
            return ours

        yield begin


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_the_loss_is_that_of_the_served_model(
    server: Any, untied: Any, run: Any, beta: float
) -> None:
    from tests.kit.training.distill_cpu import independent

    ours = run(VllmTeacher(server.url), beta=beta)
    ours.trainer.train()
    assert len(ours.steps) == 2
    for step in ours.steps:
        right = independent(ours, step, ours.build(), untied)
        assert step.loss == pytest.approx(right.loss, abs=5e-6)
    # The rows of the last step may arrive during an earlier one, whose log then has their metrics.
    unscored = "rollout/teacher_unscored_frac"
    assert {log[unscored] for log in ours.logs if unscored in log} == {0}


def test_it_is_killed_and_restarted_and_training_goes_on(
    second: Any, untied: Any, run: Any
) -> None:
    from transformers import TrainerCallback

    from tests.kit.training.distill_cpu import independent

    class Kill(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 2:
                second.kill()
                assert eventually(lambda: not second.healthy())
                second.start()

    # With a larger staleness, all samples may have their scores before the server is killed.
    ours = run(VllmTeacher(second.url), callbacks=[Kill()], max_steps=8, max_staleness=1)
    ours.trainer.train()
    assert ours.trainer.state.global_step == 8
    assert second.healthy()
    for step in ours.steps[-1:]:
        right = independent(ours, step, ours.build(), untied)
        assert step.loss == pytest.approx(right.loss, abs=5e-6)
