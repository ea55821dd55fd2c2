"""A body that skips, fails, raises, returns NaN, says that there is no score, or says nothing."""

import numpy as np
import pytest
from eval_protocol.models import EvaluateResult, EvaluationRow, Message, MetricResult
from eval_protocol.pytest import SingleTurnRolloutProcessor, evaluation_test

KINDS = ("skip", "fail", "raise", "nan", "invalid", "none", "other", "well")


@evaluation_test(
    input_messages=[[[Message(role="user", content=kind)] for kind in KINDS]],
    completion_params=[{"model": "openai/any-model", "temperature": 0.0, "max_tokens": 16}],
    rollout_processor=SingleTurnRolloutProcessor(),
    disable_browser_open=True,
)
def test_wayward(row: EvaluationRow) -> EvaluationRow:
    """Does what the row asks."""
    kind = row.messages[0].content
    if kind == "skip":
        pytest.skip("not here")
    if kind == "fail":
        pytest.fail("no")
    if kind == "raise":
        raise ZeroDivisionError("by zero")
    if kind == "other":
        return None  # type: ignore[return-value]
    if kind == "none":
        return row
    score = float("nan") if kind == "nan" else 0.5
    row.evaluation_result = EvaluateResult(
        score=score,
        is_score_valid=kind != "invalid",
        reason=str(kind),
        metrics={"twice": MetricResult(score=2.0, reason="out of what the page takes")},
    )
    row.execution_metadata.extra = {"array": np.zeros(2)}
    return row
