"""Images through a real vLLM, as a server and in this process: logprobs are transformers' own."""

import asyncio
import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from safetensors.torch import save_file

from abut import Tokenizer
from abut.errors import SamplerError
from abut.images import Image
from abut.samplers.sampler import Sample, SampleRequest
from abut.samplers.vllm import VLLMColocateSampler, VLLMServerSampler
from abut.samplers.vllm_images import PictureNames
from tests.kit.clients.image_pictures import as_text, encoded, picture
from tests.kit.clients.image_talks import SHOWS, ChatClient
from tests.kit.servers.vllm_server import VLLMServer
from tests.kit.servers.weight_loader import WeightLoader
from tests.kit.stage.agents import serving
from tests.kit.stage.shown_images import SHOWN
from tests.kit.stage.streams import ask
from tests.kit.training.served_vision import MADE, Served, play, worst
from tests.kit.training.served_vision import served as serve
from tests.kit.training.vllm_training import exact_engine, reload_weights, shut_down

pytestmark = pytest.mark.filterwarnings("ignore")  # of vLLM and transformers among themselves


@pytest.fixture(scope="module", params=MADE)
def served(request: Any, tmp_path_factory: Any) -> Served:
    return serve(request.param, Path(tmp_path_factory.mktemp(request.param)) / "model")


@pytest.fixture(scope="module")
def server(served: Served) -> Iterator[VLLMServer]:
    extension = f"{WeightLoader.__module__}.{WeightLoader.__qualname__}"
    server = VLLMServer(served.folder, "--worker-extension-cls", extension).start()
    try:
        yield server.ready()
    finally:
        server.kill()


@pytest.fixture(scope="module")
def llm(served: Served) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHDYNAMO_DISABLE", "1")
        patch.setenv("VLLM_NO_USAGE_STATS", "1")
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        from vllm import LLM

        llm = LLM(
            str(served.folder),
            max_model_len=1024,
            logprobs_mode="processed_logprobs",
            **exact_engine(),
        )
        yield llm
        shut_down(llm)


def test_rollouts_in_this_process_are_exact(served: Served, llm: Any) -> None:
    rollouts = play(served, VLLMColocateSampler(llm))
    assert [len(rollout.images) for rollout in rollouts] == [0, 1, 3, 3]
    assert worst(served, rollouts) < 1e-5
    # The control: other pictures under the same ids have other logprobs.
    assert worst(served, rollouts, lambda image: Image.of(255 - image.pixels)) > 0.1


def test_vision_weights_of_the_batch_before_are_not_used(served: Served, llm: Any) -> None:
    sampler = VLLMColocateSampler(llm)
    assert worst(served, play(served, sampler)) < 1e-5
    tower = [p for name, p in served.model.named_parameters() if "vis" in name]
    kept = [p.detach().clone() for p in tower]
    try:
        for parameter in tower:
            parameter.data *= -0.5
        reload_weights(llm, served.weights().items())
        # Under the names of the batch before, 0.31 looks for what reload_weights has dropped and
        # dies; other ways to load weights drop nothing, and it takes what the old weights saw.
        assert worst(served, play(served, sampler)) < 1e-5
    finally:
        for parameter, before in zip(tower, kept, strict=True):
            parameter.data.copy_(before)
        reload_weights(llm, served.weights().items())


def test_another_picture_size_is_refused_before_vllm_has_it(served: Served, llm: Any) -> None:
    """Ids in which a picture has one token less than vLLM gives it."""
    rollouts = play(served, VLLMColocateSampler(llm))
    columns, (span, *_) = rollouts[1].columns, rollouts[1].images
    ids = np.delete(columns.prompt_ids, span.end - 1)
    short = dataclasses.replace(span, end=span.end - 1, features=span.features - 1)
    asked = SampleRequest(ids, 4, (), 0, "r0", 0, images=(short,))
    with pytest.raises(SamplerError, match="which differ from the"):
        ask(VLLMColocateSampler(llm), asked)
    assert not llm.llm_engine.has_unfinished_requests()


def test_rollouts_of_a_server_are_exact(served: Served, server: VLLMServer) -> None:
    rollouts = play(served, VLLMServerSampler(server.url))
    assert [len(rollout.images) for rollout in rollouts] == [0, 1, 3, 3]
    assert worst(served, rollouts) < 1e-5
    assert worst(served, rollouts, lambda image: Image.of(255 - image.pixels)) > 0.1


def load_patches(served: Served, server: VLLMServer) -> None:
    """Give a server the first layer of the vision tower, and reset what TRL resets then."""
    patches = {name: one for name, one in served.weights().items() if "patch_embed" in name}
    assert patches
    path = served.folder.parent / "patches.safetensors"
    save_file(patches, path)
    rpc = {"method": "load_file", "kwargs": {"path": str(path)}}
    server.post("/collective_rpc", json.dumps(rpc).encode())
    server.post("/reset_prefix_cache")


@contextmanager
def other_patches(served: Served, server: VLLMServer) -> Iterator[None]:
    """The vision tower has another first layer, in the model and on the server."""
    patches = [p for name, p in served.model.named_parameters() if "patch_embed" in name]
    kept = [p.detach().clone() for p in patches]
    try:
        for parameter in patches:
            parameter.data *= -0.5
        load_patches(served, server)
        yield
    finally:
        for parameter, before in zip(patches, kept, strict=True):
            parameter.data.copy_(before)
        load_patches(served, server)


def test_a_server_does_not_use_vision_weights_of_the_batch_before(
    served: Served, server: VLLMServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The control's pictures have the same names in each batch: their hashes alone.
    with monkeypatch.context() as patch:
        patch.setattr(PictureNames, "begin", lambda names: names._known.clear())
        by_hash = VLLMServerSampler(server.url)
        assert worst(served, play(served, by_hash)) < 1e-5
        with other_patches(served, server):
            stale = play(served, by_hash)
            assert worst(served, stale) > 1e-2
    assert worst(served, stale) < 1e-5, "the server took what the old weights had seen"
    sampler = VLLMServerSampler(server.url)
    assert worst(served, play(served, sampler)) < 1e-5
    with other_patches(served, server):
        assert worst(served, play(served, sampler)) < 1e-5


class Losing(VLLMServerSampler):
    """Before each turn but the first, its server loses the pictures that it knows."""

    def __init__(self, server: VLLMServer) -> None:
        super().__init__(server.url)
        self.server = server
        self.whole: list[list[bool]] = []

    async def sample(self, request: SampleRequest) -> Sample:
        if request.turn:
            await asyncio.to_thread(self.server.post, "/reset_mm_cache")
        return await super().sample(request)

    def _body_with_images(self, *asked: Any) -> bytes:
        body = super()._body_with_images(*asked)
        self.whole.append(["url" in part for part in json.loads(body)["content_parts"]])
        return body


def test_a_picture_that_the_server_has_lost_goes_whole_again(
    served: Served, server: VLLMServer
) -> None:
    sampler = Losing(server)
    assert worst(served, play(served, sampler, SHOWN[3:])) < 1e-5
    first, *later = sampler.whole
    assert first == [True, True]
    # By name, which the server refuses, and whole.
    assert later == [[False, False], [True, True], [False, False, False], [True, True, True]]
    kept = VLLMServerSampler(server.url)
    assert worst(served, play(served, kept, SHOWN[3:])) < 1e-5


def test_a_stop_string_beside_images_is_named(served: Served, server: VLLMServer) -> None:
    rollout = play(served, VLLMServerSampler(server.url))[2]
    columns, images = rollout.columns, rollout.images[:1]
    asked = SampleRequest(columns.prompt_ids, 12, (), 3, "r0", 0, images=tuple(images))
    asked = dataclasses.replace(asked, never_token_ids=served.images.never_token_ids)
    sampler = VLLMServerSampler(server.url, generation_kwargs={"ignore_eos": True})

    async def run() -> list[Sample]:
        async with sampler:
            whole = await sampler.sample(asked)
            end = tokenizer.decode(whole.ids[:6])[-1]
            stops = ("not in it", end)
            return [whole, await sampler.sample(dataclasses.replace(asked, stop=stops))]

    tokenizer = Tokenizer.from_pretrained(served.family.processor)
    whole, cut = asyncio.run(run())
    assert (whole.finish_reason, whole.stop_string) == ("length", None)
    assert (cut.finish_reason, len(cut.ids) <= 6) == ("stop", True)
    assert cut.ids.tolist() == whole.ids[: len(cut.ids)].tolist()
    assert cut.stop_string is not None
    assert cut.stop_string in tokenizer.decode(cut.ids)
    assert cut.stop_string not in tokenizer.decode(cut.ids[:-1])


def test_a_gateway_passes_images_on(served: Served, server: VLLMServer) -> None:
    shows = SHOWS["chat"]

    def said(seed: int) -> Any:
        return shows.said("What?", shows.image(as_text(encoded(picture(seed)))))

    sampler = VLLMServerSampler(server.url)
    with serving(sampler, str(served.folder)) as gateway:
        client: Any = ChatClient(gateway, "a", max_tokens=5, seed=3)
        history = [said(1)]
        for more in ([said(2)], [said(1)], []):
            history += [client.ask(history), *more]
        assert client.causes == [None]
        rollout = gateway.end("a", 1.0)
    assert [span.image for span in rollout.images] == [Image.of(picture(k)) for k in (1, 2, 1)]
    assert worst(served, [rollout]) < 1e-5
    assert worst(served, [rollout], lambda image: Image.of(255 - image.pixels)) > 0.1
