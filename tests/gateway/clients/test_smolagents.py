"""smolagents: agents that call tools, and agents that write code.

Both send our messages back in words of their own: the calls as Python text, the code once more as a
call. The gateway knows these, and counts them. What they really write anew is a branch: steps that
went wrong, plans, and the answer after the last step.
"""

from collections.abc import Callable
from typing import Any

import pytest

from abut import agent
from tests.kit.clients.conversation import Heard, found
from tests.kit.stage.agents import a_call

ENVIRONMENTS = ("litellm",)

Play = Callable[..., Heard]

THINKS = "<think>\nI should look.\n</think>\n\n"


def final(answer: str) -> str:
    return a_call("final_answer", answer=answer)


def code(text: str) -> str:
    """A turn with code: the stop string that ends it is not in what the agent gets."""
    return f"Thought: I look.\n<code>\n{text}\n</code>"


def server(endpoint: Any) -> Any:
    from smolagents import OpenAIServerModel

    return OpenAIServerModel(
        model_id=endpoint.model, api_base=endpoint.base_url, api_key=endpoint.api_key
    )


def litellm(endpoint: Any) -> Any:
    from smolagents import LiteLLMModel

    return LiteLLMModel(
        model_id=f"openai/{endpoint.model}", api_base=endpoint.base_url, api_key=endpoint.api_key
    )


def runs(kind: str, make: Callable[[Any], Any] = server, questions: int = 2, **options: Any) -> Any:
    """An agent of smolagents with a tool, asked so many questions."""

    @agent
    def solve(endpoint: Any) -> float:
        import smolagents

        @smolagents.tool
        def lookup(a: str, b: float = 0.0, k: int = 0) -> str:
            """Look up.

            Args:
                a: what
                b: number
                k: integer
            """
            return found(a, b, k)

        settings = {"max_steps": 6, "verbosity_level": 0} | options
        one = getattr(smolagents, kind)(tools=[lookup], model=make(endpoint), **settings)
        for number in range(questions):
            one.run("What is the answer?", reset=number == 0)
        return 1.0

    return solve


@pytest.mark.parametrize("make", [server, litellm])
def test_calls_that_come_back_as_text_are_one_branch(heard: Play, make: Callable[..., Any]) -> None:
    says = [
        THINKS + a_call(text="Let me look it up.\n", a='caf\u00e9 "q"', b=1.0),
        a_call(a="one") + "\n" + a_call(a="two", k=2),
        a_call(a="three"),
        final("42"),
        final("Goodbye."),
    ]
    one = heard(runs("ToolCallingAgent", make), says)
    one.check_same_as_env(first=one.asked[0].messages, replies=one.replies)
    assert one.rewrites == {"calls_as_text": 1 + 2 + 3 + 4}
    assert all("tool_choice" in request.unmet for request in one.asked)  # it demands calls


def test_without_the_rule_each_turn_is_a_branch(heard: Play) -> None:
    from abut.gateway import Gateway

    says = [a_call(a="one"), a_call(a="two"), final("42")]
    one = heard(runs("ToolCallingAgent", questions=1), says, Gateway(rewrites=()))
    one.check()
    assert one.causes == [None, "rewritten", "rewritten"]


def test_a_step_with_arguments_of_another_type_is_written_anew(heard: Play) -> None:
    """It leaves that turn of ours out, and tells of the error in the message before it."""
    says = [a_call(a="one"), a_call(a=["no", "text"]), a_call(a="two"), final("42")]
    one = heard(runs("ToolCallingAgent", questions=1), says)
    one.check()
    assert one.causes == [None, "rewritten"]


def test_a_step_with_a_tool_that_is_none_is_written_anew(heard: Play) -> None:
    says = [a_call(a="one"), a_call("no_such_tool", a="x"), a_call(a="two"), final("42")]
    one = heard(runs("ToolCallingAgent", questions=1), says)
    one.check()
    assert one.causes == [None, "rewritten"]


def test_the_answer_after_the_last_step_is_a_branch(heard: Play) -> None:
    """It asks for it without tools."""
    says = [a_call(a="one"), a_call(a="two"), "It is 42."]
    one = heard(runs("ToolCallingAgent", questions=1, max_steps=2), says)
    one.check()
    assert one.causes == [None, "tools"]
    assert len(one.rollout.turns) == 2


def test_plans_are_conversations_of_their_own(heard: Play) -> None:
    """Asked for without tools; the steps go on from one to the next, with the plan between them.

    The second plan is asked for under another system prompt, so it goes on with nothing.
    """
    says = ["I plan.", a_call(a="one"), a_call(a="two"), "I plan anew.", final("42")]
    one = heard(runs("ToolCallingAgent", questions=1, planning_interval=2), says)
    one.check()
    assert one.causes == [None, "tools", "new"]
    assert len(one.rollout.turns) == 3


@pytest.mark.parametrize("make", [server, litellm])
def test_code_that_comes_back_as_a_call_is_one_branch(
    heard: Play, make: Callable[..., Any]
) -> None:
    says = [
        THINKS + code("x = lookup(a='one', b=1.0)\nprint(x)"),
        "There is no code in this.",
        code("print(lookup(a='two'))"),
        code("final_answer('42')"),
        code("final_answer('Goodbye.')"),
    ]
    one = heard(runs("CodeAgent", make), says)
    one.check_same_as_env(first=one.asked[0].messages, replies=one.replies)
    stops = [sample.stop_string for _, sample in one.sampled]
    assert stops == ["</code>", None, "</code>", "</code>", "</code>"]
    assert one.rewrites == {"code_again": 1 + 1 + 2 + 3, "stop_put_back": 3}
