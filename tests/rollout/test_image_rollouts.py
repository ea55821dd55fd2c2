"""Rollouts with images: what the sampler gets, what is part of the row, and what is refused."""

import dataclasses
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from abut import ChatTemplateProcessor, Tokenizer, tool_env
from abut.envs.source import bind_all
from abut.errors import SamplerError, TrajectoryError
from abut.images import Image
from abut.records.image_folder import ImageFolder
from abut.records.read import from_record
from abut.records.record import to_record
from abut.rollout.conversation import Conversation
from abut.template import ImageProcessor
from tests.kit.stage.rollouts import BOTH, Recording, Stage, Talk, asynced, check_exact, env, row
from tests.kit.training.vision import chatml, llava, picture

ONE, TWO, THREE = (Image.of(picture(k)) for k in (1, 2, 3))
FEATURES = 16  # of each image of this LLaVA


def block(image: Any) -> dict[str, Any]:
    return {"type": "image", "image": image}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


class Seeing(Recording):
    takes_images = True


@pytest.fixture(scope="module")
def hf_processor() -> Any:
    return llava().processor


@pytest.fixture(scope="module")
def images(hf_processor: Any) -> ImageProcessor:
    return ImageProcessor(hf_processor)


@pytest.fixture(scope="module")
def seeing(hf_processor: Any, images: ImageProcessor) -> Stage:
    processor = ChatTemplateProcessor(hf_processor, images=images)
    return Stage(Tokenizer.from_pretrained(hf_processor), processor)


def play(stage: Stage, *envs: Any, **options: Any) -> Any:
    script = options.pop("script", None) or stage.says("yes")
    return stage.play(*envs, sampler=Seeing(script), **options)


SAID = (
    [block(picture(1)), text("Which?")],
    [{"role": "user", "content": [text("And "), block(TWO), block(ONE)]}],
    "No picture.",
)


@BOTH
def test_each_request_has_the_images_of_its_prompt(seeing: Stage, images: Any, twin: Any) -> None:
    played = play(seeing, twin(env(texts=SAID)))
    rollout = played.one
    assert rollout.error is None
    calls = played.calls(rollout)
    check_exact(rollout.columns, calls)
    assert [[span.image for span in request.images] for request, _ in calls] == [
        [ONE],
        [ONE, TWO, ONE],
        [ONE, TWO, ONE],
    ]
    assert {request.never_token_ids for request, _ in calls} == {images.never_token_ids}
    ids = np.array(row(rollout))
    (media,) = images.media_token_ids
    places = np.flatnonzero(ids == media)
    assert len(places) == 3 * FEATURES
    for k, span in enumerate(rollout.images):
        own = places[k * FEATURES : (k + 1) * FEATURES]
        assert (span.start, span.end, span.features) == (own[0], own[-1] + 1, FEATURES)
    mask = np.concatenate([np.zeros(len(rollout.columns.prompt_ids)), rollout.columns.env_mask])
    assert not mask[places].any()
    assert rollout.main_row.images == rollout.images
    assert rollout.messages[0] == {"role": "user", "content": [block(ONE), text("Which?")]}


def test_images_of_an_asynchronous_environment_are_read_beside_its_loop(
    seeing: Stage, monkeypatch: Any
) -> None:
    from abut import images

    names: list[str] = []
    real = images._of_pixels

    def of_pixels(*args: Any) -> Any:
        names.append(threading.current_thread().name)
        return real(*args)

    loops: list[str] = []

    class Looking(Talk):
        texts = ([block(picture(41))], [{"role": "user", "content": [block(picture(42))]}], "x")

        def say(self) -> Any:
            loops.append(threading.current_thread().name)
            return super().say()

    monkeypatch.setattr(images, "_of_pixels", of_pixels)
    assert len(play(seeing, asynced(Looking)).one.images) == 2
    assert len(names) == 3, "the first one again at the end"
    assert not set(names) & set(loops)


def test_an_image_behind_the_last_sample_is_not_part_of_the_row(seeing: Stage) -> None:
    rollout = play(seeing, env(texts=SAID, turns=1)).one
    assert [span.image for span in rollout.images] == [ONE]
    assert rollout.messages[-1]["content"][1] == block(TWO), "but it was said"
    cut = play(seeing, env(texts=SAID, turns=3), max_turns=1).one
    assert [span.image for span in cut.images] == [ONE]


def test_an_image_that_does_not_fit_ends_the_rollout_as_text_does(seeing: Stage) -> None:
    whole = play(seeing, env(texts=SAID)).one
    first = len(whole.columns.prompt_ids)
    second = whole.turns[1].start
    rollout = play(seeing, env(texts=SAID), context=second).one
    assert rollout.stop_reason == "max_context_tokens"
    assert row(rollout) == row(whole)[: len(row(rollout))]
    assert len(row(rollout)) < second
    assert [span.image for span in rollout.images] == [ONE]
    failed = play(seeing, env(texts=SAID), context=first, retries=0, max_failed_frac=1.0).one
    assert "leaves no room for sampled tokens" in str(failed.error)
    assert failed.images == ()


def test_a_fork_keeps_the_images_that_end_before_it(seeing: Stage) -> None:
    talk = Conversation(seeing.tokenizer, seeing.processor)
    said = seeing.says("yes")(None)  # type: ignore[arg-type]
    talk.open([{"role": "user", "content": [block(ONE), text("a")]}])
    talk.request()
    turn = talk.hear(said, [-0.5] * len(said))
    talk.reply([{"role": "user", "content": [block(TWO), text("b")]}])
    talk.request()
    assert [span.image for span in talk.images] == [ONE, TWO]
    for at, kept in ((0, []), (turn.start, [ONE]), (turn.end, [ONE])):
        fork = talk.fork(at)
        assert [span.image for span in fork.images] == kept
    fork.reply([{"role": "user", "content": [block(THREE)]}])
    assert [span.image for span in fork.images] == [ONE, THREE]
    assert [span.image for span in talk.images] == [ONE, TWO]
    whole = talk.fork(len(talk.trajectory))
    assert whole.images == talk.images


def test_a_sampled_media_token_ends_the_batch(seeing: Stage, images: Any) -> None:
    (media,) = images.media_token_ids
    script = lambda request: [5, media]  # noqa: E731
    with pytest.raises(SamplerError) as raised:
        play(seeing, env(texts=SAID), script=script)
    assert str(raised.value) == (
        "rollout r0, turn 0: '<image>' was sampled, but this token only stands for an image\n"
        "hint: the sampler must never draw the tokens in SampleRequest.never_token_ids"
    )


def test_a_sampler_that_takes_no_images_is_refused(seeing: Stage) -> None:
    assert seeing.play(env(texts=("text",))).one.error is None
    with pytest.raises(TypeError) as raised:
        seeing.play(env(texts=SAID))
    assert str(raised.value).startswith(
        "rollout r0, turn 0 has images, but Recording does not accept images\nhint: use a "
        "sampler whose takes_images is True"
    )


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (
            [block("https://a.example/b.png")],
            "EnvError: Talk.reset replied with an invalid image: abut ",
        ),
        (
            [block(b"PNG")],
            "EnvError: Talk.reset replied with an invalid image: 3 bytes are not an image",
        ),
        (
            [{"type": "image"}],
            "EnvError: Talk.reset replied with an invalid image: a block of type",
        ),
        (
            [{"role": "tool", "content": [block(ONE)]}],
            "EnvError: Talk.reset replied with an image in a 'tool' message: ",
        ),
    ],
)
def test_an_environments_wrong_image_is_its_error(
    hf_processor: Any, images: ImageProcessor, said: Any, error: str
) -> None:
    template = chatml("<image>").replace("{{ '<image>' }}", "{{ '<image>' if m.role == 'user' }}")
    processor = ChatTemplateProcessor(hf_processor, images=images, chat_template=template)
    stage = Stage(Tokenizer.from_pretrained(hf_processor), processor)
    rollout = play(stage, env(texts=(said,)), retries=0, max_failed_frac=1.0).one
    assert str(rollout.error).startswith(error)


def test_without_an_image_processor_an_environments_image_is_refused(
    hf_processor: Any, seeing: Stage
) -> None:
    stage = Stage(seeing.tokenizer, ChatTemplateProcessor(hf_processor))
    rollout = play(stage, env(texts=SAID), retries=0, max_failed_frac=1.0).one
    assert "this processor writes only text" in str(rollout.error)


def test_tools_return_images(seeing: Stage, hf_processor: Any) -> None:
    template = "{% if tools %}{{ tools | tojson }}{% endif %}" + chatml("<image>").replace(
        "{% if m.content is string %}",
        "{% for c in m.tool_calls or [] %}{{ '<tool_call>\n' + (c.function | tojson) + "
        "'\n</tool_call>' }}{% endfor %}{% if m.content is string %}",
    )

    def look(what: str) -> Any:
        """Look at something.

        Args:
            what: it.
        """
        return [text("see"), block(picture(2))] if what == "both" else picture(1)

    source = tool_env([look], reward=lambda messages: float(len(messages)))
    images = seeing.processor.images

    def processor_with(tools: Any) -> Any:
        return ChatTemplateProcessor(
            hf_processor, tools=tools, chat_template=template, images=images
        )

    processor, for_task = bind_all([source], processor_with)
    stage = Stage(seeing.tokenizer, processor)

    def call(what: str) -> str:
        return f'<tool_call>\n{{"name": "look", "arguments": {{"what": "{what}"}}}}\n</tool_call>'

    texts = [call("one"), call("both"), "Done."]
    script = lambda request: stage.says(texts[request.turn])(request)  # noqa: E731
    sampler = Seeing(script)
    (task,) = stage.tasks([source], messages=[{"role": "user", "content": "Look."}])
    task = for_task(dataclasses.replace(task))
    (rollout,) = stage.engine(sampler).run([task])
    assert rollout.error is None, rollout.error
    assert [span.image for span in rollout.images] == [ONE, TWO]
    tools = [m["content"] for m in rollout.messages if m["role"] == "tool"]
    assert tools == [[block(ONE)], [text("see"), block(TWO)]]
    assert rollout.reward == 6.0


def test_a_record_has_the_hashes_and_the_places_of_images(seeing: Stage, tmp_path: Path) -> None:
    rollout = play(seeing, env(texts=SAID)).one
    record = from_record(to_record(rollout))
    assert record["images"] == [
        {
            "hash": span.image.hash,
            "width": 48,
            "height": 32,
            "start": span.start,
            "end": span.end,
        }
        for span in rollout.images
    ]
    assert record["messages"][0]["content"] == [block(ONE.hash), text("Which?")]
    old = {k: v for k, v in to_record(rollout).items() if k != "images"}
    assert from_record(old)["images"] == []
    folder = ImageFolder(tmp_path / "pictures")
    folder.write(rollout)
    files = {path.name: path.read_bytes() for path in folder.path.iterdir()}
    assert files == {f"{image.hash}.png": image.data for image in (ONE, TWO)}
    (folder.path / f"{ONE.hash}.png").write_bytes(b"mine")
    ImageFolder(folder.path).write(rollout)
    assert (folder.path / f"{ONE.hash}.png").read_bytes() == b"mine", "each is written once"
    (folder.path / f"{ONE.hash}.png").unlink()
    folder.write(rollout)
    assert not (folder.path / f"{ONE.hash}.png").exists()


def test_a_processor_that_says_a_wrong_number_of_features_is_found(seeing: Stage) -> None:
    class Wrong(ChatTemplateProcessor):
        def opening(self, messages: Any) -> Any:
            parts = super().opening(messages)
            for part in parts:
                if hasattr(part, "features"):
                    part.features += 1
            return parts

    processor = seeing.processor
    wrong = object.__new__(Wrong)
    wrong.__dict__.update(processor.__dict__)
    talk = Conversation(seeing.tokenizer, wrong)
    with pytest.raises(
        TrajectoryError, match="the prompt has 16 media tokens, but its 1 images have 17"
    ):
        talk.open([{"role": "user", "content": [block(Image.of(picture(77)))]}])


def test_text_rollouts_have_no_images(stage: Stage) -> None:
    played = stage.play(Talk)
    assert played.one.images == []
    assert {request.images for request, _ in played.calls(played.one)} == {()}
    assert {request.never_token_ids for request, _ in played.calls(played.one)} == {()}
