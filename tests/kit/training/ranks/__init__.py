"""Tests on two ranks: each file here is what one rank does, `run_ranks` starts it on both.

A file has a function `main(folder, *arguments)`, which ends with `leave(folder, found)`. The ranks
are processes that run `python -m tests.kit.training.ranks FILE FOLDER ARGUMENTS…`, with the
environment that `torchrun` would give them.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.kit.checkout import ROOT
from tests.kit.forks import python
from tests.kit.servers.free_port import free_port

RANKS = 2


def run_ranks(
    file: str,
    folder: Path,
    *arguments: object,
    codes: Sequence[int] = (0,) * RANKS,
    timeout_s: float = 240,
    path: Sequence[Path] = (),
    **environ: str,
) -> list[Any]:
    """Return what each rank found; the log of each is `FOLDER/rank….log`.

    Args:
        file: of this folder, without its suffix.
        folder: for all that the ranks write.
        arguments: of its `main`.
        codes: the exit status that each rank ends with.
        timeout_s: for all of it.
        path: more folders that the ranks import from.
        environ: what else is in their environment.
    """
    shared = {
        **os.environ,
        "PYTHONFAULTHANDLER": "1",
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "PYTHONPATH": os.pathsep.join([*sys.path, str(ROOT), *map(str, path)]),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(RANKS),
        "LOCAL_WORLD_SIZE": str(RANKS),
        **environ,
    }
    command = ["-W", "ignore", "-m", __name__, file, str(folder), *map(str, arguments)]
    logs = [folder / f"rank{rank}.log" for rank in range(RANKS)]
    processes = []
    for rank, path_of_log in enumerate(logs):
        with path_of_log.open("wb") as log:
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            process = subprocess.Popen(
                # Of two servers: ranks differ in the order of their sets, as they do in training.
                python(*command, server=rank),
                env=shared | own,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        processes.append(process)
    deadline = time.monotonic() + timeout_s
    try:
        # One that ends as it should not would leave the other to wait for it.
        while any(process.poll() is None for process in processes):
            if any(p.poll() not in (None, code) for p, code in zip(processes, codes, strict=True)):
                break
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        ended = [process.poll() for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    said = [log.read_text(errors="replace")[-4000:] for log in logs]
    assert ended == [*codes], (ended, said)
    return [json.loads(found_at(folder, rank).read_text()) for rank in range(RANKS)]


def found_at(folder: Path, rank: int) -> Path:
    """Return the file of what a rank found."""
    return folder / f"rank{rank}.json"


def leave(folder: Path, found: Any) -> None:
    """Write down what this rank found, and leave the group when all ranks have."""
    import torch.distributed

    rank = int(os.environ["RANK"])
    found_at(folder, rank).write_text(json.dumps(found), encoding="utf-8")
    torch.distributed.barrier()
    # The threads of gloo must not meet an interpreter that ends: it aborts the process.
    torch.distributed.destroy_process_group()
