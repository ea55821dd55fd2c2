"""Claude Code's own spelling of arguments: each as it was seen, and edits that look like it."""

import json
from typing import Any

import pytest

from abut.gateway.dialects.anthropic import Anthropic
from abut.gateway.dialects.claude_code import reads_as
from abut.gateway.ledger.entry import BranchEntry
from abut.gateway.ledger.matching import keys_read, keys_returned, rewrite_of


def call(name: str, arguments: Any) -> Any:
    return {"id": "a", "function": {"name": name, "arguments": json.dumps(arguments)}}


def same(name: str, said: dict[str, Any], came: dict[str, Any]) -> bool:
    # A call beside it that came back as it was.
    beside = call("Bash", {"command": "true"})
    return reads_as([beside, call(name, said)], [beside, call(name, came)])


EDIT = {"file_path": "a.py", "old_string": "x", "new_string": "y"}
WRITTEN = "a\t\nb \u00a0\nc\r\nd \r\n  \n\x0b\ne  "

# What Claude Code 2.1.332 sent back.
SEEN: list[Any] = [
    ("Edit", EDIT, {"replace_all": False, **EDIT}),
    (
        "Edit",
        {**EDIT, "replace_all": "true", "new_string": "a + b \n c\t"},
        {**EDIT, "replace_all": True, "new_string": "a + b\n c"},
    ),
    (
        "Edit",
        {**EDIT, "file_path": "c.md", "new_string": "b  \nc  "},
        {**EDIT, "file_path": "c.md", "new_string": "b  \nc  ", "replace_all": False},
    ),
    (
        "Write",
        {"file_path": "c.py", "content": WRITTEN},
        {"file_path": "c.py", "content": "a\nb\nc\r\nd\r\n\n\ne"},
    ),
    (
        "Write",
        {"file_path": "d.py", "content": "a\u2028 \nq \x0c\n"},
        {"file_path": "d.py", "content": "a\nq\n"},
    ),
    ("Bash", {"command": "x", "timeout": "5000"}, {"command": "x", "timeout": 5000}),
    ("Bash", {"command": "x", "timeout": "05"}, {"command": "x", "timeout": 5}),
    ("Bash", {"command": "x", "timeout": " 5000 "}, {"command": "x", "timeout": 5000}),
    ("Bash", {"command": "x", "timeout": "-5000"}, {"command": "x", "timeout": -5000}),
    ("Bash", {"command": "x", "timeout": "5000.0"}, {"command": "x", "timeout": 5000}),
    ("Bash", {"run_in_background": "false"}, {"run_in_background": False}),
    ("Read", {"offset": "1.5", "limit": "2"}, {"offset": 1.5, "limit": "2"}),
]

EDITED: list[Any] = [
    ("Edit", EDIT, {**EDIT, "replace_all": True}),
    ("Edit", {**EDIT, "replace_all": True}, EDIT),
    ("Edit", {**EDIT, "replace_all": True}, {**EDIT, "replace_all": False}),
    ("Edit", EDIT, {**EDIT, "replace_all": 0}),
    ("Edit", EDIT, {**EDIT, "other": False}),
    ("Write", EDIT, {**EDIT, "replace_all": False}),  # another tool
    ("Edit", {**EDIT, "old_string": "x "}, {**EDIT, "replace_all": False}),
    ("Edit", {**EDIT, "new_string": " y"}, {**EDIT, "replace_all": False}),
    ("Edit", {**EDIT, "new_string": "y  "}, {**EDIT, "new_string": "y ", "replace_all": False}),
    ("Edit", {**EDIT, "new_string": "y\n"}, {**EDIT, "replace_all": False}),
    ("Write", {"file_path": "c.md", "content": "a  "}, {"file_path": "c.md", "content": "a"}),
    ("Write", {"file_path": "c.py", "content": "a"}, {"file_path": "c.py", "content": "a "}),
    ("Write", {"file_path": "c.py ", "content": "a"}, {"file_path": "c.py", "content": "a"}),
    ("Bash", {"command": "x "}, {"command": "x"}),
    ("Bash", {"command": "x", "timeout": "5000"}, {"command": "x", "timeout": 5001}),
    ("Bash", {"command": "x", "timeout": "5e3"}, {"command": "x", "timeout": 5000}),
    ("Bash", {"command": "x", "timeout": 5000}, {"command": "x", "timeout": "5000"}),
    ("Bash", {"command": "x", "timeout": "5000"}, {"command": "x"}),
    ("Bash", {"timeout": "1"}, {"timeout": True}),
    ("Bash", {"run_in_background": "true"}, {"run_in_background": 1}),
    ("Bash", {"run_in_background": "False"}, {"run_in_background": False}),
    ("Bash", {"run_in_background": "no"}, {"run_in_background": False}),
    ("Bash", {"command": "5"}, {"command": ["5"]}),
]


@pytest.mark.parametrize(("name", "said", "came"), SEEN)
def test_what_claude_code_reads_is_the_call(name: str, said: Any, came: Any) -> None:
    assert same(name, said, came)


@pytest.mark.parametrize(("name", "said", "came"), EDITED)
def test_an_edited_argument_is_another_call(name: str, said: Any, came: Any) -> None:
    assert not same(name, said, came)


def test_another_tool_and_arguments_that_are_no_object_are_another_call() -> None:
    assert not reads_as([call("Edit", EDIT)], [call("MultiEdit", EDIT)])
    assert not reads_as([call("Edit", "x")], [call("Edit", {"replace_all": False})])


def assistant(arguments: Any) -> Any:
    return {"role": "assistant", "content": "So.", "tool_calls": [call("Edit", arguments)]}


def test_the_rule_is_counted_and_can_be_switched_off() -> None:
    came = assistant({**EDIT, "replace_all": False})
    for dialect, rule in ((Anthropic(), "arguments_read"), (Anthropic(()), None)):
        entry = BranchEntry(assistant(EDIT), ours=True, dialect=dialect)
        assert rewrite_of(came, entry, dialect) == rule
        # By these the rollout of a request without a name is found.
        shared = {*keys_returned(entry)} & {*keys_read(came, dialect)}
        assert bool(shared) == (rule is not None)


@pytest.mark.parametrize("change", [{"id": "b"}, {"content": "So!"}])
def test_an_answer_with_another_text_or_id_is_another_answer(change: Any) -> None:
    came = assistant({**EDIT, "replace_all": False})
    came["content"] = change.get("content", came["content"])
    came["tool_calls"][0]["id"] = change.get("id", "a")
    entry = BranchEntry(assistant(EDIT), ours=True, dialect=Anthropic())
    assert rewrite_of(came, entry, Anthropic()) is None
