"""The delivery of played groups: scores, records, and rows for the trainer.

Invariant: a pushed row has a score, a trained token, and fresh enough weights. Metrics count all
other rows.
"""

import asyncio
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from abut.concurrency.threads import THREADS
from abut.envs.task import RolloutTask
from abut.notices import Once
from abut.records.recorder import (
    BackgroundRecorder,
    FlushingRecorder,
    Recorder,
    ScoreRecorder,
)
from abut.records.scores import score_record
from abut.rollout.batch import Batch
from abut.rollout.engine import Engine
from abut.rollout.player import Played
from abut.rollout.rollout import Branch, Rollout, StopReason
from abut.tools.environment_factory import environments_of
from abut.trl.metrics import log_batch
from abut.trl.rewards import OWN_REWARDS, are_of_envs, tool_names
from abut.trl.route import EnvRoute
from abut.trl.rows.columns import (
    COMPLETIONS,
    conversation_of,
    conversations_of,
    extra_names,
    fill_extras,
    rows_of,
)
from abut.trl.run_records import RolloutRecorder
from abut.trl.streaming.dataset_position import DatasetPosition
from abut.trl.streaming.distillation import Distillation, row_key, with_scores
from abut.trl.streaming.group_scores import (
    GroupScores,
    RewardFunction,
    advantages_of,
    row_advantages,
    scores_of,
)
from abut.trl.streaming.rollout_buffer import RolloutBuffer
from abut.trl.streaming.training_row import (
    RolloutRow,
    can_be_scored,
    recorded_rows,
    rows_of_rollout,
)
from abut.trl.teachers.teacher import TeacherScores

logger = logging.getLogger(__name__)

Metrics = dict[str, "float | tuple[float, float]"]


class GroupRecords:
    """Records the rollouts and scores of each group, on any thread.

    Args:
        recorder: the recorder that keeps them.
        run_id: the id of the run.
        tokenizer: the name of the tokenizer.
        step: the trainer's step, if it is known.
        by_reward: whether the trainer uses advantages.
    """

    def __init__(
        self,
        recorder: Recorder,
        *,
        run_id: str,
        tokenizer: str,
        step: Callable[[], int | None],
        by_reward: bool = True,
    ) -> None:
        self._recorder = recorder
        self._rollouts = RolloutRecorder(
            recorder, run_id=run_id, rank=0, mode="train", tokenizer=tokenizer
        )
        self._run_id = run_id
        self._step = step
        self._by_reward = by_reward
        self._flushed_at: int | None = None
        self._scores: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    def write(
        self, played: Played, scores: GroupScores, advantages: Sequence[Sequence[float | None]]
    ) -> None:
        """Record a group. Records are flushed when the trainer has made a step.

        Args:
            played: its rollouts.
            scores: of them.
            advantages: of their conversations, see `row_advantages`.

        Raises:
            OSError: an earlier group could not be written.
        """
        with self._lock:
            step = self._step()
            for k, (task, rollout) in enumerate(played):
                self._rollouts.write(task, rollout, step=step)
                has_advantage = self._by_reward and scores.rewards[k] is not None
                self._scores.append(
                    score_record(
                        self._run_id,
                        rollout.rollout_id,
                        {name: values[k] for name, values in scores.by_function.items()},
                        total=scores.rewards[k],
                        advantage=scores.advantages[k] if has_advantage else None,
                        rows=recorded_rows(rollout, advantages[k], by_reward=self._by_reward),
                    )
                )
            if step is None or step != self._flushed_at:
                self._flushed_at = step
                self._flush()

    def close(self) -> None:
        """Write the remaining records.

        Raises:
            OSError: a record could not be written.
        """
        with self._lock:
            self._flush()
            if isinstance(self._recorder, BackgroundRecorder):
                self._recorder.wait()

    def _flush(self) -> None:
        if isinstance(self._recorder, FlushingRecorder):
            self._recorder.flush()
        scores, self._scores = self._scores, []
        if scores and isinstance(self._recorder, ScoreRecorder):
            self._recorder.write_scores(scores)


@dataclass(frozen=True)
class RowRules:
    """The rules for the rows that the trainer takes.

    Attributes:
        max_staleness: a row is not pushed if its weights are more than this many versions old.
        max_tokens: longer rows are not pushed; None: no limit.
        as_lists: whether the trainer takes lists instead of arrays.
    """

    max_staleness: int
    max_tokens: int | None
    as_lists: bool


@dataclass(frozen=True)
class TrainerQueues:
    """The connections between a worker and its trainer.

    Attributes:
        rows: the queue of rows, which the trainer trains.
        metrics: the queue of metrics, which the trainer logs; they are dropped if the trainer does
            not take them.
        position: notes which rows are pushed.
    """

    rows: RolloutBuffer
    metrics: "queue.Queue[Metrics]"
    position: DatasetPosition


class Delivery:
    """Delivers the groups of one worker.

    Args:
        engine: the engine that plays them.
        route: the environments.
        functions: the reward functions.
        queues: take rows and metrics.
        records: records rollouts and scores; None: they are not recorded.
        rules: say which rows are pushed.
        version: of the weights that sample now.
        distillation: lets a teacher score the rows; None: rewards judge them.
    """

    def __init__(
        self,
        engine: Engine,
        route: EnvRoute,
        functions: Sequence[RewardFunction],
        queues: TrainerQueues,
        records: GroupRecords | None,
        rules: RowRules,
        version: Callable[[], int],
        distillation: Distillation | None = None,
    ) -> None:
        self._engine = engine
        self._route = route
        self._functions = functions
        self._queues = queues
        self._records = records
        self._rules = rules
        self._version = version
        self._distillation = distillation
        self._once = Once(logger)
        self._extras: dict[str, None] = {}
        """The names of extras that any rollout has had."""
        self._pushing = asyncio.Lock()
        self.restored: list[RolloutRow] = []
        """The rows of a checkpoint, which are pushed before all others."""

    async def deliver(self, batch: Batch, played: Played) -> None:
        """Score a group, and push its rows; waits while the buffer is full.

        Raises:
            RolloutError: a reward function raised.
            OSError: the group could not be recorded.
        """
        tasks, rollouts = [task for task, _ in played], [rollout for _, rollout in played]
        metrics: Metrics = {}
        scores = await self._scores(batch, tasks, rollouts, metrics.__setitem__)
        conversations = [conversations_of(rollout) for rollout in rollouts]
        can_be_rows = [can_be_scored(rollout) for rollout in rollouts]
        if self._distillation is not None:  # rewards are only metrics
            pairs = zip(conversations, can_be_rows, strict=True)
            found = [[0.0 if can and one.trained else None for one in each] for each, can in pairs]
        else:
            found, alone = row_advantages(conversations, scores, can_be_rows)
            if self._route.agents:
                metrics["rollout/alone_frac"] = (float(sum(alone)), float(len(alone)))
                self._note_own_rewards(conversations)
        rows = self._scored(rollouts, self._rows(tasks, rollouts, scores, found))
        if (records := self._records) is not None:
            await THREADS.ask(lambda: records.write(played, scores, found))
        metrics["rollout/inflight"] = float(len(batch.attempts))
        metrics["rollout/ended_stale_total"] = float(
            sum(rollout.stop_reason is StopReason.STALE for rollout in rollouts)
        )
        group = tasks[0].group
        async with self._pushing:
            await self._push_restored()
            await self._push(group, rows, metrics, sampled=_sampled_tokens(rollouts))
        self._say(metrics)

    async def push_restored(self) -> None:
        """Push the rows of a checkpoint, before any group has ended."""
        async with self._pushing:
            await self._push_restored()

    async def _scores(
        self,
        batch: Batch,
        tasks: Sequence[RolloutTask],
        rollouts: Sequence[Rollout],
        log_metric: Callable[[str, float], None],
    ) -> GroupScores:
        columns: dict[str, Any] = rows_of(
            rollouts,
            tasks,
            self._engine,
            agents=bool(self._route.agents),
            environments=self._route.names,
            tools=tool_names(self._route.kinds),
            trains_all=True,
            teacher=self._distillation is not None,
        )
        self._extras.update(dict.fromkeys(extra_names(rollouts)))
        fill_extras(columns, self._extras)
        told = columns.pop(COMPLETIONS, [None] * len(tasks))
        columns |= environments_of(tasks, self._route.kinds)
        log_batch(columns["rollout_stats"], columns, log_metric, None)
        of_row = {name: [value] * len(tasks) for name, value in tasks[0].columns.items()}
        columns = of_row | columns
        columns |= {
            "prompts": [task.columns.get("prompt") for task in tasks],
            "completions": [
                conversation_of(rollout)[1] if completion is None else completion
                for rollout, completion in zip(rollouts, told, strict=True)
            ],
            "log_metric": log_metric,
            "log_extra": lambda name, values: None,  # the trainer has no table of completions
        }
        columns.pop("prompt", None)
        can = [
            measured and rollout.stop_reason is not StopReason.STALE
            for measured, rollout in zip(columns["measured"], rollouts, strict=True)
        ]
        if not any(can):
            rewards = [None] * len(rollouts)
            return GroupScores({}, rewards, *advantages_of(rewards))
        ask = batch.env_loops.open().ask
        return await scores_of(self._functions, columns, can, ask)

    def _note_own_rewards(self, conversations: Sequence[Sequence[Branch]]) -> None:
        own = any(one.reward is not None for of_rollout in conversations for one in of_rollout)
        if own and not are_of_envs(self._functions):
            self._once.warn("own rewards", OWN_REWARDS)

    def _rows(
        self,
        tasks: Sequence[RolloutTask],
        rollouts: Sequence[Rollout],
        scores: GroupScores,
        advantages: Sequence[Sequence[float | None]],
    ) -> list[RolloutRow]:
        rows: list[RolloutRow] = []
        distillation = self._distillation
        for k, (task, rollout) in enumerate(zip(tasks, rollouts, strict=True)):
            reward = float("nan") if (total := scores.rewards[k]) is None else total
            metrics = {"reward": reward, "reward_std": scores.std} | {
                f"rewards/{name}": float("nan") if (value := values[k]) is None else value
                for name, values in scores.by_function.items()
            }
            if distillation is not None:  # an environment without a reward has no such metrics
                metrics = {name: v for name, v in metrics.items() if not math.isnan(v)}
            rows += rows_of_rollout(
                rollout,
                advantages=advantages[k],
                group_id=task.group,
                metrics=metrics,
                version=self._version(),
                as_lists=self._rules.as_lists,
                teacher_id="" if distillation is None else distillation.name_of(task),
            )
        return rows

    def _scored(self, rollouts: Sequence[Rollout], rows: Sequence[RolloutRow]) -> list[RolloutRow]:
        """Return the rows with the teacher's scores, without rows that it did not score."""
        if (distillation := self._distillation) is None:
            return list(rows)
        found = distillation.take(rollouts)
        return self._with_scores((row, found.get(row_key(row))) for row in rows)

    def _with_scores(
        self, rows: Iterable[tuple[RolloutRow, TeacherScores | None]]
    ) -> list[RolloutRow]:
        as_lists = self._rules.as_lists
        return [
            with_scores(row, scores, as_lists=as_lists)
            for row, scores in rows
            if scores is not None
        ]

    async def _push_restored(self) -> None:
        groups: dict[int, list[RolloutRow]] = {}
        for row in self.restored:
            groups.setdefault(row.group_id, []).append(row)
        self.restored = []
        for group, rows in groups.items():
            if (distillation := self._distillation) is not None:
                scores = await asyncio.gather(*map(distillation.score_again, rows))
                rows = self._with_scores(zip(rows, scores, strict=True))
            await self._push(group, rows, {}, sampled=0)

    async def _push(
        self, group: int, rows: Sequence[RolloutRow], metrics: Metrics, *, sampled: int
    ) -> None:
        """Push the rows of a group in order, except rows that become too old meanwhile."""
        began, waited_s, trained, stale, oversize = 0.0, 0.0, 0, 0, 0
        rules, buffer = self._rules, self._queues.rows
        self._queues.position.deliver(group, rows)
        for row in rows:
            if rules.max_tokens is not None and len(row.input_ids) > rules.max_tokens:
                oversize += 1
                continue
            while self._version() - row.model_version <= rules.max_staleness:
                if buffer.push(row.enqueued()):
                    trained += row.trained_tokens
                    break
                began = time.monotonic()
                await buffer.room()
                waited_s += time.monotonic() - began
            else:
                stale += 1
        if waited_s:
            metrics["rollout/backpressure_s"] = waited_s
        metrics["rollout/dropped_stale_total"] = float(stale)
        metrics["rollout/dropped_oversize_total"] = float(oversize)
        metrics["rollout/trained_sampled_frac"] = (float(trained), float(sampled))

    def _say(self, metrics: Mapping[str, float | tuple[float, float]]) -> None:
        try:
            self._queues.metrics.put_nowait(dict(metrics))
        except queue.Full:  # the trainer does not log them, so only the newest metrics are lost
            return


def _sampled_tokens(rollouts: Sequence[Rollout]) -> int:
    """Count the tokens sampled for a group, in rows, in branches and in failed rollouts."""
    return sum(rollout.sampled_tokens + rollout.dropped_tokens for rollout in rollouts)
