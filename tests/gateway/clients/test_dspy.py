"""DSPy's `ReAct`: each step is a new prompt, with all that was done in it as text."""

from collections.abc import Callable
from typing import Any

from abut import agent
from tests.kit.clients.conversation import QUESTION, Heard, found

ENVIRONMENTS = ("litellm",)

Play = Callable[..., Heard]


def fields(**said: str) -> str:
    """How its adapter has the policy write."""
    blocks = [f"[[ ## {name} ## ]]\n{text}" for name, text in said.items()]
    return "\n\n".join([*blocks, "[[ ## completed ## ]]"])


def test_each_step_is_a_conversation_of_its_own(heard: Play) -> None:
    @agent
    def solve(endpoint: Any) -> float:
        import dspy

        def lookup(a: str, b: float = 0.0, k: int = 0) -> str:
            """Look up."""
            return found(a, b, k)

        model = dspy.LM(
            f"openai/{endpoint.model}",
            api_base=endpoint.base_url,
            api_key=endpoint.api_key,
            cache=False,
        )
        with dspy.context(lm=model):
            said = dspy.ReAct("question -> answer", tools=[lookup], max_iters=4)(question=QUESTION)
        return float(said.answer == "42")

    says = [
        fields(
            next_thought="one", next_tool_name="lookup", next_tool_args='{"a": "one", "b": 1.0}'
        ),
        fields(next_thought="two", next_tool_name="lookup", next_tool_args='{"a": "two"}'),
        fields(next_thought="done", next_tool_name="finish", next_tool_args="{}"),
        fields(reasoning="because", answer="42"),
    ]
    one = heard(solve, says)
    one.check()
    assert len(one.asked) == 4
    assert one.causes == [None, "new", "new", "new"]
    assert {len(request.messages) for request in one.asked} == {2}
