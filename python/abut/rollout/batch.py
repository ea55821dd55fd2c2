"""One batch of rollouts: everything that does not outlive the batch.

A batch has one event loop, which only waits: on its own thread, or the gateway's loop if agents
play. The batch has slots for calls of environments and for requests, and counts failures. After an
interrupt, hanging calls may keep parts of it alive; the next batch has its own.
"""

import asyncio
import dataclasses
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from abut._native import Tokenizer
from abut.concurrency.loop import LoopTasks, is_cancelled, new_loop
from abut.concurrency.mailbox import Mailbox
from abut.concurrency.process_limits import rarer_collections, thread_limit
from abut.concurrency.slots import Slots
from abut.errors import EnvError, SamplerError
from abut.processor import PartsProcessor
from abut.rollout.budget import Budget, budget_of
from abut.rollout.config import RolloutConfig
from abut.rollout.conversation import Conversation
from abut.rollout.env_loops import INTERRUPTED_CLOSE_S, EnvClosing, EnvLoops
from abut.rollout.failures import Failures
from abut.rollout.setup_warnings import SetupWarnings
from abut.samplers.in_process import AnySampler, EngineSampler
from abut.samplers.sampler import VERSIONS, Sample, SampleRequest


@dataclass
class EngineParts:
    """The parts of an engine that outlive its batches.

    Attributes:
        tokenizer: makes the tokens.
        processor: writes the conversations of tasks that have no processor of their own.
        sampler: draws the turns.
        config: limits and policies.
        stop_token_ids: tokens that end a turn, besides those of the processor.
        env_loops: the loops of asynchronous environments. They outlive a batch, because what
            environments and tools keep open from batch to batch belongs to a loop.
        warnings: about the setup, each logged once.
        logged_failures: the kinds of failures that were logged in full.
        closes_hang: whether some environments of the last batch have not closed.
        watch: gets each request before it is sampled, on the loop of the batch.
    """

    tokenizer: Tokenizer
    processor: PartsProcessor
    sampler: AnySampler
    config: RolloutConfig
    stop_token_ids: Sequence[int] = ()
    env_loops: EnvLoops = field(default_factory=EnvLoops)
    warnings: SetupWarnings = field(default_factory=SetupWarnings)
    logged_failures: set[str] = field(default_factory=set)
    closes_hang: bool = False
    watch: Callable[[SampleRequest], None] | None = None


class Batch:
    """Everything that the rollouts of one batch share.

    Args:
        parts: the parts of the engine.
        at_once: the most rollouts in flight.
        version: of the weights that sample; None if versions are not counted.
        max_staleness: see `Attempts`.

    Attributes:
        in_process: see `EngineSampler`.
        sampler: draws the turns.
        env_slots: limit how many calls of environments run at once.
        attempts: the attempts that are playing.
        closing: the environments that are being closed.
        failures: the failures so far.
    """

    def __init__(
        self,
        parts: EngineParts,
        at_once: int,
        *,
        version: int | None = None,
        max_staleness: int | None = None,
    ) -> None:
        self.tokenizer = parts.tokenizer
        self.config = parts.config
        self.env_loops = parts.env_loops
        self.warnings = parts.warnings
        self.at_once = at_once
        self.closing = EnvClosing(parts.env_loops, hangs=parts.closes_hang)
        self.failures = Failures(parts.logged_failures)
        self.env_slots = Slots(parts.config.max_env_steps)
        self.sampler = EngineSampler(parts.sampler)
        self.in_process = self.sampler.in_process
        self.attempts = Attempts(version, max_staleness, forget=self.sampler.forget)
        self._request_slots = Slots(parts.config.max_requests)
        self._processor, self._watch = parts.processor, parts.watch
        self._more_stop_token_ids = parts.stop_token_ids
        self._playing: Future[Any] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        """The thread of `_loop`; None if the batch plays on the loop of a player."""
        self._budget: Budget | None = None
        self._budget_holds: int | None = None
        self._live_envs: set[int] = set()
        self._thread_limit = thread_limit()
        self._env_lock = threading.Lock()

    def run(
        self, play: Callable[[], Coroutine[Any, Any, None]], on: LoopTasks | None = None
    ) -> None:
        """Run `play` on a loop, and sample on this thread if the sampler wants that; blocks.

        Args:
            play: plays the rollouts.
            on: the loop, which runs on another thread; None makes one for this batch.

        Raises:
            RolloutError: a rollout failed with `on_failure="raise"`.
            SamplerError: the sampler failed.
        """
        with ExitStack() as stack:
            stack.enter_context(rarer_collections(self.at_once))
            # Exited in reverse order: the sampler first, because environments may take seconds to
            # close.
            stack.callback(self.closing.close_loop)
            stack.callback(self.closing.wait)
            stack.enter_context(self.sampler.on_calling_thread())
            tasks = on or self._batch_loop()
            try:
                playing = self._playing = tasks.submit(play)
                playing.add_done_callback(self._stop_loop)
                self.sampler.serve(playing, self._most_asked)
                self.has_ended(None)
            except BaseException:
                # Ctrl-C or a failing model: end every rollout, then re-raise the error.
                self.closing.interrupted = True
                tasks.stop()
                self.has_ended(INTERRUPTED_CLOSE_S)
                raise
        playing.result()

    def has_ended(self, wait_s: float | None) -> bool:
        """Return whether all rollouts have ended; after an interrupt, some may play for a while."""
        if self._playing is None:
            return True
        if not wait([self._playing], wait_s).done:
            return False
        if self._thread is not None:
            self._thread.join(wait_s)
            return not self._thread.is_alive()
        return True

    async def sample(self, request: SampleRequest) -> Sample:
        """Sample one turn, at most `max_requests` at once.

        Raises:
            SamplerError: the sampler failed, or was cancelled by something other than the rollout.
        """
        if self.in_process:  # `_most_asked` bounds these
            return await self._sampled(request)
        await self._request_slots.take(request.turn)
        try:
            return await self._sampled(request)
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            raise SamplerError(
                f"{request.where}: something other than the rollout cancelled the sampler"
            ) from None
        finally:
            self._request_slots.give()

    async def sample_apart(self, request: SampleRequest) -> Sample:
        """Sample a turn that does not belong to a rollout of the batch."""
        try:
            return await self.sample(request)
        finally:
            self.sampler.forget(request.rollout_id)

    async def _sampled(self, request: SampleRequest) -> Sample:
        """Sample a turn, and label its tokens with the versions of the weights."""
        if self._watch is not None:
            self._watch(request)
        asked = self.attempts.asks(request.rollout_id)
        return self.attempts.labelled(await self.sampler.sample(request), asked)

    def _most_asked(self) -> int:
        """The most turns that the current attempts can request at once."""
        return max(1, min(len(self.attempts), self.config.max_requests))

    def conversation(self, processor: PartsProcessor | None = None) -> Conversation:
        """Return a new conversation; without a processor, it uses the engine's."""
        processor = processor or self._processor
        own = processor.stop_token_ids
        return Conversation(
            self.tokenizer,
            processor,
            stop_token_ids=tuple(dict.fromkeys((*own, *self._more_stop_token_ids))),
            budget=self.budget(),
            streams=self.config.streams,
        )

    def budget(self) -> Budget:
        """Return the budget of a conversation.

        Computed late, because a sampler may learn its context length only when it has started.
        """
        holds = self.sampler.max_context_tokens
        if self._budget is None or self._budget_holds != holds:
            self._budget, self._budget_holds = budget_of(self.config, holds), holds
        return self._budget

    def claim(self, env: Any) -> None:
        """Note that a rollout has this environment.

        Raises:
            EnvError: another rollout of the batch already has it.
        """
        with self._env_lock:
            taken = id(env) in self._live_envs
            self._live_envs.add(id(env))
        if taken:
            raise EnvError(
                f"the factory returned the same {type(env).__name__} for two rollouts at once\n"
                "hint: each rollout needs its own environment; pass the class, or lambda: Env(…)"
            )

    def release(self, env: Any) -> None:
        """Note that its rollout has released the environment."""
        with self._env_lock:
            self._live_envs.discard(id(env))

    def check_thread_limit(self) -> None:
        """Refuse to play if it needs too many threads; called for synchronous environments.

        Raises:
            ValueError: more rollouts are in flight at once than there may be threads.
        """
        limit = self._thread_limit
        if limit is not None and self.at_once > limit.threads:
            raise ValueError(
                f"RolloutConfig.max_rollouts={self.config.max_rollouts!r}: each synchronous "
                f"environment needs its own thread, and {self.at_once} rollouts would be in "
                f"flight at once, but this process may have only {limit.threads} threads "
                f"({limit.name})\n"
                f"hint: set max_rollouts below {limit.threads}, or make reset and step `async "
                "def`"
            )

    def _batch_loop(self) -> LoopTasks:
        """Start a loop for this batch, which runs until the batch has ended."""
        loop = self._loop = new_loop()
        self._thread = threading.Thread(
            target=_run_loop, args=(loop,), name="abut-loop", daemon=True
        )
        self._thread.start()
        return LoopTasks(loop)

    def _stop_loop(self, playing: Future[Any]) -> None:
        if self._loop is not None:
            # This runs on the loop's thread, or on the caller's if the future was done by then.
            self._loop.call_soon_threadsafe(self._loop.stop)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()
    Mailbox.drop(loop)


@dataclass(eq=False)
class Attempt:
    """An attempt at a rollout that is playing."""

    task: asyncio.Task[object]
    oldest: int | None = None
    """The version of the weights at its first request; None before that."""
    is_stale: bool = False
    """True if it was ended because these weights are too old."""


class Attempts:
    """The attempts of one batch that are playing, and the age of the weights that sampled for them.

    Invariant: a token is labelled with the oldest weights that can have sampled it. So a rollout
    that counts as fresh is fresh, although a server that switches to new weights in the middle of
    an answer does not report at which token. All calls come from the batch's loop.

    Args:
        version: of the weights that sample; None if versions are not counted.
        max_staleness: an attempt is ended if its oldest weights are more than this many versions
            old; None: never.
        forget: called with the id of each attempt that has ended.
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
        """Count the running task as an attempt, whose requests for samples have this id."""
        task = asyncio.current_task()
        assert task is not None
        attempt = self._playing[request_id] = Attempt(task)
        try:
            yield attempt
        finally:
            del self._playing[request_id]
            self._forget(request_id)

    def asks(self, request_id: str) -> int | None:
        """Note that an attempt requests a sample; return the version of the weights."""
        attempt = self._playing.get(request_id)
        if attempt is not None and attempt.oldest is None:
            attempt.oldest = self.version
        return self.version

    def labelled(self, sample: Sample, asked: int | None) -> Sample:
        """Return the sample with the versions of its tokens, unless its sampler has set them."""
        if asked is None or not isinstance(sample, Sample):
            return sample
        streams = {VERSIONS: np.full(len(sample.ids), asked, np.int64), **sample.streams}
        return dataclasses.replace(sample, streams=streams, newest_version=self.version)

    def update(self, version: int) -> None:
        """Note that new weights sample from now on, and end attempts that have become too old."""
        self.version = version
        if self._max_staleness is None:
            return
        for attempt in self._playing.values():
            behind = 0 if attempt.oldest is None else version - attempt.oldest
            if behind > self._max_staleness and not attempt.is_stale:
                attempt.is_stale = True
                attempt.task.cancel()
