"""The `rollout_worker` of TRL's asynchronous trainers, which plays rollouts during training.

Invariant: the trainer waits only while there are no rows, and rollouts wait only while the buffer
is full.
"""

import asyncio
import dataclasses
import functools
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from abut.envs.source import ForTask
from abut.errors import RolloutError, text_of
from abut.pickling import stays
from abut.rollout.engine import Engine
from abut.rollout.stream import Finishing, Stream
from abut.trl.streaming.callback import groups_of_epochs, position_callback
from abut.trl.streaming.dataset_position import DatasetGroups, DatasetPosition
from abut.trl.streaming.delivery import (
    Delivery,
    GroupRecords,
    Metrics,
    RowRules,
    TrainerQueues,
)
from abut.trl.streaming.distillation import Distillation
from abut.trl.streaming.rollout_buffer import RolloutBuffer
from abut.trl.trainer_engine import (
    Arguments,
    ModelLimits,
    TrainerSide,
    engine_for,
)
from abut.trl.trainer_sampler import async_client_settings, async_sampler_of
from abut.trl.version import (
    ARRAYS_IN_ROWS,
    trl_version,
)

logger = logging.getLogger(__name__)

_STOP_S = 15.0
# How many dicts of metrics may wait to be logged; a trainer takes a few with each step.
_METRICS = 4096
# Fewer rollouts are not enough to tell that too many fail.
_JUDGED = 32


@stays(
    "it uses the engine and the environments of this process",
    hint="call make_rollout_worker in the process that trains",
)
class RolloutWorker:
    """The `rollout_worker` of an asynchronous trainer; it runs from `start` to `stop`.

    Attributes:
        rollout_buffer: the rows, which the trainer takes.
        metrics_queue: the metrics, which the trainer logs.
        callback: for the trainer's `callbacks`: saves and restores the position in the dataset.
        position: the position of training in the dataset.
        version: of the weights that are sampling.
        step: the trainer's step, if the callback reports it.
        epoch_groups: training ends after this many groups, if it ends by epochs.
    """

    def __init__(
        self,
        arguments: Arguments,
        args: Any,
        train_dataset: Any,
        hf_tokenizer: Any,
        functions: Sequence[Callable[..., Any]],
        base_urls: str | Sequence[str] | None,
        *,
        generations: int,
        owns_gateway: bool,
        distillation: Distillation | None = None,
    ) -> None:
        self.rollout_buffer = RolloutBuffer(max(0, args.queue_maxsize))
        self.metrics_queue: queue.Queue[Metrics] = queue.Queue(_METRICS)
        self.position = DatasetPosition()
        self.version = 0
        self.step: int | None = None
        self.epoch_groups = groups_of_epochs(args, train_dataset)
        self.callback = position_callback(self)
        self._arguments = arguments
        self._tasks = arguments.tasks
        self._args = args
        self._dataset = train_dataset
        self._hf_tokenizer = hf_tokenizer
        self._functions = functions
        self._base_urls = base_urls
        self._generations = generations
        self._owns_gateway = owns_gateway
        self._distillation = distillation
        self._model_limits = ModelLimits()
        self._restored: Mapping[str, Any] | None = None
        self._records: GroupRecords | None = None
        self._stream: Stream | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._pinged_at: float | None = None

    # ---- what the trainer calls

    def start(self) -> None:
        """Begin to play; return immediately.

        Raises:
            TemplateError: the chat template cannot be used.
            ValueError: the settings do not allow rollouts.
        """
        if self._thread is not None:
            logger.warning("the rollout worker is already running")
            return
        if self.step is None:
            logger.warning(
                "the trainer does not have the rollout worker's callback, so a run resumed from "
                "a checkpoint will start again at the first row of the dataset\n"
                "hint: pass callbacks=[worker.callback] to the trainer, together with "
                "rollout_worker=worker"
            )
        engine, self._stream = self._build()
        self._error = None
        self._thread = threading.Thread(
            target=self._run, args=(engine, self._stream), name="abut-rollout-worker", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End all rollouts, and write their records; no effect if the worker is not running."""
        thread, self._thread = self._thread, None
        if thread is None or self._stream is None:
            return
        self._stream.stop()
        thread.join(_STOP_S)
        if thread.is_alive():
            logger.warning(
                "the rollout worker did not stop within %g s; its thread is abandoned", _STOP_S
            )
        if self._owns_gateway:
            self._tasks.route.gateway.stop()
        if self._error is not None:
            logger.warning("the rollout worker failed: %s", text_of(self._error))

    def update_model_version(self, model_version: int) -> None:
        """Note that new weights sample from now on, and end rollouts that have become too old."""
        self.version = model_version
        if self._stream is not None:
            self._stream.update_version(model_version)
        self.rollout_buffer.wake()  # a row that waits may be too old now

    def check_health(self, stale_after_s: float) -> None:
        """Check that the worker is running; the trainer calls this while it has no rows.

        Args:
            stale_after_s: how long the worker's loop may take to answer.

        Raises:
            RolloutError: the worker failed, with the error as the cause; or it hangs.
        """
        if self._error is not None:
            raise RolloutError(
                f"the rollout worker failed: {text_of(self._error)}"
            ) from self._error
        if self._thread is None or self._stream is None:
            raise RolloutError(
                "the rollout worker is not running: it was never started, or it was stopped"
            )
        now = time.monotonic()
        if self._pinged_at is None:
            self._pinged_at = now
            self._stream.ping(self._pong)
        elif now - self._pinged_at > stale_after_s:
            raise RolloutError(
                "the rollout worker hangs: its event loop has not responded for "
                f"{stale_after_s:g} s\n"
                "hint: find the call that blocks the event loop, such as a pool's lend()"
            )

    # ---- what its callback calls

    def meets(self, model: Any) -> None:
        """Take the limits of the trainer's model."""
        self._model_limits = ModelLimits.of(model)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Keep the state of a checkpoint, from which `start` continues."""
        self._restored = state

    # ---- playing

    def _pong(self) -> None:
        self._pinged_at = None

    def _run(self, engine: Engine, stream: Stream) -> None:
        try:
            try:
                engine.stream(stream)
            finally:
                self.rollout_buffer.set_loop(None)
                if self._records is not None:
                    self._records.close()
        except BaseException as error:  # check_health raises it
            logger.debug("the rollout worker ended with an error", exc_info=True)
            self._error = error

    def _build(self) -> tuple[Engine, Stream]:
        """Return the engine, and the stream that it plays."""
        args, route = self._args, self._tasks.route
        if isinstance(self._arguments.sampler, str):
            for source in route.agents:
                source.sampling = functools.partial(async_client_settings, args)
        if route.agents:
            route.gateway.registry.join_run(self._tasks.run_id)
        budget = args.token_budget if (args.token_budget or 0) > 0 else None
        rules = RowRules(args.max_staleness, budget, as_lists=trl_version() < ARRAYS_IN_ROWS)
        engine, for_task = self._engine(budget)
        if (recorder := self._arguments.recorder) is not None:
            self._records = GroupRecords(
                recorder,
                run_id=self._tasks.run_id,
                tokenizer=self._hf_tokenizer.name_or_path,
                step=lambda: self.step,
                by_reward=self._distillation is None,
            )
        delivery = Delivery(
            engine,
            route,
            self._functions,
            TrainerQueues(self.rollout_buffer, self.metrics_queue, self.position),
            self._records,
            rules,
            version=lambda: self.version,
            distillation=self._distillation,
        )
        if self._restored is not None:
            restored, self._restored = self._restored, None
            delivery.restored = self.position.restore(
                restored, self.version, as_lists=rules.as_lists
            )
        groups = DatasetGroups(
            self._dataset, self._tasks, self.position, for_task, self._generations
        )
        at_once = _at_once(args)

        async def begin() -> None:
            self.rollout_buffer.set_loop(asyncio.get_running_loop())
            await delivery.push_restored()

        stream = Stream(
            groups,
            delivery.deliver,
            at_once=at_once,
            judged=max(_JUDGED, self._generations),
            begin=begin,
            version=self.version,
            max_staleness=args.max_staleness,
            finishing=self._finishing(engine),
        )
        return engine, stream

    def _finishing(self, engine: Engine) -> Finishing | None:
        """Return the function that lets the teacher score each rollout; None without a teacher."""
        if (distillation := self._distillation) is None:
            return None
        # Asked when the stream begins: the student's servers say how much they hold.
        return lambda: distillation.finishing(
            max_tokens=engine.budget.max_context_tokens,
            vocab_size=self._model_limits.vocab_size,
        )

    def _engine(self, budget: int | None) -> tuple[Engine, ForTask]:
        args, config, limits = self._args, self._arguments.config, self._model_limits
        holds = (config.max_context_tokens, limits.max_context_tokens, budget)
        side = TrainerSide(
            hf_tokenizer=self._hf_tokenizer,
            model_limits=limits,
            max_completion_tokens=args.max_completion_length,
            sampler=lambda: async_sampler_of(
                args, self._base_urls, lambda: f"trl-policy-v{self.version}"
            ),
            chat_template_kwargs=args.chat_template_kwargs,
        )
        # The smallest limit counts here, because a row above the token budget could not be trained.
        smallest = min((tokens for tokens in holds if tokens), default=None)
        config = dataclasses.replace(config, max_context_tokens=smallest)
        return engine_for(side, dataclasses.replace(self._arguments, config=config))


def _at_once(args: Any) -> int:
    """Return the number of rollouts in flight: from `args`, or TRL's default."""
    if args.max_inflight_tasks > 0:
        return int(args.max_inflight_tasks)
    per_step = args.per_device_train_batch_size * args.gradient_accumulation_steps
    return int(max(args.max_staleness, 1) * per_step * args.world_size)
