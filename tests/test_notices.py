"""A warning is logged once, even if several threads repeat its cause."""

import logging
import threading
from typing import Any

from abut.notices import Once

logger = logging.getLogger(__name__)


def test_the_first_warning_of_each_kind_is_logged(caplog: Any) -> None:
    once = Once(logger)
    for number in range(3):
        once.warn("a", "a, %d", number)
        once.warn("b", "b, %d", number)
    assert caplog.messages == ["a, 0", "b, 0"]
    assert "a" in once
    assert "c" not in once


def test_kinds_beyond_the_most_are_not_logged(caplog: Any) -> None:
    once = Once(logger, most=2)
    for kind in "abca":
        once.warn(kind, kind)
    assert caplog.messages == ["a", "b"]


def test_one_thread_of_many_is_the_first() -> None:
    once, firsts = Once(logger), []
    barrier = threading.Barrier(8)

    def ask() -> None:
        barrier.wait()
        firsts.extend(kind for kind in range(200) if once.is_first(kind))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(firsts) == list(range(200))
