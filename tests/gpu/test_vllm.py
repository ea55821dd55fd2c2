"""GRPO with vLLM on the GPU: in the trainer's process, and as a server with weights by NCCL."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from abut.samplers.vllm import VLLMServerSampler  # noqa: E402
from tests.kit.data.requests import requests  # noqa: E402
from tests.kit.stage.streams import ask  # noqa: E402
from tests.kit.training.example_run import training_on  # noqa: E402
from tests.kit.training.forward_pass import worst  # noqa: E402
from tests.kit.training.vllm_training import (  # noqa: E402
    LEARNING,
    a_trainer,
    check_learning,
    exact_engines,
    send,
    shut_down,
)


@pytest.mark.parametrize("sleeps", [False, True], ids=["awake", "sleeping between batches"])
def test_training_with_an_engine_in_the_process(
    sleeps: bool,
    vllm: Any,
    device: str,
    close: float,
    model_folder: Path,
    hf_tokenizer: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from transformers import AutoModelForCausalLM

    if sleeps and device == "cpu":
        pytest.skip("sleep mode needs a GPU")
    exact_engines(monkeypatch, device)
    trainer, outputs = a_trainer(
        AutoModelForCausalLM.from_pretrained(model_folder),
        hf_tokenizer,
        tmp_path / "out",
        vllm_mode="colocate",
        vllm_max_model_length=1024,
        vllm_enable_sleep_mode=sleeps,
        **LEARNING,
        **training_on(device),
    )
    trainer.train()
    shut_down(trainer.vllm_generation.llm)
    check_learning(trainer, outputs, synced=True, close=close)


def a_server_trainer(server: Any, model: Any, hf_tokenizer: Any, out: Path, device: str) -> Any:
    settings = {"vllm_mode": "server", "vllm_server_base_url": server.url}
    return a_trainer(model, hf_tokenizer, out, **settings, **LEARNING, **training_on(device))


@pytest.mark.parametrize("synced", [True, False], ids=["synced", "without sync"])
def test_training_with_a_server_that_gets_weights_by_nccl(
    synced: bool,
    two_gpus: dict[str, str],
    device: str,
    close: float,
    start_server: Any,
    model_folder: Path,
    untied: Any,
    hf_tokenizer: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of it is TRL's own; NCCL refuses two processes on one GPU, so the server has another."""
    from trl.generation.vllm_client import VLLMClient

    if device == "cpu":
        pytest.skip("NCCL needs a GPU")
    if not synced:
        monkeypatch.setattr(VLLMClient, "update_named_params", lambda *_: None)
    _, second = two_gpus["CUDA_VISIBLE_DEVICES"].split(",")
    transfer = ["--weight-transfer-config", '{"backend": "nccl"}']
    server = start_server(model_folder, *transfer, CUDA_VISIBLE_DEVICES=second)
    trainer, outputs = a_server_trainer(server, untied, hf_tokenizer, tmp_path / "out", device)
    try:
        trainer.train()
    finally:
        trainer.vllm_generation.vllm_client.close_communicator()
    check_learning(trainer, outputs, synced=synced, close=close)


def test_training_with_a_server_on_the_same_gpu(
    device: str,
    close: float,
    start_server: Any,
    model_folder: Path,
    untied: Any,
    hf_tokenizer: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Weights go by way of a file, as on the CPU: this needs one GPU."""
    from trl.generation.vllm_client import VLLMClient

    server = start_server(model_folder)
    monkeypatch.setattr(VLLMClient, "init_communicator", lambda client, **_: None)
    monkeypatch.setattr(
        VLLMClient,
        "update_named_params",
        lambda client, metadata, params: send(server, tmp_path, params),
    )
    trainer, outputs = a_server_trainer(server, untied, hf_tokenizer, tmp_path / "out", device)
    trainer.train()
    check_learning(trainer, outputs, synced=True, close=close)


def test_a_server_that_slept_samples_exactly(
    device: str, close: float, start_server: Any, model_folder: Path, untied: Any
) -> None:
    if device == "cpu":
        pytest.skip("sleep mode needs a GPU")
    server = start_server(model_folder, "--enable-sleep-mode")
    sampler = VLLMServerSampler(server.url)
    asked = requests()
    before = ask(sampler, *asked)
    server.post("/sleep?level=1")  # weights go to the CPU, and the cache is dropped
    server.post("/wake_up")
    after = ask(sampler, *asked)
    for samples in (before, after):
        assert worst(untied.eval(), asked, samples) < close


def test_ranks_share_an_engine_over_two_gpus(
    vllm: Any,
    two_gpus: dict[str, str],
    device: str,
    close: float,
    model_folder: Path,
    tmp_path: Path,
) -> None:
    from tests.kit.training.ranks import run_ranks
    from tests.kit.training.vllm_training import check_shared_engine

    environ = two_gpus | {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    said = run_ranks("tensor_parallel", tmp_path, model_folder, device, timeout_s=600, **environ)
    check_shared_engine(said, 4, close=close)
