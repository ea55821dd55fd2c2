"""`abut bench`: prepare the peers, measure in their environment, print and write what came out.

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

from abut.bench import peers
from abut.bench.figures import Row
from abut.bench.picture import picture
from abut.bench.table import lines, page
from abut.bench.timing import SINGLE_THREADED
from abut.errors import AbutError

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
class Order:
    """What to measure, where, and what to write."""

    rows: tuple[str, ...]
    tokenizer: Path
    peers_env: Path | None = None
    """None: with what is installed here."""
    quick: bool = False
    strict: bool = False
    write: Path | None = None
    json: Path | None = None


def run(order: Order, out: Callable[[str], None], say: Callable[[str], None]) -> int:
    """Measure; returns the exit status.

    Args:
        order: what to do.
        out: takes each line of the results.
        say: takes each line of progress.

    Returns:
        1 where a row has no figures or, with `strict`, a requirement is missed or a peer missing.

    Raises:
        BenchError: the environment cannot be made, or the worker did not finish.
    """
    for file in (order.write, order.json):
        if file is not None:  # not after half an hour of measuring
            file.parent.mkdir(parents=True, exist_ok=True)
    python, reasons = Path(sys.executable), dict[str, str]()
    if order.peers_env is not None:
        try:
            python, reasons = peers.prepare(order.peers_env, say)
        except (OSError, subprocess.CalledProcessError) as error:
            raise BenchError(
                f"{order.peers_env}: no environment for the peers can be made there: {error}\n"
                "hint: pass another folder with --peers-env, or --here to measure with what is "
                "installed"
            ) from error
    machine: dict[str, Any] = {}
    rows: list[Row] = []
    for found in _measured(python, order, reasons):
        if "machine" in found:
            machine = found["machine"]
            out(_headline(machine))
        else:
            rows.append(Row.from_dict(found["row"]))
            for line in lines(rows[-1]):
                out(line)
    _write(order, machine, rows)
    return _status(rows, order.strict)


def tokenizer_folder(given: Path | None) -> Path:
    """The tokenizer to measure with: `given`, or `qwen3` in `ABUT_TOKENIZERS`.

    Raises:
        BenchError: there is none.
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
    return folder


def _measured(python: Path, order: Order, reasons: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """What the worker says, as it says it."""
    told = {
        "rows": order.rows,
        "tokenizer": str(order.tokenizer.resolve()),
        "quick": order.quick,
        "reasons": reasons,
    }
    worker = subprocess.Popen(
        [python, "-m", "abut.bench.worker", json.dumps(told)],
        env={**QUIET, **os.environ, **SINGLE_THREADED},
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


def _headline(machine: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {is_ or 'missing'}" for name, is_ in machine["versions"].items())
    return (
        f"{versions}\n{machine['processor']}, {machine['cores']} cores, load "
        f"{machine['load_before']}; Python {machine['python']}; tokenizer {machine['tokenizer']}, "
        f"{machine['vocab_size']:,} ids, encoder {machine['encoder']}"
    )


def _write(order: Order, machine: Mapping[str, Any], rows: Sequence[Row]) -> None:
    command = shlex.join(["abut", *sys.argv[1:]])
    if order.json is not None:
        found = {"command": command, "machine": machine, "rows": [row.as_dict() for row in rows]}
        order.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if order.write is not None:
        drawn = next((drawn for row in rows if (drawn := picture(row))), None)
        svg = order.write.with_suffix(".svg")
        if drawn is not None:
            svg.write_text(drawn, encoding="utf-8")
        text = page(rows, machine, command, svg.name if drawn else None)
        order.write.write_text(text, encoding="utf-8")


def _status(rows: Sequence[Row], strict: bool) -> int:
    failed = any(row.error is not None for row in rows)
    short = any(row.missing or not all(need.met for need in row.needs) for row in rows)
    return int(failed or (strict and short))
