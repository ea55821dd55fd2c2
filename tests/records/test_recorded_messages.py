"""What a record tells of each turn's message, and of the messages of branches."""

import json
from pathlib import Path
from typing import Any

import pytest

import abut
from abut.demo.model import ASSETS
from abut.records import read_records
from abut.samplers import ScriptedReplies

pytest.importorskip("transformers", reason="the tokenizer is transformers'")

from tests.kit.data import conversations

THOUGHT = "The Rhine has several sources. I should look up which one counts."


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("played")
    conversations.write(folder)
    return folder


def one(path: Path) -> Any:
    (record, *_) = read_records(path)
    return record


def test_a_turn_names_its_message_and_what_the_agent_received(played: Path) -> None:
    record = one(played / "agent.jsonl")
    assert [turn["message"] for turn in record["turns"]] == [2, 4, 6]
    first, second, _ = record["turns"]
    assert first["spoken"]["reasoning_content"] == THOUGHT
    assert first["spoken"]["content"] == "I search."
    (call,) = first["spoken"]["tool_calls"]
    arguments = {"query": "source of the Rhine", "limit": 2}
    assert call["function"] == {"name": "search", "arguments": arguments}
    assert second["spoken"] is None, "all of it is content"
    said = record["messages"][first["message"]]["content"]
    assert said.startswith(f"<think>\n{THOUGHT}")


def test_thinking_is_written_once(played: Path) -> None:
    (line,) = (played / "agent.jsonl").read_text().splitlines()
    assert line.count(THOUGHT) == 2, "two turns think"
    written = json.loads(line)["turns"][0]["spoken"]
    assert json.loads(written)["reasoning_content"] == [8, 8 + len(THOUGHT)]


@pytest.mark.parametrize("kind", ["tools", "hosted"])
def test_calls_of_tools_are_recorded_and_a_broken_one_is_text(kind: str, played: Path) -> None:
    first, second = one(played / f"{kind}.jsonl")["turns"]
    calls = [call["function"]["arguments"] for call in first["spoken"]["tool_calls"]]
    assert calls == [{"a": 2, "b": 3}, {"a": 5, "b": 4}]
    assert first["spoken"]["content"] == "I add."
    assert second["spoken"] is None


def test_a_call_that_is_only_spelled_is_not_recorded_as_one(tmp_path: Path) -> None:
    spelled = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
    abut.play(
        abut.tool_env([conversations.add], reward=lambda completion: 0.0),
        [{"prompt": "add"}],
        sampler=ScriptedReplies([spelled]),
        tokenizer=str(ASSETS),
        recorder=tmp_path / "r.jsonl",
    )
    record = one(tmp_path / "r.jsonl")
    assert record["messages"][1]["content"] == spelled
    assert record["turns"][0]["spoken"] is None


def test_a_branch_has_the_messages_after_its_fork_and_its_tools(played: Path) -> None:
    record = one(played / "agent.jsonl")
    fork, critic = record["branches"]
    assert [message["role"] for message in fork["messages"]] == ["tool", "user", "assistant"]
    assert fork["messages"][fork["turns"][0]["message"]]["content"] == (
        "The Rhine begins in Switzerland."
    )
    assert fork["tools"] == record["tools"] == [conversations.SEARCH]
    assert critic["tools"] == []
    assert [message["role"] for message in critic["messages"]] == ["user", "assistant"]


def test_messages_that_an_agent_returns_are_not_those_of_its_turns(tmp_path: Path) -> None:
    @abut.agent
    async def other(endpoint: abut.Endpoint, question: str) -> abut.AgentResult:
        await conversations.ask(endpoint, [{"role": "user", "content": question}])
        return abut.AgentResult(1.0, messages=[{"role": "user", "content": "my own"}])

    abut.play(
        other,
        [{"prompt": "p", "question": "Where does the Rhine begin?"}],
        sampler=conversations.Policy(),
        tokenizer=str(ASSETS),
        recorder=tmp_path / "r.jsonl",
    )
    record = one(tmp_path / "r.jsonl")
    assert record["messages"] == [{"role": "user", "content": "my own"}]
    (turn,) = record["turns"]
    assert turn["message"] is None
    assert turn["spoken"]["reasoning_content"] == THOUGHT
