"""Random clients of the other protocols: the machine of those of chats, with another spelling.

Each guard of a protocol is taken away in turn, and then the same clients find what is wrong.
"""

import marshal
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from abut.gateway.dialects import anthropic, claude_code, gemini, gemini_contents
from abut.gateway.ledger import matching, prompt
from abut.gateway.ledger.agent_call import AgentRequest
from abut.gateway.ledger.entry import HANDLE, RESPELLED, BranchEntry
from abut.gateway.ledger.system_messages import SystemMessages
from tests.gateway.test_random_clients import FIRST, STEPS
from tests.kit.clients.random_clients import Clients
from tests.kit.clients.random_policy import naming
from tests.kit.dialects.anthropic_spelling import AnthropicSpelling
from tests.kit.dialects.gemini_spelling import GeminiSpelling
from tests.kit.dialects.responses_spelling import ResponsesSpelling
from tests.kit.dialects.spelling import Spelling

ANTHROPIC, RESPONSES, GEMINI = AnthropicSpelling(), ResponsesSpelling(), GeminiSpelling()


@pytest.fixture(scope="module")
def named(hf_tokenizer: Any) -> Any:
    return naming(hf_tokenizer)


def clients_of(spelling: Spelling, named: Any, most_edits: int = 60) -> type[Clients]:
    attributes = {"hf": named, "spelling": spelling, "most_edits": most_edits}
    Clients.figures.clear()
    return type("OtherClients", (Clients,), attributes)


@pytest.mark.hypothesis
@pytest.mark.parametrize("spelling", [ANTHROPIC, RESPONSES, GEMINI], ids=lambda s: type(s).__name__)
def test_each_request_gets_what_was_said(named: Any, spelling: Spelling) -> None:
    clients = clients_of(spelling, named)
    run_state_machine_as_test(clients, settings=settings(STEPS, max_examples=12))
    assert clients.figures["edits"] > 1000
    assert clients.figures["extended"] > 10
    assert clients.figures["roots"] > 25


def reasoning_without(*keys: str) -> Callable[[Any, BranchEntry], bool]:
    """`_same_reasoning` of a message without these keys."""
    real = matching._same_reasoning
    return lambda message, entry: real(
        {key: value for key, value in message.items() if key not in keys}, entry
    )


def in_any_order(role: str, blocks: Any, where: str, calls: Any, deferred: Any) -> Any:
    return _said(role, blocks, where, {}, deferred)


def in_camel_case(value: Any, name: str) -> Any:
    return value.get(name)


def last_open(self: Any, name: str) -> str | None:
    return next((id_ for id_, of in reversed(self._open.items()) if of == name), None)


def without_system(self: Any, messages: Any, *, opens: bool) -> Any:
    return [message for message in messages if message["role"] != "system"]


_said = anthropic._said
ORDER = (matching, "_NEVER_OURS", ("refusal", "audio", "function_call"))
SIGNED = (matching, "_same_reasoning", reasoning_without(HANDLE))
DIGEST = (AgentRequest, "digest", property(lambda asked: marshal.dumps(asked.messages)))
SYSTEM = (SystemMessages, "placed", without_system)

EDITS: list[tuple[Spelling, str, Any]] = [
    (ANTHROPIC, "the order of blocks", ORDER),
    (ANTHROPIC, "the signature", SIGNED),
    (
        ANTHROPIC,
        "the number that a text spells",
        (claude_code, "_reads", lambda text, value: isinstance(value, int | float)),
    ),
    (RESPONSES, "the order of items", ORDER),
    (RESPONSES, "the encrypted content", SIGNED),
    (
        RESPONSES,
        "thinking as text is exact",
        (matching, "_same_reasoning", reasoning_without(RESPELLED)),
    ),
    (RESPONSES, "refusals", (matching, "_NEVER_OURS", ("audio", "function_call", "reordered"))),
    (GEMINI, "the order of parts", ORDER),
    (GEMINI, "the signature", SIGNED),
]
"""The guards without which an edited history is matched."""
REST: list[tuple[Spelling, str, Any]] = [
    (ANTHROPIC, "results are in the order of the calls", (anthropic, "_said", in_any_order)),
    (ANTHROPIC, "the line for billing is nothing", (anthropic, "_BILLING", "another line")),
    (ANTHROPIC, "a digest of all that is asked", DIGEST),
    (ANTHROPIC, "system messages are shown", SYSTEM),
    (RESPONSES, "a response stands for its history", (prompt, "with_history", lambda r, calls: r)),
    (GEMINI, "keys in snake_case", (gemini, "value_of", in_camel_case)),
    (
        GEMINI,
        "results without ids are in the order of the calls",
        (gemini_contents._Ids, "_first_open", last_open),
    ),
]


def named_by(cases: list[tuple[Spelling, str, Any]]) -> list[str]:
    return [f"{type(spelling.dialect).__name__}: {name}" for spelling, name, _ in cases]


@pytest.mark.parametrize("case", EDITS, ids=named_by(EDITS))
def test_without_a_guard_an_edited_history_is_matched(
    named: Any, case: tuple[Spelling, str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    spelling, _, without = case
    monkeypatch.setattr(*without)
    with pytest.raises(AssertionError, match="and not"):
        run_state_machine_as_test(clients_of(spelling, named, 150), settings=FIRST)


@pytest.mark.parametrize("case", REST, ids=named_by(REST))
def test_what_else_the_clients_would_find(
    named: Any, case: tuple[Spelling, str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    spelling, _, without = case
    monkeypatch.setattr(*without)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(clients_of(spelling, named, 3), settings=FIRST)
