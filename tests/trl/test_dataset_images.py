"""Images of a dataset: its columns in prompts, and what is refused before anything is played."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")

from abut import ChatTemplateProcessor, TemplateError, Tokenizer
from abut.envs.task import RolloutTask
from abut.images import Image
from abut.template import ImageProcessor
from abut.trl import make_rollout_func
from abut.trl.dataset_images import refuse_images, with_row_images
from abut.trl.tasks import _check_media_columns
from abut.trl.trainer_engine import image_processor_of
from tests.kit.stage.rollouts import Recording, Stage, Talk, env, row
from tests.kit.training.trl_run import a_trainer, user
from tests.kit.training.vision import chatml, llava, picture

ONE, TWO = Image.of(picture(1)), Image.of(picture(2))
A = {"type": "text", "text": "a"}


def block(image: Any = None) -> dict[str, Any]:
    return {"type": "image"} if image is None else {"type": "image", "image": image}


def shows(*blocks: Any, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": [*blocks]}


@pytest.mark.parametrize(
    ("messages", "row", "expected"),
    [
        ([user("a")], {}, [user("a")]),
        ([user("a")], {"image": picture(1)}, [shows(block(ONE), A)]),
        (
            [user("a"), user("b")],
            {"images": [ONE, TWO]},
            [shows(block(ONE), block(TWO), A), user("b")],
        ),
        ([user("a")], {"image": ONE, "images": [TWO]}, [shows(block(TWO), A)]),
        ([shows(A)], {"image": ONE}, [shows(block(ONE), A)]),
        (
            [shows(A, block()), shows(block())],
            {"images": [ONE, TWO]},
            [shows(A, block(ONE)), shows(block(TWO))],
        ),
        ([shows(block(picture(1)), A)], {}, [shows(block(ONE), A)]),
        # As TRL's own trainer hands it over: it has put the image of the row there.
        ([shows(block(ONE.to_pil()), A)], {"image": picture(1)}, [shows(block(ONE), A)]),
        ([user("a")], {"image": None, "images": None}, [user("a")]),
    ],
)
def test_the_columns_of_a_row_are_in_its_prompt(messages: Any, row: Any, expected: Any) -> None:
    assert with_row_images(messages, row, "prompt 0") == expected


@pytest.mark.parametrize(
    ("column", "held", "said"),
    [
        ("videos", [{"bytes": b"", "path": None}], "abut does not accept video"),
        ("audio", {"array": [0.0], "sampling_rate": 1}, "abut does not accept audio"),
        ("videos", ["clip.mp4", None], None),
        ("audio", 3, None),
    ],
)
def test_media_that_no_prompt_would_show_are_refused(column: str, held: Any, said: Any) -> None:
    row = {"prompt": [user("a")], column: held}
    if said is None:
        return _check_media_columns(row, "prompt 3")
    with pytest.raises(ValueError, match="prompt 3 has a column") as raised:
        _check_media_columns(row, "prompt 3")
    assert f"{column!r} in its row, but {said}\nhint: send " in str(raised.value)


@pytest.mark.parametrize(
    ("messages", "row", "text"),
    [
        (
            [shows(block(), block())],
            {"image": ONE},
            "the row has 1 images, but the messages have 2",
        ),
        (
            [shows(block())],
            {},
            "the row has 0 images, but the messages have 1 blocks for them\nhint:",
        ),
        ([user("a")], {"image": "https://a.example"}, "abut does not download images"),
        ([shows(block(b"no"))], {}, "2 bytes are not an image in a format that abut reads"),
        ([{"role": "system", "content": "s"}], {"image": ONE}, "but the prompt has no user"),
    ],
)
def test_what_cannot_be_put_there_names_the_prompt(messages: Any, row: Any, text: str) -> None:
    with pytest.raises(ValueError, match="prompt 3: ") as raised:
        with_row_images(messages, row, "prompt 3")
    assert text in str(raised.value)


class Seeing(Recording):
    takes_images = True


@pytest.fixture(scope="module")
def hf_processor() -> Any:
    return llava().processor


@pytest.fixture(scope="module")
def seeing(hf_processor: Any) -> Stage:
    processor = ChatTemplateProcessor(hf_processor, images=ImageProcessor(hf_processor))
    return Stage(Tokenizer.from_pretrained(hf_processor), processor)


class Quiet(Talk):
    """Says nothing, and keeps the columns that it gets."""

    texts = ("",)
    got: Any = None

    def reset(self, seed: str, image: Any = None) -> Any:
        type(self).got = image
        return super().reset(seed)


class Trainer(SimpleNamespace):
    """Has the method in whose frame the rows of the dataset are."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        return self.rollout_func([of_row["prompt"] for of_row in inputs], self)


def trainer_of(hf_processor: Any, rollout_func: Any, **changes: Any) -> Any:
    made = a_trainer(hf_processor, trains_images=True, **changes)
    return Trainer(**vars(made), rollout_func=rollout_func)


def test_images_of_the_dataset_reach_the_engine_and_the_environment(
    hf_processor: Any, seeing: Stage
) -> None:
    sampler = Seeing(seeing.says())
    kept: list[Any] = []
    recorder = SimpleNamespace(write=lambda rollout, **extra: kept.append(rollout))
    trainer = trainer_of(hf_processor, make_rollout_func(Quiet, sampler=sampler, recorder=recorder))
    rows = [{"prompt": [user("What?")], "image": picture(1)}] * 2
    columns = trainer._generate_and_score_completions(rows)
    assert Quiet.got is rows[0]["image"], "as it is in the dataset"
    for rollout in kept:
        assert [span.image for span in rollout.images] == [ONE]
        assert rollout.messages[0] == shows(block(ONE), {"type": "text", "text": "What?"})
    assert columns["prompt_ids"] == [rollout.columns.prompt_ids.tolist() for rollout in kept]
    (media,) = seeing.processor.media_token_ids
    assert row(kept[0]).count(media) == 16


def test_a_trainer_that_trains_no_pixels_is_refused_before_anything_is_played(
    hf_processor: Any, seeing: Stage
) -> None:
    sampler = Seeing(seeing.says())
    made = make_rollout_func(Quiet, sampler=sampler)
    trainer = trainer_of(hf_processor, made)
    trainer.trains_images = False
    with pytest.raises(TypeError) as raised:
        trainer._generate_and_score_completions([{"prompt": [user("a")], "image": picture(1)}] * 2)
    assert str(raised.value) == (
        "prompt 0 has an image, but Trainer does not pass pixels to the model\n"
        "hint: train with abut.trl.GRPOTrainer"
    )
    assert not sampler.calls
    trainer.rollout_func = make_rollout_func(env(texts=([block(picture(1))],)), sampler=sampler)
    with pytest.raises(TypeError, match=r"rollout train-0-0-0-\w+ has an image, but Trainer"):
        trainer._generate_and_score_completions([{"prompt": "a"}] * 2)


def test_a_role_whose_images_are_not_written_names_the_prompt(hf_processor: Any) -> None:
    template = chatml("<image>").replace("{{ '<image>' }}", "{{ '<image>' if m.role == 'user' }}")
    sampler = Seeing(lambda request: [5])
    made = make_rollout_func(Quiet, sampler=sampler)
    trainer = trainer_of(hf_processor, made, chat_template=template)
    prompt = [shows(block(picture(1)), role="system"), user("a")]
    with pytest.raises(ValueError, match="prompt 0 has an image in a 'system' message"):
        trainer._generate_and_score_completions([{"prompt": prompt}] * 2)


def test_a_refused_processor_plays_text_and_says_why_it_takes_no_images(hf_processor: Any) -> None:
    made = llava().processor

    class Counting(type(made)):  # type: ignore[misc]
        def get_text_with_replacements(self, text: Any, *args: Any, **kwargs: Any) -> Any:
            texts, offsets = super().get_text_with_replacements(text, *args, **kwargs)
            return ["<s>" + one for one in texts], offsets

    made.__class__ = Counting
    assert image_processor_of(made, None) is None
    stage = Stage(Tokenizer.from_pretrained(made), ChatTemplateProcessor(made))
    trainer = trainer_of(made, make_rollout_func(Quiet, sampler=Seeing(stage.says())))
    columns = trainer._generate_and_score_completions([{"prompt": [user("a")]}] * 2)
    assert len(columns["prompt_ids"]) == 2
    with pytest.raises(TemplateError, match="Counting changes the text around an image"):
        trainer._generate_and_score_completions([{"prompt": [user("a")], "image": picture(1)}] * 2)


def test_the_processor_that_is_given_decides(hf_processor: Any, seeing: Stage) -> None:
    assert image_processor_of(hf_processor, seeing.processor) is seeing.processor.images
    assert image_processor_of(hf_processor, ChatTemplateProcessor(hf_processor)) is None
    assert isinstance(image_processor_of(hf_processor, None), ImageProcessor)
    assert image_processor_of(hf_processor.tokenizer, None) is None


def test_a_failed_rollout_has_a_row_without_tokens_of_images(
    hf_processor: Any, seeing: Stage
) -> None:
    class Breaks(Quiet):
        def step(self, action: str) -> Any:
            raise OSError("gone")

    from abut import RolloutConfig

    config = RolloutConfig(retries=0, max_failed_frac=1.0)
    made = make_rollout_func(Breaks, sampler=Seeing(seeing.says()), config=config)
    trainer = trainer_of(hf_processor, made)
    rows = [{"prompt": [user("a")], "image": picture(1)}] * 2
    columns = trainer._generate_and_score_completions(rows)
    (media,) = seeing.processor.media_token_ids
    for prompt_ids, mask in zip(columns["prompt_ids"], columns["env_mask"], strict=True):
        assert media not in prompt_ids
        assert not any(mask)


def test_the_asynchronous_worker_refuses_images() -> None:
    task = RolloutTask(0, "r0", Talk, [shows(block(ONE))], "", 0)
    with pytest.raises(TypeError, match="asynchronous trainers do not pass pixels to the"):
        refuse_images([task])
    refuse_images([RolloutTask(0, "r0", Talk, [user("a")], "", 0)])


def test_pictures_are_recorded_only_beside_rollouts(tmp_path: Any) -> None:
    with pytest.raises(ValueError, match="record_images= needs recorder="):
        make_rollout_func(Quiet, record_images=tmp_path)
    func = make_rollout_func(Quiet, recorder=tmp_path / "a.jsonl", record_images=tmp_path / "b")
    assert func._arguments.record_images.path == tmp_path / "b"
