"""Stream samplers under test: asked without rollouts, and listened to with them."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from abut.samplers.in_process import PendingTurn, PendingTurns
from abut.samplers.sampler import Sample, SampleRequest

T = TypeVar("T")
Ask = Callable[[SampleRequest], Coroutine[Any, Any, Sample]]


def served(sampler: Any, play: Callable[[Ask], Coroutine[Any, Any, T]]) -> T:
    """What `play` returns on a loop of its own, while the sampler serves it on this thread."""
    turns, done, loop = PendingTurns(), Future[T](), asyncio.new_event_loop()
    playing = loop.create_task(play(turns.sample))

    def on_the_loop() -> None:
        try:
            done.set_result(loop.run_until_complete(playing))
        except BaseException as error:
            done.set_exception(error)
        turns.close(done.exception())
        loop.close()

    thread = threading.Thread(target=on_the_loop, daemon=True)
    thread.start()
    try:
        with sampler:
            sampler.sample_stream(turns)
    except BaseException:
        loop.call_soon_threadsafe(playing.cancel)
        raise
    finally:
        thread.join()
    return done.result()


def ask(sampler: Any, *requests: SampleRequest) -> list[Sample]:
    """The samples of requests that are asked at once."""

    async def play(ask: Ask) -> list[Sample]:
        return list(await asyncio.gather(*map(ask, requests)))

    return served(sampler, play)


def kept_answers(monkeypatch: Any) -> list[tuple[SampleRequest, Sample]]:
    """Each sample beside its request, from now on."""
    calls: list[tuple[SampleRequest, Sample]] = []
    answer = PendingTurn.answer

    def kept(turn: PendingTurn, sample: Sample) -> None:
        calls.append((turn.request, sample))
        answer(turn, sample)

    monkeypatch.setattr(PendingTurn, "answer", kept)
    return calls
