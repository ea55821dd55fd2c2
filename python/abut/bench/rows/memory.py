"""What a token of a trajectory costs in memory, measured in a process of its own."""

import json
import subprocess
import sys

from abut.bench.figures import Row
from abut.bench.stage import Stage

KINDS = {"trajectory": "abut", "lists": "Python lists of ids, mask and logprobs"}
CASE = "a token"


def measure(stage: Stage) -> Row:
    """Hold many long trajectories at once."""
    rollouts, tokens = stage.scale.memory_rollouts, stage.scale.memory_tokens
    row = Row(
        "memory",
        f"hold {rollouts} trajectories of {tokens:,} tokens",
        equal="nothing is compared, only counted: both sides are filled from the same texts, and "
        "what a side takes is divided by the tokens that it holds itself",
        notes=["What the process grew by. About half of the tokens are sampled."],
    )
    for kind, name in KINDS.items():
        command = [sys.executable, "-m", "abut.bench.holding", kind]
        command += [str(stage.tokenizer_json), str(rollouts), str(tokens)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        grown = json.loads(done.stdout)
        if grown is None:
            row.notes.append("Not measured: this system has no /proc/self/status.")
            break
        row.add(CASE, {name: [grown]}, unit="B/token")
    return row
