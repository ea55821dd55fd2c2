"""Run a module of the benchmarks in its own process; the module prints one JSON value."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any


def run_module(module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Any:
    """Run a module of `benchmarks` with the same Python, and return the value that it printed.

    Args:
        module: its name.
        *arguments: its command-line arguments.
        environment: environment variables to change for it.

    Raises:
        CalledProcessError: it failed; its output is on stderr.
    """
    command = [sys.executable, "-m", f"benchmarks.{module}", *arguments]
    done = subprocess.run(
        command,
        env=os.environ | dict(environment or {}),
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return json.loads(done.stdout)
