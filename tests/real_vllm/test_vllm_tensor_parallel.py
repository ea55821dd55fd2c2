"""GRPO with vLLM in two trainer processes, each with half of the model."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from assets import KIT

STEPS = 4


def test_both_ranks_sample_exactly_with_one_model(model_folder: Path, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    paths = [str(KIT), *filter(None, [os.environ.get("PYTHONPATH")])]
    shared = os.environ | {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # both would be bound to the same core
        "VLLM_NO_USAGE_STATS": "1",
    }
    command = [sys.executable, str(KIT / "vllm_ranks.py"), str(model_folder), str(tmp_path)]
    processes, logs = [], []
    for rank in ("0", "1"):
        logs.append(tmp_path / f"{rank}.log")
        with logs[-1].open("wb") as log:
            process = subprocess.Popen(
                command,
                env=shared | {"RANK": rank, "LOCAL_RANK": rank},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        processes.append(process)
    try:
        codes = [process.wait(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert codes == [0, 0], [log.read_text(errors="replace")[-4000:] for log in logs]
    said: list[Any] = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    for rank in said:
        assert len(rank["differences"]) == STEPS
        assert max(rank["differences"]) < 1e-5, rank["differences"]
        assert rank["errors"] == [None] * 8 * STEPS
        assert rank["turns"] == [3] * 8 * STEPS
        assert rank["is_empty"]
    assert said[0]["admitted"] == said[1]["admitted"]
    assert len(said[0]["admitted"]) == 2 * 8 * 3 * STEPS, "each rank has the turns of both"
