"""Two tests in one module, the second with two choices of keywords."""

from eval_protocol.models import EvaluateResult, EvaluationRow, Message
from eval_protocol.pytest import SingleTurnRolloutProcessor, evaluation_test

ASKED = [[[Message(role="user", content="Say yes.")], [Message(role="user", content="Say no.")]]]
PARAMS = [{"model": "openai/any-model", "temperature": 0.0, "max_tokens": 16}]


@evaluation_test(
    input_messages=ASKED,
    completion_params=PARAMS,
    rollout_processor=SingleTurnRolloutProcessor(),
    disable_browser_open=True,
)
def test_length(row: EvaluationRow) -> EvaluationRow:
    """The more is said, the better."""
    said = str(row.messages[-1].content or "")
    row.evaluation_result = EvaluateResult(score=len(said) / 64, reason="length")
    return row


@evaluation_test(
    input_messages=ASKED,
    completion_params=PARAMS,
    rollout_processor=SingleTurnRolloutProcessor(),
    evaluation_test_kwargs=[{"letter": "a"}, {"letter": "e"}],
    disable_browser_open=True,
)
def test_letter(row: EvaluationRow, letter: str) -> EvaluationRow:
    """How often a letter was said."""
    said = str(row.messages[-1].content or "")
    row.evaluation_result = EvaluateResult(score=float(said.count(letter)), reason=letter)
    return row
