"""Known ways in which chat clients rewrite the text of an answer.

Invariant: each rule is exact, so an edited answer never matches a rule.
"""

import ast
import re

from abut.gateway.ledger.comparable import arguments_of, calls_of, text_of
from abut.gateway.ledger.entry import BranchEntry

CALLS = "\nCalling tools:\n"
"""The line before the calls that a client has written into its text."""
_NUMBERED = re.compile(r"call_\d+")
_INTERPRETER = "python_interpreter"


def with_stops(entry: BranchEntry) -> list[str]:
    """Return an answer's text followed by each stop string of its request."""
    said = text_of(entry.message.get("content")) or ""
    return [said + stop for stop in entry.stop]


def with_calls(entry: BranchEntry) -> str:
    """Return an answer that calls tools as smolagents' `ToolCallingAgent` writes it."""
    calls = [
        {
            "id": call.get("id"),
            "type": "function",
            "function": {
                "name": call["function"].get("name"),
                "arguments": arguments_of(call["function"].get("arguments")),
            },
        }
        for call in calls_of(entry.message)
    ]
    return (entry.text + CALLS + repr(calls)).strip()


def repeats(text: str, whole: str) -> bool:
    """Return whether a message repeats the code of an answer as a call, as `CodeAgent` does."""
    head = whole + CALLS
    if not text.startswith(head):
        return False
    written = text[len(head) :]
    try:
        calls = ast.literal_eval(written)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return False
    if repr(calls) != written or not isinstance(calls, list) or len(calls) != 1:
        return False
    call = calls[0]
    if not isinstance(call, dict) or set(call) != {"id", "type", "function"}:
        return False
    function = call["function"]
    if not isinstance(function, dict) or set(function) != {"name", "arguments"}:
        return False
    code = function["arguments"]
    return (
        call["type"] == "function"
        and _NUMBERED.fullmatch(str(call["id"])) is not None
        and function["name"] == _INTERPRETER
        and isinstance(code, str)
        and bool(code.strip())
        and code.strip() in whole
    )
