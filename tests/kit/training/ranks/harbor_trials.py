"""One rank that trains on trials of Harbor: two groups of two on each."""

from pathlib import Path

from abut.harbor import harbor_tasks
from tests.harbor.conftest import LOCAL, OWN
from tests.kit.training.episode_run import EpisodeRun
from tests.kit.training.ranks import leave


def main(folder: Path, tasks: str) -> None:
    """Take a step; write down what this rank played."""
    counted = harbor_tasks(tasks, agent=f"{OWN}:Writing", environment=LOCAL, name="count")
    run = EpisodeRun(counted, counted.dataset(), folder).train()
    log = run.trainer.state.log_history[0]
    leave(
        folder,
        {
            "errors": run.errors(),
            "worst": run.worst(),
            "rewards": [rollout.reward for rollout in run.played],
            "sampled": [rollout.sampled_tokens for rollout in run.played],
            "trials": [name for output in run.outputs for name in output["harbor_trial"]],
            "log": {name: log[name] for name in log if name.startswith("count/reward/")},
        },
    )
