"""Run `examples/bargain.py` with five seeds, and write `docs/how-to/bargain.json` and its picture.

python -m scripts.bargain_curves docs/how-to/bargain.json docs/how-to/bargain.svg
"""

import json
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from scripts.draw_curves import picture

EXAMPLE = Path(__file__).parents[1] / "examples" / "bargain.py"
SEEDS, LAST = 5, 10
PLAYERS = ("first", "second")


def run(seed: int) -> list[dict[str, float]]:
    """Run the example, and return what each step logged."""
    sys.argv = [EXAMPLE.name, "--seed", str(seed)]
    trainer = runpy.run_path(str(EXAMPLE), run_name="__main__")["trainer"]
    trainer.rollout_func._tasks.route.gateway.stop()
    return [log for log in trainer.state.log_history if "reward" in log]


def picture_of(curves: Mapping[str, Sequence[Sequence[float]]]) -> str:
    """Return the picture as SVG."""
    title = "Coins of each player, both played by one policy: mean and range of five seeds"
    return picture({name: curves[name] for name in PLAYERS}, title=title, of="coins")


def main(path: str, drawn: str) -> None:
    """Train, and write the curves and their picture."""
    logs = [run(seed) for seed in range(SEEDS)]
    names = {name: f"rollout/reward/{name}/mean" for name in PLAYERS} | {"agreed": "reward"}
    curves = {
        name: [[round(step[key], 4) for step in seed] for seed in logs]
        for name, key in names.items()
    }
    for name, several in curves.items():
        first, last = [seed[0] for seed in several], [fmean(seed[-LAST:]) for seed in several]
        print(f"{name:8} first step {fmean(first):.2f}, last {LAST} steps {fmean(last):.2f}")
    Path(path).write_text(json.dumps(curves) + "\n", encoding="utf-8")
    Path(drawn).write_text(picture_of(curves), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
