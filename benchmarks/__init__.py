"""The time and memory that abut needs, compared with other packages: `make bench`.

Invariant: times are compared only if the results are equal. Each side's result is compared with
abut's after every run; if they differ, the row has no measurements and the command fails. All sides
take turns on one core, in one process. Exceptions: each run of loading, memory and turns has its
own process, and so does each server. Memory has no result to compare, and its rows say so.

From the ground up: `timing`, `figures`, `scale` and `texts`; `peers`; the `workbench`; `rows`; the
`worker`, which measures them; the `command`, which starts the worker and writes the results.

The rows use abut as a user's program does, through the names that it exports. They import internal
names only to measure a part by itself, or because there is no trainer: `Engine` and `RolloutTask`
(which a trainer's `rollout_func` calls), `AgentSource` and `serve` (a gateway with a scripted
policy), `new_loop` (the engine's event loop), `Conversation` (one turn, without an episode),
`with_arrays` and the recorders (a record, without a run), `read_completions` (one reply, without a
server), and the types of their arguments and results.
"""
