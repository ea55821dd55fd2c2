"""Prepare the peers, measure in their environment, print and write the results.

The figures come from one worker process, row by row, and are printed as they come.
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
"""Environment variables: no peer asks a hub, or writes what nobody reads."""


class BenchError(AbutError, RuntimeError):
    """What was to be measured could not be."""


@dataclass(frozen=True)
class Plan:
    """What to measure, where, and what to write."""

    rows: tuple[str, ...]
    tokenizer: Path
    peers_env: Path | None = None
    """None: with what is installed here."""
    quick: bool = False
    strict: bool = False
    write: Path | None = None
    json: Path | None = None


def run(plan: Plan, out: Callable[[str], None], say: Callable[[str], None]) -> int:
    """Measure; returns the exit status.

    Args:
        plan: what to do.
        out: takes each line of the results.
        say: takes each line of progress.

    Returns:
        1 where a row has no figures or, with `strict`, a requirement is missed or a peer missing.

    Raises:
        BenchError: a file cannot be written, the environment cannot be made, or the worker did not
            finish.
    """
    _require_writable(plan)  # not after half an hour of measuring
    python, reasons = Path(sys.executable), dict[str, str]()
    if plan.peers_env is not None:
        try:
            python, reasons = make_venv(plan.peers_env, say)
        except (OSError, subprocess.CalledProcessError) as error:
            raise BenchError(
                f"{plan.peers_env}: no environment for the peers can be made there: {error}\n"
                "hint: pass another folder with --peers-env, or --here to measure with what is "
                "installed"
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
    """The tokenizer to measure with: `given`, or `qwen3` in `ABUT_TOKENIZERS`.

    Raises:
        BenchError: there is none, or it has no chat template.
    """
    named = os.environ.get("ABUT_TOKENIZERS")
    folder = given or (Path(named) / "qwen3" if named else None)
    if folder is None:
        raise BenchError(
            "no tokenizer to measure with: the ratios only mean something on a real one\n"
            "hint: pass --tokenizer FOLDER with the tokenizer.json, tokenizer_config.json and "
            "chat template of Qwen3, or set ABUT_TOKENIZERS to the folder of its folder `qwen3`"
        )
    if not (folder / "tokenizer.json").is_file():
        raise BenchError(
            f"{folder}: there is no tokenizer.json\n"
            "hint: pass the folder that save_pretrained of a fast tokenizer wrote"
        )
    if not _has_template(folder):
        raise BenchError(
            f"{folder}: the tokenizer has no chat template\n"
            "hint: pass the tokenizer of a chat model, or put its template beside tokenizer.json "
            "as chat_template.jinja"
        )
    return folder


def _has_template(folder: Path) -> bool:
    """Whether transformers finds a chat template there."""
    config = folder / "tokenizer_config.json"
    return (folder / "chat_template.jinja").is_file() or (
        config.is_file() and bool(json.loads(config.read_bytes()).get("chat_template"))
    )


def _require_writable(plan: Plan) -> None:
    """Make the folders of what is to be written.

    Raises:
        BenchError: something cannot be written there.
    """
    files = [file for file in (plan.write, plan.json) if file is not None]
    if plan.write is not None and plan.write.name:
        files.append(_svg(plan.write))
    if len({file.resolve() for file in files}) < len(files):
        raise BenchError(
            f"{files[-1]}: the page, its picture and the values are three files, but two would be "
            "this one\nhint: give --write a name that ends in .md, and --json another one"
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
                f"{file}: it cannot be written: {error}\n"
                "hint: name a file, in a folder that you may write to"
            ) from error


def _svg(page: Path) -> Path:
    """Where the picture of a page is written."""
    return page.with_suffix(".svg")


def _measured(python: Path, plan: Plan, reasons: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """What the worker writes, as it writes it."""
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
            f"the worker ended with exit status {worker.returncode}\n"
            "hint: what it wrote stands above"
        )


def _import_path() -> str:
    """PYTHONPATH of the worker and of all that it starts: they import `benchmarks` too."""
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
        yield "A trial (`--quick`): it shows that the rows run, its figures mean nothing."
    if left_out := [name for name in ROWS if name not in plan.rows]:
        yield f"Only some rows were measured; not these: {', '.join(left_out)}."


def _status(rows: Sequence[Row], strict: bool) -> int:
    failed = any(row.error is not None for row in rows)
    short = any(row.missing or not all(need.met for need in row.needs) for row in rows)
    return int(failed or (strict and short))
