"""A test as an agent: its processor plays a rollout, its body scores it.

Invariant: a rollout is scored once: alone if the test scores rows one by one, else with the others
when the whole batch has ended. A body sees the same row as in evaluation.
"""

import asyncio
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Literal

from abut._native import Tokenizer
from abut.agents.dataset_agent import choose, json_dataset
from abut.agents.protocol import AgentResult, Endpoint
from abut.envs.signatures import UnplayableRow
from abut.envs.task import RolloutTask
from abut.eval_protocol.loaded_test import ROW, LoadedTest, json_row_of, load_test, row_of
from abut.eval_protocol.players import Player, player_of
from abut.eval_protocol.row_log import RowLog
from abut.eval_protocol.scorer import Score, Scorer
from abut.rollout.rollout import Rollout

Log = Literal["all", "sample"]
_MODEL = "policy"


def eval_test(
    test: Any,
    *,
    name: str | None = None,
    kwargs: Mapping[str, Any] | None = None,
    log: Log | None = "all",
    row_timeout_s: float = 120.0,
) -> "EvalTest":
    """Make an agent of an `@evaluation_test`, for `make_rollout_func`; the test stays as it is.

    Args:
        test: `"pkg.mod"`, `"pkg.mod:test"`, or the decorated function.
        name: the name in logs, errors and the dataset's column `environment`; None:
            `pkg.mod:test`.
        kwargs: the keywords that the body gets besides rows; needed if the test has several
            `evaluation_test_kwargs`.
        log: which rollouts `ep logs` shows: "all", a "sample" of each batch, or None of them.
        row_timeout_s: seconds that the body may take for a row.

    Raises:
        TypeError: `test` is not a test.
        ValueError: the module has several tests, the test has several `evaluation_test_kwargs` or
            a processor that cannot train, or an argument has a value that it must not have.
        ImportError: the module does not exist.
        MissingExtraError: eval_protocol is not installed.
    """
    if log not in ("all", "sample", None):
        raise ValueError(f"log={log!r}: must be 'all', 'sample' or None")
    if not row_timeout_s > 0:
        raise ValueError(f"row_timeout_s={row_timeout_s!r}: must be more than 0 seconds")
    loaded = load_test(test, kwargs)
    return EvalTest(
        name or loaded.name,
        player_of(loaded),
        test=loaded,
        scorer=Scorer(loaded, row_timeout_s),
        log=RowLog(log, loaded.parameters.logger),
        model=_MODEL,
    )


class EvalTest:
    """An agent that plays and scores as a test does; `eval_test` makes it.

    Attributes:
        name: the name in logs, errors and the dataset.
    """

    def __init__(
        self,
        name: str,
        player: Player,
        *,
        test: LoadedTest | None,
        scorer: Scorer | None,
        log: RowLog,
        model: str,
        row_of: Callable[[RolloutTask, str], Any] = row_of,
        is_helper: bool = False,
    ) -> None:
        """Take a player, a scorer and a log.

        Args:
            name: the agent's name.
            player: plays the rollouts.
            test: the test that the rows belong to; None if the trainer's dataset has the rows.
            scorer: scores the rows; None: a rollout's reward is the sum of its step rewards.
            log: logs the rows.
            model: the policy's name in the log.
            row_of: returns the row of a task.
            is_helper: whether this agent serves Eval Protocol's helper for TRL, whose reward
                functions expect a float `eval_score` in every row.
        """
        self._is_helper = is_helper
        self.name = self.__name__ = name
        self._player, self._test, self._scorer = player, test, scorer
        self._log, self._model, self._row_of = log, model, row_of
        self._rows: dict[str, Any] = {}
        self._scores: dict[str, Score] = {}
        self._slots: AbstractAsyncContextManager[Any] = nullcontext()

    def dataset(self, n: int | None = None, *, shuffle: bool = False, seed: int = 0) -> Any:
        """Return the test's rows as a `datasets.Dataset` for `GRPOTrainer(train_dataset=…)`.

        Its columns: `prompt`, for people; `environment`, this agent's name, for a `dict` of
        environments; `row_id`; and the row itself.

        Args:
            n: how many rows; None: all.
            shuffle: whether the rows and their order are random.
            seed: the same seed gives the same rows.

        Raises:
            ValueError: there are no rows, or a row cannot be restored from JSON.
        """
        if self._test is None:
            raise ValueError(
                f"{self.name} does not have rows: it plays those of the trainer's dataset"
            )
        rows = choose(self._test.rows(), n, shuffle=shuffle, seed=seed)
        return json_dataset(map(json_row_of, rows), ROW, self.name)

    async def start(self, gateway: Any) -> None:
        """Prepare scorer and player for a batch."""
        self._rows.clear()
        self._scores.clear()
        most = self._player.max_rollouts
        self._slots = nullcontext() if most is None else asyncio.Semaphore(most)
        if self._scorer is not None:
            await self._scorer.start()
        await self._player.start()

    async def stop(self) -> None:
        """Clean up; log rollouts that were not settled as given up."""
        for row in self._rows.values():
            self._log.given_up(row)
        self._rows.clear()
        await self._player.stop()

    async def run(self, endpoint: Endpoint, task: RolloutTask) -> AgentResult:
        """Play one rollout, and score it unless the test scores several together.

        Raises:
            UnplayableRow: the trainer's row lacks the test's row, or the test needs rollouts that
                other ranks play.
            Exception: what the processor raises.
        """
        if self._mode == "groupwise" and not task.whole_group:
            raise UnplayableRow(
                f"{self.name} scores all generations of a row together, but this rank has only "
                "some of them\nhint: make per_device_train_batch_size times steps_per_generation "
                "(in evaluation per_device_eval_batch_size) a multiple of num_generations"
            )
        row = self._prepared(self._row_of(task, self.name), task)
        self._rows[task.rollout_id] = row
        self._log.running(row, task)
        async with self._slots:
            played = await self._player.play(row, endpoint, task)
        played.execution_metadata.rollout_id = task.rollout_id
        self._restore(played)
        if played.rollout_status.is_running():
            played.rollout_status = type(played.rollout_status).rollout_finished()
        self._rows[task.rollout_id] = played
        if self._scorer is None:
            steps = _steps_of(played)
            return AgentResult(None if steps is None else sum(steps), self._extras(played, None))
        if self._mode != "pointwise":
            return AgentResult(None, self._extras(played, None), measured=False)  # until settled
        score = await self._scorer.of_row(played)
        self._note(task, score)
        measured = score.value is not None
        return AgentResult(score.value, self._extras(score.row, score), measured=measured)

    async def settle(
        self, played: Sequence[tuple[RolloutTask, Rollout]], tokenizer: Tokenizer
    ) -> None:
        """Score the rollouts that are scored together, and log the whole batch."""
        if self._scorer is not None and self._mode != "pointwise":
            for group in self._groups(played):
                scores = await self._scorer.of_rows([self._rows[t.rollout_id] for t, _ in group])
                for (task, rollout), score in zip(group, scores, strict=True):
                    self._note(task, score)
                    rollout.reward, rollout.measured = score.value, score.value is not None
                    rollout.extras = self._extras(score.row, score)
        for task, rollout in played:
            for name in self._numbers:
                if rollout.extras.get(name) is None:
                    # Code that sums the column needs a number; TRL ignores NaN as it does None.
                    rollout.extras = {**rollout.extras, name: math.nan}
            if (row := self._rows.get(task.rollout_id)) is not None:
                _reward_turns(rollout, _steps_of(row))
                self._restore(row)
                scored = self._scores.get(task.rollout_id)
                self._log.ended(row, task, rollout, scored, tokenizer.decode_bytes)
        self._rows.clear()
        self._scores.clear()

    @property
    def _numbers(self) -> list[str]:
        """The columns that must have a number in every row."""
        names = ["step_rewards"] * self._player.has_steps
        return [*names, *["eval_score"] * self._is_helper]

    @property
    def _mode(self) -> str:
        return "pointwise" if self._test is None else self._test.mode

    def _groups(
        self, played: Sequence[tuple[RolloutTask, Rollout]]
    ) -> list[list[tuple[RolloutTask, Rollout]]]:
        """Return the groups to score together, without rollouts that failed or were cut short."""
        groups: dict[Any, list[tuple[RolloutTask, Rollout]]] = {}
        for task, rollout in played:
            row = self._rows.get(task.rollout_id)
            if row is None or rollout.failed or not row.rollout_status.is_finished():
                continue
            key = task.group if self._mode == "groupwise" else None
            groups.setdefault(key, []).append((task, rollout))
        return list(groups.values())

    def _note(self, task: RolloutTask, score: Score) -> None:
        before, after = self._rows[task.rollout_id], score.row
        if after is not before:  # the body returned a new row: copy the rollout's facts
            after.execution_metadata = before.execution_metadata
            after.rollout_status, after.pid = before.rollout_status, before.pid
            after.input_metadata = before.input_metadata
        if after.eval_metadata is None:
            after.eval_metadata = self._eval_metadata()
        self._rows[task.rollout_id], self._scores[task.rollout_id] = score.row, score

    def _prepared(self, row: Any, task: RolloutTask) -> Any:
        """Return a row as evaluation has it before its rollout."""
        from eval_protocol.models import Status

        metadata, info = row.execution_metadata, row.input_metadata
        metadata.rollout_id = task.rollout_id
        metadata.invocation_id = metadata.experiment_id = task.run_id or None
        metadata.run_id = None if task.step is None else f"step-{task.step:06d}"
        row.evaluation_result, row.rollout_status = None, Status.rollout_running()
        info.session_data = {**(info.session_data or {}), "mode": self._mode}
        row.eval_metadata = self._eval_metadata()
        row.pid = os.getpid()
        self._restore(row)
        return row

    def _eval_metadata(self) -> Any:
        """Return the metadata that `ep logs` shows for a test whose body has not ended."""
        from eval_protocol.models import EvalMetadata, Status

        p = None if self._test is None else self._test.parameters
        return EvalMetadata(
            name=self.name,
            description=None if self._test is None else self._test.function.__doc__,
            status=Status.eval_running(),
            num_runs=1,
            aggregation_method="mean" if p is None else str(p.aggregation_method),
            passed_threshold=None,
            passed=None,
        )

    def _restore(self, row: Any) -> None:
        """Restore the test's completion parameters: processors leave address and key in them."""
        params = {} if self._test is None else self._test.completion_params
        row.input_metadata.completion_params = {**params, "model": self._model}

    def _extras(self, row: Any, score: Score | None) -> dict[str, Any]:
        steps = _steps_of(row)
        metrics = {} if score is None else score.metrics
        return {
            "eval_score": None if score is None else score.value,
            "step_rewards": None if steps is None else sum(steps),
            **{f"eval/{name}": value for name, value in metrics.items()},
        }


def _steps_of(row: Any) -> list[float] | None:
    """Return the reward of each step of an environment; None if the row has none."""
    steps = (row.execution_metadata.extra or {}).get("step_rewards")
    if not isinstance(steps, list | tuple):
        return None
    return [float(reward or 0.0) for reward in steps]


def _reward_turns(rollout: Rollout, steps: list[float] | None) -> None:
    """Give each turn the reward of its step, if each step was a turn of the row."""
    if rollout.failed or not rollout.turns:
        return
    if steps is not None and len(steps) == len(rollout.turns):
        for turn, reward in zip(rollout.turns, steps, strict=True):
            turn.reward = reward
