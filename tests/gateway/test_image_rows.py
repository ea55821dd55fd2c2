"""Agents that show images to a model in this process: rows are replayed by a plain forward."""

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("PIL")
pytest.importorskip("torch")

from abut import RolloutConfig, agent
from abut.images import Image
from abut.rollout.engine import Engine
from abut.samplers.transformers import TransformersSampler
from tests.kit.clients.image_pictures import as_text, encoded
from tests.kit.clients.image_talks import SHOWS, Asks, Shows, check_images
from tests.kit.stage.agents import play_agents
from tests.kit.stage.rollouts import Stage
from tests.kit.training.vision import FAMILIES, Family, model_of, own_logprobs, picture

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

SHOWN = (picture(1), picture(2, 61, 33), picture(3))


def looks(shows: type[Shows]) -> Any:
    """An agent that shows one picture more in each turn, and encodes all of them anew."""

    def play(endpoint: Any) -> None:
        client: Any = shows.kind(Asks(endpoint))  # type: ignore[arg-type]
        answers: list[Any] = []
        for turn in range(len(SHOWN)):
            history: list[Any] = []
            for number, pixels in enumerate(SHOWN[: turn + 1]):
                data = as_text(encoded(pixels, compress_level=turn))
                history.append(shows.said("What?", shows.image(data)))
                if number < turn:
                    history += shows.answered(answers[number])
            answers.append(client.ask(history))

    @agent
    async def look(endpoint: Any) -> float:
        await asyncio.to_thread(play, endpoint)
        return 1.0

    return look


@pytest.fixture(scope="module")
def seen() -> tuple[Family, Any]:
    family = FAMILIES["qwen2_5_vl"]()
    return family, model_of(family)


@pytest.mark.parametrize("name", SHOWS)
def test_logprobs_are_those_of_a_forward_over_the_row(seen: tuple[Family, Any], name: str) -> None:
    from abut import ChatTemplateProcessor, Tokenizer
    from abut.template import ImageProcessor

    family, model = seen
    hf_processor = family.processor
    images = ImageProcessor(hf_processor)
    stage = Stage(
        Tokenizer.from_pretrained(hf_processor),
        ChatTemplateProcessor(hf_processor, images=images),
    )
    sampler = TransformersSampler(
        model, pad_token_id=hf_processor.tokenizer.pad_token_id, images=images
    )
    engine = Engine(
        stage.tokenizer,
        stage.processor,
        sampler,
        RolloutConfig(max_completion_tokens=900, max_turn_tokens=6, retries=0),
    )
    played = play_agents(stage, looks(SHOWS[name]), sampler=SimpleNamespace(), engine=engine)
    rollout = played.one
    assert rollout.error is None, "\n".join(rollout.attempt_tracebacks)
    # Turns of random weights may be blank, and clients of some dialects leave those out.
    rows = [rollout, *rollout.branches]
    assert [branch.cause for branch in rollout.branches] == []
    assert len(rollout.turns) == 3
    check_images(rollout, stage, *SHOWN)
    for one in rows:
        columns = one.columns
        assert columns is not None
        ids = np.concatenate([columns.prompt_ids, columns.completion_ids])
        pictures = [span.image.to_pil() for span in one.images]
        never = images.never_token_ids
        own = np.asarray(own_logprobs(model, hf_processor, ids, pictures, never=never))
        sampled = columns.env_mask == 1
        ours = columns.logprobs[sampled]
        assert np.abs(ours - own[-len(sampled) :][sampled]).max() < 1e-5
        # The control: with other colours the same row has other logprobs.
        others = [Image.of(255 - span.image.pixels).to_pil() for span in one.images]
        wrong = np.asarray(own_logprobs(model, hf_processor, ids, others, never=never))
        assert np.abs(ours - wrong[-len(sampled) :][sampled]).max() > 1e-3
