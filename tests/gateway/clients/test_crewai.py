"""CrewAI: an agent with a task. It loses the text beside calls, which the gateway counts."""

from collections.abc import Callable
from typing import Any

import pytest

from abut import agent
from tests.kit.clients.conversation import QUESTION, SAYS, Heard, found
from tests.kit.stage.agents import a_call

ENVIRONMENTS = ("crewai",)

Play = Callable[..., Heard]


def runs(streaming: bool = False) -> Any:
    """A crew of one agent, with one task."""

    @agent
    def solve(endpoint: Any) -> float:
        from crewai import LLM, Agent, Crew, Task
        from crewai.tools import tool

        @tool("lookup")
        def lookup(a: str, b: float = 0.0, k: int = 0) -> str:
            """Look up."""
            return found(a, b, k)

        model = LLM(
            model=f"openai/{endpoint.model}",
            base_url=endpoint.base_url,
            api_key=endpoint.api_key,
            stream=streaming,
        )
        finder = Agent(role="finder", goal="find answers", backstory="b", tools=[lookup], llm=model)
        task = Task(description=QUESTION, expected_output="an answer", agent=finder)
        Crew(agents=[finder], tasks=[task]).kickoff()
        return 1.0

    return solve


@pytest.mark.parametrize("streaming", [False, True], ids=["plain", "streaming"])
def test_a_task_with_a_tool_is_one_branch(heard: Play, streaming: bool) -> None:
    one = heard(runs(streaming), [SAYS[0], a_call(a="two", k=2), SAYS[2], SAYS[3]])
    one.check_same_as_env(first=one.asked[0].messages, replies=one.replies)
    assert one.rewrites == {"text_lost": 3}


def test_at_the_end_of_its_context_it_begins_anew(heard: Play) -> None:
    """It asks for a summary, and for the task once more with that: conversations of their own."""
    one = heard(runs(), [*SAYS[:2], "They found one.", SAYS[3]], completion=150)
    one.check()
    assert one.causes == [None, "tools", "new"]
    assert [len(request.messages) for request in one.asked] == [2, 4, 6, 2, 2]
    assert len(one.rollout.turns) == 2
