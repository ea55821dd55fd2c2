"""The waits after failures."""

from itertools import islice

from abut.concurrency.backoff import backoff


def test_waits_double_up_to_the_longest() -> None:
    assert list(islice(backoff(0.1, 0.5), 5)) == [0.1, 0.2, 0.4, 0.5, 0.5]
