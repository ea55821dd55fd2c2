"""What a token costs in memory where tokens are held, measured in processes of their own."""

from dataclasses import dataclass

from benchmarks.figures import Need, Row
from benchmarks.own_process import run_module
from benchmarks.workbench import Workbench

CASE = "a token"


@dataclass(frozen=True)
class Kind:
    """What holds tokens."""

    name: str
    most: float | None = None
    """Bytes of a token, at most."""


KINDS = {
    # 9 for the core's id, logprob and provenance, 8 for the id in the request.
    "trajectory": Kind("abut", 17.7),
    # 13, but 8 in the prompt.
    "row": Kind("abut, its columns alone", 13.1),
    # One more for the provenance, and what is told of each turn.
    "record": Kind("abut, its record, without the messages", 15.2),
    "lists": Kind("Python lists of ids, mask and logprobs"),
}


def measure(workbench: Workbench) -> Row:
    """Hold many long trajectories at once."""
    rollouts, tokens = workbench.scale.memory_rollouts, workbench.scale.memory_tokens
    row = Row(
        "memory",
        f"hold {rollouts} trajectories of {tokens:,} tokens",
        equal="nothing is compared, only counted: all sides are filled from the same texts, and "
        "what a side takes is divided by the tokens that it holds itself",
        notes=[
            "What the process grew by, without memory that is free again. About half of the tokens "
            "are sampled."
        ],
    )
    for kind, held in KINDS.items():
        path = str(workbench.tokenizer_json)
        grown = run_module("holding", kind, path, str(rollouts), str(tokens))
        if grown is None:
            row.notes.append("Not measured: this system has no /proc/self/status.")
            break
        row.add(CASE, {held.name: [grown]}, unit="B/token")
        if held.most is not None:
            row.needs.append(Need(f"memory of {CASE}, {held.name}", grown, "at most", held.most,
                                  "B/token"))  # fmt: skip
    return row
