"""Fetch the public chat templates of llama.cpp and vLLM, which are not in the repository.

    python scripts/fetch_templates.py .templates
    ABUT_TEMPLATES=.templates pytest tests/template/test_public_calls.py

They lie in the source distributions of `llama-cpp-python` and `vllm`, which pip downloads and
unpacks. It then asks their build for metadata, which fails without their build requirements: what
was unpacked stays all the same, since `--no-clean` says so. Beside the templates are the tests of
vLLM's tool parsers, in `vllm_tests`.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

SOURCES = (
    # package, version, files, folder
    ("llama-cpp-python", "0.3.36", "vendor/llama.cpp/models/templates/*.jinja", "llama_cpp"),
    ("vllm", "0.33.0", "examples/tool_chat_template_*.jinja", "vllm"),
    ("vllm", "0.33.0", "tests/tool_parsers/test_*.py", "vllm_tests"),
    ("vllm", "0.33.0", "tests/tool_use/test_*.py", "vllm_tests"),
)


def fetch(into: Path) -> None:
    """Fill a folder; one that is there is replaced.

    Raises:
        FileNotFoundError: a package does not have the files.
    """
    with tempfile.TemporaryDirectory() as temporary:
        for package, version in dict.fromkeys(source[:2] for source in SOURCES):
            unpacked = Path(temporary) / package
            unpacked.mkdir()
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-clean"]
            command += ["--no-deps", "--no-build-isolation", "--no-binary=:all:"]
            command += ["--dest", str(unpacked), f"{package}=={version}"]
            environment = {**os.environ, "TMPDIR": str(unpacked)}
            subprocess.run(command, env=environment, capture_output=True, check=False)
        for package, version, files, folder in SOURCES:
            found = sorted((Path(temporary) / package).glob(f"*/*/{files}"))
            if not found:
                raise FileNotFoundError(f"{package} {version} was not unpacked, or has no {files}")
            target = into / folder
            target.mkdir(parents=True, exist_ok=True)
            for file in found:
                shutil.copy(file, target / file.name)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    fetch(parser.parse_args(arguments).folder)


if __name__ == "__main__":
    main()
