"""Run one rank: `python -m tests.kit.training.ranks FILE FOLDER ARGUMENTS…`."""

import importlib
import sys
from pathlib import Path

file, folder, *arguments = sys.argv[1:]
importlib.import_module(f"tests.kit.training.ranks.{file}").main(Path(folder), *arguments)
