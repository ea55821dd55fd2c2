"""Scores and metrics of rollouts, from a test's body.

Invariant: a missing score is None, never 0.0: the body skipped, raised, took too long, or set no
result or an invalid or infinite score. The row that the body returned counts, not its argument.
"""

import asyncio
import copy
import inspect
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from abut.agents.dataset_agent import finite
from abut.concurrency.clock import Deadline, DeadlineExpired
from abut.concurrency.forked_call import ForkedCall
from abut.concurrency.loop import is_cancelled
from abut.concurrency.process_turns import PROCESS_TURNS, CallTurn
from abut.concurrency.threads import THREADS
from abut.errors import text_of, trace_of
from abut.eval_protocol.imports import import_for
from abut.eval_protocol.loaded_test import LoadedTest
from abut.notices import Once

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Score:
    """The score of one rollout.

    Attributes:
        value: the score; None if there is none.
        row: the row that the body returned, or its argument if it returned none.
        metrics: the finite metrics, by name.
        why_not: why there is no score.
        is_fault: True if there is no score because the body failed.
    """

    value: float | None
    row: Any
    metrics: dict[str, float] = field(default_factory=dict)
    why_not: str | None = None
    is_fault: bool = False


class Scorer:
    """Calls the body of one test.

    Args:
        test: the test.
        row_timeout_s: seconds for one row; a body that gets several rows has that for each.
    """

    def __init__(self, test: LoadedTest, row_timeout_s: float) -> None:
        self._test = test
        self._row_timeout_s = row_timeout_s
        self._once = Once(logger)
        self._has_imported = False
        self._in_child = False
        self._slots = asyncio.Semaphore()

    async def start(self) -> None:
        """Prepare for a batch."""
        self._slots = asyncio.Semaphore(self._test.parameters.max_concurrent_evaluations)
        if not self._has_imported:
            self._has_imported = True
            await THREADS.ask(lambda: import_for([self._test.function]))

    async def of_row(self, row: Any) -> Score:
        """Score a row by itself."""
        returned = await self._called(row, 1)
        if isinstance(returned, _Nothing):
            return Score(None, row, why_not=returned.why, is_fault=returned.is_fault)
        if not _is_row(returned):
            return self._no_row(row, type(returned).__name__)
        return self._score_of(returned)

    async def of_rows(self, rows: Sequence[Any]) -> list[Score]:
        """Score rows together; returns one score for each, in order."""
        if not rows:
            return []
        returned = await self._called(list(rows), len(rows))
        if isinstance(returned, _Nothing):
            return [
                Score(None, row, why_not=returned.why, is_fault=returned.is_fault) for row in rows
            ]
        if not isinstance(returned, list | tuple) or not all(map(_is_row, returned)):
            return [self._no_row(row, type(returned).__name__) for row in rows]
        scored = {_id_of(row): row for row in returned}
        return [
            self._score_of(scored[_id_of(row)])
            if _id_of(row) in scored
            else Score(None, row, why_not=f"{self._test.name} did not return the row")
            for row in rows
        ]

    async def _called(self, given: Any, count: int) -> Any:
        """Call the body; return its result, or `_Nothing` if it did not return."""
        async with self._slots:
            while True:
                # The body may change its row before it fails, so a second call needs a copy.
                again = copy.deepcopy(given)
                turn = PROCESS_TURNS.turn(lambda: self._test.function, lambda: self._test.name)
                returned = await self._called_once(given, count, turn)
                # A body may catch an error that comes only from where it ran, and score 0.0.
                if not (self._wants_child(turn) or turn.may_have_clashed):
                    break
                given = again
        if isinstance(returned, _Nothing):
            self._say_nothing(returned)
        return returned

    def _wants_child(self, turn: CallTurn) -> bool:
        """Return whether the body has set a signal handler, which only a main thread may."""
        if not turn.wants_main_thread or not hasattr(os, "fork"):
            return False
        if not self._in_child:
            self._in_child = True
            logger.warning(
                "%s sets a signal handler, as for signal.alarm, which is possible only on a main "
                "thread. From now on abut runs the test in a forked child process, so changes of "
                "global variables are lost",
                self._test.name,
            )
        return True

    async def _called_once(self, given: Any, count: int, turn: CallTurn) -> Any:
        deadline = Deadline()
        try:
            call = self._call(given, turn)
            limit_s = self._row_timeout_s * count
            return await deadline.keep(call, limit_s, spared=lambda: turn.waited_s)
        except DeadlineExpired:
            return _Nothing(f"the test took longer than row_timeout_s={self._row_timeout_s:g}")
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            return _Nothing(text_of(error), error)
        except BaseException as error:  # pytest.skip and pytest.fail are no Exceptions
            if _is_outcome(error):
                return _Nothing(f"{type(error).__name__}: {error}", error, is_fault=False)
            return _Nothing(text_of(error), error)
        finally:
            deadline.close()
            turn.end()  # a body that was given up must neither fork nor keep others from it

    async def _call(self, given: Any, turn: CallTurn) -> Any:
        function, kwargs = self._test.function, self._test.kwargs
        if self._in_child:
            child = ForkedCall(lambda: _finished(function(given, **kwargs)), turn)
            try:
                return await THREADS.ask(child.run)
            finally:
                child.kill()
        if inspect.iscoroutinefunction(function):
            return await turn.on_loop(lambda: function(given, **kwargs))
        returned = await THREADS.ask(turn.around(lambda: function(given, **kwargs)))
        return await returned if inspect.isawaitable(returned) else returned

    def _score_of(self, row: Any) -> Score:
        if row.evaluation_result is None:
            self._say_unscored("no result", "it did not set evaluation_result")
        return _score_of(row)

    def _say_unscored(self, kind: str, why: str) -> None:
        said = "%s did not give a score, so its rollouts have no reward: %s"
        self._once.warn(kind, said, self._test.name, why)

    def _say_nothing(self, nothing: "_Nothing") -> None:
        why, error = nothing.why, nothing.error
        kind = why if error is None else type(error).__name__
        if not nothing.is_fault:
            self._say_unscored(kind, why)
        elif self._once.is_first(kind):
            logger.warning(
                "%s did not give a score, so its rollouts have no reward: %s\n%s\nabut logs "
                "further failures of this kind at debug level.",
                self._test.name,
                why,
                "" if error is None else trace_of(error),
            )
        else:
            logger.debug("%s did not give a score: %s", self._test.name, why)

    def _no_row(self, row: Any, kind: str) -> Score:
        why = f"{self._test.name} returned {kind}, not the rows it was called with"
        self._say_nothing(_Nothing(why))
        return Score(None, row, why_not=why, is_fault=True)


@dataclass(frozen=True)
class _Nothing:
    why: str
    error: BaseException | None = None
    is_fault: bool = True


def _finished(returned: Any) -> Any:
    """Return the result of an async body, where no loop runs."""

    async def wait() -> Any:
        return await returned

    return asyncio.run(wait()) if inspect.isawaitable(returned) else returned


def _is_outcome(error: BaseException) -> bool:
    """Return whether pytest.skip, pytest.fail or pytest.xfail raised the error."""
    import pytest

    outcomes = (pytest.skip.Exception, pytest.fail.Exception, pytest.xfail.Exception)
    return isinstance(error, outcomes)


def _is_row(value: Any) -> bool:
    from eval_protocol.models import EvaluationRow

    return isinstance(value, EvaluationRow)


def _id_of(row: Any) -> Any:
    return row.execution_metadata.rollout_id


def _score_of(row: Any) -> Score:
    result = row.evaluation_result
    if result is None:
        return Score(None, row, why_not="the test did not set evaluation_result")
    said = result.metrics or {}
    numbers = {name: finite(one.score) for name, one in said.items() if one.is_score_valid}
    metrics = {name: number for name, number in numbers.items() if number is not None}
    if not result.is_score_valid:
        why = f"the score is not valid: {result.reason or 'no reason'}"
        return Score(None, row, metrics, why)
    score = finite(result.score)
    return Score(score, row, metrics, f"the score is {result.score}" if score is None else None)
