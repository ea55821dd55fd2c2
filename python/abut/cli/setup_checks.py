"""The findings of `abut doctor` on this machine, a model, an environment and a server.

Invariant: a check ends in findings. Whatever it raises is one of them.
"""

import asyncio
import json
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from abut.errors import AbutError, MissingExtraError, SamplerError, text_of
from abut.extras import EXTRAS, installed_version, require_extra, wrong_versions
from abut.http import AnswerError, http_get
from abut.nemo_gym.checks import Finding

_PACKAGES = ("abut", "numpy", "torch", "transformers", "trl", "vllm", "ray", "openai", "mcp")
_GIB = 1 << 30
_SCRIPT = "I do not know."
"""The policy's turns in the scripted episode: no environment may fail because of them."""
_MODEL_FLAGS = ("model", "dtype", "max_model_len", "logprobs_mode", "max_logprobs", "seed")
"""The flags of vLLM that matter to training."""


def setup_findings() -> Iterator[Finding]:
    """Yield the installed versions, known conflicts, and the GPUs."""
    python = platform.python_version()
    found = {name: text for name in _PACKAGES if (text := installed_version(name)) is not None}
    listed = ", ".join(f"{name} {text}" for name, text in found.items())
    yield Finding("ok", f"Python {python} on {sys.platform}: {listed}")
    if "trl" in found:
        yield _of_trl(found["trl"])
    else:
        yield Finding(
            "warning", "TRL is not installed, so you cannot train", "pip install 'abut[trl]'"
        )
    for name, extra in EXTRAS.items():
        if installed_version(extra.package) is not None:
            yield _of_extra(name, extra.package)
    for text in wrong_versions():
        what, _, hint = text.partition("\nhint: ")
        yield Finding("warning", what, hint)
    yield from _of_gpus()


def _of_trl(text: str) -> Finding:
    import warnings

    from abut.trl.version import check_trl_version

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            check_trl_version(stacklevel=1)
        except MissingExtraError as error:
            return Finding.of(error)
    if warned:
        return Finding("warning", str(warned[0].message))
    return Finding("ok", f"abut is tested with TRL {text}")


def _of_extra(name: str, package: str) -> Finding:
    try:
        installed = require_extra(name)
    except MissingExtraError as error:
        return Finding.of(error)
    return Finding("ok", f"abut.{name} supports {package} {installed}")


def _of_gpus() -> Iterator[Finding]:
    try:
        import torch
    except Exception as error:  # a library of CUDA that is not there is an OSError
        if installed_version("torch") is None:
            yield Finding("warning", "torch is not installed, so models cannot run in this process")
        else:
            yield Finding("error", f"import torch raised {text_of(error)}")
        return
    yield from gpu_findings(torch)


def gpu_findings(torch: Any) -> Iterator[Finding]:
    """Yield the GPUs that this torch can use."""
    cuda = torch.version.cuda
    if not torch.cuda.is_available():
        if cuda is None:
            what = f"torch {torch.__version__} is built without CUDA, so models run on the CPU"
            yield Finding(
                "warning", what, "fine for the examples; see pytorch.org for other builds"
            )
        else:
            yield Finding(
                "warning",
                f"torch is built for CUDA {cuda} but does not find a GPU: models run on the CPU",
                "check the driver with nvidia-smi; CUDA_VISIBLE_DEVICES may hide GPUs",
            )
        return
    for number in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(number)
        memory = properties.total_memory / _GIB
        yield Finding("ok", f"GPU {number}: {properties.name}, {memory:.0f} GiB, CUDA {cuda}")


def vllm_findings(url: str, *, api_key: str | None = None, wait_s: float = 10.0) -> list[Finding]:
    """Check a vLLM server; blocks.

    The server's flags are known only with VLLM_SERVER_DEV_MODE=1. Its logprobs are always checked,
    as before each run: if only one token is allowed, its logprob must be 0.

    Args:
        url: of the server.
        api_key: sent as a bearer token.
        wait_s: seconds to wait for a server that does not answer.
    """
    from abut.samplers.vllm import VLLMServerSampler

    try:
        sampler = VLLMServerSampler(url, api_key=api_key, give_up_s=wait_s)
    except ValueError as error:
        return [Finding.of(error)]

    async def open_and_close() -> None:
        async with sampler:
            pass

    try:
        asyncio.run(open_and_close())
    except SamplerError as error:
        tried = Finding.of(error)
    else:
        what = f"the server at {url} answers; its context is {sampler.max_context_tokens} tokens"
        tried = Finding("ok", f"{what}, and its logprobs include temperature and filters")
    return [tried, *_of_flags(sampler.base_urls[0], api_key)]


def _of_flags(url: str, api_key: str | None) -> Iterator[Finding]:
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    try:
        said = http_get(
            f"{url}/server_info?config_format=json",
            local=True,
            timeout_s=60.0,
            max_message_bytes=1 << 24,
            headers=headers,
        )
        config = json.loads(said)["vllm_config"]
        model, parallel = config["model_config"], config["parallel_config"]
        flags = {name: model.get(name) for name in _MODEL_FLAGS}
        flags["tensor_parallel_size"] = parallel.get("tensor_parallel_size")
    except AnswerError as error:
        yield Finding(
            "warning",
            f"the server at {url} does not show its flags: {error}",
            "start the server with VLLM_SERVER_DEV_MODE=1, but only on a network that you trust",
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        yield Finding("warning", f"the server's flags cannot be read: {text_of(error)}")
    else:
        options = (f"--{name.replace('_', '-')} {value}" for name, value in flags.items())
        yield Finding("ok", f"the server's flags: {' '.join(options)}")


def model_findings(name: str) -> Iterator[Finding]:
    """Yield what is wrong with a model's tokenizer, chat template and embedding.

    Args:
        name: a name on the Hugging Face Hub, or a folder.
    """
    from abut.audit.printed import lines
    from abut.audit.verdict import audit
    from abut.pretrained import load_hf_tokenizer

    try:
        tokenizer = load_hf_tokenizer(name)
        found = audit(tokenizer)
    except (AbutError, ValueError, TypeError, OSError) as error:
        yield Finding.of(error)
        return
    verdict = list(lines(found))[-1].strip()
    hint = "" if found.exact else f"run `abut check {name}` to see where and why"
    yield Finding("ok" if found.exact else "error", f"{name}: {verdict}", hint)
    yield _of_embedding(name, len(tokenizer))


def env_findings(env_name: str, model: str, rows: Path | None) -> Iterator[Finding]:
    """Play an episode with a scripted reply and one with a model, and yield what they came to.

    Args:
        env_name: `MODULE:NAME`.
        model: a name or a folder; its tokenizer writes both episodes.
        rows: a file of rows, of which the first is played; None: the environment's own dataset, or
            an empty prompt.
    """
    from abut.cli.evaluate import load_policy
    from abut.demo.run import load_env
    from abut.evaluation.without_trainer import read_rows
    from abut.samplers import ScriptedReplies
    from abut.samplers.settings import SamplingSettings

    scripted = {"sampler": ScriptedReplies(lambda messages, turn: _SCRIPT), "tokenizer": model}
    try:
        env = load_env(env_name)
        own = getattr(env, "dataset", None)
        found: Iterable[Any] = () if own is None or not callable(own) else own(1)
        row = next(iter(read_rows(rows) if rows is not None else found), {"prompt": ""})
        yield _of_episode(env, row, f"an episode with the reply {_SCRIPT!r}", scripted)
        sampled = load_policy(model, SamplingSettings())
        yield _of_episode(env, row, f"an episode sampled with {model}", sampled)
    except (AbutError, ValueError, TypeError, OSError) as error:
        yield Finding.of(error)


def _of_episode(env: Any, row: Mapping[str, Any], what: str, policy: Mapping[str, Any]) -> Finding:
    from abut.evaluation.without_trainer import Plan
    from abut.rollout.config import RolloutConfig

    config = RolloutConfig(max_turn_tokens=256, retries=0, max_failed_frac=1.0)
    (rollout,) = Plan(env, [row], config=config, **policy).run()
    if rollout.failed:
        return Finding.of(AbutError(f"{what} failed: {rollout.error}"))
    exact = sum(is_exact for _, is_exact in rollout.seams)
    said = (
        f"{what}: {len(rollout.turns)} turns, ended by {rollout.stop_reason}, "
        f"{exact} of {len(rollout.seams)} seams exact"
    )
    if rollout.reward is None:
        hint = "set self.reward, or score it with a reward function"
        return Finding("warning", f"{said}, no reward", hint)
    return Finding("ok", f"{said}, reward {rollout.reward:g}")


def _of_embedding(name: str, tokens: int) -> Finding:
    """Compare the rows of the embedding, as config.json has them, with the tokenizer."""
    try:
        rows = _config_of(name).get("vocab_size")
    except (OSError, ValueError) as error:
        return Finding("warning", f"{name}: its config.json cannot be read: {error}")
    if not isinstance(rows, int):
        return Finding("warning", f"{name}: its config.json has no vocab_size")
    what = f"{name}: the embedding has {rows} rows, the tokenizer {tokens} tokens"
    if rows >= tokens:
        return Finding("ok", what)
    hint = "call model.resize_token_embeddings(len(tokenizer)), or use the model's own tokenizer"
    return Finding("error", f"{what}, so some tokens have no row", hint)


def _config_of(name: str) -> dict[str, Any]:
    from transformers import PretrainedConfig

    if Path(name).is_dir():
        config = json.loads((Path(name) / "config.json").read_text(encoding="utf-8"))
    else:
        config, _ = PretrainedConfig.get_config_dict(name)
    # The language model of a model with images has a config of its own.
    return {**config, **config.get("text_config", {})}
