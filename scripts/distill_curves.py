"""Run `examples/distill_cpu.py` with three seeds, and write the curves and their picture.

python -m scripts.distill_curves docs/how-to/distillation.{json,svg} [TEACHER]
"""

import json
import runpy
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from scripts.draw_curves import picture

EXAMPLE = Path(__file__).parents[1] / "examples" / "distill_cpu.py"
SEEDS, LAST = (1, 2, 3), 10


def run(seed: int, teacher: str) -> list[float]:
    """Run the example, and return the mean reward of each step."""
    sys.argv = [EXAMPLE.name, "--seed", str(seed), "--teacher", teacher]
    rewards: list[float] = runpy.run_path(str(EXAMPLE), run_name="__main__")["rewards"]
    return rewards


def picture_of(curves: Mapping[str, Sequence[Sequence[float]]]) -> str:
    """Return the picture as SVG."""
    title = "Reward of the student, which training does not use: mean and range of three seeds"
    return picture(curves, title=title, of="reward")


def main(path: str, drawn: str, teacher: str | None = None) -> None:
    """Train the teacher if its folder is empty, and the students; write curves and picture."""
    with tempfile.TemporaryDirectory() as folder:
        curves = {"student": [run(seed, teacher or folder) for seed in SEEDS]}
    curves = {name: [[round(v, 4) for v in one] for one in each] for name, each in curves.items()}
    first = [fmean(one[:LAST]) for one in curves["student"]]
    last = [fmean(one[-LAST:]) for one in curves["student"]]
    print(f"{fmean(first):.2f} in the first {LAST} steps, {fmean(last):.2f} in the last {LAST}")
    Path(path).write_text(json.dumps(curves) + "\n", encoding="utf-8")
    Path(drawn).write_text(picture_of(curves), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
