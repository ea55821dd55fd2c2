"""An agent of LangGraph, whose factory makes the model of what it is given."""

from typing import Any

from eval_protocol.models import EvaluateResult, EvaluationRow, Message
from eval_protocol.pytest import evaluation_test
from eval_protocol.pytest.default_langchain_rollout_processor import LangGraphRolloutProcessor
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


def make_graph(config: Any) -> Any:
    params = config.completion_params
    model = ChatOpenAI(
        model=params["model"].removeprefix("openai/"),
        base_url=params["base_url"],
        api_key=params["api_key"],
        max_tokens=params.get("max_tokens"),
    )
    return create_react_agent(model, [weather])


@evaluation_test(
    input_messages=[[[Message(role="user", content="What is the weather in Rome?")]]],
    completion_params=[{"model": "openai/any-model", "max_tokens": 48}],
    rollout_processor=LangGraphRolloutProcessor(graph_factory=make_graph),
    disable_browser_open=True,
)
def test_weather(row: EvaluationRow) -> EvaluationRow:
    """How much was said, and whether the tool was asked."""
    asked = sum(message.role == "tool" for message in row.messages)
    said = str(row.messages[-1].content or "")
    row.evaluation_result = EvaluateResult(score=len(said) / 64 + asked, reason=f"{asked} calls")
    return row
