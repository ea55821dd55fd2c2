"""What is left to do where nobody reads the output any more."""

import os
import sys


def forget_stdout() -> None:
    """What is left in its buffer must not fail when Python exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
