"""Writing beside training: in order, whole, and heard of where it fails."""

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from abut.records.read import read_records
from abut.records.recorder import BackgroundRecorder, JsonlRecorder, ParquetRecorder
from tests.kit.checkout import ROOT
from tests.kit.data.records import a_rollout


def test_what_is_handed_over_is_written_in_its_order(tmp_path: Path) -> None:
    recorder = BackgroundRecorder(JsonlRecorder(tmp_path / "r.jsonl"))
    for step in range(20):
        for k in range(3):
            recorder.write(a_rollout(f"r{step}-{k}"), step=step)
        recorder.flush()
    recorder.wait()
    ids = [record["rollout_id"] for record in read_records(tmp_path / "r.jsonl")]
    assert ids == [f"r{step}-{k}" for step in range(20) for k in range(3)]
    recorder.wait()


def test_nobody_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hold, threads = threading.Event(), []
    recorder = BackgroundRecorder(JsonlRecorder(tmp_path / "r.jsonl"))
    write = JsonlRecorder.write

    def slow(self: Any, rollout: Any, /, **extra: Any) -> None:
        threads.append(threading.current_thread())
        assert hold.wait(30)
        write(self, rollout, **extra)

    monkeypatch.setattr(JsonlRecorder, "write", slow)
    for k in range(3):
        recorder.write(a_rollout(f"r{k}"))
        recorder.flush()
    hold.set()  # no sooner: all three came back
    recorder.wait()
    assert threading.main_thread() not in threads
    assert len(list(read_records(tmp_path / "r.jsonl"))) == 3


def test_what_cannot_be_written_is_raised_by_a_later_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")
    parquet = ParquetRecorder(tmp_path / "r")
    monkeypatch.setattr(parquet, "_name", lambda first: "same.parquet")
    recorder = BackgroundRecorder(parquet)
    for _ in range(2):
        recorder.write(a_rollout(), step=0)
        recorder.flush()
    recorder.write(a_rollout(), step=1)

    def go_on() -> None:
        recorder.flush()
        recorder.wait()

    with pytest.raises(FileExistsError, match="already exists"):
        go_on()


def test_a_rollout_that_cannot_be_written_costs_no_other(tmp_path: Path) -> None:
    recorder = BackgroundRecorder(JsonlRecorder(tmp_path / "r.jsonl"))
    for k in range(3):
        recorder.write(a_rollout(f"r{k}", reward=float("nan") if k == 1 else 0.5))
    recorder.flush()
    with pytest.raises(ValueError, match="Out of range float values"):
        recorder.wait()
    ids = [record["rollout_id"] for record in read_records(tmp_path / "r.jsonl")]
    assert ids == ["r0", "r2"]


def test_a_process_that_ends_has_written_all(tmp_path: Path) -> None:
    code = f"""
import sys
sys.path[:0] = {[str(ROOT), *sys.path]!r}
from tests.kit.data.records import a_rollout
from abut.records.recorder import BackgroundRecorder, JsonlRecorder
recorder = BackgroundRecorder(JsonlRecorder({str(tmp_path / "r.jsonl")!r}))
for k in range(50):
    recorder.write(a_rollout(f"r{{k}}"))
    recorder.flush()
raise SystemExit(3)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 3
    assert len(list(read_records(tmp_path / "r.jsonl"))) == 50
