"""Tools of an MCP server, by the processor that knows no address."""

import json
import sys
import tempfile
from pathlib import Path

from eval_protocol.models import EvaluateResult, EvaluationRow, Message
from eval_protocol.pytest import AgentRolloutProcessor, evaluation_test

SERVER = {"command": sys.executable, "args": [str(Path(__file__).with_name("mcp_server.py"))]}
CONFIG = Path(tempfile.mkdtemp()) / "mcp.json"
CONFIG.write_text(json.dumps({"mcpServers": {"numbers": SERVER}}))


@evaluation_test(
    input_messages=[[[Message(role="user", content="Add 2 and 3.")]]],
    completion_params=[{"model": "openai/any-model"}],
    rollout_processor=AgentRolloutProcessor(),
    mcp_config_path=str(CONFIG),
    disable_browser_open=True,
)
def test_adds(row: EvaluationRow) -> EvaluationRow:
    """The tool's result was said."""
    results = [str(m.content) for m in row.messages if m.role == "tool"]
    said = str(row.messages[-1].content or "")
    right = bool(results) and results[-1].strip() in said
    row.evaluation_result = EvaluateResult(score=float(right), reason=f"results {results}")
    return row
