"""One batch of rollouts: what lives no longer than it.

One event loop on a thread of its own, which only waits; slots for environments and requests, the
turns that wait for a sample, and what failed. A batch that was interrupted may leave some of it to
calls that hang; the next batch has its own.
"""

import asyncio
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    suppress,
)
from inspect import iscoroutinefunction
from typing import Any, Protocol, TypeAlias

from abut._native import Tokenizer
from abut.concurrency.garbage import rarer_collections
from abut.concurrency.loop import KeptLoop, is_cancelled, new_loop
from abut.concurrency.mailbox import Mailbox
from abut.concurrency.slots import Slots
from abut.concurrency.thread_limit import thread_limit
from abut.concurrency.threads import THREADS, DaemonThread
from abut.envs.foreign import close_env
from abut.envs.task import RolloutTask
from abut.errors import EnvError, RolloutError, SamplerError
from abut.processor import PartsProcessor
from abut.rollout.budget import budget_of
from abut.rollout.config import RolloutConfig
from abut.rollout.conversation import Budget, Conversation
from abut.rollout.failures import Failures
from abut.rollout.notices import Notices
from abut.rollout.progress import Progress
from abut.rollout.rollout import Rollout
from abut.samplers.in_process import serve
from abut.samplers.sampler import BatchSampler, Sample, Sampler, SampleRequest
from abut.samplers.turns import PendingTurns, StreamSampler

logger = logging.getLogger(__name__)

AnySampler: TypeAlias = Sampler | BatchSampler | StreamSampler

_CLOSE_S = 5.0
_CLOSE_LOOP_S = 2.0
# For each of three things that are waited for: all together within a second of the Ctrl-C.
_INTERRUPTED_CLOSE_S = 0.25


class AnyEpisode(Protocol):
    """One attempt at a rollout."""

    rollout: Rollout

    async def run(self, clock: asyncio.Timeout) -> Rollout:
        """Play it to its end, as `Episode.run` does."""
        ...

    def end(self) -> None:
        """End it, whatever became of it."""
        ...

    def where(self) -> str:
        """Where foreign code is that takes long."""
        ...

    def failed(self, error: str) -> Rollout:
        """What there is of a rollout that failed."""
        ...


class OwnLoop(ABC):
    """What plays a rollout itself, in the place of an environment: an agent behind its gateway."""

    @abstractmethod
    def for_batch(self, batch: "Batch") -> AbstractAsyncContextManager[None]:
        """Entered before a batch, on its loop, and left after it."""

    @abstractmethod
    def episode(self, batch: "Batch", task: RolloutTask, attempt: int) -> AnyEpisode:
        """One attempt at a task."""

    async def settle(self, batch: "Batch", played: Sequence[tuple[RolloutTask, Rollout]]) -> None:
        """Called when all rollouts of the batch have ended, with those that this has played."""
        return


class Batch:
    """What the rollouts of one batch share.

    Attributes:
        tokenizer: makes the tokens.
        config: limits and policies.
        in_process: whether turns are sampled by a model in this process, which no clock can
            interrupt.
        env_loop: for asynchronous environments; it outlives the batch.
        env_slots: for calls of environments.
        failures: what failed so far.
        notices: what is said once.
        ended: the rollouts that ended, in the order in which they did.
        closes_hang: whether environments that were closed have not returned.
    """

    def __init__(
        self,
        tasks: Sequence[RolloutTask],
        *,
        tokenizer: Tokenizer,
        processor: PartsProcessor,
        sampler: AnySampler,
        config: RolloutConfig,
        stop_token_ids: Sequence[int],
        env_loop: KeptLoop,
        progress: bool,
        closes_hang: bool,
        logged_failures: set[str],
        notices: Notices,
    ) -> None:
        self.tokenizer = tokenizer
        self.config = config
        self.env_loop = env_loop
        self.closes_hang = closes_hang
        self.failures = Failures(logged_failures)
        self.notices = notices
        self.ended: list[Rollout] = []
        self.env_slots = Slots(config.max_env_steps)
        # Asked once: a look at a protocol costs as much as an append.
        self.in_process = isinstance(sampler, BatchSampler)
        self._streams = isinstance(sampler, StreamSampler)
        self._sampler = sampler
        self._processor = processor
        self._more_stop_token_ids = stop_token_ids
        self._tasks = tasks
        self._request_slots = Slots(config.max_requests)
        self._turns = PendingTurns()
        self._progress = Progress(len(tasks), progress)
        self._thread: threading.Thread | None = None
        self._interrupted = False
        self._gives_up = False
        self._closing: list[Future[Any]] = []
        self._hanging: list[Future[Any]] = []
        self._budget: Budget | None = None
        self._budget_holds: int | None = None
        self._live_envs: set[int] = set()
        self._thread_limit = thread_limit()
        self._env_lock = threading.Lock()

    def run(self, play: Callable[[RolloutTask], Awaitable[Rollout]]) -> list[Rollout]:
        """Have `play` play each task on the loop, and sample on this thread where that is asked.

        Raises:
            RolloutError: a rollout failed with `on_failure="raise"`.
            SamplerError: the sampler failed.
        """
        done: Future[list[Rollout]] = Future()
        with ExitStack() as stack:
            stack.enter_context(rarer_collections(self._at_once))
            stack.callback(self._progress.close)
            stack.callback(self._close_env_loop)
            stack.callback(self._wait_for_closing)
            if isinstance(self._sampler, AbstractContextManager):
                stack.enter_context(self._sampler)
            loop = new_loop()
            playing = loop.create_task(self._play_all(play))
            thread = self._thread = threading.Thread(
                target=_run_loop, args=(loop, playing, done), name="abut-loop", daemon=True
            )
            try:
                thread.start()
                self._serve(done)
                thread.join()
            except BaseException:
                # Ctrl-C or a failing model: end every rollout, then let the error go on.
                self._interrupted = True
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(playing.cancel)
                thread.join(_INTERRUPTED_CLOSE_S)
                raise
        return done.result()

    def has_ended(self, wait_s: float) -> bool:
        """Whether no rollout plays any more; where it was interrupted, some may for a while."""
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join(wait_s)
            return not self._thread.is_alive()
        return True

    async def sample(self, request: SampleRequest) -> Sample:
        """Sample one turn, at most `max_requests` at once."""
        if self.in_process:
            return await self._turns.sample(request)
        await self._request_slots.take(request.turn)
        try:
            if self._streams:
                return await self._turns.sample(request)
            return await self._sampler.sample(request)  # type: ignore[union-attr]
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            raise SamplerError(
                f"{request.where}: the sampler was cancelled, but not by its rollout"
            ) from None
        finally:
            self._request_slots.give()

    def conversation(self, processor: PartsProcessor | None = None) -> Conversation:
        """A conversation before anything is said; None: written by the engine's processor."""
        processor = processor or self._processor
        own = processor.stop_token_ids
        return Conversation(
            self.tokenizer,
            processor,
            stop_token_ids=tuple(dict.fromkeys((*own, *self._more_stop_token_ids))),
            budget=self.budget(),
        )

    def budget(self) -> Budget:
        """What a conversation may have; a sampler may learn only later how much it can hold."""
        holds = getattr(self._sampler, "max_context_tokens", None)
        if self._budget is None or self._budget_holds != holds:
            self._budget, self._budget_holds = budget_of(self.config, holds), holds
        return self._budget

    def claim(self, env: Any) -> None:
        """Note that a rollout has this environment.

        Raises:
            EnvError: another rollout of the batch has it already.
        """
        with self._env_lock:
            taken = id(env) in self._live_envs
            self._live_envs.add(id(env))
        if taken:
            raise EnvError(
                f"the factory returned the same {type(env).__name__} for two rollouts at once\n"
                "hint: each rollout needs an environment of its own; pass the class, or "
                "lambda: Env(…)"
            )

    def release(self, env: Any) -> None:
        """Note that no rollout has it any more."""
        with self._env_lock:
            self._live_envs.discard(id(env))

    def check_thread_limit(self) -> None:
        """For a batch of which an environment has turned out to be synchronous.

        Raises:
            ValueError: more rollouts are in flight at once than there may be threads.
        """
        limit = self._thread_limit
        if limit is not None and self._at_once > limit.threads:
            raise ValueError(
                f"RolloutConfig.max_rollouts={self.config.max_rollouts!r}: each synchronous "
                f"environment has a thread of its own, {self._at_once} rollouts are in flight at "
                f"once, and this process may have {limit.threads} threads ({limit.name})\n"
                "hint: set max_rollouts below that, or make reset and step `async def`"
            )

    def close_on(self, thread: DaemonThread, env: Any, *, keep: bool, hangs: bool) -> None:
        """Close an environment, if there is one, on its thread; give that back unless it is kept.

        In the background, behind a call that still runs: what fails here concerns no rollout. One
        that `hangs` is not waited for, since nothing says when it will return; but where the batch
        gives up, that call is only one nobody waits for any more.
        """
        closed = thread.submit(lambda: close_env(env), last=not keep)
        (self._hanging if hangs and not self._gives_up else self._closing).append(closed)

    def close_on_loop(self, env: Any) -> None:
        """Close an asynchronous environment in the background."""
        self._closing.append(self.env_loop.open().submit(lambda: _close_async(env)))

    def _serve(self, done: Future[list[Rollout]]) -> None:
        """Sample for models in this process on this thread until the batch is done."""
        turns, at_most = self._turns, self.config.max_requests
        done.add_done_callback(lambda done: turns.close(done.exception()))
        unfinished = len(self._tasks)
        serve(self._sampler, turns, lambda: max(1, min(unfinished - len(self.ended), at_most)))

    @property
    def _at_once(self) -> int:
        """So many rollouts are in flight at the most."""
        return min(self.config.max_rollouts or len(self._tasks), len(self._tasks))

    async def _play_all(self, play: Callable[[RolloutTask], Awaitable[Rollout]]) -> list[Rollout]:
        slots = asyncio.Semaphore(self._at_once)

        async def play_one(task: RolloutTask) -> Rollout:
            async with slots:
                rollout = await play(task)
            self.ended.append(rollout)
            self._progress.add(rollout)
            if rollout.failed and self.config.on_failure == "raise":
                raise RolloutError(
                    f"rollout {task.rollout_id} failed after {rollout.attempts} attempts: "
                    f"{rollout.error}"
                ) from self.failures.cause_of(rollout.error)
            return rollout

        async with AsyncExitStack() as stack:
            if isinstance(self._sampler, AbstractAsyncContextManager):
                await stack.enter_async_context(self._sampler)
            own_loops: dict[int, OwnLoop] = {}
            for task in self._tasks:
                if isinstance(task.make_env, OwnLoop) and id(task.make_env) not in own_loops:
                    own_loops[id(task.make_env)] = task.make_env
                    await stack.enter_async_context(task.make_env.for_batch(self))
            playing = [asyncio.ensure_future(play_one(task)) for task in self._tasks]
            try:
                rollouts = list(await asyncio.gather(*playing))
                for id_, played in own_loops.items():
                    pairs = zip(self._tasks, rollouts, strict=True)
                    await played.settle(self, [p for p in pairs if id(p[0].make_env) == id_])
                return rollouts
            finally:
                self._gives_up = True
                for rollout in playing:
                    rollout.cancel()
                await asyncio.gather(*playing, return_exceptions=True)

    def _wait_for_closing(self) -> None:
        """Give environments time to close: once. One that hangs would cost it in every batch."""
        brief = self._interrupted or self.closes_hang
        seconds = _INTERRUPTED_CLOSE_S if brief else _CLOSE_S
        try:
            deadline = time.monotonic() + seconds
            # Not in one go: a Ctrl-C just before a wait is seen when that ends.
            while (left_s := deadline - time.monotonic()) > 0:
                if not wait_for(self._closing, min(left_s, _INTERRUPTED_CLOSE_S)).not_done:
                    break
        except BaseException:
            self._interrupted = True
            raise
        calls = sum(not future.done() for future in self._hanging)
        if calls and not self._interrupted:
            logger.warning(
                "%d calls of environments have not returned: each keeps a thread until it does, "
                "and the environment is closed then",
                calls,
            )
        hanging = sum(not future.done() for future in self._closing)
        if not hanging:
            self.closes_hang = False
        if hanging and not self.closes_hang and not self._interrupted:
            self.closes_hang = True
            logger.warning(
                "%d environments did not close within %g s; they are waited for %g s from now on, "
                "and each keeps a thread",
                hanging,
                seconds,
                _INTERRUPTED_CLOSE_S,
            )

    def _close_env_loop(self) -> None:
        self.env_loop.close(_INTERRUPTED_CLOSE_S if self._interrupted else _CLOSE_LOOP_S)


async def _close_async(env: Any) -> None:
    close = getattr(env, "close", None)
    if iscoroutinefunction(close):
        await close()
    elif close is not None:
        await THREADS.ask(close)


def _run_loop(
    loop: asyncio.AbstractEventLoop,
    playing: asyncio.Task[list[Rollout]],
    done: Future[list[Rollout]],
) -> None:
    try:
        rollouts = loop.run_until_complete(playing)
    except BaseException as error:  # handed to the caller of `run`
        done.set_exception(error)
    else:
        done.set_result(rollouts)
    finally:
        loop.close()
        Mailbox.drop(loop)
