"""deepagents: a planner that hands tasks to sub-agents, each a conversation of its own."""

from collections.abc import Callable
from typing import Any

import pytest

from abut import agent
from tests.kit.clients.conversation import QUESTION, SYSTEM, Heard, found
from tests.kit.stage.agents import a_call

ENVIRONMENTS = ("harnesses",)

Play = Callable[..., Heard]
Train = Callable[..., Any]

PLANS = (
    "<think>\nSomebody should look.\n</think>\n\n"
    + a_call("task", description="Find one.", subagent_type="finder"),
    a_call(a="one", text="Let me see.\n"),
    "Found one.",
    a_call("task", description="Find two.", subagent_type="finder"),
    a_call(a="two"),
    a_call(a="three"),
    "Found two and three.",
    a_call("task", description="Check it.", subagent_type="general-purpose"),
    "It is right.",
    "The answer is 42.",
)
"""What the policy says, call for call: the planner's turns, between them those of three tasks."""


def deep_agent(endpoint: Any, *, finder_at: Any = None, compacts: bool = False) -> Any:
    """A deep agent with a tool and a sub-agent, besides the general one that each has.

    Args:
        endpoint: where it asks.
        finder_at: where the sub-agent asks; None: there too.
        compacts: whether it summarizes its history after six messages.
    """
    from deepagents import create_deep_agent
    from deepagents.backends import StateBackend
    from deepagents.middleware.summarization import SummarizationMiddleware
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    @tool
    def lookup(a: str) -> str:
        """Look up."""
        return found(a)

    def model_at(seat: Any) -> Any:
        return ChatOpenAI(model=seat.model, base_url=seat.base_url, api_key=seat.api_key)

    finder = {
        "name": "finder",
        "description": "Finds things.",
        "system_prompt": "You find what you are asked for.",
        "tools": [lookup],
        "model": model_at(finder_at or endpoint),
    }
    model = model_at(endpoint)
    limits: Any = {"trigger": ("messages", 6), "keep": ("messages", 2)}
    early = SummarizationMiddleware(model, backend=StateBackend(), **limits)
    return create_deep_agent(
        model=model,
        tools=[lookup],
        system_prompt=SYSTEM,
        subagents=[finder],
        middleware=[early] if compacts else [],
    )


@agent
def plans(endpoint: Any) -> float:
    said = deep_agent(endpoint).invoke({"messages": [("user", QUESTION)]})["messages"]
    return float(said[-1].content == PLANS[-1])


@agent
def plans_with_a_frozen_finder(endpoint: Any) -> float:
    """The sub-agent's calls have a name, and are not to be trained."""
    graph = deep_agent(endpoint, finder_at=endpoint.named("finder", train=False))
    said = graph.invoke({"messages": [("user", QUESTION)]})["messages"]
    return float(said[-1].content == PLANS[-1])


LOOKS = (
    a_call(a="one"),
    a_call(a="two"),
    a_call(a="three"),
    "I looked up one and two.",
    a_call(a="four"),
    "The answer is 42.",
)
"""Three turns, the summary that the harness asks for, and two turns behind it."""


@agent
def looks_long(endpoint: Any) -> float:
    graph = deep_agent(endpoint, compacts=True)
    said = graph.invoke({"messages": [("user", QUESTION)]})["messages"]
    return float(said[-1].content == LOOKS[-1])


def test_a_compacted_history_and_its_summary_are_trained_once(heard: Play) -> None:
    played = heard(looks_long, LOOKS)
    played.check()
    assert played.trained_frac == 1.0
    # The summary is asked for without tools; behind it stand two messages of the old history.
    assert played.causes == [None, "tools", "rewritten"]


AT_ONCE = (
    "\n".join(
        a_call("task", description=f"Find {what}.", subagent_type="finder") for what in ("a", "b")
    ),
    "Found.",
    "Found.",
    "The answer is 42.",
)


@agent
async def plans_at_once(endpoint: Any) -> float:
    said = await deep_agent(endpoint).ainvoke({"messages": [("user", QUESTION)]})
    return float(said["messages"][-1].content == AT_ONCE[-1])


def test_sub_agents_that_run_at_the_same_time_are_two_conversations(heard: Play) -> None:
    played = heard(plans_at_once, AT_ONCE)
    played.check()
    assert played.trained_frac == 1.0
    assert played.causes == [None, "tools", "new"]


def test_a_planner_and_its_sub_agents_are_all_trained_once(heard: Play) -> None:
    played = heard(plans, PLANS)
    played.check()
    assert played.trained_frac == 1.0
    # All sub-agents have the same tools, which are not the planner's.
    assert played.causes == [None, "tools", "new", "new"]
    assert (len(played.rollout.turns), len(played.rollout.branches)) == (4, 3)


@pytest.mark.parametrize(
    ("harness", "says", "conversations"),
    [(plans, PLANS, 4), (looks_long, LOOKS, 3), (plans_at_once, AT_ONCE, 3)],
    ids=["sub-agents", "compacted", "at once"],
)
def test_the_trainer_takes_its_loss_over_every_conversation(
    trained: Train, harness: Any, says: tuple[str, ...], conversations: int
) -> None:
    trained(harness, says).check(rows=conversations)


def test_a_sub_agent_that_is_not_to_be_trained_is_not(trained: Train) -> None:
    of_the_finder = [*PLANS[1:3], *PLANS[4:7]]
    trained(plans_with_a_frozen_finder, PLANS).check(rows=2, untrained=of_the_finder)
