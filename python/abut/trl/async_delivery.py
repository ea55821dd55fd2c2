"""A group that was played: scored, recorded, and pushed as rows for the trainer.

Invariant: what is pushed has a score, a token that is trained and weights that are fresh enough; of
all else there is a metric.
"""

import asyncio
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from abut.concurrency.threads import THREADS
from abut.envs.task import RolloutTask
from abut.rollout.batch import Batch
from abut.rollout.engine import Engine
from abut.rollout.rollout import Rollout, StopReason
from abut.rollout.stream import Played
from abut.tools.environment_factory import environments_of
from abut.trl.async_buffer import RolloutBuffer
from abut.trl.async_place import Place
from abut.trl.async_records import AsyncRecords
from abut.trl.async_row import RolloutRow, is_scored, rows_of_rollout
from abut.trl.async_scores import RewardFunction, Scores, advantages_of, scores_of
from abut.trl.metrics import log_batch
from abut.trl.reward_columns import has_tools
from abut.trl.route import EnvRoute
from abut.trl.rows import COMPLETIONS, conversation_of, rows_of

Metrics = dict[str, "float | tuple[float, float]"]


class Delivery:
    """Delivers the groups of one worker.

    Args:
        engine: has played them.
        route: says which environments there are.
        functions: the reward functions.
        place: is told which rows are pushed.
        buffer: takes them.
        metrics_queue: takes metrics, which are dropped where nobody takes them.
        records: keeps rollouts and scores; None: nobody does.
        version: of the weights that sample now.
        max_staleness: of rows that the trainer takes.
        max_tokens: of such a row; None: any.
        as_lists: as of `rows_of_rollout`.
    """

    def __init__(
        self,
        engine: Engine,
        route: EnvRoute,
        functions: Sequence[RewardFunction],
        place: Place,
        buffer: RolloutBuffer,
        metrics_queue: "queue.Queue[Metrics]",
        records: AsyncRecords | None,
        *,
        version: Callable[[], int],
        max_staleness: int,
        max_tokens: int | None,
        as_lists: bool,
    ) -> None:
        self._engine = engine
        self._route = route
        self._functions = functions
        self._place = place
        self._buffer = buffer
        self._metrics_queue = metrics_queue
        self._records = records
        self._version = version
        self._max_staleness = max_staleness
        self._max_tokens = max_tokens
        self._as_lists = as_lists
        self._pushing = asyncio.Lock()
        self.restored: list[RolloutRow] = []
        """Rows of a checkpoint, which are pushed before all others."""

    async def deliver(self, batch: Batch, played: Played) -> None:
        """Score a group, and push its rows; waits while the buffer is full.

        Raises:
            RolloutError: a reward function raised.
            OSError: it could not be recorded.
        """
        tasks, rollouts = [task for task, _ in played], [rollout for _, rollout in played]
        metrics: Metrics = {}
        scores = await self._scores(batch, tasks, rollouts, metrics.__setitem__)
        rows = self._rows(tasks, rollouts, scores)
        if (records := self._records) is not None:
            await THREADS.ask(lambda: records.write(played, scores))
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
        """Push what a checkpoint has kept, without a group to wait for."""
        async with self._pushing:
            await self._push_restored()

    async def _scores(
        self,
        batch: Batch,
        tasks: Sequence[RolloutTask],
        rollouts: Sequence[Rollout],
        log_metric: Callable[[str, float], None],
    ) -> Scores:
        columns: dict[str, Any] = rows_of(
            rollouts,
            tasks,
            self._engine,
            agents=bool(self._route.agents),
            tools=has_tools(self._route.kinds),
        )
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
            is_measured and rollout.stop_reason is not StopReason.STALE
            for is_measured, rollout in zip(columns["measured"], rollouts, strict=True)
        ]
        if not any(can):
            rewards = [None] * len(rollouts)
            return Scores({}, rewards, *advantages_of(rewards))
        ask = batch.env_loop.open().ask
        return await scores_of(self._functions, columns, can, ask)

    def _rows(
        self, tasks: Sequence[RolloutTask], rollouts: Sequence[Rollout], scores: Scores
    ) -> list[RolloutRow]:
        rows: list[RolloutRow] = []
        for k, (task, rollout) in enumerate(zip(tasks, rollouts, strict=True)):
            reward = scores.rewards[k]
            if reward is None or not is_scored(rollout):
                continue
            of_functions = {
                f"rewards/{name}": float("nan") if (value := values[k]) is None else value
                for name, values in scores.by_function.items()
            }
            rows += rows_of_rollout(
                rollout,
                advantage=scores.advantages[k],
                group_id=task.group,
                metrics={"reward": reward, "reward_std": scores.std} | of_functions,
                version=self._version(),
                as_lists=self._as_lists,
            )
        return rows

    async def _push_restored(self) -> None:
        groups: dict[int, list[RolloutRow]] = {}
        for row in self.restored:
            groups.setdefault(row.group_id, []).append(row)
        self.restored = []
        for group, rows in groups.items():
            await self._push(group, rows, {}, sampled=0)

    async def _push(
        self, group: int, rows: Sequence[RolloutRow], metrics: Metrics, *, sampled: int
    ) -> None:
        """Push the rows of a group, one behind the other; what gets too old meanwhile is not."""
        began, waited_s, trained, stale, oversize = 0.0, 0.0, 0, 0, 0
        self._place.deliver(group, rows)
        for row in rows:
            if self._max_tokens is not None and len(row.input_ids) > self._max_tokens:
                oversize += 1
                continue
            while self._version() - row.model_version <= self._max_staleness:
                if self._buffer.push(row.enqueued()):
                    trained += row.trained_tokens
                    break
                began = time.monotonic()
                await self._buffer.room()
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
            self._metrics_queue.put_nowait(dict(metrics))
        except queue.Full:  # nobody logs: the newest ones are lost, and nothing else
            return


def _sampled_tokens(rollouts: Sequence[Rollout]) -> int:
    """All that was sampled for a group, in rows, branches and what failed."""
    return sum(rollout.sampled_tokens + rollout.dropped_tokens for rollout in rollouts)
