"""Where things lie in the checkout."""

import os
from pathlib import Path

import abut

ROOT = Path(__file__).parents[2]
KIT = Path(__file__).parent
"""What tests share; on the path of every test."""
EXAMPLES = ROOT / "examples"
DEMO_ASSETS = ROOT / "python" / "abut" / "demo" / "assets"
IMPORT_PATH = os.pathsep.join([str(Path(abut.__file__).parents[1]), str(KIT)])
"""PYTHONPATH of processes that a test starts: with the abut of the test, installed or not."""
