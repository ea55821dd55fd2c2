"""Fetch public chat templates from PyPI: those of llama.cpp, vLLM, Unsloth and Axolotl.

    python scripts/fetch_templates.py .templates
    ABUT_TEMPLATES=.templates pytest tests/template

llama.cpp's and vLLM's are in the source distributions of `llama-cpp-python` and `vllm`, which pip
downloads and unpacks. pip then builds their metadata, which fails without their build requirements,
but `--no-clean` keeps the unpacked files. The script also fetches the tests of vLLM's tool parsers,
into `vllm_tests`. Unsloth's and Axolotl's templates are in their wheels.

No package contains the templates of Kimi K2.5 and Command A Reasoning. transformers (5.23), SGLang,
LMDeploy, ms-swift, mlx-lm and mlx-vlm do not ship template files of chat models that call tools.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

WHEELS = (
    # package, version, files, folder
    ("unsloth", "2026.10.9", "studio/backend/assets/chat_templates/*.jinja", "unsloth"),
    ("axolotl", "0.19.0", "axolotl/utils/chat_templates/templates/*.jinja", "axolotl"),
)
SOURCES = (
    # package, version, files, folder
    ("llama-cpp-python", "0.3.36", "vendor/llama.cpp/models/templates/*.jinja", "llama_cpp"),
    ("vllm", "0.33.0", "examples/tool_chat_template_*.jinja", "vllm"),
    ("vllm", "0.33.0", "tests/tool_parsers/test_*.py", "vllm_tests"),
    ("vllm", "0.33.0", "tests/tool_use/test_*.py", "vllm_tests"),
)


def fetch(into: Path) -> None:
    """Fetch the templates into a folder, replacing an existing one.

    Raises:
        FileNotFoundError: a package does not have the files.
    """
    with tempfile.TemporaryDirectory() as temporary:
        for package, version in dict.fromkeys(source[:2] for source in SOURCES):
            _download(Path(temporary) / package, version, "--no-clean", "--no-binary=:all:")
        for package, version in dict.fromkeys(wheel[:2] for wheel in WHEELS):
            _download(Path(temporary) / package, version, "--only-binary=:all:")
            for wheel in (Path(temporary) / package).glob("*.whl"):
                zipfile.ZipFile(wheel).extractall(wheel.parent / "wheel" / package)
        for package, version, files, folder in (*SOURCES, *WHEELS):
            found = sorted((Path(temporary) / package).glob(f"*/*/{files}"))
            if not found:
                raise FileNotFoundError(f"{package} {version} was not unpacked, or has no {files}")
            target = into / folder
            target.mkdir(parents=True, exist_ok=True)
            for file in found:
                shutil.copy(file, target / file.name)


def _download(unpacked: Path, version: str, *options: str) -> None:
    """Download the package with the folder's name with pip; building it may fail."""
    unpacked.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *options]
    command += ["--no-build-isolation", "--dest", str(unpacked), f"{unpacked.name}=={version}"]
    environment = {**os.environ, "TMPDIR": str(unpacked)}
    subprocess.run(command, env=environment, capture_output=True, check=False)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    fetch(parser.parse_args(arguments).folder)


if __name__ == "__main__":
    main()
