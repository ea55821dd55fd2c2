"""Where things lie in the checkout."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
KIT = Path(__file__).parent
"""What tests share; on the path of every test."""
EXAMPLES = ROOT / "examples"
DEMO_ASSETS = ROOT / "python" / "abut" / "demo" / "assets"
