"""Where things lie in the checkout."""

import os
from pathlib import Path

import abut

ROOT = Path(__file__).parents[2]
"""On the path of every test, which imports `tests.kit` and `benchmarks` from it."""
KIT = Path(__file__).parent
EXAMPLES = ROOT / "examples"
DEMO_ASSETS = ROOT / "python" / "abut" / "demo" / "assets"
IMPORT_PATH = os.pathsep.join([str(Path(abut.__file__).parents[1]), str(ROOT)])
"""PYTHONPATH of processes that a test starts: with the abut of the test, installed or not."""
