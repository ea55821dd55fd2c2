"""`.ci/run` tells which data it found, and fails if the folder that was named for it lacks any."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.checkout import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="bash and GNU's realpath")

PARTS = {
    "ABUT_TOKENIZERS": "tokenizers",
    "ABUT_VLLM_REPLIES": "vllm",
    "ABUT_RECORDINGS": "nemo_gym",
    "ABUT_CLIENTS": "clients",
    "ABUT_DIALECTS": "dialects",
    "ABUT_NEMO_GYM_RUNS": "nemo_gym_runs",
    "ABUT_EVAL_PROTOCOL": "eval_protocol",
}


def run(folder: Path, *targets: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run it with a `make` that prints its arguments and the variables."""
    stand_in = folder / "make"
    stand_in.write_text('#!/bin/sh\necho "make $@"\nenv | grep ^ABUT_ | sort\n')
    stand_in.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ABUT_")}
    kept["PATH"] = f"{folder}{os.pathsep}{kept['PATH']}"
    command = [str(ROOT / ".ci" / "run"), *targets]
    return subprocess.run(command, env=kept | variables, capture_output=True, text=True)


def test_the_data_of_the_folder_is_named_to_make(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for part in PARTS.values():
        (data / part).mkdir(parents=True)
    done = run(tmp_path, ABUT_DATA=str(data))
    lines = done.stdout.splitlines()
    assert lines[:7] == [f"{name} found: {data / part}" for name, part in PARTS.items()]
    assert lines[7] == "make --jobs=3 check test"
    assert {f"{name}={data / part}" for name, part in PARTS.items()} <= set(lines[8:])
    assert run(tmp_path, "test-ray").stdout.count("make --jobs=3 test-ray") == 1


def test_a_folder_that_lacks_a_part_fails(tmp_path: Path) -> None:
    (tmp_path / "data" / "vllm").mkdir(parents=True)
    done = run(tmp_path, ABUT_DATA=str(tmp_path / "data"), ABUT_TOKENIZERS=str(tmp_path))
    assert done.returncode == 1
    assert f"ABUT_TOKENIZERS found: {tmp_path}\n" in done.stdout  # set by the user: it stays
    assert f"ABUT_VLLM_REPLIES found: {tmp_path / 'data' / 'vllm'}\n" in done.stdout
    assert f"ABUT_CLIENTS missing: {tmp_path / 'data' / 'clients'}\n" in done.stdout
    assert "make" not in done.stdout
    assert "lacks what is missing above" in done.stderr
