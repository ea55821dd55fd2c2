"""Helpers that every command of the command line shares."""

import argparse
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def positive(text: str) -> int:
    """Read a whole number that is at least 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number, at least 1")
    return int(text)


def forget_stdout() -> None:
    """Drop what stdout has buffered: its reader is gone, and Python's exit would fail on it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def asked_to_stop() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C or SIGTERM sets; after the block they end the process again."""
    stops = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: stops.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield stops
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
