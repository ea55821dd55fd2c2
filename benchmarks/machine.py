"""The machine and versions of a run: its figures mean nothing without them."""

import os
import platform
from pathlib import Path
from typing import Any

import numpy as np

from abut import __version__
from benchmarks.peers import versions
from benchmarks.workbench import Workbench


def describe(workbench: Workbench, core: int | None) -> dict[str, Any]:
    """Return hardware, versions and tokenizer as JSON values."""
    return {
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "pinned_to_core": core,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {"abut": __version__, "numpy": np.__version__, **versions()},
        "tokenizer": workbench.folder.name,
        "vocab_size": workbench.tokenizer.vocab_size,
        "encoder": workbench.tokenizer.profile()["encoder"],
        "load_before": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def processor_name() -> str:
    """Return the CPU's name, as far as the system knows it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
