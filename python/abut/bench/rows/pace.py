"""Whole rollouts whose samples and steps take time: who waits for whom.

Delays are drawn from a log-normal distribution, the same for every side. The least that any side
could take is what the slowest rollout takes by itself.
"""

import copy
import dataclasses

import numpy as np
from numpy.typing import NDArray

from abut.bench.figures import Row
from abut.bench.rows import rollouts
from abut.bench.rows.rollouts import TOOLS, TRL, TRL_ENV, USERS
from abut.bench.stage import Stage

SLOWEST = "the slowest rollout by itself"
SIGMA = 1.0


def measure(stage: Stage) -> Row:
    """Play the same rollouts with the same delays in every way."""
    scale = dataclasses.replace(
        stage.scale,
        rollouts=stage.scale.pace_rollouts,
        turns=stage.scale.pace_turns,
        rollout_rounds=stage.scale.pace_rounds,
    )
    stage = copy.copy(stage)
    stage.scale = scale
    median_s = scale.pace_median_s
    row = Row(
        "pace",
        f"play {scale.rollouts} rollouts of {scale.turns} turns that take time",
        equal="prompt, completion, mask and logprobs of every rollout",
        notes=[
            f"Each sample and each step sleeps for a time drawn from a log-normal distribution: "
            f"median {1000 * median_s:g} ms, sigma {SIGMA:g}. Steps are synchronous.",
            "TRL samples all rollouts of a turn at once, which takes what the slowest takes, then "
            "calls the tools of one after the other. trl-env plays one rollout after the other.",
        ],
    )
    slowest: list[float] = []

    def delays(number: int, count: int) -> NDArray[np.float64]:
        rng = np.random.default_rng(40 + number)
        drawn = median_s * np.exp(SIGMA * rng.standard_normal((2, count, scale.turns)))
        if number >= 0:
            slowest.append(float(drawn.sum(axis=(0, 2)).max()))
        return drawn

    for case, peer, play_peer, play in (
        (TOOLS, TRL, rollouts.play_trl, rollouts.abut_with_tools),
        (USERS, TRL_ENV, rollouts.play_trl_env, rollouts.abut_with_users),
    ):
        slowest.clear()
        rollouts.measure_case(stage, row, case, peer, play_peer, {"abut": play}, delays=delays)
        row.add(case, {SLOWEST: slowest})
        row.need_faster(peer, case, 10)
    return row
