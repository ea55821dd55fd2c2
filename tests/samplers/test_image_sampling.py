"""Sampling with images in process: logprobs are those of an independent forward over the row."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from abut import ChatTemplateProcessor, RolloutConfig, Tokenizer
from abut.envs.task import RolloutTask
from abut.errors import SamplerError
from abut.images import Image
from abut.rollout.engine import Engine
from abut.samplers.image_inputs import image_inputs, with_spare_row
from abut.samplers.sampler import SampleRequest
from abut.samplers.transformers import TransformersSampler
from abut.template import ImageProcessor
from tests.kit.stage.shown_images import SHOWN, Shows, sampled
from tests.kit.training.ranks import run_ranks
from tests.kit.training.vision import FAMILIES, model_of, own_logprobs

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def play(name: str, **sampling: Any) -> tuple[Any, Any, Any, list[Any]]:
    family = FAMILIES[name]()
    images = ImageProcessor(family.processor)
    processor = ChatTemplateProcessor(family.processor, images=images)
    model = model_of(family)
    sampler = TransformersSampler(
        model, pad_token_id=family.processor.tokenizer.pad_token_id, images=images, **sampling
    )
    engine = Engine(
        Tokenizer.from_pretrained(family.processor),
        processor,
        sampler,
        RolloutConfig(max_completion_tokens=900, max_turn_tokens=5, max_turns=3),
    )
    tasks = [
        RolloutTask(k, f"r{k}", lambda shown=shown: Shows(shown), [], "", 0)
        for k, shown in enumerate(SHOWN)
    ]
    return family, images, model, engine.run(tasks)


@pytest.mark.parametrize("name", FAMILIES)
def test_logprobs_are_those_of_a_forward_over_the_row(name: str) -> None:
    family, images, model, rollouts = play(name)
    assert [len(rollout.images) for rollout in rollouts] == [0, 1, 3, 3]
    for rollout in rollouts:
        assert rollout.error is None
        assert len(rollout.turns) == 3
        columns = rollout.columns
        row = np.concatenate([columns.prompt_ids, columns.completion_ids])
        pictures = [span.image.to_pil() for span in rollout.images]
        hf = family.processor
        own = own_logprobs(model, hf, row, pictures, never=images.never_token_ids)
        ours = sampled(rollout, columns.logprobs)
        assert len(ours) > 3
        assert np.abs(ours - sampled(rollout, own)).max() < 1e-5
        if not pictures:
            continue
        # The control: with other colours the same row has other logprobs.
        other = [Image.of(255 - span.image.pixels).to_pil() for span in rollout.images]
        wrong = own_logprobs(model, hf, row, other, never=images.never_token_ids)
        assert np.abs(ours - sampled(rollout, wrong)).max() > 0.1


def test_tokens_of_images_are_not_drawn_and_their_probability_is_given_to_the_others() -> None:
    family, images, model, _ = play("llava")
    (media,) = images.media_token_ids
    prompt = np.arange(20, 30)
    model.lm_head.bias = torch.nn.Parameter(torch.zeros(model.lm_head.out_features))
    model.lm_head.bias.data[media] = 40.0

    def draw(never: tuple[int, ...]) -> Any:
        sampler = TransformersSampler(
            model, pad_token_id=family.processor.tokenizer.pad_token_id, images=images
        )
        requests = [
            SampleRequest(prompt, 6, (), k, f"r{k}", 0, never_token_ids=never if k else ())
            for k in range(3)
        ]
        return sampler.sample_batch(requests)

    first, *others = draw((media, 7))
    assert set(first.ids.tolist()) == {media}
    for sample in others:
        row = np.concatenate([prompt, sample.ids])
        own = own_logprobs(model, family.processor, row, [], never=(media, 7))
        assert not {media, 7} & set(sample.ids.tolist())
        np.testing.assert_allclose(sample.logprobs, own[len(prompt) - 1 :], atol=2e-5)


def test_a_sampler_without_an_image_processor_says_so() -> None:
    _, images, model, rollouts = play("llava")
    plain = TransformersSampler(model, pad_token_id=0)
    assert not plain.takes_images
    assert TransformersSampler(model, pad_token_id=0, images=images).takes_images
    request = SampleRequest(
        rollouts[1].columns.prompt_ids, 4, (), 0, "r0", 0, images=tuple(rollouts[1].images)
    )
    with pytest.raises(SamplerError, match="rollout r0, turn 0 has images, but this sampler has"):
        plain.sample_batch([request])
    assert image_inputs(images, [], None, None) == {}
    assert with_spare_row(images, [request]) == [request]
    text = dataclasses.replace(request, images=())
    assert with_spare_row(None, [text]) == [text]
    _, spare = with_spare_row(images, [text])
    assert spare.images[0].features == 16
    assert (spare.max_tokens, spare.stop_token_ids) == (1, text.stop_token_ids)


@pytest.mark.slow
def test_sharded_ranks_of_which_one_has_images_sample_what_a_whole_model_does(
    tmp_path: Path,
) -> None:
    for played in run_ranks("pictures", tmp_path):
        assert played["fsdp2"] == played["whole"]
