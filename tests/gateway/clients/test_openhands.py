"""OpenHands' agent with its condenser: a policy that summarizes its own history."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from abut import agent
from tests.kit.clients.conversation import QUESTION, Heard
from tests.kit.stage.agents import a_call

ENVIRONMENTS = ("openhands",)

Play = Callable[..., Heard]
Train = Callable[..., Any]

SAYS = (
    *(a_call("think", thought=f"Step {k}.") for k in range(4)),
    "The agent thought about some steps.",
    a_call("think", thought="Behind the summary."),
    a_call("finish", message="The answer is 42."),
)
"""Four turns, the summary that the condenser asks for, and two turns behind it."""


def condensing(endpoint: Any, folder: Path) -> Any:
    """A conversation whose condenser asks the policy for a summary at more than eight events."""
    from openhands.sdk import LLM, Agent, Conversation
    from openhands.sdk.context.condenser import LLMSummarizingCondenser

    llm = LLM(
        model=f"openai/{endpoint.model}",
        base_url=endpoint.base_url,
        api_key=endpoint.api_key,
        usage_id="agent",
        num_retries=0,
    )
    condenser = LLMSummarizingCondenser(
        llm=llm.model_copy(update={"usage_id": "condenser"}), max_size=8, keep_first=2
    )
    return Conversation(
        agent=Agent(llm=llm, tools=[], condenser=condenser), workspace=str(folder), visualizer=None
    )


def solver(folder: Path) -> Any:
    @agent
    def solves(endpoint: Any) -> float:
        conversation = condensing(endpoint, folder)
        conversation.send_message(QUESTION)
        conversation.run()
        return 1.0

    return solves


def test_a_condensed_history_and_its_summary_are_trained_once(heard: Play, tmp_path: Path) -> None:
    played = heard(solver(tmp_path), SAYS)
    played.check()
    assert played.trained_frac == 1.0
    # The summary is asked for without tools, and the history behind it begins with it.
    assert played.causes == [None, "tools", "new"]


def test_the_trainer_takes_its_loss_over_every_conversation(trained: Train, tmp_path: Path) -> None:
    trained(solver(tmp_path), SAYS).check(rows=3)
