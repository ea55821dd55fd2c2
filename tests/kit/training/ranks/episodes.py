"""One rank that trains on duels of verifiers: two groups of two on each."""

from pathlib import Path

from abut.verifiers import verifiers_env
from tests.kit.training.episode_run import EpisodeRun
from tests.kit.training.ranks import leave


def main(folder: Path) -> None:
    """Take a step; write down what this rank played, and the gradient's norm."""
    duel = verifiers_env("abut_duel")
    run = EpisodeRun(duel, duel.dataset(4), folder).train()
    conversations = [[r.main_row, *r.branches] for r in run.played]
    ordered = [sorted(rows, key=lambda one: one.name) for rows in conversations]
    leave(
        folder,
        {
            "errors": run.errors(),
            "worst": run.worst(),
            "gradient": float(run.gradients[0].norm()),
            "names": [[one.name for one in rows] for rows in ordered],
            "rewards": [[one.reward for one in rows] for rows in ordered],
        },
    )
