"""The engine: many rollouts at once, each at its own pace.

Environments run on worker threads (async ones on a loop of their own), a model in this process on
the thread that called `run`. A slow or failing environment costs its own rollout at the most.
"""

import asyncio
import functools
import time
from collections.abc import Callable, Sequence

from abut._native import Tokenizer
from abut.concurrency.clock import TimeLimit
from abut.envs.foreign import placed
from abut.envs.task import RolloutTask
from abut.errors import EnvError, RolloutError, TemplateError, TokenizerError
from abut.pickling import stays
from abut.processor import PartsProcessor
from abut.rollout.batch import AnySampler, Batch
from abut.rollout.config import RolloutConfig
from abut.rollout.conversation import Budget, budget_of
from abut.rollout.env_loops import EnvLoops
from abut.rollout.episode import Episode
from abut.rollout.failures import Failures
from abut.rollout.notices import Notices
from abut.rollout.player import AgentPlayer, AnyEpisode, loop_of_players
from abut.rollout.playing import Playing, ProgressBar
from abut.rollout.rollout import Rollout, StopReason
from abut.rollout.stream import Stream

# What one rollout may fail of. Anything else is the sampler's failure or a defect, and is raised.
_ROLLOUT_ERRORS = (EnvError, TokenizerError, TemplateError)
_INTERRUPTED_S = 5.0


@stays(
    "it has threads, loops and a sampler of this process",
    hint="send its tokenizer, processor and config, and make the engine there",
)
class Engine:
    """Plays rollouts. One engine runs one batch at a time."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        processor: PartsProcessor,
        sampler: AnySampler,
        config: RolloutConfig,
        *,
        stop_token_ids: Sequence[int] = (),
        progress: bool = False,
    ) -> None:
        """Take what is the same for all batches.

        Args:
            tokenizer: makes the tokens.
            processor: writes the conversations of tasks that have no processor of their own.
            sampler: draws the turns.
            config: limits and policies. Nobody fills in what is None here, so one of the limits
                of completion and context has to be there, or the sampler has to know one.
            stop_token_ids: end a turn, besides those of the processor.
            progress: show a bar.
        """
        self.tokenizer = tokenizer
        self.processor = processor
        self.config = config
        self._stop_token_ids = tuple(stop_token_ids)
        self._sampler = sampler
        self._progress = progress
        # One for all batches: what environments and tools keep from batch to batch belongs to it.
        self._env_loop = EnvLoops()
        self._closes_hang = False
        self._logged_failures: set[str] = set()
        self._notices = Notices()
        self._unended: Batch | None = None

    def run(
        self,
        tasks: Sequence[RolloutTask],
        *,
        on_rollout: Callable[[Rollout], None] | None = None,
    ) -> list[Rollout]:
        """Play all tasks, and judge what failed of them; blocks.

        Args:
            tasks: what each rollout starts from.
            on_rollout: gets every rollout that ended, in order, also where this call raises.

        Returns:
            one rollout for each task, in order.

        Raises:
            RolloutError: as `play`, or more failed than `max_failed_frac` allows.
            SamplerError, ValueError: as `play`.
        """
        rollouts, failures = self.play(tasks, on_rollout=on_rollout)
        failures.judge([failures.tally(rollouts)], self.config.max_failed_frac)
        return rollouts

    def play(
        self,
        tasks: Sequence[RolloutTask],
        *,
        on_rollout: Callable[[Rollout], None] | None = None,
    ) -> tuple[list[Rollout], Failures]:
        """Play all tasks, as `run`, and leave what failed to the caller's judgement.

        Raises:
            RolloutError: a rollout failed with `on_failure="raise"`; or the batch before was
                interrupted and has not ended.
            SamplerError: the sampler failed.
            ValueError: no limit bounds a rollout, or synchronous environments need more threads
                than there may be.
        """
        if not tasks:
            return [], Failures(self._logged_failures)
        self._wait_for_interrupted()
        at_once = min(self.config.max_rollouts or len(tasks), len(tasks))
        batch = self._batch(at_once)
        progress = ProgressBar(len(tasks), self._progress)
        playing = Playing(batch, tasks, functools.partial(self._play, batch), progress)
        try:
            rollouts = batch.run(playing.run, playing.expected, loop_of_players(tasks))
        finally:
            progress.close()
            self._end(batch)
            if on_rollout is not None:
                for rollout in sorted(batch.ended, key=lambda rollout: rollout.index):
                    on_rollout(rollout)
        max_turns = self.config.max_env_turns
        self._notices.ended(rollouts, tasks, budget=batch.budget(), max_turns=max_turns)
        self._notices.cut(rollouts, budget=batch.budget())
        self._notices.dropped(rollouts)
        return rollouts, batch.failures

    def stream(self, stream: Stream) -> None:
        """Play groups of tasks one after the other, as slots get free, until it is stopped; blocks.

        The continuous mode: nothing waits for the slowest of a batch. All else is as in `play`,
        but what is played is handed to the stream, group by group, and no rollout is kept.

        Args:
            stream: has the tasks, and takes the groups; it plays once.

        Raises:
            RolloutError: a rollout failed with `on_failure="raise"`, more failed than
                `max_failed_frac` allows, or the batch before was interrupted and has not ended.
            SamplerError: the sampler failed.
            ValueError: as `play`.
        """
        self._wait_for_interrupted()
        batch = self._batch(
            self.config.max_rollouts or stream.at_once, stream.version, stream.max_staleness
        )
        play = functools.partial(self._play, batch)
        try:
            batch.run(lambda: stream.run(batch, play), lambda: len(batch.attempts))
        finally:
            self._end(batch)

    @property
    def budget(self) -> Budget:
        """The budget of a conversation, by the config and by what the sampler can hold."""
        return budget_of(self.config, getattr(self._sampler, "max_context_tokens", None))

    def _batch(
        self, at_once: int, version: int | None = None, max_staleness: int | None = None
    ) -> Batch:
        self._unended = Batch(
            at_once=at_once,
            tokenizer=self.tokenizer,
            processor=self.processor,
            sampler=self._sampler,
            config=self.config,
            stop_token_ids=self._stop_token_ids,
            env_loop=self._env_loop,
            closes_hang=self._closes_hang,
            logged_failures=self._logged_failures,
            notices=self._notices,
            version=version,
            max_staleness=max_staleness,
        )
        return self._unended

    def _end(self, batch: Batch) -> None:
        self._closes_hang = batch.closing.hangs
        if batch.has_ended(0):  # an engine that waits for its next batch holds nothing of it
            self._unended = None

    def _wait_for_interrupted(self) -> None:
        """Two batches share the sampler and what it has open, so the one before must have ended."""
        if self._unended is not None and not self._unended.has_ended(_INTERRUPTED_S):
            raise RolloutError(
                f"the batch before was interrupted, and {_INTERRUPTED_S:g} s later its rollouts "
                "have not ended\nhint: see what an environment pool does when it is cancelled; "
                "call again"
            )

    async def _play(self, batch: Batch, task: RolloutTask) -> Rollout:
        """Play one rollout: whole episodes until one succeeds or the retries are used up."""
        began = time.monotonic()
        errors: list[str] = []
        traces: list[str] = []
        attempt, left = 0, self.config.retries
        while True:
            episode = _episode(batch, task, attempt)
            failed = functools.partial(self._failed, batch, episode, attempt)
            try:
                rollout, may_pass = await self._attempt(batch, episode, failed)
            finally:
                episode.end()
            if rollout.error is not None:
                errors.append(rollout.error)
                traces += rollout.attempt_tracebacks
            rollout.attempts, rollout.attempt_errors = attempt + 1, errors
            rollout.attempt_tracebacks = traces
            rollout.seconds = time.monotonic() - began
            if not rollout.failed or not may_pass:
                break
            attempt += 1
            if getattr(episode, "may_have_clashed", False):
                continue  # its class takes turns from now on, or has another loop: it happens once
            if not left:
                break
            left -= 1
        if rollout.failed and self.config.on_failure == "zero":
            rollout.reward = 0.0
        return rollout

    async def _attempt(
        self, batch: Batch, episode: AnyEpisode, failed: Callable[[Exception], Rollout]
    ) -> tuple[Rollout, bool]:
        """Play one episode, whatever becomes of it; returns also whether another may go better."""
        with batch.attempts.plays(episode.request_id) as attempt:
            try:
                limit_s = self.config.rollout_timeout_s
                async with TimeLimit(limit_s, episode.spared_s) as deadline:
                    return await episode.run(deadline), True
            except _ROLLOUT_ERRORS as error:
                return failed(error), getattr(error, "may_pass", True)
            except TimeoutError:
                if not deadline.expired():
                    raise
                limit = f"rollout_timeout_s={self.config.rollout_timeout_s:g}"
                slow = EnvError(f"the rollout took longer than {limit}")
                return failed(placed(slow, episode.where())), True
            except asyncio.CancelledError:
                # Whoever ends the whole batch in the same moment has cancelled this once more.
                if not attempt.is_stale or attempt.task.uncancel():
                    raise
                stale = episode.failed("")
                stale.stop_reason, stale.error, stale.reward = StopReason.STALE, None, None
                return stale, True

    def _failed(self, batch: Batch, episode: AnyEpisode, attempt: int, error: Exception) -> Rollout:
        text, trace = batch.failures.note(error, episode.rollout.rollout_id, attempt)
        rollout = episode.failed(text)
        rollout.attempt_tracebacks = [trace]
        return rollout


def _episode(batch: Batch, task: RolloutTask, attempt: int) -> AnyEpisode:
    played = task.make_env
    if isinstance(played, AgentPlayer):
        return played.episode(batch, task, attempt)
    return Episode(batch, task, attempt)
