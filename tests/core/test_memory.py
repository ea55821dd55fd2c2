"""Memory: a trajectory takes what its tokens take, whatever the number of its turns."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.checkout import DEMO_ASSETS

# 17 of them are its arrays: int32 and int64 ids, float32 logprobs, one byte of provenance.
BYTES_PER_TOKEN = 25

MEASURE = """
import gc, sys
from pathlib import Path
import numpy as np
import abut

def resident():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

def played(tokens):
    trajectory = abut.Trajectory(tokenizer)
    while len(trajectory) < tokens:
        trajectory.append_text("What is next?\\n")
        trajectory.request()
        trajectory.append_sampled(ids, logprobs)
    return trajectory

tokenizer = abut.Tokenizer.from_file(sys.argv[1])
ids, logprobs = np.arange(500), np.full(500, -1, dtype=np.float32)
played(1000)
before = resident()
held = [played(100_000) for _ in range(12)]
if sys.argv[2] == "list":
    held = [trajectory.ids.tolist() for trajectory in held]
print((resident() - before) / sum(map(len, held)))
"""


def bytes_per_token(kept: str) -> float:
    command = [sys.executable, "-c", MEASURE, str(DEMO_ASSETS / "tokenizer.json"), kept]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_a_trajectory_takes_little_more_than_its_arrays() -> None:
    assert bytes_per_token("trajectory") < BYTES_PER_TOKEN
    assert bytes_per_token("list") > BYTES_PER_TOKEN  # the negative control
