"""What a token of a trajectory costs in memory, measured in a process of its own."""

from abut.bench.figures import Row
from abut.bench.own_process import run_module
from abut.bench.workbench import Workbench

KINDS = {"trajectory": "abut", "lists": "Python lists of ids, mask and logprobs"}
CASE = "a token"


def measure(workbench: Workbench) -> Row:
    """Hold many long trajectories at once."""
    rollouts, tokens = workbench.scale.memory_rollouts, workbench.scale.memory_tokens
    row = Row(
        "memory",
        f"hold {rollouts} trajectories of {tokens:,} tokens",
        equal="nothing is compared, only counted: both sides are filled from the same texts, and "
        "what a side takes is divided by the tokens that it holds itself",
        notes=["What the process grew by. About half of the tokens are sampled."],
    )
    for kind, name in KINDS.items():
        path = str(workbench.tokenizer_json)
        grown = run_module("holding", kind, path, str(rollouts), str(tokens))
        if grown is None:
            row.notes.append("Not measured: this system has no /proc/self/status.")
            break
        row.add(CASE, {name: [grown]}, unit="B/token")
    return row
