"""The engine: many rollouts at once, each at its own pace.

Environments run on worker threads (asynchronous ones on their own event loop), a model in this
process on the thread that called `run`. A slow or failing environment loses at most its own
rollout.

    Engine.play or .stream   a batch is opened, and judged or handed over
    └ Batch.run              its loop and its sampler; this thread samples, or waits
      └ Stream.play          groups of tasks: open, play, settle
        └ play_rollout       attempts until one succeeds
          └ Episode.run      turns, between an environment and a conversation
"""

from collections.abc import Callable, Sequence

from abut._native import Tokenizer
from abut.concurrency.loop import LoopTasks
from abut.envs.task import RolloutTask
from abut.errors import RolloutError
from abut.pickling import stays
from abut.processor import PartsProcessor
from abut.rollout.batch import Batch, EngineParts
from abut.rollout.budget import Budget, budget_of
from abut.rollout.config import RolloutConfig
from abut.rollout.failures import Failures
from abut.rollout.player import Played, loop_of_players
from abut.rollout.progress import Progress
from abut.rollout.rollout import Rollout
from abut.rollout.stream import Finishing, Stream
from abut.samplers.in_process import AnySampler, EngineSampler
from abut.samplers.sampler import SampleRequest

_INTERRUPTED_S = 5.0


@stays(
    "it holds threads, event loops and a sampler of this process",
    hint="send its tokenizer, processor and config, and make the engine there",
)
class Engine:
    """Plays rollouts, one batch at a time."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        processor: PartsProcessor,
        sampler: AnySampler,
        config: RolloutConfig,
        *,
        stop_token_ids: Sequence[int] = (),
        progress: bool = False,
        watch: Callable[[SampleRequest], None] | None = None,
    ) -> None:
        """Set everything that is the same for all batches.

        Args:
            tokenizer: makes the tokens.
            processor: writes the conversations of tasks that have no processor of their own.
            sampler: draws the turns.
            config: limits and policies. Without a trainer a None is not replaced, so the config
                must have `max_completion_tokens` or `max_context_tokens`, unless the sampler has a
                limit.
            stop_token_ids: tokens that end a turn, besides those of the processor.
            progress: whether to show a progress bar.
            watch: gets each request before it is sampled, on the loop of the batch.
        """
        self.tokenizer = tokenizer
        self.processor = processor
        self.config = config
        stops = tuple(stop_token_ids)
        self._parts = EngineParts(tokenizer, processor, sampler, config, stops, watch=watch)
        self._progress = progress
        self._unended: Batch | None = None

    def run(
        self,
        tasks: Sequence[RolloutTask],
        *,
        on_rollout: Callable[[Rollout], None] | None = None,
    ) -> list[Rollout]:
        """Play all tasks, and raise if too many of them failed; blocks.

        Args:
            tasks: one for each rollout.
            on_rollout: called with every rollout that has ended, in order, even if `run` raises.

        Returns:
            One rollout for each task, in order.

        Raises:
            RolloutError: as for `play`, or more rollouts failed than `max_failed_frac` allows.
            SamplerError, ValueError: as for `play`.
        """
        rollouts, failures = self.play(tasks, on_rollout=on_rollout)
        failures.judge([failures.tally(rollouts)], self.config.max_failed_frac)
        return rollouts

    def play(
        self,
        tasks: Sequence[RolloutTask],
        *,
        on_rollout: Callable[[Rollout], None] | None = None,
        finishing: Finishing | None = None,
    ) -> tuple[list[Rollout], Failures]:
        """Play all tasks like `run`, but leave it to the caller to judge failures.

        Args:
            tasks: as in `run`.
            on_rollout: as in `run`.
            finishing: see `Stream`.

        Raises:
            RolloutError: a rollout failed with `on_failure="raise"`; or the previous batch was
                interrupted and has not ended.
            SamplerError: the sampler failed.
            ValueError: a rollout has no token limit, or synchronous environments need more threads
                than the process may have.
        """
        played: list[Rollout] = []
        ended: list[Rollout] = []
        if not tasks:
            return played, Failures(self._parts.logged_failures)
        progress = Progress(len(tasks), bar=self._progress, log_every_s=self.config.log_every_s)

        async def take(batch: Batch, group: Played) -> None:
            played.extend(rollout for _, rollout in group)

        at_once = min(self.config.max_rollouts or len(tasks), len(tasks))
        stream = Stream(
            [tasks],
            take,
            at_once=at_once,
            judged=None,
            ended=ended.append,
            finishing=finishing,
            progress=progress,
        )
        try:
            batch = self._play(stream, at_once, loop_of_players(tasks))
        finally:
            progress.close()
            if on_rollout is not None:
                for rollout in sorted(ended, key=lambda rollout: rollout.index):
                    on_rollout(rollout)
        if self.config.branch != "all":
            self._parts.warnings.dropped(played)
        return played, batch.failures

    def stream(self, stream: Stream) -> None:
        """Play groups of tasks one after the other, as slots get free, until it is stopped; blocks.

        In this continuous mode no rollout waits for the slowest of a batch. Otherwise it is like
        `play`, but rollouts are delivered group by group and are not kept.

        Args:
            stream: has the tasks, and takes the groups; it plays once.

        Raises:
            RolloutError: a rollout failed with `on_failure="raise"`, more failed than
                `max_failed_frac` allows, or the previous batch was interrupted and has not ended.
            SamplerError: the sampler failed.
            ValueError: as for `play`.
        """
        self._play(stream, self.config.max_rollouts or stream.at_once)

    @property
    def budget(self) -> Budget:
        """The budget of a conversation, from the config and the sampler's context length."""
        return budget_of(self.config, EngineSampler(self._parts.sampler).max_context_tokens)

    def _play(self, stream: Stream, at_once: int, on: LoopTasks | None = None) -> Batch:
        """Play a stream as one batch; return the batch when it has ended."""
        self._wait_for_interrupted()
        batch = self._unended = Batch(
            self._parts, at_once, version=stream.version, max_staleness=stream.max_staleness
        )
        try:
            batch.run(lambda: stream.play(batch), on)
        finally:
            self._parts.closes_hang = batch.closing.hangs
            if batch.has_ended(0):  # so that nothing of it stays in memory until the next batch
                self._unended = None
        return batch

    def _wait_for_interrupted(self) -> None:
        """Wait for an interrupted batch, because two batches would share the sampler."""
        if self._unended is not None and not self._unended.has_ended(_INTERRUPTED_S):
            raise RolloutError(
                "the previous batch was interrupted, but its rollouts have not ended after "
                f"{_INTERRUPTED_S:g} s\n"
                "hint: call again; if it keeps failing, check that the environment pool ends "
                "when it is cancelled"
            )
