"""The changes that chat clients are known to make to an answer of the policy.

Invariant: each rule is exact, so an edited answer matches by none of them. Each use is counted,
because such a client shows its model another history elsewhere, and each rule can be switched off.
`docs/agents.md` has a table of them.
"""

import ast
import re
from collections.abc import Collection, Hashable, Iterator
from typing import Literal, TypeAlias, get_args

from abut.gateway.ledger.comparable import arguments_of, calls_of, text_of
from abut.gateway.ledger.entry import LEFT_OUT, BranchEntry, Calls, Dialect, ids_of, without_space
from abut.gateway.ledger.matching import key_of_calls

Rewrite: TypeAlias = Literal[
    "text_lost",
    "stop_put_back",
    "calls_as_text",
    "code_again",
    "empty_turn_left_out",
    "thinking_as_text",
    "arguments_read",
]
"""A change that a client is known to make to a message of the policy:

- text_lost: leaves out the text beside calls (crewai)
- stop_put_back: writes the stop string back behind the text (smolagents' `CodeAgent`)
- calls_as_text: writes calls as Python text into the content (smolagents' `ToolCallingAgent`)
- code_again: repeats the code in the text as a call (smolagents' `CodeAgent`)
- empty_turn_left_out: leaves out a turn without text and calls (pydantic-ai, OpenAI Agents)
- thinking_as_text: in Responses, writes the thinking before the text (pydantic-ai)
- arguments_read: in Messages, writes the arguments of a call as it has read them (Claude Code)
"""

REWRITES: tuple[Rewrite, ...] = get_args(Rewrite)

_CALLS = "\nCalling tools:\n"
_NUMBERED = re.compile(r"call_\d+")
_INTERPRETER = "python_interpreter"


class ChatRewrites(Dialect):
    """The rules of chat clients.

    Args:
        rewrites: the rules that hold.
    """

    def __init__(self, rewrites: Collection[str] = REWRITES) -> None:
        self.rewrites = frozenset(rewrites)
        self.leaves_out_empty_turns = LEFT_OUT in self.rewrites

    def rewrite_of(
        self, text: str, calls: Calls, entry: BranchEntry, *, same_calls: bool
    ) -> str | None:
        """Return the rule by which a message is this answer though they differ; None: it is not."""
        if not same_calls:
            as_text = "calls_as_text" in self.rewrites and entry.calls and not calls
            return "calls_as_text" if as_text and text == _with_calls(entry) else None
        if not text:
            # Without text only the ids tell two equal calls apart.
            lost = "text_lost" in self.rewrites and calls and ids_of(calls) == entry.call_ids
            return "text_lost" if lost else None
        wholes = [entry.text]
        if "stop_put_back" in self.rewrites:
            wholes += [whole.strip() for whole in _with_stops(entry)]
            if text in wholes[1:]:
                return "stop_put_back"
        again = "code_again" in self.rewrites and not calls
        return "code_again" if again and any(_repeats(text, w) for w in wholes) else None

    def keys_returned(self, entry: BranchEntry) -> Iterator[Hashable]:
        """Yield a key for each changed spelling of an answer."""
        calls = key_of_calls(calls_of(entry.message))
        if calls:
            yield "", calls
            yield without_space(_with_calls(entry)), ()
        for whole in _with_stops(entry):
            yield without_space(whole), calls

    def keys_read(self, text: str, calls: tuple[Hashable, ...]) -> Iterator[Hashable]:
        """Yield the key of an answer whose code a client has repeated behind it."""
        if not calls and _CALLS in text:
            yield without_space(text.rpartition(_CALLS)[0]), ()


def _with_stops(entry: BranchEntry) -> list[str]:
    """Return an answer's text with each stop string of its request behind it."""
    said = text_of(entry.message.get("content")) or ""
    return [said + stop for stop in entry.stop]


def _with_calls(entry: BranchEntry) -> str:
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
    return (entry.text + _CALLS + repr(calls)).strip()


def _repeats(text: str, whole: str) -> bool:
    """Return whether a text is an answer and its code again as a call, as `CodeAgent` writes."""
    head = whole + _CALLS
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
