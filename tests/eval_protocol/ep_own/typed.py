"""An agent of pydantic-ai with a tool, whose factory makes the model of what it is given."""

from typing import Any

from eval_protocol.models import EvaluateResult, EvaluationRow, Message
from eval_protocol.pytest import evaluation_test
from eval_protocol.pytest.default_pydantic_ai_rollout_processor import PydanticAgentRolloutProcessor
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


def make_agent(config: Any) -> Agent:
    params = config.completion_params
    provider = OpenAIProvider(base_url=params["base_url"], api_key=params["api_key"])
    agent = Agent(OpenAIChatModel(params["model"].removeprefix("openai/"), provider=provider))

    @agent.tool_plain
    def capital(country: str) -> str:
        """The capital of a country."""
        return {"Italy": "Rome"}.get(country, "unknown")

    return agent


@evaluation_test(
    input_messages=[[[Message(role="user", content="What is the capital of Italy?")]]],
    completion_params=[{"model": "openai/any-model"}],
    rollout_processor=PydanticAgentRolloutProcessor(agent_factory=make_agent),
    disable_browser_open=True,
)
def test_capital(row: EvaluationRow) -> EvaluationRow:
    """Whether it was said, and the tool asked."""
    asked = any(message.role == "tool" for message in row.messages)
    said = "Rome" in str(row.messages[-1].content or "")
    row.evaluation_result = EvaluateResult(score=0.5 * asked + 0.5 * said, reason="")
    return row
