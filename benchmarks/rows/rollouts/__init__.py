"""The row `rollouts`, and one module for each way of playing whole rollouts that it measures.

All of a rollout is measured but the model, which is a script, and the environment, which is one.
abut plays them as its engine does, with threads and an event loop; the peers one after the other,
or in lock-step, as theirs do. All hand over lists, as a trainer takes them.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.figures import Row, require_same
from benchmarks.peers import PeerMissing
from benchmarks.rows.rollouts.abut_engine import play_with_tools, play_with_users
from benchmarks.rows.rollouts.lists import Lists
from benchmarks.rows.rollouts.plain_loop import FLOOR, LOOP, play_in_a_loop, play_without_reading
from benchmarks.rows.rollouts.script import Play, Script
from benchmarks.rows.rollouts.trl_env_loop import TRL_ENV, make_trl_env_play
from benchmarks.rows.rollouts.trl_loop import TRL, make_trl_play
from benchmarks.timing import Check, Sides, interleave
from benchmarks.workbench import Workbench

TOOLS, USERS = "replies as tool messages, calls parsed", "replies as user turns"
WARM_UP_ROLLOUTS = 2
"""The warm-up is for what a side leaves until its first call: a full one takes the slowest peer
minutes."""


def measure(workbench: Workbench) -> Row:
    """Play the same rollouts in every way."""
    scale = workbench.scale
    row = Row(
        "rollouts",
        f"assemble {scale.rollouts} rollouts of {scale.turns} turns",
        equal="prompt, completion, mask and logprobs of every rollout",
        notes=[
            f"Each turn samples about 300 tokens and gets {scale.reply_bytes:,} bytes of reply, "
            "all of them different. The sampler answers at once, by a script.",
            "trl-env leaves out the newline that the template writes behind a sampled "
            "`<|im_end|>`; those of abut are taken out before the two are compared.",
            "trl-env is made for Python 3.12: below, a stand-in takes the place of its module "
            "`trl_env.environment`, which holds type aliases alone, in the syntax of 3.12.",
            "trl-env plays one rollout after the other on one thread, and so does the plain loop "
            "beside it: no deadlines, no retries, nothing at once. abut's engine has all of these: "
            "that is the difference between the two lines of abut.",
            "The last line of abut is that loop without decoding and parsing what was sampled: the "
            "reply as parts, append, request, append_sampled, and the columns as lists. trl-env's "
            "time over this line's is the most that can be reached against it.",
        ],
    )
    measure_case(workbench, row, TOOLS, TRL, make_trl_play, {"abut": play_with_tools})
    ours = {"abut": play_with_users, LOOP: play_in_a_loop, FLOOR: play_without_reading}
    measure_case(workbench, row, USERS, TRL_ENV, make_trl_env_play, ours)
    row.need_faster(TRL, TOOLS, 20)
    row.need_faster(TRL_ENV, USERS, 20)
    return row


def measure_case(
    workbench: Workbench,
    row: Row,
    case: str,
    peer: str,
    make_play: Callable[[Workbench], Play],
    ours: Mapping[str, Play],
    *,
    delays: Callable[[int, int], NDArray[np.float64]] | None = None,
) -> None:
    """Time one peer and ours on the same rollouts.

    Args:
        workbench: how many rollouts.
        row: gets the figures.
        case: the name of what is compared.
        peer: its name.
        make_play: makes what plays a script in the peer's way.
        ours: what plays it in ours, by name.
        delays: for the number of a round and of its rollouts, the delays.
    """
    try:
        theirs = make_play(workbench)
    except PeerMissing as missing:
        row.missing[peer] = str(missing)
        theirs = None

    def prepare(number: int) -> tuple[Sides, Check]:
        count = WARM_UP_ROLLOUTS if number < 0 else workbench.scale.rollouts
        script = Script.of(workbench, 20 + number, count)
        if delays is not None:
            script.delays = delays(number, count)

        def check(results: dict[str, Any]) -> None:
            if peer in results:
                for name in ours:
                    _compare(peer, results[name], results[peer], workbench)

        plays = ours if theirs is None else {**ours, peer: theirs}
        return {name: functools.partial(play, script) for name, play in plays.items()}, check

    # Threads, messages and futures are garbage by design: collecting them is part of the work.
    row.add(case, interleave(prepare, workbench.scale.rollout_rounds, collect=True))


def _compare(peer: str, ours: Lists, theirs: Lists, workbench: Workbench) -> None:
    for index, ids in enumerate(ours["completion_ids"]):
        kept = np.ones(len(ids), dtype=bool)
        if peer == TRL_ENV:
            # It goes on with the next message directly behind what was sampled, where the template
            # writes a newline: the first token of each of abut's replies.
            mask = np.asarray(ours["env_mask"][index])
            kept[np.flatnonzero((mask[:-1] == 1) & (mask[1:] == 0)) + 1] = False
            newline = workbench.tokenizer.encode("\n")
            separators = np.asarray(ids)[~kept]
            require_same("separators", "a newline", separators, [*newline] * len(separators))
        require_same(
            f"prompt_ids of rollout {index}", peer, ours["prompt_ids"][index],
            theirs["prompt_ids"][index],
        )  # fmt: skip
        for name in ("completion_ids", "env_mask", "logprobs"):
            left, right = np.asarray(ours[name][index])[kept], theirs[name][index]
            require_same(f"{name} of rollout {index}", peer, left, right)
