"""Tools, sandboxes, critics and images: what the policy says and gets is in its rows."""

import json
import re
from typing import Any

import pytest

from tests.kit.stage.evals import answers, call_text, last_user
from tests.kit.stage.rollouts import Recording, Stage, check_exact

pytest.importorskip("inspect_ai")

from inspect_ai.agent import react
from inspect_ai.dataset import Sample, example_dataset
from inspect_ai.model import (
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageTool,
    ChatMessageUser,
    ContentData,
    ContentImage,
    ContentReasoning,
    ContentText,
    GenerateConfig,
    ResponseSchema,
)
from inspect_ai.scorer import includes
from inspect_ai.solver import chain_of_thought, generate, self_critique
from inspect_ai.tool import ToolCall, ToolCallError, ToolFunction, ToolInfo, ToolParams, bash
from inspect_ai.util import JSONSchema

from abut.inspect_ai import inspect_task
from abut.inspect_ai.policy_api import PolicyCallError, output_of, request_of
from tests.kit.stage.inspect_tasks import calls_of, play_tasks, sums

MIND = example_dataset("theory_of_mind")[:2]


def test_react_with_a_shell_in_a_local_sandbox_is_one_row(stage: Stage) -> None:
    """Calls, results, and Inspect's own turn where the policy called nothing."""

    def answer(text: str) -> str:
        said = last_user(text)
        if "Please proceed" in said:
            return call_text("submit", answer="42")
        if "<tool_response>" in said:
            return f"It is {re.sub('</?tool_response>', '', said).strip()}."
        return call_text("bash", command="expr 6 '*' 7")

    task = sums(solver=react(tools=[bash(timeout=60)]), dataset=[Sample(input="6*7?", target="42")])
    agent = inspect_task(task, sandbox="local", log_dir=None)
    batch = play_tasks(stage, agent, answer=answer, completion=4000)
    assert [rollout.error for rollout in batch.rollouts] == [None, None]
    assert batch.rewards == [1.0, 1.0]
    for rollout in batch.rollouts:
        assert (len(rollout.turns), len(rollout.branches)) == (3, 0)
        check_exact(rollout.columns, calls_of(batch, rollout))
        text = stage.row_text(rollout)
        assert text.count("It is 42.") == 1
        assert "Please proceed" in text


def test_chain_of_thought_over_theory_of_mind(stage: Stage) -> None:
    task = sums("mind", dataset=MIND, solver=[chain_of_thought(), generate()])
    batch = play_tasks(
        stage, inspect_task(task, log_dir=None), answer=lambda text: "ANSWER: bathroom cabinet"
    )
    assert set(batch.rewards) <= {0.0, 1.0}
    assert all("step-by-step" in stage.row_text(rollout) for rollout in batch.rollouts)


def test_the_policy_as_its_own_critic_is_a_branch(stage: Stage) -> None:
    task = sums("mind", dataset=MIND, solver=[generate(), self_critique()], scorer=includes())
    batch = play_tasks(stage, inspect_task(task, log_dir=None), generations=1, branch="all")
    for rollout in batch.rollouts:
        assert rollout.error is None
        assert (len(rollout.turns), len(rollout.branches)) == (2, 1)
        (branch,) = rollout.branches
        assert branch.cause == "new"
        assert "critique" in stage.tokenizer.decode(branch.columns.prompt_ids)


def test_a_malformed_call_goes_back_to_the_policy_as_text(stage: Stage) -> None:
    said = iter(['<tool_call>\n{"name": "bash", "argum', call_text("submit", answer="4")])
    task = sums(solver=react(tools=[bash()]), dataset=[Sample(input="?", target="4")])
    agent = inspect_task(task, sandbox="local", log_dir=None)
    batch = play_tasks(stage, agent, answer=lambda text: next(said), generations=1)
    assert batch.rewards == [1.0]
    assert len(batch.one.turns) == 2
    check_exact(batch.one.columns, calls_of(batch, batch.one))


def asked(*messages: Any, tools: Any = (), choice: Any = "auto", **config: Any) -> dict[str, Any]:
    return request_of(messages, tools, choice, GenerateConfig(**config))


def test_messages_are_those_of_chat() -> None:
    call = ToolCall(id="c1", function="look", arguments={"at": "sky"})
    thinking = [ContentReasoning(reasoning="hm"), ContentText(text="I look.")]
    body = asked(
        ChatMessageSystem(content="Be brief."),
        ChatMessageUser(content=[ContentText(text="What "), ContentText(text="is it?")]),
        ChatMessageAssistant(content=thinking, tool_calls=[call]),
        ChatMessageTool(content="blue", tool_call_id="c1"),
        ChatMessageTool(
            content="", tool_call_id="c2", error=ToolCallError("timeout", "took too long")
        ),
    )
    function = {"name": "look", "arguments": '{"at": "sky"}'}
    assert body == {
        "model": "policy",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "What is it?"},
            {
                "role": "assistant",
                "content": "I look.",
                "reasoning_content": "hm",
                "tool_calls": [{"id": "c1", "type": "function", "function": function}],
            },
            {"role": "tool", "content": "blue", "tool_call_id": "c1"},
            {"role": "tool", "content": "Error: took too long", "tool_call_id": "c2"},
        ],
    }


def test_images_are_passed_on_and_other_data_is_not() -> None:
    url = "data:image/png;base64,AA=="
    content = [ContentText(text="What is it?"), ContentImage(image=url)]
    parts = [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": url}},
    ]
    assert asked(ChatMessageUser(content=content))["messages"][0]["content"] == parts
    shown = ChatMessageTool(content=content, tool_call_id="c")
    assert asked(shown)["messages"][0]["content"] == parts
    with pytest.raises(
        PolicyCallError, match="content of type 'data', but abut accepts only text and images"
    ):
        asked(ChatMessageUser(content=[ContentData(data={})]))


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("any", "required"),
        (ToolFunction("look"), {"type": "function", "function": {"name": "look"}}),
    ],
)
def test_tools_and_their_choice_are_those_of_chat(choice: Any, sent: Any) -> None:
    place = JSONSchema(type="string", description="where")
    params = ToolParams(properties={"at": place}, required=["at"])
    tool = ToolInfo(name="look", description="Look.", parameters=params)
    body = asked(tools=[tool], choice=choice, parallel_tool_calls=False)
    assert body["tool_choice"] == sent
    assert body["parallel_tool_calls"] is False
    (shown,) = body["tools"]
    assert shown["function"]["name"] == "look"
    assert shown["function"]["parameters"]["properties"]["at"] == {
        "type": "string",
        "description": "where",
    }


def test_settings_that_the_gateway_may_refuse_reach_it() -> None:
    schema = ResponseSchema(name="answer", json_schema=JSONSchema(type="object"))
    body = asked(num_choices=2, response_schema=schema, temperature=0.2, seed=3)
    assert (body["n"], body["response_format"]["json_schema"]["name"]) == (2, "answer")
    assert not {"temperature", "seed"} & body.keys()


def test_a_form_of_the_answer_is_refused_with_the_gateways_reason(stage: Stage) -> None:
    schema = ResponseSchema(name="answer", json_schema=JSONSchema(type="object"))
    agent = inspect_task(sums(config=GenerateConfig(response_schema=schema)), log_dir=None)
    batch = play_tasks(stage, agent, generations=1, retries=0, max_failed_frac=1.0)
    assert "the gateway refused a call: response_format" in str(batch.rollouts[0].error)


def test_thinking_and_calls_of_an_answer_are_inspects() -> None:
    function = {"name": "look", "arguments": json.dumps({"at": "sky"})}
    output = output_of(
        {
            "choices": [
                {
                    "message": {
                        "content": None,
                        "reasoning_content": "hm",
                        "tool_calls": [{"id": "c1", "type": "function", "function": function}],
                    },
                    "finish_reason": "tool_calls",
                }
            ],
            "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
        }
    )
    assert output.stop_reason == "tool_calls"
    assert output.message.content == [ContentReasoning(reasoning="hm"), ContentText(text="")]
    assert output.message.tool_calls == [
        ToolCall(id="c1", function="look", arguments={"at": "sky"})
    ]
    assert output.usage is not None
    assert output.usage.total_tokens == 5


def test_thinking_comes_back_and_the_conversation_goes_on(stage: Stage) -> None:
    task = sums(solver=[generate(), self_asks(), generate()])
    sampler = Recording(answers(stage, lambda text: "<think>\nhm\n</think>\n\n4"))
    batch = play_tasks(stage, inspect_task(task, log_dir=None), generations=1, sampler=sampler)
    assert batch.rewards == [1.0, 0.0]
    assert [len(rollout.branches) for rollout in batch.rollouts] == [0, 0]
    assert [len(rollout.turns) for rollout in batch.rollouts] == [2, 2]


def self_asks() -> Any:
    from inspect_ai.solver import user_message

    return user_message("Sure?")
