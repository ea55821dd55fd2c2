"""An Eval Protocol test: sums of two digits. `eval_protocol_grpo.py` trains on it, unchanged.

EP_COMPLETION_PARAMS='[{"model": "openai/gpt-4.1-mini"}]' pytest eval_protocol_sums.py
"""

from eval_protocol.models import EvaluateResult, EvaluationRow, Message
from eval_protocol.pytest import SingleTurnRolloutProcessor, evaluation_test

SUMS = [(2, 3), (4, 4), (1, 5), (6, 2)]


@evaluation_test(
    input_messages=[[[Message(role="user", content=f"{a} + {b}")] for a, b in SUMS]],
    completion_params=[{"model": "openai/any-model", "temperature": 0.0, "max_tokens": 8}],
    rollout_processor=SingleTurnRolloutProcessor(),
    mode="pointwise",
    disable_browser_open=True,
)
def test_sums(row: EvaluationRow) -> EvaluationRow:
    """The answer is the sum and nothing else."""
    a, b = str(row.messages[0].content).split(" + ")
    said = str(row.messages[-1].content or "").strip()
    right = said == str(int(a) + int(b))
    row.evaluation_result = EvaluateResult(score=float(right), reason=f"said {said!r}")
    return row
