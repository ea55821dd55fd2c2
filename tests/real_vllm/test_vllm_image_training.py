"""GRPO on rows with images from vLLM: what it sampled is what the trained model says, step by step.

As in the tests of text, weights go by way of a file; all else is TRL's.
"""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from trl import GRPOConfig

from abut import RolloutConfig
from abut.template import ImageProcessor
from abut.trl import env_reward, make_rollout_func
from tests.kit.servers.vllm_server import VLLMServer
from tests.kit.training.example_run import CPU
from tests.kit.training.image_run import SHOWN, Squares, Watched
from tests.kit.training.served_vision import Served, served
from tests.kit.training.vision import own_logprobs
from tests.kit.training.vllm_training import on_the_cpu, reload_weights, send, shut_down

pytestmark = pytest.mark.filterwarnings("ignore")  # of TRL and vLLM among themselves

STEPS = 3


class Against(Watched):
    """Compares the engine's logprobs with a forward in which media tokens are not drawn either."""

    def _compare(self, model: Any, row: Any, logps: Any) -> tuple[float, float]:
        from_own, _ = super()._compare(model, row, logps)
        columns = row.columns
        ids = np.concatenate([columns.prompt_ids, columns.completion_ids])
        pictures = [span.image.to_pil() for span in row.images]
        never = ImageProcessor(self.processing_class).never_token_ids
        own = own_logprobs(model, self.processing_class, ids, pictures, never=never)
        drawn = columns.env_mask == 1
        engine = torch.from_numpy(np.array(columns.logprobs[drawn]))
        return from_own, float((own[-len(drawn) :][drawn] - engine).abs().max())


@pytest.fixture
def qwen(tmp_path: Path) -> Served:
    one = served("qwen2_5_vl", tmp_path / "model")
    one.model.name_or_path = str(one.folder)  # from which TRL makes its engine
    return one


def a_trainer(served: Served, out: Path, **args: Any) -> Any:
    settings = {
        **CPU,
        "output_dir": str(out),
        "use_vllm": True,
        "max_steps": STEPS,
        "per_device_train_batch_size": 8,
        "num_generations": 2,
        "max_completion_length": 700,
        "learning_rate": 1e-2,
        "gradient_checkpointing": False,
        "logging_steps": 1,
    }
    trainer = Against(
        model=served.model,
        args=GRPOConfig(**settings | args),
        processing_class=served.family.processor,
        reward_funcs=env_reward,
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in SHOWN]),
        rollout_func=make_rollout_func(
            Squares, config=RolloutConfig(max_turn_tokens=4, max_turns=3, retries=0)
        ),
    )
    trainer.compared = []
    return trainer


def check(trainer: Any, *, synced: bool = True) -> None:
    compared = trainer.compared
    assert {c.images for c in compared} == {0, 1, 2, 3}
    assert max(c.from_own for c in compared) < 1e-5
    of_steps = np.array_split([c.from_engine for c in compared], STEPS)
    assert of_steps[0].max() < 1e-5
    later = np.concatenate(of_steps[1:])
    if synced:
        assert later.max() < 1e-5
    else:
        assert min(step.max() for step in of_steps[1:]) > 1e-3


def first_layer(served: Served) -> Any:
    (weight,) = (p for name, p in served.model.named_parameters() if "patch_embed" in name)
    return weight.detach().clone()


@pytest.mark.parametrize("synced", [True, False], ids=["synced", "without sync"])
def test_rows_of_a_server(
    qwen: Served, synced: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trl.generation.vllm_client import VLLMClient

    server = VLLMServer(qwen.folder).start()
    before = first_layer(qwen)

    def update(client: Any, metadata: Any, params: Any) -> None:
        if synced:
            send(server, tmp_path, params)

    monkeypatch.setattr(VLLMClient, "init_communicator", lambda client, **_: None)
    monkeypatch.setattr(VLLMClient, "update_named_params", update)
    try:
        server.ready()
        settings = {"vllm_mode": "server", "vllm_server_base_url": server.url}
        trainer = a_trainer(qwen, tmp_path / "out", **settings)
        trainer.train()
    finally:
        server.kill()
    assert not torch.equal(first_layer(qwen), before), "the vision tower learns"
    check(trainer, synced=synced)


def test_rows_of_an_engine_in_the_process(
    qwen: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import trl.generation.vllm_generation as generation

    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    monkeypatch.setenv("VLLM_NO_USAGE_STATS", "1")
    monkeypatch.setattr(generation, "LLM", functools.partial(generation.LLM, **on_the_cpu()))
    settings = {"vllm_mode": "colocate", "vllm_max_model_length": 1024}
    trainer = a_trainer(qwen, tmp_path / "out", **settings)
    generate = trainer.vllm_generation

    def sync(_: Any) -> None:
        reload_weights(generate.llm, generate._iter_named_params())

    monkeypatch.setattr(generation.VLLMGeneration, "sync_weights", sync)
    trainer.train()
    shut_down(generate.llm)
    check(trainer)
