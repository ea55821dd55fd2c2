"""Prepare the peers, measure in their environment, print and write the results.

One worker process measures row by row, and each row is printed when it is done.
"""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from abut import AbutError
from benchmarks.figures import Row
from benchmarks.peers import make_venv
from benchmarks.picture import picture
from benchmarks.rows import ROWS
from benchmarks.table import lines, measured_on, page
from benchmarks.timing import SINGLE_THREADED

QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TQDM_DISABLE": "1",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}
"""Environment variables that keep the peers offline and quiet."""


class BenchError(AbutError, RuntimeError):
    """A benchmark could not run."""


@dataclass(frozen=True)
class Plan:
    """The rows to measure, their environment, and the files to write."""

    rows: tuple[str, ...]
    tokenizer: Path
    peers_env: Path | None = None
    """The peers' virtual environment; None: use the packages of this Python."""
    quick: bool = False
    strict: bool = False
    write: Path | None = None
    json: Path | None = None


def run(plan: Plan, out: Callable[[str], None], say: Callable[[str], None]) -> int:
    """Measure, and return the exit status.

    Args:
        plan: the rows, the environment and the files.
        out: receives each line of the results.
        say: receives each line of progress.

    Returns:
        1 if a row has no figures or, with `strict`, a requirement is missed or a peer is missing.

    Raises:
        BenchError: a file cannot be written, the environment cannot be created, or the worker did
            not finish.
    """
    _require_writable(plan)  # before half an hour of measuring, not after it
    python, reasons = Path(sys.executable), dict[str, str]()
    if plan.peers_env is not None:
        try:
            python, reasons = make_venv(plan.peers_env, say)
        except (OSError, subprocess.CalledProcessError) as error:
            raise BenchError(
                f"{plan.peers_env}: cannot create an environment for the peers there: {error}\n"
                "hint: pass another folder with --peers-env, or --here to use the packages of this "
                "Python"
            ) from error
    machine: dict[str, Any] = {}
    rows: list[Row] = []
    for found in _measured(python, plan, reasons):
        if "machine" in found:
            machine = found["machine"]
            for line in measured_on(machine):
                out(line)
        else:
            rows.append(Row.from_dict(found["row"]))
            for line in lines(rows[-1]):
                out(line)
    _write(plan, machine, rows)
    return _status(rows, plan.strict)


def tokenizer_folder(given: Path | None) -> Path:
    """Return the tokenizer to measure with: `given`, or `qwen3` in `ABUT_TOKENIZERS`.

    Raises:
        BenchError: there is no tokenizer, or it has no chat template.
    """
    named = os.environ.get("ABUT_TOKENIZERS")
    folder = given or (Path(named) / "qwen3" if named else None)
    if folder is None:
        raise BenchError(
            "no tokenizer given: the ratios are meaningful only with a real one\n"
            "hint: pass --tokenizer FOLDER with the tokenizer.json, tokenizer_config.json and "
            "chat template of Qwen3, or set ABUT_TOKENIZERS to the parent of such a folder `qwen3`"
        )
    if not (folder / "tokenizer.json").is_file():
        raise BenchError(
            f"{folder}: tokenizer.json is missing\n"
            "hint: pass a folder that save_pretrained of a fast tokenizer wrote"
        )
    if not _has_template(folder):
        raise BenchError(
            f"{folder}: the tokenizer has no chat template\n"
            "hint: pass the tokenizer of a chat model, or save its template next to tokenizer.json "
            "as chat_template.jinja"
        )
    return folder


def _has_template(folder: Path) -> bool:
    """Return whether transformers finds a chat template in the folder."""
    config = folder / "tokenizer_config.json"
    return (folder / "chat_template.jinja").is_file() or (
        config.is_file() and bool(json.loads(config.read_bytes()).get("chat_template"))
    )


def _require_writable(plan: Plan) -> None:
    """Create the folders of the files to write.

    Raises:
        BenchError: a file cannot be written.
    """
    files = [file for file in (plan.write, plan.json) if file is not None]
    if plan.write is not None and plan.write.name:
        files.append(_svg(plan.write))
    if len({file.resolve() for file in files}) < len(files):
        raise BenchError(
            f"{files[-1]}: the page, its chart and the values need three different files\n"
            "hint: give --write a name that ends in .md, and --json a different name"
        )
    for file in files:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            there = file.exists()
            with file.open("ab"):
                pass
            if not there:
                file.unlink()
        except OSError as error:
            raise BenchError(
                f"{file}: cannot be written: {error}\n"
                "hint: name a file in a folder that you can write to"
            ) from error


def _svg(page: Path) -> Path:
    """Return the path of a page's chart."""
    return page.with_suffix(".svg")


def _measured(python: Path, plan: Plan, reasons: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the worker's results as it writes them."""
    passed_on = {
        "rows": plan.rows,
        "tokenizer": str(plan.tokenizer.resolve()),
        "quick": plan.quick,
        "reasons": reasons,
    }
    worker = subprocess.Popen(
        [python, "-m", "benchmarks.worker", json.dumps(passed_on)],
        env={**QUIET, **os.environ, **SINGLE_THREADED, "PYTHONPATH": _import_path()},
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )
    assert worker.stdout is not None
    with worker:
        for line in worker.stdout:
            yield json.loads(line)
    if worker.returncode:
        raise BenchError(
            f"the worker ended with exit status {worker.returncode}\nhint: its output is above"
        )


def _import_path() -> str:
    """Return the PYTHONPATH of the worker and its child processes: they import `benchmarks`."""
    given = os.environ.get("PYTHONPATH")
    return os.pathsep.join([str(Path(__file__).parents[1]), *([given] if given else [])])


def _write(plan: Plan, machine: Mapping[str, Any], rows: Sequence[Row]) -> None:
    command = shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]])
    if plan.json is not None:
        found = {"command": command, "machine": machine, "rows": [row.as_dict() for row in rows]}
        plan.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if plan.write is not None:
        drawn = next((drawn for row in rows if (drawn := picture(row))), None)
        svg = _svg(plan.write)
        if drawn is not None:
            svg.write_text(drawn, encoding="utf-8")
        named = svg.name if drawn else None
        text = page(rows, machine, command, named, reservations=_reservations(plan))
        plan.write.write_text(text, encoding="utf-8")


def _reservations(plan: Plan) -> Iterator[str]:
    if plan.quick:
        yield "A trial run (`--quick`): it shows that the rows run; its numbers are meaningless."
    if left_out := [name for name in ROWS if name not in plan.rows]:
        yield f"Not all rows were measured. Missing: {', '.join(left_out)}."


def _status(rows: Sequence[Row], strict: bool) -> int:
    failed = any(row.error is not None for row in rows)
    short = any(row.missing or not all(need.met for need in row.needs) for row in rows)
    return int(failed or (strict and short))
