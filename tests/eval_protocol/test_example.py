"""The example trains on the test beside it, and that passes under pytest."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("eval_protocol")
pytest.importorskip("trl")

from tests.kit.checkout import EXAMPLES
from tests.kit.servers.ep_server import ChatServer


def test_its_mean_score_rises(tmp_path: Path) -> None:
    environ = {**os.environ, "HOME": str(tmp_path)}
    command = [sys.executable, str(EXAMPLES / "eval_protocol_grpo.py")]
    done = subprocess.run(
        command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("step ")]
    scores = [float(line.rpartition(" ")[2]) for line in lines]
    assert len(scores) == 3
    assert scores[0] < 0.6 < 0.75 < scores[-1]


def test_its_test_passes_under_pytest(tmp_path: Path) -> None:
    def adds(path: str, body: dict) -> dict:  # type: ignore[type-arg]
        a, b = body["messages"][-1]["content"].split(" + ")
        return {"role": "assistant", "content": str(int(a) + int(b))}

    with ChatServer(adds) as server:
        params = [{"model": "openai/m", "base_url": f"{server.url}/v1", "api_key": "k"}]
        environ = {
            **os.environ,
            "HOME": str(tmp_path),
            "EP_COMPLETION_PARAMS": json.dumps(params),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--ep-no-upload"]
        # Away from this repository, whose settings make every warning an error.
        test = shutil.copy(EXAMPLES / "eval_protocol_sums.py", tmp_path)
        command += ["--rootdir", str(tmp_path), test]
        done = subprocess.run(
            command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=280
        )
    assert "1 passed" in done.stdout, done.stdout[-3000:]
    assert len(server.bodies) == 4
