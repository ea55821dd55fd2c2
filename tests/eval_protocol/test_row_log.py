"""What `ep logs` is given: each rollout with its score, in a form that its page takes."""

import json
import logging
import sqlite3
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("eval_protocol")

import numpy as np
from eval_protocol.dataset_logger.sqlite_dataset_logger_adapter import SqliteDatasetLoggerAdapter
from eval_protocol.models import (
    EvaluateResult,
    EvaluationRow,
    Message,
    MetricResult,
    Status,
    StepOutput,
)
from eval_protocol.pytest import RolloutProcessor, SingleTurnRolloutProcessor, evaluation_test

import abut
from abut.eval_protocol import eval_test, prune_logs
from abut.eval_protocol.row_log import SAMPLE, fitted
from tests.kit.stage.evals import play_test
from tests.kit.stage.rollouts import Stage


class Kept:
    """A logger that keeps what it gets."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def log(self, row: EvaluationRow) -> None:
        self.rows.append(json.loads(row.model_dump_json(exclude_none=True)))

    def of(self, rollout_id: str) -> list[Any]:
        return [r for r in self.rows if r["execution_metadata"]["rollout_id"] == rollout_id]


class Breaks(RolloutProcessor):
    """Asks as others do; its task raises for the rows that say so."""

    def __call__(self, rows: Any, config: Any) -> Any:
        import asyncio

        async def play(row: EvaluationRow) -> EvaluationRow:
            (task,) = SingleTurnRolloutProcessor()([row], config)
            played = await task
            if row.messages[0].content == "break":
                raise ValueError("broken by the test")
            return played

        return [asyncio.create_task(play(row)) for row in rows]


def logged(to: Any, *, texts: Any = ("a", "break"), **decorated: Any) -> Any:
    @evaluation_test(
        input_messages=[[[Message(role="user", content=text)] for text in texts]],
        completion_params=[{"model": "openai/m", "max_tokens": 9}],
        rollout_processor=Breaks(),
        logger=to,
        disable_browser_open=True,
    )
    def test_logged(row: EvaluationRow) -> EvaluationRow:
        """Says what it says."""
        row.evaluation_result = EvaluateResult(score=0.5, reason="half")
        return row

    return test_logged


@pytest.mark.parametrize("leaves", ["a new row", "no metadata"])
def test_a_body_that_leaves_another_row_ends_in_the_log(stage: Stage, leaves: str) -> None:
    kept = Kept()

    @evaluation_test(
        input_messages=[[[Message(role="user", content="a")]]],
        completion_params=[{"model": "openai/m"}],
        logger=kept,
    )
    def test_leaves(row: EvaluationRow) -> EvaluationRow:
        if leaves == "a new row":
            row = EvaluationRow(messages=row.messages)
        else:
            row.eval_metadata = None
        row.evaluation_result = EvaluateResult(score=0.5, reason="")
        return row

    test = eval_test(test_leaves)
    assert play_test(stage, test, generations=1).rewards == [0.5]
    test._log.wait()
    _, ended = kept.of("r0-run0")
    assert ended["rollout_status"]["code"] == Status.Code.FINISHED
    assert ended["eval_metadata"]["status"]["code"] == Status.Code.FINISHED


def test_each_rollout_is_there_running_and_then_as_it_ended(stage: Stage) -> None:
    kept = Kept()
    test = eval_test(logged(kept), name="mine")
    batch = play_test(stage, test, retries=0)
    test._log.wait()
    running, ended = kept.of("r0-run0")
    assert running["rollout_status"]["code"] == Status.Code.RUNNING
    assert running["input_metadata"]["dataset_info"]["step"] == 3
    assert ended["rollout_status"]["code"] == Status.Code.FINISHED
    assert ended["eval_metadata"]["status"]["code"] == Status.Code.FINISHED
    assert ended["eval_metadata"]["name"] == "mine"
    assert ended["evaluation_result"]["score"] == 0.5
    assert ended["input_metadata"]["completion_params"] == {"model": "policy", "max_tokens": 9}
    assert ended["execution_metadata"]["run_id"] == "step-000003"
    assert ended["execution_metadata"]["experiment_id"] == "run0"
    info = ended["input_metadata"]["dataset_info"]
    assert (info["step"], info["group"], info["generation"]) == (3, 0, 0)
    failed = kept.of(batch.rollouts[2].rollout_id)[-1]
    assert failed["rollout_status"]["code"] == Status.Code.INTERNAL
    assert "broken by the test" in failed["rollout_status"]["message"]
    assert "api_key" not in json.dumps(kept.rows)


def test_rollouts_of_a_batch_that_is_given_up_do_not_run_for_ever(stage: Stage) -> None:
    kept = Kept()
    test = eval_test(logged(kept))
    with pytest.raises(abut.RolloutError, match="broken by the test"):
        play_test(stage, test, retries=0, on_failure="raise")
    test._log.wait()
    ids = {row["execution_metadata"]["rollout_id"] for row in kept.rows}
    assert ids
    for rollout_id in ids:
        assert kept.of(rollout_id)[-1]["rollout_status"]["message"] == "the batch was stopped"


def test_tokens_are_those_of_our_rows(stage: Stage) -> None:
    kept = Kept()
    test = eval_test(logged(kept, texts=("a",)))
    batch = play_test(stage, test, generations=SAMPLE + 2)
    test._log.wait()
    for rollout in batch.rollouts[:SAMPLE]:
        extra = kept.of(rollout.rollout_id)[-1]["execution_metadata"]["extra"]
        episode, columns = extra["full_episode"], rollout.columns
        ids = [*columns.prompt_ids.tolist(), *columns.completion_ids.tolist()]
        sampled = [0] * len(columns.prompt_ids) + columns.env_mask.tolist()
        assert episode["token_ids"] == ids
        assert [int(turn > 0) for turn in episode["mask"]] == sampled
        there = [value is not None for value in episode["logprobs"]]
        assert there == [bool(value) for value in sampled]
        assert "".join(episode["detokenized_tokens"]) == stage.tokenizer.decode(ids)
        (trace,) = extra["token_turn_traces"]
        assert trace["prompt_ids"] + trace["completion_ids"] == ids
        assert extra["episode_reward"] == 0.5
    for rollout in batch.rollouts[SAMPLE:]:  # bounded: the page's server sends its whole store
        assert "extra" not in kept.of(rollout.rollout_id)[-1]["execution_metadata"]


def test_a_sample_is_bounded_and_none_is_nothing(stage: Stage) -> None:
    kept = Kept()
    test = eval_test(logged(kept, texts=("a",)), log="sample")
    play_test(stage, test, generations=SAMPLE + 4)
    test._log.wait()
    assert len({row["execution_metadata"]["rollout_id"] for row in kept.rows}) == SAMPLE
    kept = Kept()
    test = eval_test(logged(kept), log=None)
    play_test(stage, test, retries=0)
    test._log.wait()
    assert kept.rows == []


def test_a_log_that_cannot_be_written_costs_no_rollout_and_is_said_once(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    class ReadOnly:
        tried = 0

        def log(self, row: Any) -> None:
            self.tried += 1
            raise sqlite3.OperationalError("attempt to write a readonly database")

    store = ReadOnly()
    test = eval_test(logged(store, texts=("a",)))
    with caplog.at_level(logging.WARNING, "abut"):
        batch = play_test(stage, test, generations=8)
        test._log.wait()
    assert batch.rewards == [0.5] * 8
    said = [r for r in caplog.messages if "could not be written" in r]
    assert len(said) == 1
    assert "attempt to write a readonly database" in said[0]
    assert store.tried == 3  # and then it is left alone


def test_the_packages_own_store_gets_the_rows_and_old_steps_can_be_pruned(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    store = SqliteDatasetLoggerAdapter()
    for step in (1, 2, 10):
        test = eval_test(logged(store, texts=(f"a{step}",)))
        play_test(stage, test, step=step, generations=1, prefix=f"s{step}-")
        test._log.wait()
    assert len(store._store.read_rows()) == 3
    assert prune_logs(keep_steps=2, experiment_id="another") == 0
    assert prune_logs(keep_steps=2) == 1
    left = {row["execution_metadata"]["run_id"] for row in store._store.read_rows()}
    assert left == {"step-000002", "step-000010"}
    with pytest.raises(ValueError, match="keep_steps=-1: must be 0 or more"):
        prune_logs(keep_steps=-1)


def a_row(**changes: Any) -> EvaluationRow:
    row = EvaluationRow(messages=[Message(role="user", content="hi")])
    row.evaluation_result = EvaluateResult(score=1.5, reason="the main score is free")
    for name, value in changes.items():
        setattr(row, name, value)
    return row


def test_what_the_page_would_refuse_is_cut_to_size_or_left_out() -> None:
    row = a_row()
    row.evaluation_result.metrics = {
        "large": MetricResult(score=2.0, reason=""),
        "nan": MetricResult(score=float("nan"), reason=""),
        "well": MetricResult(score=0.5, reason=""),
    }
    row.execution_metadata.extra = {"array": np.zeros(2)}
    row.ground_truth = "kept"
    fitted_row, changed = fitted(row)
    result = fitted_row.evaluation_result
    assert {name: metric.score for name, metric in result.metrics.items()} == {
        "large": 1.0,
        "well": 0.5,
    }
    assert (result.score, fitted_row.ground_truth) == (1.5, "kept")
    assert fitted_row.execution_metadata.extra is None
    assert changed == [
        "evaluation_result.metrics.large",
        "evaluation_result.metrics.nan",
        "extra",
    ]


@pytest.mark.parametrize(
    ("make", "changed"),
    [
        (
            lambda row: setattr(row.evaluation_result, "score", float("nan")),
            "evaluation_result.score",
        ),
        (lambda row: setattr(row.messages[0], "logprobs", float("inf")), "logprobs"),
        (lambda row: setattr(row, "tools", [{"f": object()}]), "tools"),
        (
            lambda row: setattr(
                row.evaluation_result,
                "step_outputs",
                [StepOutput(step_index=1, base_reward=float("nan"))],
            ),
            "step_outputs",
        ),
    ],
)
def test_every_row_can_be_said_as_json(make: Any, changed: str) -> None:
    row = a_row()
    assert fitted(row.model_copy(deep=True))[1] == []  # the control
    make(row)
    row, found = fitted(row)
    assert found == [changed]
    json.dumps(row.model_dump(mode="json"), allow_nan=False)
