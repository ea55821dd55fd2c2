"""Where the files of the demo lie: the tokenizer that ships with abut."""

from pathlib import Path

DEMO_ASSETS = Path(__file__).parents[1] / "python" / "abut" / "demo" / "assets"
