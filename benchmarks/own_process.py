"""What is measured in a process of its own: a module that prints one JSON value."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any


def run_module(module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Any:
    """Run a module of `benchmarks` with the same Python; returns what it printed.

    Args:
        module: its name.
        *arguments: what it is given.
        environment: variables that are other ones for it.

    Raises:
        CalledProcessError: it failed; its words are on stderr.
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
