"""The log of a training run for `ep logs`: rows of rollouts, as its pages can show them.

Invariant: if the log cannot be written, rollouts do not fail; and writing it does not block a loop
that others wait for. Its size is limited, because the page's server sends its whole store at once.
Every row fits the schema of the page: the page checks all rows together and stays blank if one does
not fit, so a value that does not fit is shortened or left out, with a warning that names it.
"""

import json
import logging
import math
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

from abut.agents.dataset_agent import rollout_info
from abut.envs.task import RolloutTask
from abut.errors import text_of
from abut.eval_protocol.imports import require_package
from abut.eval_protocol.scorer import Score
from abut.notices import Once
from abut.rollout.rollout import Rollout

logger = logging.getLogger(__name__)

Decode = Callable[[Sequence[int]], bytes]

SAMPLE = 8
"""How many rollouts of each batch have their tokens in the log; a "sample" has only these."""

_GIVES_UP = 3
_GIVEN_UP = "the batch was stopped"
_MOST_WAITING = 4096
_STEP = re.compile(r"step-(\d+)")


class RowLog:
    """Writes rows of one test, on a thread of its own.

    Args:
        which: which rollouts: "all", a "sample" of each batch, or None of them.
        to: the test's own logger; None: the package's.
    """

    def __init__(self, which: Literal["all", "sample"] | None, to: Any = None) -> None:
        self._which = which
        self._to = to
        self._pool: ThreadPoolExecutor | None = None
        self._waiting = threading.BoundedSemaphore(_MOST_WAITING)
        self._failed = 0
        self._once = Once(logger)
        self._shown: set[str] = set()

    def running(self, row: Any, task: RolloutTask) -> None:
        """Show a rollout that begins."""
        if self._takes(task):
            self._shown.add(task.rollout_id)
            copy = row.model_copy(deep=True)
            _add_info(copy, task)
            self._later(lambda: copy)

    def ended(
        self,
        row: Any,
        task: RolloutTask,
        rollout: Rollout,
        score: Score | None,
        decode: Decode,
    ) -> None:
        """Show a rollout that has ended; the caller must not change the arguments any more."""
        self._shown.discard(task.rollout_id)
        if self._takes(task):
            shows_tokens = task.index < SAMPLE
            self._later(
                lambda: ended_row(row, task, rollout, score, decode if shows_tokens else None)
            )

    def given_up(self, row: Any) -> None:
        """Show that a rollout was given up, if it was shown when it began."""
        if row.execution_metadata.rollout_id not in self._shown:
            return

        def make() -> Any:
            copy = row.model_copy(deep=True)
            copy.rollout_status = type(copy.rollout_status).rollout_error(_GIVEN_UP)
            copy.eval_metadata.status = type(copy.rollout_status).error(_GIVEN_UP)
            return copy

        self._later(make)

    def wait(self) -> None:
        """Wait until all rows are written or have failed."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()

    def _takes(self, task: RolloutTask) -> bool:
        if self._which is None or self._failed >= _GIVES_UP:
            return False
        return self._which == "all" or task.index < SAMPLE

    def _later(self, make: Callable[[], Any]) -> None:
        if not self._waiting.acquire(blocking=False):
            self._once.warn(
                "waits",
                "more rows wait to be logged than the store holds, so abut leaves some out",
            )
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "abut-ep-log")
        self._pool.submit(self._write, make)

    def _write(self, make: Callable[[], Any]) -> None:
        try:
            if self._failed >= _GIVES_UP:
                return
            row, changed = fitted(make())
            if changed:
                self._once.warn(
                    "fits",
                    f"ep logs cannot show {', '.join(changed)} of a row and would then hide all "
                    "rows, so abut shortened the value or left it out of the log; rewards do not "
                    "change",
                )
            self._logger().log(row)
            self._failed = 0
        except Exception as error:
            self._failed += 1
            self._once.warn(
                "fails",
                f"a row could not be written for ep logs; training continues: {text_of(error)}",
            )
        finally:
            self._waiting.release()

    def _logger(self) -> Any:
        if self._to is not None:
            return self._to
        from eval_protocol.dataset_logger import default_logger

        return default_logger


def prune_logs(*, keep_steps: int, experiment_id: str | None = None) -> int:
    """Remove the rollouts of old steps from the store of `ep logs`; return how many.

    Args:
        keep_steps: how many of each run's latest steps stay.
        experiment_id: the run; None: all runs. Rows that no training has written stay.

    Raises:
        ValueError: `keep_steps` is negative.
        MissingExtraError: eval_protocol is not installed.
        OSError: the store cannot be written.
    """
    if keep_steps < 0:
        raise ValueError(f"keep_steps={keep_steps}: must be 0 or more")
    require_package()
    from eval_protocol.dataset_logger.sqlite_dataset_logger_adapter import (
        SqliteDatasetLoggerAdapter,
    )

    store = SqliteDatasetLoggerAdapter()._store
    runs: dict[str, list[tuple[int, str]]] = {}
    for data in store.read_rows():
        metadata = data.get("execution_metadata") or {}
        run, step = metadata.get("experiment_id"), _STEP.fullmatch(metadata.get("run_id") or "")
        if step is None or run is None or experiment_id not in (None, run):
            continue
        runs.setdefault(run, []).append((int(step[1]), metadata["rollout_id"]))
    pruned = 0
    for rows in runs.values():
        kept = sorted({number for number, _ in rows}, reverse=True)[:keep_steps]
        for number, rollout_id in rows:
            if number not in kept:
                pruned += store.delete_row(rollout_id)
    return pruned


def ended_row(
    row: Any,
    task: RolloutTask,
    rollout: Rollout,
    score: Score | None,
    decode: Decode | None,
) -> Any:
    """Return a copy of the row of a rollout that has ended, with its status and tokens.

    Args:
        row: the row as the test's body left it.
        task: the rollout's task.
        rollout: the rollout.
        score: its score; None if no body has scored it.
        decode: returns the bytes of token ids; None: the page does not show tokens.
    """
    from eval_protocol.models import EvaluateResult, Message, Status

    row = row.model_copy(deep=True)
    if rollout.failed:
        row.rollout_status = Status.rollout_error((rollout.error or "failed")[:2000])
        row.eval_metadata.status = Status.error((rollout.error or "failed")[:2000])
        row.evaluation_result = None
    else:
        if not row.rollout_status.is_finished():  # a limit ended the rollout, not its processor
            row.rollout_status = Status.rollout_finished()
            row.messages = [Message.model_validate(_message(m)) for m in rollout.messages]
        row.eval_metadata.status = Status.eval_finished()
        if score is not None and score.value is None:
            row.eval_metadata.status = Status.score_invalid(str(score.why_not)[:2000])
        elif score is None and rollout.reward is not None:
            row.evaluation_result = EvaluateResult(score=rollout.reward, reason="sum of steps")
    _add_info(row, task, stop_reason=rollout.stop_reason.value)
    metadata = row.execution_metadata
    if metadata.rollout_duration_seconds is None:
        metadata.rollout_duration_seconds = rollout.seconds
    if decode is not None and rollout.columns is not None:
        metadata.extra = {**(metadata.extra or {}), **token_debug(rollout, decode)}
    return row


def _add_info(row: Any, task: RolloutTask, **more: str) -> None:
    info = {**(row.input_metadata.dataset_info or {}), **rollout_info(task), **more}
    row.input_metadata.dataset_info = info


def token_debug(rollout: Rollout, decode: Decode) -> dict[str, Any]:
    """Return the content of the panel Token Debug, for `execution_metadata.extra`."""
    columns = rollout.columns
    assert columns is not None
    ids = [*columns.prompt_ids.tolist(), *columns.completion_ids.tolist()]
    before = len(columns.prompt_ids)
    logprobs: list[float | None] = [None] * before
    logprobs += [
        value if sampled else None
        for value, sampled in zip(columns.logprobs.tolist(), columns.env_mask.tolist(), strict=True)
    ]
    texts = [decode([i]).decode(errors="replace") for i in ids]
    turn_of = [0] * len(ids)
    traces, rewards = [], []
    for number, turn in enumerate(rollout.turns, start=1):
        turn_of[turn.start : turn.end] = [number] * (turn.end - turn.start)
        rewards.append(float(turn.reward or 0.0))
        traces.append(
            {
                "step_index": number,
                "prompt_ids": ids[: turn.start],
                "completion_ids": ids[turn.start : turn.end],
                "completion_logprobs": logprobs[turn.start : turn.end],
                "detokenized_tokens": texts[: turn.end],
                "prompt_len": turn.start,
                "completion_len": turn.end - turn.start,
                "finish_reason": turn.finish_reason,
                "step_reward": rewards[-1],
            }
        )
    return {
        "episode_reward": float(rollout.reward or 0.0),
        "step_rewards": rewards,
        "full_episode": {
            "token_ids": ids,
            "mask": turn_of,
            "logprobs": logprobs,
            "detokenized_tokens": texts,
            "num_turns": len(rollout.turns),
        },
        "token_turn_traces": traces,
    }


def fitted(row: Any) -> tuple[Any, list[str]]:
    """Fit a row to the page's schema; return it and the names of what was changed.

    Args:
        row: a copy, which this function may change.
    """
    changed: list[str] = []
    result = row.evaluation_result
    if result is not None and not _is_number(result.score):
        changed.append("evaluation_result.score")
        row.evaluation_result = result = None
    for name, metric in [*result.metrics.items()] if result is not None else []:
        if not _is_number(metric.score) or not isinstance(metric.reason, str):
            changed.append(f"evaluation_result.metrics.{name}")
            del result.metrics[name]
        elif not 0.0 <= metric.score <= 1.0:
            changed.append(f"evaluation_result.metrics.{name}")
            metric.score = min(1.0, max(0.0, float(metric.score)))
    for message in row.messages:
        if message.tool_calls is not None and not all(map(_is_call, message.tool_calls)):
            changed.append("messages.tool_calls")
            message.tool_calls = None
    usage = row.execution_metadata.usage
    if usage is not None and not all(
        isinstance(getattr(usage, name, None), int)
        for name in ("prompt_tokens", "completion_tokens", "total_tokens")
    ):
        changed.append("execution_metadata.usage")
        row.execution_metadata.usage = None
    for owner, name in _free_parts(row):
        if not _is_plain(getattr(owner, name)):
            changed.append(name)
            setattr(owner, name, None if name != "data" else {})
    return row, changed


def _free_parts(row: Any) -> list[tuple[Any, str]]:
    """Return the fields, with their owners, in which users may put any value."""
    parts = [
        (row.execution_metadata, "extra"),
        (row.input_metadata, "dataset_info"),
        (row.input_metadata, "session_data"),
        (row, "ground_truth"),
        (row, "tools"),
        *((message, "logprobs") for message in row.messages),
        *((message, "control_plane_step") for message in row.messages),
    ]
    if (result := row.evaluation_result) is not None:
        parts += [(result, name) for name in ("trajectory_info", "final_control_plane_info")]
        parts += [(result, "step_outputs")] if not _are_outputs(result.step_outputs) else []
        parts += [(metric, "data") for metric in result.metrics.values()]
    return parts


def _are_outputs(outputs: Any) -> bool:
    return all(
        _is_number(output.base_reward) and _is_plain([output.metrics, output.control_plane_info])
        for output in outputs or ()
    )


def _is_plain(value: Any) -> bool:
    """Return whether JSON can express the value: no NumPy, no NaN."""
    from pydantic_core import to_jsonable_python

    try:
        json.dumps(to_jsonable_python(value), allow_nan=False)
    except (TypeError, ValueError, RecursionError):  # pydantic's own are ValueErrors
        return False
    return True


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _is_call(call: Any) -> bool:
    function = getattr(call, "function", None)
    return (
        isinstance(getattr(call, "id", None), str)
        and getattr(call, "type", None) == "function"
        and isinstance(getattr(function, "arguments", None), str)
    )


def _message(message: Any) -> dict[str, Any]:
    """Return a rollout's message with the arguments of its calls as text, as clients send them."""
    made = {k: v for k, v in dict(message).items() if k in ("role", "content", "tool_call_id")}
    calls = []
    for number, call in enumerate(dict(message).get("tool_calls") or ()):
        function = dict(call.get("function") or {})
        if not isinstance(function.get("arguments"), str):
            function["arguments"] = json.dumps(function.get("arguments") or {})
        calls.append(
            {"id": call.get("id") or f"call{number}", "type": "function", "function": function}
        )
    return {**made, "tool_calls": calls} if calls else made
