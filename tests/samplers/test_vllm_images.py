"""Images through vLLM's samplers, against a server and an engine that only count."""

import asyncio
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("PIL")

from abut.errors import SamplerError
from abut.images import Image, ImageSpan, Placeholder
from abut.samplers.sampler import ImageSampler, Sample, SampleRequest
from abut.samplers.vllm import VLLMColocateSampler, VLLMServerSampler
from abut.samplers.vllm_images import with_placeholders
from tests.kit.data.requests import request
from tests.kit.servers.fake_server import status
from tests.kit.servers.image_server import MISS, ImageServer
from tests.kit.stage import fake_vllm
from tests.kit.stage.streams import ask as ask_colocate

MEDIA, FEATURES = ImageServer.media, ImageServer.features
PLAIN = Placeholder(MEDIA, (), ())
FENCED = Placeholder(401, (410, 411), (412,))
RED, BLUE, GREY = (
    Image.of(np.full((4, 6, 3), colour, np.uint8)) for colour in ([255, 0, 0], [0, 0, 255], [9] * 3)
)


def pictured(
    *pieces: int | Image, placeholder: Placeholder = PLAIN, **changes: Any
) -> SampleRequest:
    """A request for a prompt of ids and images."""
    ids: list[int] = []
    spans = []
    for piece in pieces:
        if isinstance(piece, int):
            ids.append(piece)
            continue
        ids += placeholder.before
        spans.append(ImageSpan(piece, len(ids), len(ids) + FEATURES, FEATURES, placeholder))
        ids += [MEDIA] * FEATURES
        ids += placeholder.behind
    fields = {"images": tuple(spans), "never_token_ids": (MEDIA, 401), **changes}
    return request(prompt_ids=np.asarray(ids), **fields)


@pytest.fixture
def server() -> Iterator[ImageServer]:
    with ImageServer() as server:
        yield server


def ask(sampler: VLLMServerSampler, *requests: SampleRequest) -> list[Sample]:
    """The samples of requests that are asked one after the other, in one batch."""

    async def run() -> list[Sample]:
        async with sampler:
            return [await sampler.sample(request) for request in requests]

    return asyncio.run(asyncio.wait_for(run(), 60))


def error_of(sampler: VLLMServerSampler, *requests: SampleRequest) -> str:
    with pytest.raises(SamplerError) as raised:
        ask(sampler, *requests)
    return str(raised.value)


def names(body: dict[str, Any]) -> list[str]:
    return [part["uuid"] for part in body["content_parts"]]


def whole(body: dict[str, Any]) -> list[bool]:
    return ["url" in part for part in body["content_parts"]]


# ---- the server


def test_a_request_has_one_placeholder_and_one_part_for_each_image(server: ImageServer) -> None:
    sampler = VLLMServerSampler(server.url, generation_kwargs={"logit_bias": {"3": 1.5}})
    assert isinstance(sampler, ImageSampler)
    assert sampler.takes_images
    (sample,) = ask(sampler, pictured(5, RED, BLUE, 6, RED))
    assert sample.logprobs.tolist() == [-0.125, -0.25, -0.375, -0.5]
    (body,) = server.requests
    assert body["token_ids"] == [5, MEDIA, MEDIA, 6, MEDIA]
    assert body["return_token_ids"] is True
    assert body["sampling_params"]["logit_bias"] == {"3": 1.5, str(MEDIA): -100, "401": -100}
    sent = [Image.of(part["url"]) for part in body["content_parts"]]
    assert sent == [RED, BLUE, RED]
    assert {part["type"] for part in body["content_parts"]} == {"image_url"}
    first, second, third = names(body)
    assert first == third != second
    assert first.startswith(RED.hash)


def test_a_picture_that_the_rollouts_server_knows_goes_by_its_name(server: ImageServer) -> None:
    ask(
        VLLMServerSampler(server.url),
        pictured(5, RED),
        pictured(5, RED, 6, BLUE),
        pictured(5, RED, rollout_id="r1"),
    )
    assert [whole(body) for body in server.requests] == [[True], [False, True], [True]]


def test_a_picture_that_the_server_has_lost_is_sent_whole(server: ImageServer) -> None:
    sampler = VLLMServerSampler(server.url)

    async def run() -> Sample:
        async with sampler:
            await sampler.sample(pictured(5, RED))
            server.pictures.clear()
            return await sampler.sample(pictured(5, RED, 6))

    sample = asyncio.run(asyncio.wait_for(run(), 60))
    assert sample.finish_reason == "length"
    assert [whole(body) for body in server.requests] == [[True], [False], [True]]


def test_a_cache_miss_of_a_whole_picture_is_an_error() -> None:
    with ImageServer([status(400, MISS)]) as server:
        text = error_of(VLLMServerSampler(server.url), pictured(5, RED))
    assert "rollout r0, turn 0: " in text
    assert MISS in text
    assert len(server.requests) == 1


def test_each_batch_has_names_of_its_own(server: ImageServer) -> None:
    """The weights may have changed in between, and vLLM would keep what the old ones saw."""
    sampler = VLLMServerSampler(server.url)
    ask(sampler, pictured(5, RED), pictured(5, RED, 6))
    ask(sampler, pictured(5, RED))
    ask(VLLMServerSampler(server.url), pictured(5, RED))
    ask(sampler.with_settings(temperature=0.0), pictured(5, RED))
    first, again, *others = (names(body)[0] for body in server.requests)
    assert first == again
    assert len({first, *others}) == 4
    assert [whole(body)[0] for body in server.requests] == [True, False, True, True, True]


def test_another_prompt_than_ours_is_an_error(server: ImageServer) -> None:
    server.features = FEATURES + 1
    text = error_of(VLLMServerSampler(server.url), pictured(5, RED, 6, BLUE))
    assert "received 10 prompt tokens, which differ from the 8 of the request" in text
    assert "hint: the request has 2 images: the served model and the rollouts' processor" in text


def test_as_many_but_other_tokens_are_an_error(server: ImageServer) -> None:
    asked = pictured(5, RED, 6, BLUE)
    moved = asked.prompt_ids.copy()
    moved[[0, 4]] = moved[[4, 0]]
    with ImageServer([_repeating(moved.tolist())]) as other:
        text = error_of(VLLMServerSampler(other.url), asked)
    assert "received 8 prompt tokens, which differ from the 8 of the request" in text


def _repeating(ids: list[int]) -> Any:
    async def fault(server: Any, writer: Any, body: Any) -> None:
        server.write(writer, 200, server.completion(body) | {"prompt_token_ids": ids})

    return fault


def test_a_server_that_does_not_repeat_the_prompt_is_refused(server: ImageServer) -> None:
    server.repeats = False
    text = error_of(VLLMServerSampler(server.url), pictured(5, RED))
    assert "does not repeat the prompt, so abut cannot check what the model has seen" in text
    assert text.endswith("hint: use vLLM 0.30 or later, which repeats the prompt")


@pytest.mark.parametrize("asked", [pictured(5, RED), pictured(5)], ids=["image", "text"])
def test_a_drawn_media_token_is_an_error(asked: SampleRequest) -> None:
    async def fault(server: Any, writer: Any, body: Any) -> None:
        answer = server.completion(body)
        answer["choices"][0]["token_ids"][1] = MEDIA
        server.write(writer, 200, answer)

    with ImageServer([fault]) as server:
        text = error_of(VLLMServerSampler(server.url), asked)
    assert f"the engine drew a token that stands for an image: one of ({MEDIA}, 401)" in text


@pytest.mark.parametrize("endpoint", ["completions", "generate"])
def test_a_text_request_of_a_model_with_images_draws_none_of_their_tokens(
    server: ImageServer, endpoint: Any
) -> None:
    ask(VLLMServerSampler(server.url, endpoint=endpoint), pictured(5), request())
    first, second = (body.get("sampling_params", body) for body in server.requests)
    assert first["logit_bias"] == {str(MEDIA): -100, "401": -100}
    assert "logit_bias" not in second
    assert all("content_parts" not in body for body in server.requests)


@pytest.mark.parametrize(
    ("settings", "stop"), [({}, ("206 ",)), ({"generation_kwargs": {"stop": "206 "}}, ())]
)
def test_a_stop_string_beside_images_is_named(settings: Any, stop: Any) -> None:
    async def stopped(server: Any, writer: Any, body: Any) -> None:
        answer = server.completion(body)
        answer["choices"][0]["finish_reason"] = "stop"
        server.write(writer, 200, answer)

    with ImageServer([stopped]) as server:
        (sample,) = ask(VLLMServerSampler(server.url, **settings), pictured(5, RED, stop=stop))
    assert sample.ids.tolist() == [205, 206, 207, 208]
    assert (sample.finish_reason, sample.stop_string) == ("stop", "206 ")
    assert server.requests[0]["sampling_params"]["stop"] in ("206 ", ["206 "])


def test_a_server_that_takes_fewer_images_is_named() -> None:
    said = "At most 1 image(s) may be provided in one prompt."
    with ImageServer([status(400, said)]) as server:
        text = error_of(VLLMServerSampler(server.url), pictured(5, RED, BLUE))
    assert text.endswith("hint: start vLLM with a larger --limit-mm-per-prompt")


def test_an_aborted_sample_with_images_is_drawn_again() -> None:
    async def abort(server: Any, writer: Any, body: Any) -> None:
        answer = server.completion(body)
        answer["choices"][0]["finish_reason"] = "abort"
        server.write(writer, 200, answer)

    with ImageServer([abort]) as server:
        (sample,) = ask(VLLMServerSampler(server.url), pictured(5, RED))
    assert sample.finish_reason == "length"
    assert [whole(body) for body in server.requests] == [[True], [False]]


# ---- placeholders


def test_the_whole_expansion_is_one_placeholder() -> None:
    asked = pictured(5, RED, BLUE, 6, placeholder=FENCED)
    assert with_placeholders(asked) == [5, 401, 401, 6]


def test_an_expansion_that_has_merged_with_the_text_beside_it_is_refused() -> None:
    asked = pictured(5, RED, 6, placeholder=FENCED)
    for place in (1, 6):
        merged = asked.prompt_ids.copy()
        merged[place] = 499
        with pytest.raises(SamplerError, match="this text has merged with the text next to"):
            with_placeholders(
                request(prompt_ids=merged, images=asked.images, never_token_ids=(MEDIA,))
            )


def test_expansions_that_overlap_are_refused() -> None:
    asked = pictured(5, RED, BLUE, placeholder=FENCED)
    first, second = asked.images
    shared = second.placeholder._replace(before=(MEDIA, 412, 410, 411))  # type: ignore[union-attr]
    spans = (first, ImageSpan(BLUE, second.start, second.end, FEATURES, shared))
    with pytest.raises(SamplerError, match="has merged"):
        with_placeholders(request(prompt_ids=asked.prompt_ids, images=spans))


def test_tokens_of_an_image_that_did_not_come_are_refused() -> None:
    asked = pictured(5, RED, 6, BLUE)
    for kept in (asked.images[:1], asked.images[1:]):
        with pytest.raises(SamplerError, match=r"has the image tokens \[400\]"):
            with_placeholders(
                request(prompt_ids=asked.prompt_ids, images=kept, never_token_ids=(MEDIA,))
            )


def test_an_image_without_its_placeholder_is_refused() -> None:
    span = ImageSpan(RED, 1, 4, 3)
    with pytest.raises(
        SamplerError, match=r"the placeholder of .*, which the request does not have"
    ):
        with_placeholders(request(prompt_ids=np.asarray([5, 400, 400, 400]), images=(span,)))


# ---- in this process


@pytest.fixture
def _vllm(monkeypatch: Any) -> None:
    modules: dict[str, Any] = {}
    fake_vllm.install(modules)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)


class Renderer:
    """Expands as vLLM does."""

    def __init__(self, features: int = FEATURES) -> None:
        self.features = features
        self.prompts: list[dict[str, Any]] = []

    def render_cmpl(self, prompts: list[dict[str, Any]]) -> list[dict[str, Any]]:
        self.prompts += prompts
        return [
            {
                "type": "multimodal",
                "prompt_token_ids": [
                    token
                    for id_ in prompt["prompt_token_ids"]
                    for token in ([MEDIA] * self.features if id_ == MEDIA else [id_])
                ],
            }
            for prompt in prompts
        ]


@pytest.mark.usefixtures("_vllm")
def test_images_in_this_process_beside_text() -> None:
    llm = fake_vllm.llm(renderer=Renderer())
    sampler = VLLMColocateSampler(llm)
    assert sampler.takes_images
    assert not VLLMColocateSampler(fake_vllm.llm()).takes_images
    ask_colocate(sampler, pictured(5, RED, 6, BLUE, RED), request("r1"))
    ask_colocate(sampler, pictured(5, RED))
    engine = llm.llm_engine
    first, second = engine.renderer.prompts
    assert first["prompt_token_ids"] == [5, MEDIA, 6, MEDIA, MEDIA]
    pixels = [np.asarray(image) for image in first["multi_modal_data"]["image"]]
    for shown, image in zip(pixels, (RED, BLUE, RED), strict=True):
        assert np.array_equal(shown, image.pixels)
    uuids = first["multi_modal_uuids"]["image"]
    assert uuids[0] == uuids[2] != uuids[1]
    assert uuids[0] != second["multi_modal_uuids"]["image"][0], "the weights may be others"
    bias = {MEDIA: -100, 401: -100}
    said = [
        (len(ids), params.logit_bias)
        for (_, ids), params in zip(engine.admitted, engine.params, strict=True)
    ]
    assert sorted(said[:2], key=str) == [(11, bias), (4, None)]


@pytest.mark.usefixtures("_vllm")
def test_another_prompt_is_refused_before_it_is_admitted() -> None:
    llm = fake_vllm.llm(renderer=Renderer(features=5))
    with pytest.raises(SamplerError) as raised:
        ask_colocate(VLLMColocateSampler(llm), pictured(5, RED))
    assert str(raised.value).startswith(
        "rollout r0, turn 0: the engine received 6 prompt tokens, which differ from the 4"
    )
    assert llm.llm_engine.admitted == []


@pytest.mark.usefixtures("_vllm")
def test_a_media_token_drawn_in_this_process_is_an_error() -> None:
    def change(output: Any) -> None:
        output.outputs[0].token_ids[0] = MEDIA
        output.outputs[0].logprobs[0] = {MEDIA: SimpleNamespace(logprob=-0.1)}

    llm = fake_vllm.llm(renderer=Renderer(), change=change)
    with pytest.raises(SamplerError, match="drew a token that stands for an image"):
        ask_colocate(VLLMColocateSampler(llm), pictured(5, RED))
