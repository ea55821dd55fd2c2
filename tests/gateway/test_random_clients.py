"""Clients that do what clients do, at random: a history that was edited is never taken for ours.

Each guard of the rules is taken away in turn, and then the same clients find a wrong match.
"""

import ast
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import ANY

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from abut.gateway.dialects import chat
from abut.gateway.ledger import branch, comparable, ledger, matching, row
from abut.gateway.ledger.branch import LedgerBranch
from abut.gateway.ledger.callers import NOBODY, Caller, Callers
from abut.gateway.ledger.entry import BranchEntry
from abut.gateway.ledger.matching import History
from abut.gateway.ledger.repeats import Repeats
from tests.kit.clients import random_clients
from tests.kit.clients.random_clients import Clients, Request
from tests.kit.clients.random_policy import STOPS, naming
from tests.kit.clients.tree import answered, said
from tests.kit.stage.agents import user


@pytest.fixture
def clients(named: Any) -> type[Clients]:
    Clients.hf = named
    Clients.figures.clear()
    return Clients


@pytest.fixture(scope="module")
def named(hf_tokenizer: Any) -> Any:
    return naming(hf_tokenizer)


# To the first failure: to make an example smaller takes minutes.
STEPS = settings(
    stateful_step_count=10, phases=[Phase.reuse, Phase.generate], report_multiple_bugs=False
)
# Far more examples than it takes, which is 40 mostly: what Hypothesis draws, derandomized as well,
# depends on the modules that are loaded, so on the tests before.
FIRST = settings(STEPS, max_examples=1000, derandomize=True, database=None, phases=[Phase.generate])


@pytest.mark.hypothesis
def test_each_request_gets_what_was_said(clients: type[Clients]) -> None:
    run_state_machine_as_test(clients, settings=settings(STEPS, max_examples=20))
    figures = clients.figures
    assert figures["edits"] > 1000
    assert figures["extended"] > 50
    assert figures["roots"] > 50
    assert figures["of somebody"] > 30


@pytest.mark.parametrize("goes_on", [[], [user("go on")]])
def test_a_turn_that_was_begun_and_never_sampled_is_none(
    clients: type[Clients], goes_on: list[Any]
) -> None:
    """They found it: what was asked next came behind an empty turn that nobody had sampled."""
    client = clients()
    client.begin(seed=0)
    first = Request({"messages": [user("a")]}, [said(user("a"))], {})
    client.answer(client.send(first))
    (node,) = client.tree.nodes

    def behind(*messages: Any) -> Request:
        items = [*first.items, answered(node), *map(said, messages)]
        return Request({"messages": [user("a"), node.answer, *messages]}, items, {})

    client.answer(client.send(behind()), fails=True)
    client.answer(client.send(behind(*goes_on)))
    client.every_request_is_a_prefix_and_every_sample_stands_once()
    client.teardown()


def test_an_answer_that_comes_back_was_heard(clients: type[Clients]) -> None:
    """Whatever became of its connection: who reads a stream may hang up before its last byte."""
    client = clients()
    client.begin(seed=0)
    first = Request({"messages": [user("a")]}, [said(user("a"))], {})
    asked = client.send(first)
    asked.hang_up()
    client.answer(asked)
    assert not asked.call.delivered
    (node,) = client.tree.nodes
    messages, on = [user("a"), node.answer, user("go on")], user("go on")
    client.answer(
        client.send(Request({"messages": messages}, [*first.items, answered(node), said(on)], {}))
    )
    assert asked.call.delivered
    again = client.send(first)
    assert again.call is not asked.call
    client.answer(again)
    client.every_request_is_a_prefix_and_every_sample_stands_once()
    client.teardown()


def rewriting(
    change: Callable[[Any, BranchEntry], tuple[Any, BranchEntry]],
) -> Callable[..., str | None]:
    """`rewrite_of` of a message and an answer that were changed before."""
    real = matching.rewrite_of
    return lambda message, entry, dialect: real(*change(message, entry), dialect)


def without_inner_space(content: Any, joint: str | None = "") -> str | None:
    text = comparable.text_of(content, joint)
    return None if text is None else " ".join(text.split())


def with_bools_as_numbers(value: Any) -> Any:
    return _form(int(value) if isinstance(value, bool) else value)


def of_one_key(message: Any, entry: BranchEntry) -> bool:
    """`_same_reasoning` of the older name alone."""
    return _same_reasoning({k: v for k, v in message.items() if k != "reasoning"}, entry)


def of_any_code(text: str, whole: str) -> bool:
    """`_repeats`, whatever the code is."""
    return _repeats(_with(text, whole, arguments=whole), whole)


def written_in_any_way(text: str, whole: str) -> bool:
    """`_repeats`, however the calls are written."""
    return _repeats(_with(text, whole), whole)


def _with(text: str, whole: str, **changed: Any) -> str:
    head = f"{whole}\nCalling tools:\n"
    if not text.startswith(head):
        return text
    try:
        calls = ast.literal_eval(text.removeprefix(head).strip())
        calls[0]["function"] |= changed if calls[0]["function"]["arguments"].strip() else {}
    except (ValueError, SyntaxError, TypeError, KeyError):
        return text
    return f"{head}{calls!r}"


class OfAnyIds(str):
    """Equal to a text in which the calls have other ids."""

    def __eq__(self, other: object) -> bool:
        return _without_ids(self) == _without_ids(str(other))

    __hash__ = str.__hash__


def _without_ids(text: str) -> str:
    return re.sub(r"'id': '[^']*'", "'id': ''", text)


def stripped(message: Any, **options: Any) -> Any:
    content = message.get("content")
    if isinstance(content, str):
        message = message | {"content": content.strip()}
    return _form_of_message(message, **options)


_form, _form_of_message = comparable.comparable, comparable.comparable_message
_repeats, _same_reasoning = chat.repeats, matching._same_reasoning
_with_calls = chat.with_calls

GUARDS: dict[str, tuple[Any, str, Any]] = {
    "1: inner white space counts": (matching, "text_of", without_inner_space),
    "2: thinking is compared": (matching, "_same_reasoning", lambda message, entry: True),
    "2: both names of it": (matching, "_same_reasoning", of_one_key),
    "3: a bool is no number": (comparable, "comparable", with_bools_as_numbers),
    "4: ids say which call": (matching, "call_at", lambda history, at, entry_of: None),
    "5: what we never say": (matching, "_NEVER_OURS", ()),
    "6: text lost, but not ids": (chat, "ids_of", lambda calls: ANY),
    "7: stop strings of that request": (
        matching,
        "rewrite_of",
        rewriting(lambda message, entry: (message, replace(entry, stop=STOPS))),
    ),
    "8: ids of calls as text": (
        chat,
        "with_calls",
        lambda entry: OfAnyIds(_with_calls(entry)),
    ),
    "9: the code is in the text": (chat, "repeats", of_any_code),
    "9: the line is as Python writes it": (chat, "repeats", written_in_any_way),
    "10: only what is empty is left out": (
        BranchEntry,
        "is_empty",
        property(lambda entry: entry.ours),
    ),
    "10: not where another answer stands": (
        History,
        "has_answer_from",
        lambda history, place: False,
    ),
    "11: white space of others counts": (matching, "comparable_message", stripped),
}
REST: dict[str, tuple[Any, str, Any]] = {
    "callers are told apart": (Callers, "of", lambda self, request: NOBODY),
    "a retry is the same caller's": (Caller, "digest", lambda self, digest: digest),
    "an undelivered sample is given": (Repeats, "before", lambda self, digest, retried: None),
    "what was said is not rendered": (ledger, "find_continuation", lambda *args: None),
    "ids of a client's own are known": (
        LedgerBranch,
        "in_own_ids",
        lambda self, history, found: history.messages[found.answered_messages :],
    ),
    "a sample stands in one row": (row, "_others", lambda branches, row, unfollowed: []),
    "what was followed is not thrown away": (
        random_clients,
        "unfollowed_calls",
        lambda branches: {call for branch in branches for call in branch.calls},
    ),
}


@pytest.mark.parametrize("guard", GUARDS)
def test_without_a_guard_an_edited_history_is_matched(
    clients: type[Clients], guard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        clients, "most_edits", 150
    )  # of an answer with hard arguments, some hundreds
    where, name, without = GUARDS[guard]
    monkeypatch.setattr(where, name, without)
    if name in vars(branch):
        monkeypatch.setattr(branch, name, without)
    with pytest.raises(AssertionError, match="and not"):
        run_state_machine_as_test(clients, settings=FIRST)


@pytest.mark.parametrize("what", REST)
def test_what_else_the_clients_would_find(
    clients: type[Clients], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*REST[what])
    with pytest.raises(AssertionError):
        run_state_machine_as_test(clients, settings=FIRST)
