"""Every example runs alone, from any folder, offline."""

import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import abut

EXAMPLES = Path(__file__).parents[1] / "examples"
UNDER_PYTEST = ["certify_tokenizer.py"]  # tests/test_pytest_plugin.py runs it
LAST_LINE = {
    "custom_env_grpo.py": "step 3: mean reward 0.",
    "exact_tokens.py": "19 of 79 completion tokens are trained",
}


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    words = [sys.executable, *map(str, command)]
    return subprocess.run(
        words, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
    )


def test_no_example_is_forgotten() -> None:
    assert sorted(file.name for file in EXAMPLES.glob("*.py")) == sorted(
        [*LAST_LINE, *UNDER_PYTEST]
    )


@pytest.mark.parametrize("name", LAST_LINE)
def test_an_example_runs_alone(name: str, tmp_path: Path) -> None:
    done = run(EXAMPLES / name, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith(LAST_LINE[name])
    assert not list(tmp_path.iterdir()), "an example leaves nothing behind"


def test_exact_tokens_needs_numpy_alone(tmp_path: Path) -> None:
    code = (
        "import runpy, sys; "
        f"runpy.run_path({str(EXAMPLES / 'exact_tokens.py')!r}, run_name='__main__'); "
        "print(*sorted({'numpy', 'torch', 'transformers', 'trl', 'tokenizers'} & {*sys.modules}))"
    )
    done = run("-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "numpy"


@pytest.mark.parametrize(
    ("column", "changed", "message"),
    [
        ("prompt_ids", 0, "a request is not a prefix"),
        ("completion_ids", 0, "a sample is not in the row"),
        ("env_mask", 0, "a token is trained that nobody sampled"),
        ("logprobs", 0, "a logprob without a sampled token"),
    ],
)
def test_the_replay_check_of_exact_tokens_notices(column: str, changed: int, message: str) -> None:
    example = runpy.run_path(str(EXAMPLES / "exact_tokens.py"))
    tokenizer = abut.Tokenizer.from_file(example["ASSETS"] / "tokenizer.json")
    trajectory, requests = example["play"](tokenizer)
    samples = [tokenizer.encode(answer) for answer in example["ANSWERS"]]
    row = trajectory.columns()
    names = ("prompt_ids", "completion_ids", "logprobs", "env_mask")
    arrays = {name: np.array(getattr(row, name)) for name in names}
    example["check_replay"](abut.Columns(**arrays), requests, samples)

    arrays[column][changed] = 0 if arrays[column][changed] else 1
    with pytest.raises(AssertionError, match=message):
        example["check_replay"](SimpleNamespace(**arrays), requests, samples)
