"""What abut takes of time and memory, beside what people use today: `make bench`.

Invariant: times of different results are never compared. Each side's result is compared with that
of abut after every run, and a row whose results differ has no figures and fails the command. All
sides run in turn, on one core: in one process, but for loading, memory and turns, each run of which
has a process of its own, and for servers. Memory has no result to compare, and says so.

From the ground up: `timing`, `figures`, `scale` and `texts`; `peers`; the `workbench`; `rows`; the
`worker`, which measures them; the `command`, which starts it and writes what it says.

The rows play as a user's program does, with the names that abut exports. They import more where a
part is measured without what stands around it, or where there is no trainer: `Engine` and
`RolloutTask` (what a trainer's `rollout_func` calls), `AgentSource` and `serve` (a gateway under a
policy of our own), `new_loop` (the loop that the engine has), `Conversation` (one turn, without
an episode), `with_arrays` and the recorders (a record, without a run), `read_completions` (one
reply, without a server), and the types of values that these take and return.
"""
