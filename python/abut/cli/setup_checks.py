"""The findings of `abut doctor` on this machine and on a model, without a server.

Invariant: a check ends in findings. Whatever it raises is one of them.
"""

import json
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from abut.errors import AbutError, MissingExtraError, text_of
from abut.extras import EXTRAS, require_extra
from abut.nemo_gym.checks import Finding

_PACKAGES = ("abut", "numpy", "torch", "transformers", "trl", "vllm", "ray", "openai", "mcp")
_GIB = 1 << 30


def setup_findings() -> Iterator[Finding]:
    """Yield the installed versions, known conflicts, and the GPUs."""
    python = platform.python_version()
    found = {name: text for name in _PACKAGES if (text := _version(name)) is not None}
    listed = ", ".join(f"{name} {text}" for name, text in found.items())
    yield Finding("ok", f"Python {python} on {sys.platform}: {listed}")
    if "trl" in found:
        yield _of_trl(found["trl"])
    else:
        yield Finding(
            "warning", "TRL is not installed, so nothing trains", "pip install 'abut[trl]'"
        )
    for name, extra in EXTRAS.items():
        if _version(extra.package) is not None:
            yield _of_extra(name, extra.package)
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
    return Finding("ok", f"TRL {text} is a version that abut is tested with")


def _of_extra(name: str, package: str) -> Finding:
    try:
        installed = require_extra(name)
    except MissingExtraError as error:
        return Finding.of(error)
    return Finding("ok", f"{package} {installed} is a version that abut.{name} takes")


def _of_gpus() -> Iterator[Finding]:
    try:
        import torch
    except Exception as error:  # a library of CUDA that is not there is an OSError
        if _version("torch") is None:
            yield Finding("warning", "torch is not installed, so no model runs in this process")
        else:
            yield Finding("error", f"import torch raised {text_of(error)}")
        return
    yield from gpu_findings(torch)


def gpu_findings(torch: Any) -> Iterator[Finding]:
    """Yield the GPUs that this torch can use."""
    cuda = torch.version.cuda
    if not torch.cuda.is_available():
        if cuda is None:
            what = f"torch {torch.__version__} is built without CUDA: models run on the CPU"
            yield Finding(
                "warning", what, "fine for the examples; see pytorch.org for other builds"
            )
        else:
            yield Finding(
                "warning",
                f"torch is built for CUDA {cuda}, and sees no GPU: models run on the CPU",
                "nvidia-smi shows the driver; CUDA_VISIBLE_DEVICES may hide GPUs",
            )
        return
    for number in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(number)
        memory = properties.total_memory / _GIB
        yield Finding("ok", f"GPU {number}: {properties.name}, {memory:.0f} GiB, CUDA {cuda}")


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
    hint = "" if found.exact else f"`abut check {name}` says where and why"
    yield Finding("ok" if found.exact else "error", f"{name}: {verdict}", hint)
    yield _of_embedding(name, len(tokenizer))


def _of_embedding(name: str, tokens: int) -> Finding:
    """Compare the rows of the embedding, as config.json has them, with the tokenizer."""
    try:
        rows = _config_of(name).get("vocab_size")
    except (OSError, ValueError) as error:
        return Finding("warning", f"{name}: its config.json cannot be read: {error}")
    if not isinstance(rows, int):
        return Finding("warning", f"{name}: its config.json does not say vocab_size")
    what = f"{name}: an embedding of {rows} rows, a tokenizer of {tokens} tokens"
    if rows >= tokens:
        return Finding("ok", what)
    hint = (
        "model.resize_token_embeddings(len(tokenizer)), or the tokenizer that the model came with"
    )
    return Finding("error", f"{what}: some tokens have no row", hint)


def _config_of(name: str) -> dict[str, Any]:
    from transformers import PretrainedConfig

    if Path(name).is_dir():
        config = json.loads((Path(name) / "config.json").read_text(encoding="utf-8"))
    else:
        config, _ = PretrainedConfig.get_config_dict(name)
    # The language model of a model with images has a config of its own.
    return {**config, **config.get("text_config", {})}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
