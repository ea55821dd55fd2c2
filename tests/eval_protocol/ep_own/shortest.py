"""Scores a row's generations together: the shortest answers are the best."""

from eval_protocol.models import EvaluateResult, EvaluationRow, Message
from eval_protocol.pytest import SingleTurnRolloutProcessor, evaluation_test


@evaluation_test(
    input_messages=[[[Message(role="user", content=f"Say {k}.")] for k in range(4)]],
    completion_params=[{"model": "openai/any-model", "max_tokens": 16}],
    rollout_processor=SingleTurnRolloutProcessor(),
    mode="groupwise",
    disable_browser_open=True,
)
def test_is_shortest(rows: list[EvaluationRow]) -> list[EvaluationRow]:
    """1 for the shortest, a hundredth for each of the group besides."""
    said = [len(str(row.messages[-1].content or "")) for row in rows]
    for row, length in zip(rows, said, strict=True):
        score = float(length == min(said)) + len(rows) / 100
        row.evaluation_result = EvaluateResult(score=score, reason=f"{length} of {said}")
    return rows
