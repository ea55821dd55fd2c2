"""Rows with images: the engine, an independent forward and every pass of TRL see the same."""

import dataclasses
import random
import weakref
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")
pytest.importorskip("PIL")

import transformers  # noqa: E402

from abut.images import Image  # noqa: E402
from abut.template import ImageProcessor  # noqa: E402
from tests.kit.training.image_run import (  # noqa: E402
    ImageRun,
    Writer,
    rollout_with_images,
)
from tests.kit.training.row_cases import PADDED, lora  # noqa: E402
from tests.kit.training.scripted_rows import Scripted  # noqa: E402
from tests.kit.training.vision import FAMILIES, picture  # noqa: E402

# What transformers' processors make of tensors, with older versions of PyTorch.
pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Watched overrides:UserWarning"),
]

CLOSE = 1e-5


@pytest.mark.parametrize("name", FAMILIES)
def test_logprobs_in_the_loss_are_those_of_the_engine(tmp_path: Path, name: str) -> None:
    """Two steps, four micro-steps each, of rows with 0, 1, 2 and 3 images; two rows share one."""
    run = ImageRun(name, tmp_path).train()
    assert max(run.worst("train loss")) < CLOSE
    compared = run.trainer.compared
    assert (len(compared), {c.images for c in compared}) == (16, {0, 1, 2, 3})
    assert "pixel_values" not in run.trainer._buffered_inputs[0]


@pytest.mark.parametrize("name", ["qwen2_5_vl", "gemma3", "idefics3"])
def test_every_pass_gets_its_images(tmp_path: Path, name: str) -> None:
    """Old and reference logprobs, two iterations, evaluations, each row in a pass of its own."""
    run = ImageRun(
        name,
        tmp_path,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=8,
        num_iterations=2,
        beta=0.1,
        gradient_checkpointing=True,
        eval_strategy="steps",
        eval_steps=1,
        **PADDED,
    ).train()
    compared = run.trainer.compared
    kinds = ("old", "reference", "loss")
    assert {c.purpose for c in compared} == {f"{m} {k}" for m in ("train", "eval") for k in kinds}
    for purpose in {c.purpose for c in compared}:
        assert run.worst(purpose)[0] < CLOSE, purpose
    assert run.worst("train old")[1] < CLOSE
    assert run.worst("train loss")[1] > 1e-4, "the second iteration has other weights"
    assert any(c.alone for c in compared)
    assert all(c.alone == (c.images == 0) for c in compared if c.purpose == "train loss")


def test_an_adapter_and_the_model_without_it_get_images(tmp_path: Path) -> None:
    run = ImageRun("qwen2_5_vl", tmp_path, peft_config=lora(), beta=0.1, num_iterations=2).train()
    assert run.trainer.ref_model is None
    scored = [c for c in run.trainer.compared if c.purpose == "train old"]
    assert run.worst()[0] < CLOSE
    assert max(c.from_engine for c in scored[:8]) < CLOSE
    assert min(c.from_engine for c in scored[8:]) > 0.1, "the reference has no adapter"


CONTROLS = [
    ("llava", "no pixels", 0.1),
    ("qwen3_vl", "no pixels", 0.1),
    ("llava", "other colours", 0.1),
    ("qwen2_5_vl", "other colours", 0.1),
    ("gemma3", "zeroed types", 1e-3),
    ("qwen2_5_vl", "zeroed types", 1e-3),
    ("qwen3_vl", "zeroed types", 1e-3),
    ("glm4v", "zeroed types", 1e-3),
]


@pytest.mark.parametrize(("name", "control", "least"), CONTROLS)
def test_what_a_pass_without_them_would_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, control: str, least: float
) -> None:
    """The controls: each goes through without an error, and trains on something else."""
    if control == "zeroed types" and transformers.__version__.startswith("4."):
        pytest.skip("transformers 4 takes positions from ids, without types")
    right = ImageProcessor.model_inputs

    def wrong(self: Any, ids: Any, mask: Any, rows: Any) -> Any:
        if not torch.is_grad_enabled():
            return right(self, ids, mask, rows)  # the engine's
        if control == "no pixels":
            return {}
        if control == "other colours":
            rows = [[negative(span) for span in spans] for spans in rows]
        made = right(self, ids, mask, rows)
        if control == "zeroed types":
            for key in [key for key in made if key.endswith("token_type_ids")]:
                made[key].zero_()
        return made

    monkeypatch.setattr(ImageProcessor, "model_inputs", wrong)
    run = ImageRun(name, tmp_path, max_steps=1).train()
    pictured = [c for c in run.trainer.compared if c.images]
    assert max(c.from_own for c in pictured) > least


def negative(span: Any) -> Any:
    return dataclasses.replace(span, image=Image.of(255 - span.image.pixels))


# ---- several rows of a rollout


@pytest.fixture(scope="module")
def writer() -> Writer:
    return Writer("qwen2_5_vl")


def branching(writer: Writer) -> Any:
    """Rollouts with other conversations, with and without images, some of them cut."""

    def script(rng: random.Random, task: Any) -> Any:
        talks = [
            writer.talk(
                rng,
                [
                    [picture(rng.randrange(9), rng.randint(20, 60), 32)] * rng.randint(0, 2)
                    for _ in range(rng.randint(1, 3))
                ],
                ends=rng.random() < 0.7,
            )
            for _ in range(1 + task.index % 3)
        ]
        return rollout_with_images(task, rng.random(), *talks)

    return script


@pytest.mark.parametrize("masks", [False, True])
def test_pieces_and_padding_rows(tmp_path: Path, writer: Writer, masks: bool) -> None:
    """Each piece gets the images of its own rows; TRL may mask rows that were cut."""
    run = ImageRun(
        "qwen2_5_vl",
        tmp_path,
        env=Scripted(branching(writer)),
        max_steps=1,
        piece=2,
        vllm_importance_sampling_mode="token_truncate",
        mask_truncated_completions=masks,
        **PADDED,
    ).train()
    batch = run.trainer.abut_rows
    assert batch.padding_rows
    rows = run.trainer.compared
    assert len(rows) < len(batch.places) if masks else len(rows) == len(batch.places)
    assert max(c.from_own for c in rows) < CLOSE
    assert {c.images for c in rows} >= {0, 1, 2}


def test_a_piece_holds_the_pixels_of_its_own_rows(
    tmp_path: Path, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peak of a step is that of one row, however many rows there are."""
    shown = [[picture(10 * turn + k, 48, 32) for k in range(4)] for turn in range(3)]

    def script(rng: random.Random, task: Any) -> Any:
        return rollout_with_images(task, rng.random(), *(writer.talk(rng, shown) for _ in "ab"))

    peaks = []
    for prompts in (1, 3):
        held = Held(monkeypatch)
        run = ImageRun(
            "qwen2_5_vl",
            tmp_path,
            env=Scripted(script),
            prompts=["go"] * prompts,
            max_steps=1,
            per_device_train_batch_size=2 * prompts,
            gradient_accumulation_steps=1,
            piece=1,
            num_iterations=2,
        ).train()
        assert len(run.trainer.abut_rows.places) == 4 * prompts
        assert held.passes == 8 * prompts, "for old logprobs, and for the loss"
        assert held.now() == 0
        peaks.append(held.peak)
    row = [Image.of(image) for images in shown for image in images]
    one_row = sum(t.numel() * t.element_size() for t in writer.images.tensors([row]).values())
    assert peaks == [one_row, one_row]


class Held:
    """Counts the bytes of the tensors that passes get, as long as anything holds them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.peak, self.passes = 0, 0
        self._held: list[tuple[Any, int]] = []
        tensors = ImageProcessor.tensors

        def counted(processor: ImageProcessor, rows: Any) -> Any:
            made = tensors(processor, rows)
            self.passes += 1
            self._held += [(weakref.ref(t), t.numel() * t.element_size()) for t in made.values()]
            self.peak = max(self.peak, self.now())
            return made

        monkeypatch.setattr(ImageProcessor, "tensors", counted)

    def now(self) -> int:
        """The bytes that are held."""
        return sum(size for tensor, size in self._held if tensor() is not None)
