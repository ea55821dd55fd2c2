"""Tools of a Klavis sandbox, which is filled before and dumped after a rollout."""

import os

from eval_protocol.models import EvaluateResult, EvaluationRow, InputMetadata, Message
from eval_protocol.pytest import evaluation_test
from eval_protocol.pytest.default_klavis_sandbox_rollout_processor import (
    KlavisSandboxRolloutProcessor,
)
from klavis import Klavis

processor = KlavisSandboxRolloutProcessor("linear")
# The processor's own client asks Klavis' service; this one what the environment says.
processor.klavis_client = Klavis(api_key="a-key", base_url=os.environ["KLAVIS_URL"])

DATA = {"initialize_data": {"projects": [{"name": "Old"}]}}


@evaluation_test(
    input_rows=[
        [
            EvaluationRow(
                messages=[Message(role="user", content="Create the project New.")],
                input_metadata=InputMetadata(row_id="new", session_data=DATA),
            )
        ]
    ],
    completion_params=[{"model": "openai/any-model"}],
    rollout_processor=processor,
    disable_browser_open=True,
)
def test_creates(row: EvaluationRow) -> EvaluationRow:
    """Whether the sandbox had both at the end, and no other."""
    data = (row.execution_metadata.extra or {})["sandbox_data"]
    names = [project.name for project in data.projects]
    row.evaluation_result = EvaluateResult(score=float(names == ["Old", "New"]), reason=str(names))
    return row
