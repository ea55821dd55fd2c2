"""`abut doctor`: this machine and a model, each finding in a line, and a verdict at the end."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("packaging")

import abut.cli.setup_checks as setup_checks
from abut.cli.__main__ import main
from abut.cli.setup_checks import (
    env_findings,
    gpu_findings,
    model_findings,
    setup_findings,
    vllm_findings,
)
from abut.errors import MissingExtraError
from tests.kit.checkout import DEMO_ASSETS
from tests.kit.servers.fake_server import FakeServer

GIB = 1 << 30


def torch(cuda: str | None, *gpus: str) -> Any:
    """Say what a torch with these GPUs says."""
    properties = [SimpleNamespace(name=name, total_memory=80 * GIB) for name in gpus]
    return SimpleNamespace(
        __version__="2.8.0",
        version=SimpleNamespace(cuda=cuda),
        cuda=SimpleNamespace(
            is_available=lambda: bool(gpus),
            device_count=lambda: len(gpus),
            get_device_properties=properties.__getitem__,
        ),
    )


def test_gpus_are_listed_or_missed() -> None:
    assert [str(found) for found in gpu_findings(torch("12.8", "H100", "H200"))] == [
        "GPU 0: H100, 80 GiB, CUDA 12.8",
        "GPU 1: H200, 80 GiB, CUDA 12.8",
    ]
    (hidden,), (without,) = gpu_findings(torch("12.8")), gpu_findings(torch(None))
    assert (hidden.level, without.level) == ("warning", "warning")
    assert "built for CUDA 12.8 but does not find a GPU" in hidden.what
    assert "is built without CUDA" in without.what


@pytest.fixture
def without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the import of torch, which takes long."""
    monkeypatch.setattr(setup_checks, "_of_gpus", lambda: iter(()))


@pytest.mark.usefixtures("without_gpus")
def test_the_versions_come_first_and_the_verdict_last(capsys: Any) -> None:
    status = main(["doctor"])
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first.startswith("ok   Python 3.")
    assert "numpy" in first
    assert last.startswith(("no problems found: no errors", "not ready to train: "))
    assert status == last.startswith("not ready")


@pytest.mark.usefixtures("without_gpus")
def test_a_conflict_is_an_error_with_its_hint(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> str:
        raise MissingExtraError(f"abut.{name} needs mcp<2\nhint: environments of their own")

    monkeypatch.setattr(setup_checks, "installed_version", lambda package: "1.0")
    monkeypatch.setattr(setup_checks, "require_extra", refuse)
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "FAIL abut.verifiers needs mcp<2\n     hint: environments of their own\n" in said
    assert said.splitlines()[-1].startswith("not ready to train: ")


def test_without_trl_nothing_trains(monkeypatch: pytest.MonkeyPatch, without_gpus: None) -> None:
    monkeypatch.setattr(setup_checks, "installed_version", lambda package: None)
    assert "TRL is not installed, so you cannot train\nhint: pip install 'abut[trl]'" in map(
        str, setup_findings()
    )


@pytest.fixture
def model(tmp_path: Path) -> Any:
    """Make a folder of the demo's tokenizer and a config with an embedding of so many rows."""
    pytest.importorskip("transformers")

    def make(**config: Any) -> str:
        shutil.copytree(DEMO_ASSETS, tmp_path / "model", dirs_exist_ok=True)
        (tmp_path / "model" / "config.json").write_text(json.dumps(config))
        return str(tmp_path / "model")

    return make


def test_a_model_is_exact_and_its_embedding_is_large_enough(model: Any) -> None:
    for config in ({"vocab_size": 512}, {"text_config": {"vocab_size": 640}}):
        template, embedding = model_findings(model(**config))
        assert (template.level, embedding.level) == ("ok", "ok"), (template, embedding)
    small = list(model_findings(model(vocab_size=500)))[-1]
    assert small.level == "error"
    assert "the embedding has 500 rows, the tokenizer 512 tokens" in small.what
    assert list(model_findings(model()))[-1].level == "warning"


def test_a_model_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    (found,) = model_findings(str(tmp_path / "nothing"))
    assert found.level == "error"


def test_options_of_nemo_gym_need_it(capsys: Any) -> None:
    assert main(["doctor", "--no-play"]) == 1
    assert "--no-play works only together with --nemo-gym URL" in capsys.readouterr().err


def test_a_server_says_its_flags_or_that_it_does_not() -> None:
    pytest.importorskip("aiohttp")
    with FakeServer() as server:
        tried, flags = vllm_findings(server.url)
        assert (tried.level, flags.level) == ("ok", "warning")
        assert "its context is 64 tokens, and its logprobs include" in tried.what
        assert "VLLM_SERVER_DEV_MODE=1" in flags.hint
        model = {"model": "tiny", "logprobs_mode": "raw_logprobs"}
        parallel = {"tensor_parallel_size": 2}
        server.info = {"vllm_config": {"model_config": model, "parallel_config": parallel}}
        flags = vllm_findings(f"{server.url}/v1", api_key="secret")[-1]
        assert flags.level == "ok"
        assert flags.what.startswith("the server's flags: --model tiny ")
        assert "--logprobs-mode raw_logprobs" in flags.what
        assert flags.what.endswith("--tensor-parallel-size 2")
        assert b"Authorization: Bearer secret" in server.headers[-1]
        server.info = {"vllm_config": "text"}
        assert vllm_findings(server.url)[-1].level == "warning"


def test_a_server_with_other_logprobs_is_an_error() -> None:
    pytest.importorskip("aiohttp")
    with FakeServer(probe_logprob=-3.0) as server:
        tried, _ = vllm_findings(server.url)
    assert tried.level == "error"
    assert tried.hint == "start the server with --logprobs-mode processed_logprobs"


def test_a_server_that_is_not_there_is_an_error() -> None:
    pytest.importorskip("aiohttp")
    with FakeServer() as server:
        gone = server.url
    assert vllm_findings(gone, wait_s=0.1)[0].level == "error"


@pytest.fixture
def small(tmp_path: Path) -> str:
    """Save a model with random weights and its tokenizer."""
    pytest.importorskip("torch")
    from tests.kit.training.models import rank_model

    tokenizer, model = rank_model()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return str(tmp_path)


def test_an_environment_is_played_with_a_script_and_a_model(
    small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted, sampled = env_findings("abut.envs:WordGuessEnv", small, None)
    assert (scripted.level, sampled.level) == ("ok", "ok"), (scripted, sampled)
    assert "6 turns, ended by env_done, " in scripted.what
    assert scripted.what.endswith("seams exact, reward 0")
    assert f"sampled with {small}: " in sampled.what

    (tmp_path / "broken_env.py").write_text(
        "from abut.envs import WordGuessEnv\n\n\n"
        "class Fails(WordGuessEnv):\n    def step(self, action):\n"
        "        raise KeyError('oh')\n\n\n"
        "class Unscored(WordGuessEnv):\n    def step(self, action):\n"
        "        self.reward, self.alive = None, False\n        return self, ''\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    failed = list(env_findings("broken_env:Fails", small, None))
    assert [found.level for found in failed] == ["error", "error"]
    assert "failed: EnvError: Fails.step raised KeyError: 'oh'" in failed[0].what
    unscored = list(env_findings("broken_env:Unscored", small, None))
    assert [found.level for found in unscored] == ["warning", "warning"]
    (missing,) = env_findings("broken_env:Other", small, None)
    assert (missing.level, "has no 'Other'" in missing.what) == ("error", True)


def test_an_environment_needs_a_model(capsys: Any, without_gpus: None) -> None:
    assert main(["doctor", "abut.envs:WordGuessEnv"]) == 1
    assert "needs --model NAME" in capsys.readouterr().err
