"""The command line: train missing runs, measure drift, or write the page's figures."""

import argparse
import json
import os
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

from scripts.exactness.page import PAGE, figures, write_page
from scripts.exactness.tasks import TASKS

SEEDS = range(5)
FOLDER = Path("runs/exactness")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m scripts.exactness", description=__doc__)
    parser.add_argument("step", choices=("run", "drift", "draw"))
    parser.add_argument("--task", choices=TASKS, action="append", help="default: both")
    parser.add_argument("--arm", action="append", help="default: all of the task")
    parser.add_argument("--seed", type=int, action="append", help="default: 0 to 4")
    parser.add_argument("--steps", type=int, help="default: the task's")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="default: %(default)s")
    parser.add_argument("--page", type=Path, default=PAGE, help="for draw")
    given = parser.parse_args()
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    if given.step == "run":
        run(given)
    elif given.step == "drift":
        drift(given.folder)
    else:
        draw(given.folder, given.page)


def run(given: Any) -> None:
    """Train each run without a file."""
    from scripts.exactness.train import train

    given.folder.mkdir(parents=True, exist_ok=True)
    for seed in given.seed or SEEDS:
        for name in given.task or TASKS:
            task = TASKS[name].with_steps(given.steps)
            for arm in given.arm or task.arms:
                file = given.folder / f"{name}-{arm}-{seed}.json"
                if file.exists() or arm not in task.arms:
                    continue
                result = train(task, arm, seed, given.folder)
                file.write_text(json.dumps(result) + "\n", encoding="utf-8")
                print(file.name, f"{result['cpu_s']} s of CPU, reward {result['reward'][-1]}")


def drift(folder: Path) -> None:
    """Print the drift of task 2 after re-rendering, before training and on seed 100."""
    from scripts.exactness.train import train

    task = TASKS["boxes"].with_steps(1)
    folder.mkdir(parents=True, exist_ok=True)
    trained, unsampled, *_ = train(task, "loop", 100, folder)["counts"][0]
    print(f"{unsampled} of {trained} trained tokens were never sampled: {unsampled / trained:.1%}")


def draw(folder: Path, page: Path) -> None:
    """Collect the runs of a folder, and write the raw data, the pictures and the tables."""
    runs = [
        json.loads((folder / f"{task.name}-{arm}-{seed}.json").read_text(encoding="utf-8"))
        for task in TASKS.values()
        for arm in task.arms
        for seed in SEEDS
    ]
    write_page(page, runs)
    print(figures(runs))


if __name__ == "__main__":
    main()
