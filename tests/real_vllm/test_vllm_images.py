"""Images through a real vLLM, as a server and in this process: logprobs are transformers' own."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from abut import ChatTemplateProcessor, RolloutConfig, Tokenizer
from abut.envs.task import RolloutTask
from abut.errors import SamplerError
from abut.images import Image
from abut.rollout.engine import Engine
from abut.samplers.sampler import SampleRequest
from abut.samplers.vllm import VLLMColocateSampler, VLLMServerSampler
from abut.template import ImageProcessor
from tests.kit.servers.vllm_server import VLLMServer
from tests.kit.stage.shown_images import SHOWN, Shows, sampled
from tests.kit.stage.streams import ask
from tests.kit.training.vision import Family, llava, model_of, own_logprobs, qwen2_5_vl
from tests.kit.training.vllm_training import on_the_cpu, reload_weights

pytestmark = pytest.mark.filterwarnings("ignore")  # of vLLM and transformers among themselves

# Attention on the CPU has no heads of fewer than 32 dimensions.
_ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 6, 6]}
MADE = {
    "llava": lambda: llava(head_dim=32),
    "qwen2_5_vl": lambda: qwen2_5_vl(hidden_size=128, rope_parameters=_ROPE),
}


class Served(NamedTuple):
    """A family, its model, and the folder from which vLLM has it."""

    name: str
    family: Family
    images: ImageProcessor
    model: Any
    folder: Path

    def weights(self) -> dict[str, Any]:
        """The weights under the names that vLLM knows, which are those of checkpoints."""
        self.model.save_pretrained(self.folder)
        (file,) = self.folder.glob("*.safetensors")
        inner = "vision_tower.vision_model."
        tensors = {
            name if inner in name else name.replace("vision_tower.", inner): tensor
            for name, tensor in load_file(file).items()
        }
        save_file(tensors, file, {"format": "pt"})
        return tensors


@pytest.fixture(scope="module", params=MADE)
def served(request: Any, tmp_path_factory: Any) -> Served:
    pytest.importorskip("torchvision", reason="vLLM's vision models import torchvision")
    import transformers

    made = MADE[request.param]()
    folder = Path(tmp_path_factory.mktemp(request.param)) / "model"
    processor = made.processor
    if request.param == "qwen2_5_vl":  # which is made without its part for videos
        processor = transformers.Qwen2_5_VLProcessor(
            processor.image_processor,
            processor.tokenizer,
            transformers.Qwen2VLVideoProcessor(patch_size=4, merge_size=2),
            chat_template=processor.chat_template,
        )
    processor.save_pretrained(folder)
    # Read as vLLM reads it: with torchvision the pixels would be others, and logprobs by 2e-4.
    family = Family(transformers.AutoProcessor.from_pretrained(folder), made.model)
    images = ImageProcessor(family.processor)
    model = model_of(family)
    head = model.lm_head.weight
    # Wider models have larger logits, of which float32 keeps fewer digits behind the point.
    head.data *= (32 / head.shape[1]) ** 0.5
    one = Served(request.param, family, images, model, folder)
    one.weights()
    return one


@pytest.fixture(scope="module")
def server(served: Served) -> Iterator[VLLMServer]:
    server = VLLMServer(served.folder).start()
    try:
        yield server.ready()
    finally:
        server.kill()


def play(served: Served, sampler: Any) -> list[Any]:
    hf = served.family.processor
    engine = Engine(
        Tokenizer.from_pretrained(hf),
        ChatTemplateProcessor(hf, images=served.images),
        sampler,
        RolloutConfig(max_completion_tokens=700, max_turn_tokens=5, max_turns=3),
    )
    tasks = [
        RolloutTask(k, f"r{k}", lambda shown=shown: Shows(shown), [], "", 0)
        for k, shown in enumerate(SHOWN)
    ]
    return engine.run(tasks)


def worst(
    served: Served, rollouts: list[Any], seen: Callable[[Image], Image] = lambda image: image
) -> float:
    """The largest difference of a sampled logprob to transformers' own, which sees pictures so."""
    most = 0.0
    for rollout in rollouts:
        assert rollout.error is None
        columns = rollout.columns
        row = np.concatenate([columns.prompt_ids, columns.completion_ids])
        pictures = [seen(span.image).to_pil() for span in rollout.images]
        never = served.images.never_token_ids
        own = own_logprobs(served.model, served.family.processor, row, pictures, never=never)
        ours = sampled(rollout, columns.logprobs)
        assert len(ours) > 3
        most = max(most, float(np.abs(ours - sampled(rollout, own)).max()))
    print(f"{served.name}: {most:.2g}")
    return most


@pytest.fixture(scope="module")
def llm(served: Served) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHDYNAMO_DISABLE", "1")
        patch.setenv("VLLM_NO_USAGE_STATS", "1")
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        from vllm import LLM

        yield LLM(
            str(served.folder),
            max_model_len=1024,
            logprobs_mode="processed_logprobs",
            **on_the_cpu(),
        )


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
    with pytest.raises(SamplerError, match="which are not the"):
        ask(VLLMColocateSampler(llm), asked)
    assert not llm.llm_engine.has_unfinished_requests()


def test_rollouts_of_a_server_are_exact(served: Served, server: VLLMServer) -> None:
    sampler = VLLMServerSampler(server.url)
    rollouts = play(served, sampler)
    assert [len(rollout.images) for rollout in rollouts] == [0, 1, 3, 3]
    assert worst(served, rollouts) < 1e-5
    assert worst(served, rollouts, lambda image: Image.of(255 - image.pixels)) > 0.1
