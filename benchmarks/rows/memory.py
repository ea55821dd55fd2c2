"""Memory per token of trajectories and of other containers, each measured in a new process."""

from dataclasses import dataclass

from benchmarks.figures import Need, Row
from benchmarks.own_process import run_module
from benchmarks.workbench import Workbench

CASE = "memory per token"


@dataclass(frozen=True)
class Kind:
    """A container of tokens."""

    name: str
    most: float | None = None
    """The limit, in bytes per token; None: no limit."""


KINDS = {
    # 9 for the core's id, logprob and provenance, 8 for the id in the request.
    "trajectory": Kind("abut", 17.7),
    # 13, but only 8 in the prompt.
    "row": Kind("abut, columns only", 13.1),
    # One more for the provenance, and the fields of each turn.
    "record": Kind("abut, record without messages", 15.2),
    "lists": Kind("Python lists of ids, mask and logprobs"),
}


def measure(workbench: Workbench) -> Row:
    """Hold many long trajectories at once."""
    rollouts, tokens = workbench.scale.memory_rollouts, workbench.scale.memory_tokens
    row = Row(
        "memory",
        f"hold {rollouts} trajectories of {tokens:,} tokens",
        equal="nothing; all sides hold the same texts, and the memory of each is divided by the "
        "number of tokens that it holds",
        notes=[
            "The growth of the process, without memory that was freed again. About half of the "
            "tokens are sampled."
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
            row.needs.append(Need(f"{held.name}, {CASE}", grown, "at most", held.most,
                                  "B/token"))  # fmt: skip
    return row
