"""Training and vLLM on a GPU: `make test-gpu`, which sets `ABUT_GPU=cuda`.

The assertions are those of the tests on the CPU, in float32 without TF32. Only the bound differs:
kernels of a GPU sum in another order for each shape of a batch, so that the engine, TRL and an
independent forward agree to `CLOSE` instead of 1e-5. A missing weight sync exceeds 1e-3.

`ABUT_GPU=cpu` runs these tests on the CPU, to check the tests themselves.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.servers.vllm_server import VLLMServer

HERE = Path(__file__).parent
DEVICE = os.environ.get("ABUT_GPU")
EXACT = {
    "NVIDIA_TF32_OVERRIDE": "0",  # cuBLAS and cuDNN; cuDNN's convolutions use TF32 by default
    "TRITON_F32_DEFAULT": "ieee",  # vLLM's attention is a Triton kernel, whose default is TF32
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # would be compiled, with a compiler that may be missing
}
COUNT = "import torch; print(torch.cuda.device_count())"
NO_DEVICE = (
    "make test-gpu needs a CUDA device, and torch finds none on this machine.\n"
    "hint: run it on a machine with an NVIDIA GPU; make test-vllm runs vLLM on the CPU"
)


def pytest_configure(config: pytest.Config) -> None:
    config.gpus = []  # type: ignore[attr-defined]
    if DEVICE != "cuda":
        return
    # In another process, because CUDA reads the variable that is set below only once.
    count = int(subprocess.check_output([sys.executable, "-c", COUNT], text=True))
    if not count:
        raise pytest.UsageError(NO_DEVICE)
    named = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))
    config.gpus = named.split(",")[:count]  # type: ignore[attr-defined]
    # With several devices, transformers' Trainer would copy the model to all of them.
    os.environ["CUDA_VISIBLE_DEVICES"] = config.gpus[0]  # type: ignore[attr-defined]
    os.environ.update(EXACT)


def pytest_collection_modifyitems(items: list[Any]) -> None:
    skip = pytest.mark.skip(reason="ABUT_GPU is unset: make test-gpu")
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            item.add_marker(pytest.mark.filterwarnings("ignore"))  # of TRL and vLLM
            if DEVICE is None:
                item.add_marker(skip)


@pytest.fixture(scope="session")
def device() -> str:
    assert DEVICE is not None
    return DEVICE


@pytest.fixture(scope="session")
def close(device: str) -> float:
    """The largest difference of logprobs that rounding explains, in nats."""
    return 1e-5 if device == "cpu" else 1e-4


@pytest.fixture(scope="session")
def two_gpus(pytestconfig: Any, device: str) -> dict[str, str]:
    """The environment of processes that use two GPUs."""
    if device == "cpu":
        return {}
    if len(pytestconfig.gpus) < 2:
        pytest.skip("needs two GPUs, and this machine has one")
    return {"CUDA_VISIBLE_DEVICES": ",".join(pytestconfig.gpus[:2])}


@pytest.fixture(scope="session")
def vllm() -> Any:
    """Skips on a CPU without vLLM; `make test-gpu` installs it, so there it must be found."""
    return pytest.importorskip("vllm") if DEVICE == "cpu" else __import__("vllm")


@pytest.fixture
def untied(tiny_model: Any) -> Any:
    """A model with an lm_head of its own, with heads as wide as attention on the CPU needs."""
    return tiny_model(seed=3, tie_word_embeddings=False, head_dim=32)


@pytest.fixture
def model_folder(tmp_path: Path, untied: Any, hf_tokenizer: Any) -> Path:
    untied.save_pretrained(tmp_path / "model")
    hf_tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def start_server(vllm: Any, device: str) -> Iterator[Any]:
    """Starts servers, each with options and environment variables of its own."""
    servers: list[VLLMServer] = []
    # The trainer needs memory of the same GPU; vLLM would take 0.9 of it.
    options = [] if device == "cpu" else ["--gpu-memory-utilization", "0.3"]

    def start(folder: Path, *more: str, **environ: str) -> VLLMServer:
        servers.append(VLLMServer(folder, *options, *more, **environ))
        return servers[-1].start().ready()

    yield start
    for server in servers:
        server.kill()
