"""The row `environments` plays the same rollouts on all sides, and compares them first."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("transformers")

from abut.demo.model import ASSETS
from benchmarks import peers, process_tree
from benchmarks.env_load import OPENENV, RAY, THREADS
from benchmarks.far_env import FarEnv, columns
from benchmarks.figures import ResultsDiffer
from benchmarks.rows import environments
from benchmarks.rows.environments import HOSTS, MEMORY, START
from benchmarks.scale import Scale
from benchmarks.workbench import Workbench

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")


@pytest.fixture
def workbench() -> Workbench:
    return Workbench(ASSETS, Scale.quick(), {})


def a_run(scale: Scale, *, rows: str = "r", known: bool = True) -> dict[str, Any]:
    played = {"turn": 0.5, "own": 0.25, "all": 1.0 if known else None, "rows": rows}
    memory = {"hosts": 8.0, "environment": 2.0} if known else {"hosts": None, "environment": None}
    return {"start": 3.0, **memory, "loads": [played] * len(environments.loads_of(scale))}


def test_what_it_says_follows_from_its_row_and_from_every_word() -> None:
    def played(number: int, *actions: str) -> list[Any]:
        env = FarEnv()
        env.reset("seed", **columns(number, 2, 0.0))
        said = [(env.step(action)[1], env.reward, env.alive) for action in actions]
        env.close()
        return said

    assert played(1, "a", "b") == played(1, "a", "b")
    assert [alive for _, _, alive in played(1, "a", "b")] == [True, False]
    assert played(1, "a", "b")[1] != played(1, "a", "c")[1]
    assert played(1, "a")[0] != played(2, "a")[0]


def test_a_side_that_is_not_installed_is_said(workbench: Workbench, monkeypatch: Any) -> None:
    def load(name: str, module: str, reasons: Any) -> Any:
        if name == "ray":
            raise peers.PeerMissing("pip could not")

    monkeypatch.setattr("benchmarks.workbench.load", load)
    monkeypatch.setattr(environments, "_played", lambda *_: a_run(workbench.scale))
    row = environments.measure(workbench)
    assert row.missing == {RAY: "pip could not"}
    assert {figure.side for figure in row.figures} == {THREADS, OPENENV}
    assert row.median(THREADS, "4 at once, turns per second") == 2.0
    assert row.median(THREADS, "one by itself, wall time per turn") == 0.5
    assert {f.unit for f in row.figures if f.case in (HOSTS, MEMORY)} == {"B"}


def test_a_side_that_played_something_else_has_no_figures(
    workbench: Workbench, monkeypatch: Any
) -> None:
    monkeypatch.setattr("benchmarks.workbench.load", lambda *_: None)
    monkeypatch.setattr(
        environments, "_played", lambda _, side, __: a_run(workbench.scale, rows=side)
    )
    with pytest.raises(ResultsDiffer, match="the rollouts of threads and of OpenEnv differ"):
        environments.measure(workbench)


def test_what_a_system_does_not_say_is_no_figure(workbench: Workbench, monkeypatch: Any) -> None:
    monkeypatch.setattr("benchmarks.workbench.load", lambda *_: None)
    monkeypatch.setattr(environments, "_played", lambda *_: a_run(workbench.scale, known=False))
    row = environments.measure(workbench)
    cases = {figure.case for figure in row.figures}
    assert START in cases
    assert not {case for case in cases if case in (HOSTS, MEMORY) or "all processes" in case}
    assert "there is no /proc/PID/smaps_rollup" in row.notes[-1]


@LINUX
def test_the_tree_has_what_a_descendant_takes() -> None:
    """A grandchild holds 32 MB and has worked for 0.6 seconds; once it has ended, neither counts.

    The tree starts at the child, because other tests can leave processes here, and they may grow.
    """
    held = (
        "import sys, time; held = b'1' * 2**25\n"
        "while time.process_time() < 0.6: pass\n"
        "print(flush=True); sys.stdin.read()"
    )
    started = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {held!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", started], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert process_tree.memory_bytes(child.pid) > 2**25
        # User and system time are each cut to 1/100 s.
        assert process_tree.processor_s(child.pid) > 0.57
        assert process_tree.memory_bytes() > 2**25, "and this process is an ancestor of both"
    assert process_tree.memory_bytes(child.pid) == 0
    assert process_tree.processor_s(child.pid) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("side", "modules"),
    [
        (THREADS, ()),
        (OPENENV, ("openenv", "websockets")),
        pytest.param(RAY, ("ray",), marks=pytest.mark.ray),
    ],
)
def test_each_side_plays_what_threads_play(workbench: Workbench, side: str, modules: Any) -> None:
    for module in modules:
        pytest.importorskip(module)
    loads = environments.loads_of(workbench.scale)
    played, expected = (environments._played(workbench, name, loads) for name in (side, THREADS))
    assert [load["rows"] for load in played["loads"]] == [
        load["rows"] for load in expected["loads"]
    ]
    if process_tree.is_known():
        assert played["environment"] > 0.9e6
        assert (played["hosts"] > 50e6) == (side != THREADS), "processes of its own, or none"
    assert json.dumps(played)


@pytest.mark.slow
def test_it_is_measured_on_a_real_tokenizer(qwen3: Any) -> None:
    row = environments.measure(Workbench(Path(qwen3.name_or_path), Scale.quick(), {}))
    assert THREADS in {figure.side for figure in row.figures}
    assert {THREADS, *row.missing} | {figure.side for figure in row.figures} == {
        THREADS,
        OPENENV,
        RAY,
    }
