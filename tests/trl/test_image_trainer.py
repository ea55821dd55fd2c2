"""The trainer around rows with images: text alone, images of the dataset, and what is refused."""

import functools
import random
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")
pytest.importorskip("PIL")

import trl  # noqa: E402

import abut.trl  # noqa: E402
from abut.images import Image  # noqa: E402
from abut.messages import images_of  # noqa: E402
from abut.samplers.scripted import ScriptedSampler  # noqa: E402
from abut.trl import dataset_images, env_reward, scored_only  # noqa: E402
from abut.trl.rows.all_rows import with_all_rows  # noqa: E402
from tests.kit.training.image_run import ImageRun, Writer, rollout_with_images  # noqa: E402
from tests.kit.training.vision import picture  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.* overrides .* of GRPOTrainer:UserWarning"),
]

IMPORT = "does not pass pixels to the model\nhint: train with abut.trl.GRPOTrainer"


# ---- text alone


@pytest.mark.parametrize("name", ["llava", "gemma3", "qwen2_5_vl"])
def test_without_an_image_nothing_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("abut.trl.rows.row_images.images_added", None)
    weights = []
    for trainer_class in (trl.GRPOTrainer, abut.trl.GRPOTrainer):
        run = ImageRun(
            name,
            tmp_path,
            trainer_class=trainer_class,
            prompts=["none"] * 4,
            num_iterations=2,
            beta=0.1,
        ).train()
        weights.append(torch.cat([p.detach().flatten() for p in run.trainer.model.parameters()]))
    assert torch.equal(*weights)


# ---- images of the dataset


class Asks:
    """Has the images in the history, and gets the dataset's columns besides."""

    got: list[Any]

    def __init__(self) -> None:
        self.reward, self.alive = 0.0, True

    def reset(self, seed: str, *, images: Any = None, image: Any = None) -> Any:
        type(self).got.append((images, image))
        return self, ""

    def step(self, action: str) -> Any:
        self.reward, self.alive = len(action) % 5, False
        return self, "Done."


def asked(*blocks: Any) -> list[Any]:
    content = [{"type": "text", "text": b} if isinstance(b, str) else b for b in blocks]
    return [{"role": "user", "content": content}]


HERE = {"type": "image"}


def pil(seed: int, *size: int) -> Any:
    return Image.of(picture(seed, *size)).to_pil()


def images_in(prompt: Any) -> list[Image]:
    return [image for message in prompt for image in images_of(message["content"])]


@pytest.mark.parametrize("column", ["images", "image"])
def test_images_of_the_dataset_are_in_the_prompts(tmp_path: Path, column: str) -> None:
    """Between the texts, where the prompt says so, else before the first one, as in TRL."""
    prompts = [asked("Which?"), asked("A ", HERE, " B ", HERE, "."), asked("None."), asked("This?")]
    shown: list[Any] = [[pil(1)], [pil(2, 60, 40), pil(3)], [], [pil(4)]]
    if column == "image":
        prompts[1], shown = asked("A ", HERE, " B."), [pil(1), pil(2, 60, 40), None, pil(4)]
    told: list[Any] = []

    def reward(prompts: Any, **columns: Any) -> list[float]:
        told.extend(zip(prompts, columns[column], strict=True))
        return [0.1 * k for k in range(len(prompts))]

    env = type("Asks", (Asks,), {"got": []})
    run = ImageRun(
        "qwen2_5_vl",
        tmp_path,
        env=env,
        rows=[{"prompt": p, column: value} for p, value in zip(prompts, shown, strict=True)],
        reward_funcs=[env_reward, scored_only(reward)],
        eval_strategy="steps",
        eval_steps=1,
        max_steps=1,
        num_iterations=2,
        log_completions=True,
    ).train()
    table = [[Image.of(one) for one in images] for images in run.trainer._logs["images"]]
    assert table
    assert table == [images_in(prompt) for prompt, _ in told[-len(table) :]]
    for purpose in ("train old", "train loss", "eval loss"):
        assert run.worst(purpose)[0] < 1e-5
    assert {c.images for c in run.trainer.compared} == ({0, 1, 2} if column == "images" else {0, 1})
    for prompt, value in told:
        given = value if isinstance(value, list) else [value] * (value is not None)
        assert images_in(prompt) == [Image.of(image) for image in given]
    of_env = [images if column == "images" else image for images, image in env.got]
    assert sum(bool(value) for value in of_env) == 3 * len(of_env) // 4


def test_a_wrapped_rollout_func_is_found_or_refused(tmp_path: Path) -> None:
    rows = [{"prompt": asked(HERE, "This?"), "image": pil(1)}] * 4
    env = type("Asks", (Asks,), {"got": []})

    def hidden(rollout_func: Any) -> Any:
        return lambda prompts, trainer: rollout_func(prompts, trainer)

    def wrapped(rollout_func: Any) -> Any:
        return functools.wraps(rollout_func)(hidden(rollout_func))

    run = ImageRun("llava", tmp_path, env=env, rows=rows, wrap=wrapped, max_steps=1).train()
    assert max(run.worst()) < 1e-5
    with pytest.raises(TypeError) as raised:
        ImageRun("llava", tmp_path, env=env, rows=rows, wrap=hidden).train()
    assert str(raised.value) == (
        "the dataset has a column 'image', and the trainer's rollout_func is a wrapper that "
        "hides make_rollout_func(…), so TRL would also run the images through its processor\n"
        "hint: pass make_rollout_func(…) itself, or wrap it with functools.wraps"
    )


# ---- what is refused


def test_trls_own_class_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError) as raised:
        ImageRun("llava", tmp_path, trainer_class=trl.GRPOTrainer, prompts=["one"] * 4).train()
    text = str(raised.value)
    assert text.startswith("rollout train-0-0-")
    assert text.endswith(f" has an image, but GRPOTrainer {IMPORT}")
    messages = asked({"type": "image", "image": Image.of(picture(1))}, "This?")
    task = SimpleNamespace(index=3, messages=messages, columns={})
    with pytest.raises(TypeError) as raised:
        dataset_images.check_images(object(), [task], None)  # type: ignore[arg-type, list-item]
    assert str(raised.value) == f"prompt 3 has an image, but object {IMPORT}"


def test_a_sampler_that_takes_no_images_is_refused(tmp_path: Path) -> None:
    sampler = ScriptedSampler(lambda request: [5])
    with pytest.raises(TypeError) as raised:
        ImageRun("llava", tmp_path, prompts=["three"] * 4, make={"sampler": sampler}).train()
    assert "has images, but ScriptedSampler does not accept images\nhint: use a sampler" in str(
        raised.value
    )


@pytest.fixture
def pictured() -> Any:
    talk = Writer("llava").talk(random.Random(0), [[picture(1)]])
    return rollout_with_images(SimpleNamespace(rollout_id="r1", index=0), 1.0, talk)


def test_ligers_own_loss_is_refused(pictured: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset_images, "trl_version", lambda: (1, 13))
    monkeypatch.setattr(dataset_images, "trl_version_text", lambda: "1.13.0")
    args = SimpleNamespace(use_liger_kernel=True)
    trainer = SimpleNamespace(trains_images=True, args=args)
    with pytest.raises(ValueError, match="liger") as raised:
        dataset_images.check_rollout_images(trainer, [pictured], object())  # type: ignore[arg-type]
    assert str(raised.value) == (
        "rollout r1 has an image, but use_liger_kernel=True with TRL 1.13.0 computes the loss "
        "without pixels\n"
        "hint: pip install 'trl>=1.14', or set use_liger_kernel=False"
    )
    monkeypatch.setattr(dataset_images, "trl_version", lambda: (1, 14))
    dataset_images.check_rollout_images(trainer, [pictured], object())  # type: ignore[arg-type]


def test_images_that_nothing_makes_pixels_of_are_refused(pictured: Any) -> None:
    trainer = SimpleNamespace(trains_images=True, args=None)
    with pytest.raises(TypeError) as raised:
        dataset_images.check_rollout_images(trainer, [pictured], None)
    assert str(raised.value) == (
        "rollout r1 has an image, but the processor= of make_rollout_func has no ImageProcessor "
        "to compute its pixels\n"
        "hint: pass processor=ChatTemplateProcessor(tokenizer, "
        "images=ImageProcessor(hf_processor))"
    )


def test_the_asynchronous_worker_refuses_prompts_with_images() -> None:
    messages = asked({"type": "image", "image": Image.of(picture(1))}, "This?")
    with pytest.raises(TypeError) as raised:
        dataset_images.refuse_images([SimpleNamespace(messages=messages)])  # type: ignore[list-item]
    assert str(raised.value) == (
        "a prompt has an image, but asynchronous trainers do not pass pixels to the model\n"
        "hint: train with abut.trl.GRPOTrainer"
    )


HINT = (
    "\n"
    "hint: with images, the trainer must not change, drop or reorder rows between sampling and "
    "the loss"
)


class Changes(trl.GRPOTrainer):  # type: ignore[misc]
    """Changes a token of the last row."""

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Any, attention_mask: Any, *args: Any, **kwargs: Any
    ) -> Any:
        input_ids, row = input_ids.clone(), attention_mask[-1].nonzero()[:, 0]
        input_ids[-1, row[4]] = 7
        return super()._get_per_token_logps_and_entropies(
            model, input_ids, attention_mask, *args, **kwargs
        )


class Drops(trl.GRPOTrainer):  # type: ignore[misc]
    """Leaves out the last row."""

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Any, attention_mask: Any, *args: Any, **kwargs: Any
    ) -> Any:
        return super()._get_per_token_logps_and_entropies(
            model, input_ids[:-1], attention_mask[:-1], *args, **kwargs
        )


class Repeats(trl.GRPOTrainer):  # type: ignore[misc]
    """Has a row more."""

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Any, attention_mask: Any, *args: Any, **kwargs: Any
    ) -> Any:
        more = [torch.cat([tensor, tensor[-1:]]) for tensor in (input_ids, attention_mask)]
        return super()._get_per_token_logps_and_entropies(model, *more, *args, **kwargs)


class Bypasses(trl.GRPOTrainer):  # type: ignore[misc]
    """Computes a loss of its own."""

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        return model(input_ids=inputs["prompt_ids"]).logits.sum()


@pytest.mark.parametrize(
    ("trainer", "error"),
    [
        (
            Changes,
            r"the trainer changed the ids of row \d: token 4 is \[7\] where the rollout has "
            rf"\[\d+\] \(the row has (\d+) tokens, the rollout \1\){HINT}",
        ),
        (Drops, f"only 1 of 2 rows went through the model{HINT}"),
        (Repeats, f"3 rows went through the model, but the batch has only 2{HINT}"),
        (
            Bypasses,
            "the trainer computed a loss without calling _get_per_token_logps_and_entropies, "
            "which adds the images to the rows\n"
            "hint: call that method for the policy's logprobs",
        ),
    ],
)
def test_a_trainer_that_passes_other_rows_on_is_refused(
    tmp_path: Path, trainer: Any, error: str
) -> None:
    run = ImageRun("llava", tmp_path, trainer_class=with_all_rows(trainer), prompts=["three"] * 4)
    with pytest.raises(RuntimeError) as raised:
        run.train()
    assert re.fullmatch(error, str(raised.value)), str(raised.value)
