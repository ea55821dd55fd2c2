"""A real vLLM server on the CPU, with a small model: `make test-vllm`."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.servers.vllm_server import VLLMServer

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[Any]) -> None:
    missing = pytest.mark.skip(reason="vLLM is not installed here: make test-vllm")
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.vllm)
            if importlib.util.find_spec("vllm") is None:
                item.add_marker(missing)


@pytest.fixture(scope="session")
def untied(tiny_model: Any) -> Any:
    """A model with an lm_head of its own: on the CPU a tied one stays as it was when reloaded.

    Attention on the CPU has no heads of fewer than 32 dimensions.
    """
    return tiny_model(seed=3, tie_word_embeddings=False, head_dim=32)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: Any, untied: Any, hf_tokenizer: Any) -> Path:
    folder = Path(tmp_path_factory.mktemp("served")) / "model"
    untied.save_pretrained(folder)
    hf_tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def first(model_folder: Path) -> Iterator[VLLMServer]:
    server = VLLMServer(model_folder)
    yield server
    server.kill()


@pytest.fixture
def server(first: VLLMServer) -> VLLMServer:
    """The server that lives through all tests, with the weights of `untied`."""
    return first.start().ready()


@pytest.fixture
def own_server(model_folder: Path) -> Iterator[VLLMServer]:
    """A server of one test, which may change its weights."""
    server = VLLMServer(model_folder).start()
    try:
        yield server.ready()
    finally:
        server.kill()


@pytest.fixture(scope="session")
def mortal(model_folder: Path) -> Iterator[VLLMServer]:
    server = VLLMServer(model_folder)
    yield server
    server.kill()


@pytest.fixture
def second(mortal: VLLMServer) -> VLLMServer:
    """Another one, which a test may kill."""
    return mortal.start().ready()
