"""The row `rollouts`, and one module for each measured way to play whole rollouts.

A whole rollout is measured, except for the model and the environment, which are scripts. abut plays
rollouts with its engine, which uses threads and an event loop; the peers play them one after the
other or in lock-step, as their own code does. All return lists, which trainers take.
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
"""A warm-up only has to trigger what a side does on its first call; a full one would take the
slowest peer minutes."""


def measure(workbench: Workbench) -> Row:
    """Play the same rollouts on all sides."""
    scale = workbench.scale
    row = Row(
        "rollouts",
        f"assemble {scale.rollouts} rollouts of {scale.turns} turns",
        equal="prompt, completion, mask and logprobs of every rollout",
        notes=[
            f"Each turn samples about 300 tokens and receives a reply of {scale.reply_bytes:,} "
            "bytes; all of them differ. The sampler is a script that answers immediately.",
            "trl-env leaves out the newline that the template writes after a sampled "
            "`<|im_end|>`. These newlines are removed from abut's rollouts before the comparison.",
            "trl-env requires Python 3.12. On older versions, a stub replaces its module "
            "`trl_env.environment`, which has only type aliases in the syntax of 3.12.",
            f"trl-env plays one rollout after the other on one thread, and so does “{LOOP}”, "
            "without deadlines, retries or concurrency. abut's engine has all three. Without a "
            "thread for each environment, a turn of the engine takes 145 µs instead of 198 µs, "
            "and 143 µs if deadlines, slots and versions of weights are left out as well. That "
            "would be 6 times as fast as trl-env (868 µs); the plain loop takes 91 µs (medians "
            "of 4 runs that took turns).",
            "trl-env's loop is shorter than TRL's: it encodes the reply between two fixed strings, "
            "instead of rendering a chat template, splits a sample at one fixed string, instead of "
            "parsing tool calls, and extends lists. So abut must be 20 times as fast as TRL's, "
            "but only 8 times as fast as trl-env's.",
            f"“{FLOOR}” neither decodes nor parses samples: it only appends replies, requests "
            "prompts, appends samples and converts the columns to lists. abut cannot be faster "
            "than this.",
        ],
    )
    measure_case(workbench, row, TOOLS, TRL, make_trl_play, {"abut": play_with_tools})
    ours = {"abut": play_with_users, LOOP: play_in_a_loop, FLOOR: play_without_reading}
    measure_case(workbench, row, USERS, TRL_ENV, make_trl_env_play, ours)
    row.need_faster(TRL, TOOLS, 20)
    # trl-env's loop does much less per turn than TRL's, see the notes.
    row.need_faster(TRL_ENV, USERS, 8)
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
    """Time one peer and abut on the same rollouts.

    Args:
        workbench: has the number of rollouts.
        row: receives the figures.
        case: the name of the case.
        peer: the name of the peer.
        make_play: returns the function that plays a script with the peer.
        ours: the functions that play it with abut, by side.
        delays: returns the delays for the number of a round and of its rollouts.
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

    # Threads, messages and futures become garbage by design: collecting it is part of the work.
    row.add(case, interleave(prepare, workbench.scale.rollout_rounds, collect=True))


def _compare(peer: str, ours: Lists, theirs: Lists, workbench: Workbench) -> None:
    for index, ids in enumerate(ours["completion_ids"]):
        kept = np.ones(len(ids), dtype=bool)
        if peer == TRL_ENV:
            # trl-env continues with the next message directly after the sample, and the template
            # writes a newline there, which is the first token of each of abut's replies.
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
