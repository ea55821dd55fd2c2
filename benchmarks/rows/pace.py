"""Whole rollouts with delays: how long sides wait for slow samples and steps.

Delays are drawn from a log-normal distribution, the same for every side. No side can be faster
than the slowest rollout by itself.
"""

import copy
import dataclasses

import numpy as np
from numpy.typing import NDArray

from benchmarks.delays import SIGMA, SLOWEST, draw_delays, slowest_s
from benchmarks.figures import Row
from benchmarks.rows.rollouts import TOOLS, USERS, measure_case
from benchmarks.rows.rollouts.abut_engine import play_with_tools, play_with_users
from benchmarks.rows.rollouts.trl_env_loop import TRL_ENV, make_trl_env_play
from benchmarks.rows.rollouts.trl_loop import TRL, make_trl_play
from benchmarks.workbench import Workbench


def measure(workbench: Workbench) -> Row:
    """Play the same rollouts with the same delays on all sides."""
    scale = dataclasses.replace(
        workbench.scale,
        rollouts=workbench.scale.pace_rollouts,
        turns=workbench.scale.pace_turns,
        rollout_rounds=workbench.scale.pace_rounds,
    )
    workbench = copy.copy(workbench)  # shares what is loaded, with a scale of this row's own
    workbench.scale = scale
    median_s = scale.pace_median_s
    row = Row(
        "pace",
        f"play {scale.rollouts} rollouts of {scale.turns} turns, with delays",
        equal="prompt, completion, mask and logprobs of every rollout",
        notes=[
            f"Each sample and each step sleeps for a time drawn from a log-normal distribution "
            f"with a median of {1000 * median_s:g} ms and sigma {SIGMA:g}. Steps are synchronous.",
            "For each turn, TRL samples all rollouts at once and waits for the slowest, then calls "
            "the tools of one rollout after the other. trl-env plays one rollout after the other.",
        ],
    )
    slowest: list[float] = []

    def delays(number: int, count: int) -> NDArray[np.float64]:
        drawn = draw_delays(40 + number, median_s, count, scale.turns)
        if number >= 0:
            slowest.append(slowest_s(drawn))
        return drawn

    for case, peer, make_play, play in (
        (TOOLS, TRL, make_trl_play, play_with_tools),
        (USERS, TRL_ENV, make_trl_env_play, play_with_users),
    ):
        slowest.clear()
        measure_case(workbench, row, case, peer, make_play, {"abut": play}, delays=delays)
        row.add(case, {SLOWEST: slowest})
        row.need_faster(peer, case, 10)
    return row
