"""The agents of docs/tutorials/agent.md in the four protocols are rewarded for their answers."""

from typing import Any

import pytest

import abut
from abut.demo.model import load_demo_tokenizer
from abut.samplers import ScriptedReplies
from tests.kit.page_run import page_blocks

ENVIRONMENTS = ("dialects",)
AGENTS = {block.title: block.text for block in page_blocks("tutorials/agent.md") if block.title}


@pytest.mark.parametrize(
    ("file", "package"),
    [
        ("responses_agent.py", "openai"),
        ("messages_agent.py", "anthropic"),
        ("gemini_agent.py", "google.genai"),
    ],
)
def test_an_agent_is_rewarded_for_its_answer(file: str, package: str) -> None:
    pytest.importorskip(package)
    variables: dict[str, Any] = {}
    exec(compile(AGENTS[file], file, "exec"), variables)
    rollouts = abut.play(
        variables["solve"],
        [{"prompt": "a sum", "question": "What is 2 + 3?", "answer": answer} for answer in "56"],
        sampler=ScriptedReplies(lambda messages, turn: "It is 5."),
        tokenizer=load_demo_tokenizer(),
    )
    assert [rollout.error for rollout in rollouts] == [None, None]
    assert [rollout.reward for rollout in rollouts] == [1.0, 0.0]
