"""What is measured in a process of its own: a module that prints one JSON value."""

import json
import subprocess
import sys
from typing import Any


def run_module(module: str, *arguments: str) -> Any:
    """Run a module of `abut.bench` with the same Python; returns what it printed.

    Raises:
        CalledProcessError: it failed; its words are on stderr.
    """
    command = [sys.executable, "-m", f"abut.bench.{module}", *arguments]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
