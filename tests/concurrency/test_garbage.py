"""The thresholds of the garbage collector are the user's again when nobody needs others."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from abut.concurrency.process_limits import rarer_collections
from tests.kit.stage.rollouts import Stage, Talk


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def test_it_collects_as_often_as_the_most_rollouts_need() -> None:
    with rarer_collections(1000):
        thousand = gc.get_threshold()
        with rarer_collections(2000):
            assert gc.get_threshold() == (2 * thousand[0], 10, 10)
        assert gc.get_threshold() == thousand
    assert thousand[0] > 700
    assert gc.get_threshold() == (700, 10, 10)


def test_the_first_may_end_first() -> None:
    first, second = rarer_collections(1000), rarer_collections(2000)
    first.__enter__()
    second.__enter__()
    most = gc.get_threshold()
    first.__exit__(None, None, None)
    assert gc.get_threshold() == most
    second.__exit__(None, None, None)
    assert gc.get_threshold() == (700, 10, 10)


def test_few_rollouts_change_nothing() -> None:
    with rarer_collections(8):
        assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("own", [(0, 10, 10), (10**6, 5, 5)], ids=["disabled", "rare"])
def test_what_the_user_has_set_stays(own: tuple[int, int, int]) -> None:
    gc.set_threshold(*own)
    with rarer_collections(1000):
        assert gc.get_threshold() == own
    assert gc.get_threshold() == own


def test_what_the_user_sets_meanwhile_stays() -> None:
    with rarer_collections(1000):
        gc.set_threshold(10**6, 5, 5)
    assert gc.get_threshold() == (10**6, 5, 5)


def test_it_is_restored_where_a_batch_fails() -> None:
    with pytest.raises(KeyboardInterrupt), rarer_collections(1000):
        raise KeyboardInterrupt
    assert gc.get_threshold() == (700, 10, 10)


def test_a_batch_collects_more_rarely_while_it_plays(stage: Stage) -> None:
    seen: set[int] = set()

    class Looks(Talk):
        def step(self, action: str) -> Any:
            seen.add(gc.get_threshold()[0])
            return super().step(action)

    assert [rollout.error for rollout in stage.play(*[Looks] * 64).rollouts] == [None] * 64
    assert len(seen) == 1
    assert seen.pop() > 700
    assert gc.get_threshold() == (700, 10, 10)
