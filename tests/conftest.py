"""Fixtures for rollouts: the demo's tokenizer, Qwen3's, and a stage to play on."""

import gc
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.kit.checkout import DEMO_ASSETS

# Loading a real tokenizer takes seconds, once, in whichever example comes first. The examples are
# the same in each run, but for `make test-random`.
settings.register_profile(
    "abut",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    derandomize="ABUT_RANDOM" not in os.environ,
)
settings.load_profile("abut")

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Set before torch is imported: its threads spin while they wait, and several processes share two
# cores. With one thread, tests of training that took 120 seconds of CPU time take 42.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

# A job in a shell's background ignores Ctrl-C, which some tests press.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionstart() -> None:
    """Collect no garbage during the imports: it took 5 to 10 of their 28 seconds of CPU time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Keep the million objects of the imports out of later collections.

    A test that calls `gc.collect` twenty times took 35 seconds with them, and takes 3 without.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """Debian's chromium. One for all tests, because playwright does not start twice in a thread."""
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("no chromium: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        args = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=found, args=args)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def hf_tokenizer() -> Any:
    """The demo's tokenizer: 512 ids, ChatML."""
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(DEMO_ASSETS)


@pytest.fixture(scope="session")
def tokenizer(hf_tokenizer: Any) -> Any:
    import abut

    return abut.Tokenizer.from_pretrained(hf_tokenizer)


@pytest.fixture(scope="session")
def processor(hf_tokenizer: Any) -> Any:
    from abut.template.processor import ChatTemplateProcessor

    return ChatTemplateProcessor(hf_tokenizer)


@pytest.fixture(scope="session")
def qwen3() -> Any:
    """Qwen3's real tokenizer with its template."""
    transformers = pytest.importorskip("transformers")
    folder = os.environ.get("ABUT_TOKENIZERS")
    if not folder:
        pytest.skip("ABUT_TOKENIZERS is unset: it names a folder of tokenizer folders")
    if not (Path(folder) / "qwen3").is_dir():
        pytest.skip(f"{folder} has no qwen3")
    return transformers.AutoTokenizer.from_pretrained(Path(folder) / "qwen3")


@pytest.fixture(scope="session")
def stage(tokenizer: Any, processor: Any) -> Any:
    from tests.kit.stage.rollouts import Stage

    return Stage(tokenizer, processor)


@pytest.fixture
def called(stage: Any, hf_tokenizer: Any) -> Any:
    """Calls a rollout_func with a scripted sampler; returns its columns."""
    from abut.trl import make_rollout_func
    from tests.kit.stage.rollouts import Recording, Talk
    from tests.kit.training.trl_run import a_trainer

    def call(prompts: Any, env: Any = Talk, trainer: Any = None, **make: Any) -> Any:
        rollout_func = make_rollout_func(env, **{"sampler": Recording(stage.says())} | make)
        return rollout_func(prompts, trainer or a_trainer(hf_tokenizer))

    return call


@pytest.fixture(autouse=True)
def closes_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """So long that a busy machine adds no warning to what tests find in the log."""
    if closing := sys.modules.get("abut.rollout.env_loops"):
        monkeypatch.setattr(closing, "_CLOSE_S", 60.0)


@pytest.fixture
def no_thread_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing that the engine started is left running. Idle threads end sooner: tests are many."""
    from tests.kit.stage.rollouts import eventually, overlook_earlier, own_threads

    overlook_earlier()
    monkeypatch.setattr("abut.concurrency.threads._IDLE_S", 0.02)

    yield
    assert eventually(lambda: not own_threads()), own_threads()


@pytest.fixture
def idle_threads_stay(no_thread_stays: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Idle threads end with the test, however long anything takes until then."""
    from abut.concurrency.threads import THREADS

    with monkeypatch.context() as patch:
        patch.setattr("abut.concurrency.threads._IDLE_S", 3600.0)
        yield
    # Each one waits anew, and not so long.
    waiting = [THREADS.thread() for _ in [*THREADS._idle._threads]]
    for worker in waiting:
        worker.is_free()
        worker.begin(THREADS.call_queue(), None)


@pytest.fixture(scope="session")
def tiny_model(hf_tokenizer: Any) -> Any:
    """Builds Qwen3 models of about 90 000 parameters."""
    torch = pytest.importorskip("torch")
    from transformers import Qwen3Config, Qwen3ForCausalLM

    def build(seed: int = 0, **changes: Any) -> Any:
        torch.manual_seed(seed)
        config = {
            "vocab_size": len(hf_tokenizer),
            "hidden_size": 64,
            "intermediate_size": 64,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "max_position_embeddings": 1024,
            "eos_token_id": hf_tokenizer.eos_token_id,
            "pad_token_id": hf_tokenizer.pad_token_id,
            "bos_token_id": None,
        }
        # Sharper than at initialization, so that the logprobs of different tokens differ.
        model = Qwen3ForCausalLM(Qwen3Config(**config | changes))
        with torch.no_grad():
            model.lm_head.weight.mul_(20)
        return model

    return build
