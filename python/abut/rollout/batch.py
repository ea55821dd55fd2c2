"""One batch of rollouts: what lives no longer than it.

One event loop, which only waits: on a thread of its own, or the gateway's where agents play. Slots
for environments and requests, the turns that wait for a sample, and what failed. A batch that was
interrupted may leave some of it to calls that hang; the next batch has its own.
"""

import asyncio
import dataclasses
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np

from abut._native import Tokenizer
from abut.concurrency.loop import LoopTasks, is_cancelled, new_loop
from abut.concurrency.mailbox import Mailbox
from abut.concurrency.process_limits import rarer_collections, thread_limit
from abut.concurrency.slots import Slots
from abut.errors import EnvError, SamplerError
from abut.processor import PartsProcessor
from abut.rollout.config import RolloutConfig
from abut.rollout.conversation import Budget, Conversation, budget_of
from abut.rollout.env_loops import INTERRUPTED_CLOSE_S, EnvClosing, EnvLoops
from abut.rollout.failures import Failures
from abut.rollout.notices import Notices
from abut.rollout.rollout import Rollout
from abut.samplers.in_process import PendingTurns, StreamSampler, serve
from abut.samplers.sampler import BatchSampler, Sample, Sampler, SampleRequest

T = TypeVar("T")

AnySampler: TypeAlias = Sampler | BatchSampler | StreamSampler


class Batch:
    """What the rollouts of one batch share.

    Attributes:
        tokenizer: makes the tokens.
        config: limits and policies.
        at_once: so many rollouts are in flight at the most.
        in_process: whether turns are sampled by a model in this process, which no clock can
            interrupt.
        env_loop: for asynchronous environments; it outlives the batch.
        env_slots: for calls of environments.
        attempts: those that play.
        closing: the environments that are being closed.
        failures: what failed so far.
        notices: what is said once.
        ended: the rollouts that ended, in the order in which they did; of a stream, none.
    """

    def __init__(
        self,
        *,
        at_once: int,
        tokenizer: Tokenizer,
        processor: PartsProcessor,
        sampler: AnySampler,
        config: RolloutConfig,
        stop_token_ids: Sequence[int],
        env_loop: EnvLoops,
        closes_hang: bool,
        logged_failures: set[str],
        notices: Notices,
        version: int | None = None,
        max_staleness: int | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.config = config
        self.at_once = at_once
        self.env_loop = env_loop
        self.closing = EnvClosing(env_loop, hangs=closes_hang)
        self.failures = Failures(logged_failures)
        self.notices = notices
        self.ended: list[Rollout] = []
        self.env_slots = Slots(config.max_env_steps)
        # Asked once: a look at a protocol costs as much as an append.
        self.in_process = isinstance(sampler, BatchSampler)
        forget = getattr(sampler, "forget", None)
        self.attempts = Attempts(version, max_staleness, **({"forget": forget} if forget else {}))
        self._streams = isinstance(sampler, StreamSampler)
        self._sampler = sampler
        self._processor = processor
        self._more_stop_token_ids = stop_token_ids
        self._request_slots = Slots(config.max_requests)
        self._turns = PendingTurns()
        self._playing: Future[Any] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        """That of its own loop, where it has one."""
        self._budget: Budget | None = None
        self._budget_holds: int | None = None
        self._live_envs: set[int] = set()
        self._thread_limit = thread_limit()
        self._env_lock = threading.Lock()

    def run(
        self,
        play: Callable[[], Coroutine[Any, Any, T]],
        expected: Callable[[], int],
        on: LoopTasks | None = None,
    ) -> T:
        """Run `play` on a loop, and sample on this thread where that is asked.

        Args:
            play: plays rollouts, within `open`.
            expected: how many rollouts may still ask for a turn.
            on: the loop, which runs on another thread; None makes one for this batch.

        Raises:
            RolloutError: a rollout failed with `on_failure="raise"`.
            SamplerError: the sampler failed.
        """
        with ExitStack() as stack:
            stack.enter_context(rarer_collections(self.at_once))
            stack.callback(self.closing.close_loop)
            stack.callback(self.closing.wait)
            if isinstance(self._sampler, AbstractContextManager):
                stack.enter_context(self._sampler)
            tasks = on or self._batch_loop()
            try:
                playing = self._playing = tasks.submit(play)
                playing.add_done_callback(self._stop_loop)
                self._serve(playing, expected)
                self.has_ended(None)
            except BaseException:
                # Ctrl-C or a failing model: end every rollout, then let the error go on.
                self.closing.interrupted = True
                tasks.stop()
                self.has_ended(INTERRUPTED_CLOSE_S)
                raise
        result: T = playing.result()
        return result

    @asynccontextmanager
    async def open(self) -> AsyncIterator[AsyncExitStack]:
        """Have the sampler ready as long as this is entered, and what else the stack gets."""
        async with AsyncExitStack() as stack:
            if isinstance(self._sampler, AbstractAsyncContextManager):
                await stack.enter_async_context(self._sampler)
            yield stack

    def has_ended(self, wait_s: float | None) -> bool:
        """Whether no rollout plays any more; where it was interrupted, some may for a while."""
        if self._playing is None or not wait([self._playing], wait_s).done:
            return self._playing is None
        if self._thread is not None:
            self._thread.join(wait_s)
            return not self._thread.is_alive()
        return True

    async def sample(self, request: SampleRequest) -> Sample:
        """Sample one turn, at most `max_requests` at once."""
        if self.in_process:
            return await self._sampled(request, self._turns)
        await self._request_slots.take(request.turn)
        try:
            return await self._sampled(request, self._turns if self._streams else self._sampler)
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            raise SamplerError(
                f"{request.where}: the sampler was cancelled, but not by its rollout"
            ) from None
        finally:
            self._request_slots.give()

    async def sample_apart(self, request: SampleRequest) -> Sample:
        """Sample a turn that belongs to no rollout of the batch."""
        try:
            return await self.sample(request)
        finally:
            self.attempts.forget(request.rollout_id)

    async def _sampled(self, request: SampleRequest, sampler: Any) -> Sample:
        asked = self.attempts.asks(request.rollout_id)
        return self.attempts.labelled(await sampler.sample(request), asked)

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
        if limit is not None and self.at_once > limit.threads:
            raise ValueError(
                f"RolloutConfig.max_rollouts={self.config.max_rollouts!r}: each synchronous "
                f"environment has a thread of its own, {self.at_once} rollouts are in flight at "
                f"once, and this process may have {limit.threads} threads ({limit.name})\n"
                "hint: set max_rollouts below that, or make reset and step `async def`"
            )

    def _batch_loop(self) -> LoopTasks:
        """One that runs until the batch has ended."""
        loop = self._loop = new_loop()
        self._thread = threading.Thread(
            target=_run_loop, args=(loop,), name="abut-loop", daemon=True
        )
        self._thread.start()
        return LoopTasks(loop)

    def _stop_loop(self, playing: Future[Any]) -> None:
        if self._loop is not None:
            # Called on its thread, or by who waits for the batch where that was over by then.
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _serve(self, done: Future[Any], expected: Callable[[], int]) -> None:
        """Sample for models in this process on this thread until the batch is done."""
        turns, at_most = self._turns, self.config.max_requests
        done.add_done_callback(lambda done: turns.close(done.exception()))
        serve(self._sampler, turns, lambda: max(1, min(expected(), at_most)))


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()
    Mailbox.drop(loop)


@dataclass(eq=False)
class Attempt:
    """One that plays."""

    task: asyncio.Task[object]
    oldest: int | None = None
    """The version that sampled when it first asked; None: it has not."""
    is_stale: bool = False
    """Whether it was ended because that is too long ago."""


class Attempts:
    """Those of one batch; all calls come from its loop.

    Args:
        version: of the weights that sample; None: nobody counts them.
        max_staleness: an attempt whose oldest weights are more versions behind is ended; None:
            none is.
        forget: called with the id of each that is over.
    """

    def __init__(
        self,
        version: int | None = None,
        max_staleness: int | None = None,
        *,
        forget: Callable[[str], object] = lambda request_id: None,
    ) -> None:
        self.version = version
        self._max_staleness = max_staleness
        self._forget = forget
        self._playing: dict[str, Attempt] = {}

    def __len__(self) -> int:
        return len(self._playing)

    @contextmanager
    def plays(self, request_id: str) -> Iterator[Attempt]:
        """While this task plays one; its requests for samples bear this id."""
        task = asyncio.current_task()
        assert task is not None
        attempt = self._playing[request_id] = Attempt(task)
        try:
            yield attempt
        finally:
            del self._playing[request_id]
            self._forget(request_id)

    def asks(self, request_id: str) -> int | None:
        """Note that it asks for a sample; returns the version of the weights."""
        attempt = self._playing.get(request_id)
        if attempt is not None and attempt.oldest is None:
            attempt.oldest = self.version
        return self.version

    def forget(self, request_id: str) -> None:
        """Tell the sampler that nothing more is asked under this id."""
        self._forget(request_id)

    def labelled(self, sample: Sample, asked: int | None) -> Sample:
        """A sample with the versions of its tokens, where its sampler has not given them."""
        if asked is None or not isinstance(sample, Sample):
            return sample
        versions = sample.versions
        if versions is None:
            versions = np.full(len(sample.ids), asked, np.int64)
        return dataclasses.replace(sample, versions=versions, newest_version=self.version)

    def update(self, version: int) -> None:
        """Note that other weights sample from now on, and end what has become too old."""
        self.version = version
        if self._max_staleness is None:
            return
        for attempt in self._playing.values():
            behind = 0 if attempt.oldest is None else version - attempt.oldest
            if behind > self._max_staleness and not attempt.is_stale:
                attempt.is_stale = True
                attempt.task.cancel()
