"""The engine: many rollouts at once, each at its own pace.

One event loop on a thread of its own, which only waits. Environments run on worker threads (async
ones on a loop of their own), a model in this process on the thread that called `run`. A slow or
failing environment costs its own rollout at the most.
"""

import asyncio
import hashlib
import inspect
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    suppress,
)
from dataclasses import dataclass
from typing import Any

from abut._native import Tokenizer
from abut.episode import Episode
from abut.errors import EnvError, RolloutError, SamplerError, TemplateError, TokenizerError
from abut.failures import Failures
from abut.in_process import serve
from abut.pending import PendingTurns
from abut.processor import PartsProcessor
from abut.progress import Progress
from abut.rollout import Rollout, RolloutConfig, RolloutTask, StopReason
from abut.sampler import BatchSampler, Sample, Sampler, SampleRequest, StreamSampler
from abut.slots import Slots
from abut.threads import DaemonLoop, DaemonThreads, Mailbox, is_cancelled

logger = logging.getLogger(__name__)

# What one rollout may fail of. Anything else is the sampler's failure or a defect, and is raised.
_ROLLOUT_ERRORS = (EnvError, TokenizerError, TemplateError)
_CLOSE_S = 5.0
_CLOSE_LOOP_S = 2.0
# For each of three things that are waited for: all together within a second of the Ctrl-C.
_INTERRUPTED_CLOSE_S = 0.25


@dataclass(frozen=True)
class Limits:
    """Budgets with nothing left open."""

    max_completion_tokens: int
    max_context_tokens: int | None = None


class Engine:
    """Plays rollouts. One engine runs one batch at a time."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        processor: PartsProcessor,
        sampler: Sampler | BatchSampler | StreamSampler,
        config: RolloutConfig,
        limits: Limits,
        *,
        stop_token_ids: Sequence[int] = (),
        progress: bool = False,
    ) -> None:
        self.tokenizer = tokenizer
        self.processor = processor
        self.config = config
        self.limits = limits
        self._stop_token_ids = tuple(stop_token_ids)
        self._sampler = sampler
        # Asked once: a look at a protocol costs as much as an append.
        self.in_process = isinstance(sampler, BatchSampler)
        """Whether turns are sampled by a model in this process, which no clock can interrupt."""
        self._streams = isinstance(sampler, StreamSampler)
        self._progress = progress
        self._unfinished = 0
        self._close_hangs = False
        self._live_envs: set[int] = set()
        self._env_loop: DaemonLoop | None = None
        self._thread: threading.Thread | None = None
        self._env_lock = threading.Lock()

    def run(
        self,
        tasks: Sequence[RolloutTask],
        *,
        on_rollout: Callable[[Rollout], None] | None = None,
    ) -> list[Rollout]:
        """Play all tasks; returns one rollout for each, in order. Blocks.

        Args:
            tasks: what each rollout starts from.
            on_rollout: gets every rollout that ended, in order, also where this call raises.

        Raises:
            RolloutError: a rollout failed with `on_failure="raise"`, or too many did; or the batch
                before was interrupted and has not ended.
            SamplerError: the sampler failed.
        """
        if not tasks:
            return []
        self._wait_for_interrupted()
        # New for each batch: an interrupted one leaves what nobody waits for any more.
        self._turns = PendingTurns()
        self._ended: list[Rollout] = []
        self._closing: list[Future[Any]] = []
        self._failures = Failures()
        self._unfinished = len(tasks)
        try:
            rollouts = self._run(tasks)
        finally:
            if on_rollout is not None:
                for rollout in sorted(self._ended, key=lambda rollout: rollout.index):
                    on_rollout(rollout)
            failures, self._failures = self._failures, Failures()
            # An engine that waits for its next batch holds nothing of this one.
            self._ended, self._closing = [], []
        failures.judge(rollouts, self.config.max_failed_frac)
        return rollouts

    def _run(self, tasks: Sequence[RolloutTask]) -> list[Rollout]:
        self._live_envs.clear()
        self._interrupted = False
        done: Future[list[Rollout]] = Future()
        with ExitStack() as stack:
            self.threads = DaemonThreads("abut-env")
            stack.callback(self.threads.close)
            stack.callback(self._close_env_loop)
            stack.callback(self._wait_for_closing)
            if isinstance(self._sampler, AbstractContextManager):
                stack.enter_context(self._sampler)
            loop = asyncio.new_event_loop()
            batch = loop.create_task(self._run_all(tasks))
            thread = self._thread = threading.Thread(
                target=_run_loop, args=(loop, batch, done), name="abut-loop", daemon=True
            )
            try:
                thread.start()
                self._serve(done)
                thread.join()
            except BaseException:
                # Ctrl-C or a failing model: end every rollout, then let the error go on.
                self._interrupted = True
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(batch.cancel)
                thread.join(_INTERRUPTED_CLOSE_S)
                raise
        return done.result()

    async def sample(self, request: SampleRequest) -> Sample:
        """Sample one turn, at most `max_requests` at once."""
        if self.in_process:
            return await self._turns.sample(request, self.mailbox)
        await self._request_slots.take(request.turn)
        try:
            if self._streams:
                return await self._turns.sample(request, self.mailbox)
            return await self._sampler.sample(request)  # type: ignore[union-attr]
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            raise SamplerError(
                f"rollout {request.rollout_id}, turn {request.turn}: the sampler was cancelled, "
                "but not by its rollout"
            ) from None
        finally:
            self._request_slots.give()

    def stop_token_ids(self, processor: PartsProcessor) -> tuple[int, ...]:
        """The ids that end a turn of a conversation that `processor` writes."""
        return tuple(dict.fromkeys((*processor.stop_token_ids, *self._stop_token_ids)))

    def sample_seed(self, task: RolloutTask, attempt: int, turn: int) -> int:
        """Return the own seed of one turn: the same for the same config, task and attempt."""
        parts = f"{self.config.seed}/{task.rollout_id}/{attempt}/{turn}"
        digest = hashlib.blake2b(parts.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1

    @property
    def max_context_tokens(self) -> int | None:
        """What prompt and completion may have together, as limits and sampler say."""
        said = (self.limits.max_context_tokens, getattr(self._sampler, "max_context_tokens", None))
        return min((tokens for tokens in said if tokens is not None), default=None)

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

    @property
    def env_loop(self) -> DaemonLoop:
        """The loop of asynchronous environments, which runs as soon as one needs it.

        One for all batches: what environments and tools keep from batch to batch belongs to it.
        """
        with self._env_lock:
            if self._env_loop is None:
                self._env_loop = DaemonLoop("abut-env-loop")
            self._env_loop.open()
            return self._env_loop

    def _wait_for_interrupted(self) -> None:
        """Two batches share slots, threads and counts, so the one before must have ended."""
        if self._thread is None:
            return
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            raise RolloutError(
                f"the batch before was interrupted, and {_CLOSE_S:g} s later its rollouts have not "
                "ended\nhint: see what an environment pool does when it is cancelled; call again"
            )

    def _serve(self, done: Future[list[Rollout]]) -> None:
        """Sample for models in this process on this thread until the batch is done."""
        turns, at_most = self._turns, self.config.max_requests
        done.add_done_callback(lambda done: turns.close(done.exception()))
        serve(self._sampler, turns, lambda: max(1, min(self._unfinished, at_most)))

    async def _run_all(self, tasks: Sequence[RolloutTask]) -> list[Rollout]:
        self.mailbox = Mailbox(asyncio.get_running_loop())
        self.env_slots = Slots(self.config.max_env_steps)
        self._request_slots = Slots(self.config.max_requests)
        rollout_slots = asyncio.Semaphore(self.config.max_rollouts or len(tasks))
        progress = Progress(len(tasks), self._progress)

        async def play(task: RolloutTask) -> Rollout:
            async with rollout_slots:
                rollout = await self._play(task)
            self._unfinished -= 1
            self._ended.append(rollout)
            progress.add(rollout)
            if rollout.failed and self.config.on_failure == "raise":
                raise RolloutError(
                    f"rollout {task.rollout_id} failed after {rollout.attempts} attempts: "
                    f"{rollout.error}"
                )
            return rollout

        async with AsyncExitStack() as stack:
            if isinstance(self._sampler, AbstractAsyncContextManager):
                await stack.enter_async_context(self._sampler)
            playing = [asyncio.ensure_future(play(task)) for task in tasks]
            try:
                return list(await asyncio.gather(*playing))
            finally:
                for rollout in playing:
                    rollout.cancel()
                await asyncio.gather(*playing, return_exceptions=True)
                progress.close()

    async def _play(self, task: RolloutTask) -> Rollout:
        """Play one rollout: whole episodes until one succeeds or the retries are used up."""
        began = time.monotonic()
        errors: list[str] = []
        for attempt in range(self.config.retries + 1):
            episode = Episode(self, task, attempt)
            try:
                async with asyncio.timeout(self.config.rollout_timeout_s) as deadline:
                    rollout = await episode.run(deadline)
            except _ROLLOUT_ERRORS as error:
                rollout = self._failed(episode, error)
            except TimeoutError:
                if not deadline.expired():
                    raise
                limit = f"rollout_timeout_s={self.config.rollout_timeout_s:g}"
                slow = EnvError(f"the rollout took longer than {limit}")
                rollout = self._failed(episode, slow)
            finally:
                self._close(episode.end())
            if rollout.error is not None:
                errors.append(rollout.error)
            rollout.attempts, rollout.attempt_errors = attempt + 1, errors
            rollout.seconds = time.monotonic() - began
            if not rollout.failed:
                break
        if rollout.failed and self.config.on_failure == "zero":
            rollout.reward = 0.0
        return rollout

    def _failed(self, episode: Episode, error: Exception) -> Rollout:
        partial = episode.rollout
        return Rollout(
            partial.rollout_id,
            partial.index,
            prompt_ids=partial.prompt_ids,
            turns=list(partial.turns),
            seams=list(partial.seams),
            messages=list(partial.messages),
            control_spellings=dict(partial.control_spellings),
            stop_reason=StopReason.ERROR,
            error=self._failures.note(error),
        )

    def _close(self, env: Any) -> None:
        """Close an environment in the background: what fails here concerns no rollout."""
        try:
            close = getattr(env, "close", None)
        except BaseException:  # a property that raises
            return
        if close is None:
            return
        if inspect.iscoroutinefunction(close):
            self._closing.append(self.env_loop.submit(close))
        else:
            self._closing.append(self.threads.submit(close))

    def _wait_for_closing(self) -> None:
        """Give environments time to close: once. One that hangs would cost it in every batch."""
        brief = self._interrupted or self._close_hangs
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
        hanging = sum(not future.done() for future in self._closing)
        if not hanging:
            self._close_hangs = False
        if hanging and not self._close_hangs and not self._interrupted:
            self._close_hangs = True
            logger.warning(
                "close() of %d environments did not return within %g s; it is waited for %g s from "
                "now on, and each keeps a thread",
                hanging,
                seconds,
                _INTERRUPTED_CLOSE_S,
            )

    def _close_env_loop(self) -> None:
        seconds = _INTERRUPTED_CLOSE_S if self._interrupted else _CLOSE_LOOP_S
        with self._env_lock:
            loop, self._env_loop = self._env_loop, None
        # Where something blocks it, the next batch gets another one.
        if loop is not None and loop.close(seconds):
            with self._env_lock:
                self._env_loop = self._env_loop or loop


def _run_loop(
    loop: asyncio.AbstractEventLoop, batch: asyncio.Task[list[Rollout]], done: Future[list[Rollout]]
) -> None:
    try:
        rollouts = loop.run_until_complete(batch)
    except BaseException as error:  # handed to the caller of `run`
        done.set_exception(error)
    else:
        done.set_result(rollouts)
    finally:
        loop.close()
