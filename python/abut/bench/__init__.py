"""`abut bench`: what abut takes, beside what people use today.

Invariant: times of different results are never compared. Each side's result is compared with that
of abut after every run, and a row whose results differ has no figures and fails the command. All
sides run in turn, on one core: in one process, but for loading, memory and turns, each run of which
has a process of its own, and for servers. Memory has no result to compare, and says so.

From the ground up: `timing`, `figures`, `scale` and `texts`; `peers`; the `workbench`; `rows`; the
`worker`, which measures them; the `command`, which starts it and writes what it says.
"""
