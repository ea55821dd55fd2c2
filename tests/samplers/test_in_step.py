"""Ranks whose model is sharded sample in step, however many turns each of them has."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from assets import KIT

pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.mark.slow
def test_sharded_ranks_with_unequal_turns_sample_what_a_whole_model_does(tmp_path: Path) -> None:
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    path = os.pathsep.join([*sys.path, str(KIT)])
    done = subprocess.run(
        [sys.executable, *words, str(KIT / "sharded_ranks.py"), str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    ranks: list[Any] = [json.loads((tmp_path / f"rank{k}.json").read_text()) for k in (0, 1)]
    for played in ranks:
        assert played["fsdp2"] == played["whole"]
        assert played["fsdp1"] == played["whole"]
