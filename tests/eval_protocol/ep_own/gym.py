"""A game on a server of MCP-Gym, which the processor starts: for each rollout, or for all."""

import socket
from pathlib import Path

from eval_protocol.models import EvaluateResult, EvaluationRow, InputMetadata, Message
from eval_protocol.pytest import evaluation_test
from eval_protocol.pytest.default_mcp_gym_rollout_processor import MCPGymRolloutProcessor


def a_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def a_row(name: str) -> EvaluationRow:
    asked = {"user_prompt_template": "Now: {observation}. Add up to ten."}
    return EvaluationRow(
        messages=[Message(role="system", content="You count.")],
        input_metadata=InputMetadata(row_id=name, dataset_info=asked),
    )


GAME = {
    "input_rows": [[a_row("first"), a_row("second")]],
    "completion_params": [{"model": "openai/any-model", "max_tokens": 48}],
    "server_script_path": str(Path(__file__).with_name("gym_server.py")),
    "steps": 4,
    "disable_browser_open": True,
}


def scored(row: EvaluationRow) -> EvaluationRow:
    """What the server says that the steps were worth."""
    steps = [m.control_plane_step for m in row.messages if m.control_plane_step]
    score = sum(float(step["reward"]) for step in steps)
    row.evaluation_result = EvaluateResult(score=score, reason=f"{len(steps)} steps")
    return row


@evaluation_test(
    rollout_processor=MCPGymRolloutProcessor(),
    rollout_processor_kwargs={"port": a_port()},
    **GAME,
)
def test_counts(row: EvaluationRow) -> EvaluationRow:
    """On a server of its own."""
    return scored(row)


@evaluation_test(
    rollout_processor=MCPGymRolloutProcessor(),
    rollout_processor_kwargs={"port": a_port(), "server_mode": "shared"},
    **GAME,
)
def test_counts_with_others(row: EvaluationRow) -> EvaluationRow:
    """On one server with all."""
    return scored(row)
