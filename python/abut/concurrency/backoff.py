"""How long to leave alone what has failed: twice as long after each failure, up to a bound.

The first wait is the price of a trouble that passes at once, so it is short beside a turn: 0.05 s
for a vLLM server that is paused while it gets weights, 0.1 s for one that fails and for an OpenEnv
server without a free session. The longest is how late the end of a trouble is noticed: 2 s for what
lasts seconds, a pause or a session; 5 s for a vLLM server that fails, since it takes minutes to
start again. There is no jitter: those who ask are the few ranks of one training, no crowd.
"""

from collections.abc import Iterator


def backoff(first_s: float, longest_s: float) -> Iterator[float]:
    """Yield the seconds to wait after each failure in a row; after a success begin another one."""
    wait_s = first_s
    while True:
        yield wait_s
        wait_s = min(2 * wait_s, longest_s)
