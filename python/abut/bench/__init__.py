"""`abut bench`: what abut takes, beside what people use today.

Invariant: times of different results are never compared. Each side's result is compared with that
of abut after every run, and a row whose results differ has no figures and fails the command. All
sides run in turn, in one process, on one core.
"""
