"""Raw data, pictures and tables of docs/background/exactness_matters.md."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from scripts.draw_curves import picture

PAGE = Path("docs/background/exactness_matters.md")
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"
LAST = 5
"""The tables have the mean of this many last steps."""
TITLES = {"copy": "Task 1 (the demo's task)", "boxes": "Task 2 (thinking and a tool)"}
NAMES = {"abut": "abut", "loop": "re-rendering loop", "proxy": "re-rendering proxy", "trl": "TRL"}
Runs = Sequence[Mapping[str, Any]]


def curves(runs: Runs, task: str) -> dict[str, list[list[float]]]:
    """Return the reward of each step of each seed, by the arm's name."""
    found: dict[str, list[list[float]]] = {}
    for run in runs:
        if run["task"] == task:
            found.setdefault(NAMES[run["arm"]], []).append(run["reward"])
    return found


def picture_of(runs: Runs, task: str) -> str:
    """Return a task's reward curves as SVG."""
    title = f"{TITLES[task]}: mean reward and range of five seeds"
    return picture(curves(runs, task), title=title, of="reward")


def drift_of(runs: Runs) -> float:
    """Return the share of never-sampled tokens of task 2's loop before the first update."""
    counts = [run["counts"][0] for run in runs if (run["task"], run["arm"]) == ("boxes", "loop")]
    return sum(count[1] for count in counts) / sum(count[0] for count in counts)


def row_of(runs: Runs) -> dict[str, float]:
    """Return the figures of one arm over its seeds; shares are of all steps' tokens."""
    last = [fmean(run["reward"][-LAST:]) for run in runs]
    trained, unsampled, elsewhere, lost = (
        sum(step[k] for run in runs for step in run["counts"]) for k in range(4)
    )
    probes = [probe for run in runs for probe in run["probes"]]
    cosines = [probe["cosine"] for probe in probes if probe["cosine"] is not None]
    return {
        "reward": fmean(last),
        "spread": stdev(last),
        "unsampled": unsampled / trained,
        "elsewhere": elsewhere / trained,
        "lost": lost / (trained - unsampled + lost),
        "cosine": fmean(cosines),
        "lowest": min(cosines),
        **{
            name: fmean(probe[name] for probe in probes)
            for name in ("kl", "logp_difference", "ratio")
        },
    }


def figures(runs: Runs) -> str:
    """Return the page's tables as Markdown."""
    lines: list[str] = []
    for task, title in TITLES.items():
        lines += [
            f"{title}:",
            "",
            "| arm | reward at the end | never sampled | other context | lost | KL, nats "
            "| logprob difference | importance ratio | gradient cosine: mean, lowest |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        for arm, name in NAMES.items():
            of_arm = [run for run in runs if run["task"] == task and run["arm"] == arm]
            if of_arm:
                row = row_of(of_arm)
                lines.append(
                    f"| {name} | {row['reward']:.3f} ± {row['spread']:.3f} "
                    f"| {row['unsampled']:.1%} | {row['elsewhere']:.1%} | {row['lost']:.1%} "
                    f"| {row['kl']:.4f} | {row['logp_difference']:.4f} | {row['ratio']:.3f} "
                    f"| {row['cosine']:.3f}, {row['lowest']:.3f} |".replace("-0.0000", "0.0000")
                )
        lines.append("")
    return "\n".join(lines)


def write_page(page: Path, runs: Runs) -> None:
    """Write the raw data and the pictures next to the page, and the tables into it."""
    page.parent.mkdir(parents=True, exist_ok=True)
    raw = ",\n".join(json.dumps(run) for run in runs)
    page.with_suffix(".json").write_text(f"[\n{raw}\n]\n", encoding="utf-8")
    for task in TITLES:
        drawn = page.with_name(f"{page.stem}_{task}.svg")
        drawn.write_text(picture_of(runs, task), encoding="utf-8")
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{figures(runs)}\n{END}{after}", encoding="utf-8")
