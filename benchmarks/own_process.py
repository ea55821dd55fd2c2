"""Modules of the benchmarks that run in their own processes."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any


def command_of(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of `benchmarks`; tests have one that starts faster."""
    return [sys.executable, "-m", f"benchmarks.{module}", *arguments]


def run_module(module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Any:
    """Run a module of `benchmarks`, and return the JSON value that is the last line of its output.

    Args:
        module: its name.
        *arguments: its command-line arguments.
        environment: environment variables to change for it.

    Raises:
        CalledProcessError: it failed; its output is on stderr.
    """
    done = subprocess.run(
        command_of(module, *arguments),
        env=os.environ | dict(environment or {}),
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return json.loads(done.stdout.splitlines()[-1])
