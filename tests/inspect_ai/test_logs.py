"""Logs of training are Inspect's own: another process reads them, `inspect view` lists them."""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.kit.servers.free_port import free_port
from tests.kit.stage.rollouts import Stage, eventually

pytest.importorskip("inspect_ai")

from abut.inspect_ai import inspect_task
from tests.kit.stage.inspect_tasks import does, play_tasks, sums

READS = """
import json, sys
from inspect_ai.log import list_eval_logs, read_eval_log

(info,) = list_eval_logs(sys.argv[1])
log = read_eval_log(info)
print(json.dumps({
    "status": log.status,
    "task": log.eval.task,
    "model": log.eval.model,
    "metadata": log.eval.metadata,
    "samples": [
        {
            "id": s.id,
            "epoch": s.epoch,
            "metadata": s.metadata,
            "scores": {k: v.value for k, v in (s.scores or {}).items()},
            "error": s.error and s.error.message,
            "roles": [m.role for m in s.messages],
            "events": sorted({e.event for e in s.events}),
        }
        for s in log.samples
    ],
}))
"""


@pytest.fixture
def played(stage: Stage, logs: Path) -> Path:
    """The log of two sums, of which one fails."""

    async def breaks(state: Any, generate: Any) -> None:
        await generate(state)
        if state.sample_id == "3+3":
            raise ValueError("boom")

    agent = inspect_task(sums(solver=does(breaks)), log_dir=str(logs))
    play_tasks(stage, agent, retries=0)
    return logs


def test_a_log_is_read_back_in_another_process(played: Path) -> None:
    command = [sys.executable, "-c", READS, str(played)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    log = json.loads(done.stdout)
    assert (log["status"], log["task"], log["model"]) == ("success", "sums", "abut/policy")
    assert log["metadata"] == {
        "abut_batch": 1,
        "abut_environment": "sums",
        "abut_run": "run0",
        "abut_step": 3,
        "abut_mode": "train",
    }
    samples = sorted(log["samples"], key=lambda s: s["metadata"]["abut_rollout"])
    assert [s["metadata"] for s in samples] == [
        {
            "abut_rollout": f"r{k}-run0.0",
            "abut_step": 3,
            "abut_mode": "train",
            "abut_group": k // 2,
            "abut_generation": k % 2,
        }
        for k in range(4)
    ]
    assert [(s["id"], s["epoch"]) for s in samples] == [
        ("2+2", 1),
        ("2+2", 2),
        ("3+3", 1),
        ("3+3", 2),
    ]
    assert [s["scores"] for s in samples] == [{"includes": "C"}] * 2 + [{}] * 2
    assert [s["error"] for s in samples] == [None] * 2 + ["ValueError('boom')"] * 2
    for sample in samples:
        assert sample["roles"] == ["user", "assistant"]
        assert {"model", "sample_init"} <= set(sample["events"])


def test_no_key_of_the_gateway_is_in_a_log(stage: Stage, logs: Path) -> None:
    from abut.gateway.server.gateway import Gateway

    with_key = Gateway(key="a key of sixteen or more")
    agent = inspect_task(sums(), log_dir=str(logs))
    try:
        play_tasks(stage, agent, gateway=with_key)
    finally:
        with_key.stop()
    command = [sys.executable, "-m", "inspect_ai", "log", "dump"]
    (path,) = logs.iterdir()
    done = subprocess.run([*command, str(path)], capture_output=True, text=True, check=True)
    assert "abut_rollout" in done.stdout
    assert with_key.key not in done.stdout
    assert "abut-" not in done.stdout  # how a rollout's own key begins


def test_inspect_view_lists_the_log(played: Path, tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "inspect_ai", "view", "start", "--log-dir", str(played)]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    environ = {**os.environ, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}
    url = f"http://127.0.0.1:{port}"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(path: str) -> bytes | None:
        try:
            with opener.open(f"{url}{path}", timeout=30) as answer:
                return bytes(answer.read())
        except OSError:
            return None

    server = subprocess.Popen(
        command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        assert eventually(lambda: get("/") is not None or server.poll() is not None, 120)
        assert b"<html" in (get("/") or b"")
        listed = json.loads(get("/api/logs") or b"{}")
        (file,) = listed["files"]
        assert file["name"].endswith(next(played.iterdir()).name)
    finally:
        server.terminate()
        server.wait()
