"""What real clients sent, request for request: each goes on where the table of verdicts says.

The recordings are of unmodified packages. They hold odd JSON, calls that are cut, answers without
any text, and failures, as clients of many kinds send them back.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from abut.gateway.ledger import entry, matching
from abut.gateway.ledger.agent_call import AgentRequest
from abut.gateway.ledger.comparable import arguments_of
from abut.gateway.ledger.ledger import Ledger
from abut.gateway.ledger.matching import History, match
from abut.gateway.server.gateway import REWRITES
from tests.kit.clients.edited_histories import edits
from tests.kit.clients.recordings import Recorded, Replay, Verdicts, recordings, verdicts
from tests.kit.stage.rollouts import SOAK, Stage

SHARE = 20
"""Of so many edits one is tried in the ordinary suite."""


@pytest.fixture(scope="module")
def recorded() -> dict[str, list[Recorded]]:
    return recordings()


@pytest.fixture(scope="module")
def table() -> dict[str, tuple[Verdicts, Verdicts]]:
    return verdicts()


def replayed(
    stage: Stage, recorded: dict[str, list[Recorded]], rewrites: Sequence[str], **options: Any
) -> dict[str, Verdicts]:
    replay = Replay(stage, rewrites, **options)
    found = asyncio.run(_all(replay, recorded))
    assert replay.requests == sum(map(len, recorded.values()))
    return found


async def _all(replay: Replay, recorded: dict[str, list[Recorded]]) -> dict[str, Verdicts]:
    return {name: await replay.verdicts(requests) for name, requests in recorded.items()}


def test_each_recorded_request_goes_on_where_the_table_says(
    stage: Stage, recorded: dict[str, list[Recorded]], table: dict[str, tuple[Verdicts, Verdicts]]
) -> None:
    found = replayed(stage, recorded, REWRITES)
    assert found.keys() == table.keys()
    assert sum(len(said.marks) for said in found.values()) > 1000
    wrong = {name: said for name, said in found.items() if said != table[name][1]}
    assert wrong == {}
    rules = {rule for said in found.values() for rule in said.rewrites}
    assert rules == {*REWRITES} - {"thinking_as_text", "arguments_read"}  # of other protocols


def test_without_rewrites_their_clients_fork(
    stage: Stage, recorded: dict[str, list[Recorded]], table: dict[str, tuple[Verdicts, Verdicts]]
) -> None:
    found = replayed(stage, recorded, ())
    other = {name for name, said in found.items() if said.marks != table[name][0].marks}
    # The table's rule without rewrites does not know how pydantic-ai wraps what is no JSON.
    assert other == {"pydantic_ai__badargs", "pydantic_ai__lencall"}
    changed = {name for name, said in found.items() if said.marks != table[name][1].marks}
    assert changed == {name for name, (_, said) in table.items() if said.rewrites}


class Edited:
    """Edits the history of each request, before that is placed; keeps what is matched all the same.

    A branch that has the history as it is may be followed up to the edit, and no further.
    """

    def __init__(self, share: int) -> None:
        self.tried = 0
        self.unedited = 0
        self.matched: Counter[str] = Counter()
        self._share = share
        self._random = Random(0)

    def __call__(self, session: Ledger, request: AgentRequest) -> None:
        messages = request.messages
        history = History(messages)
        for branch in session.branches:
            said = match(branch.entries, history, request.dialect).messages
            if branch.frame != request.frame or not said:
                continue
            self.unedited += 1
            for what, first, edited in edits(messages[:said], self._random):
                if self._random.randrange(self._share):
                    continue
                self.tried += 1
                found = match(branch.entries, History(edited + messages[said:]), request.dialect)
                self.matched[what] += found.messages > first


def test_no_edited_history_is_taken_for_what_was_said(
    stage: Stage, recorded: dict[str, list[Recorded]]
) -> None:
    edited = Edited(SHARE)
    replayed(stage, recorded, REWRITES, seen=edited)
    assert +edited.matched == Counter()
    assert edited.tried > 5000
    assert edited.unedited > 900
    assert len(edited.matched) > 30  # kinds of edits


def equal_to_python(call: Any) -> tuple[Any, Any]:
    """What a call is compared by where nobody thought of `True == 1`."""
    return call["function"].get("name"), arguments_of(call["function"].get("arguments"))


@pytest.mark.parametrize(
    ("name", "loose", "taken"),
    [
        ("_NEVER_OURS", (), {"refusal added", "audio added", "function_call added"}),
        (
            "comparable_call",
            equal_to_python,
            {"arguments: number to another type", "arguments: constant changed"},
        ),
        ("_same_reasoning", lambda message, entry: True, {"other thinking"}),
    ],
)
def test_a_looser_rule_is_noticed(
    stage: Stage,
    recorded: dict[str, list[Recorded]],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    loose: Any,
    taken: set[str],
) -> None:
    for module in (matching, entry):
        monkeypatch.setattr(module, name, loose, raising=module is matching)
    edited = Edited(1)
    some = {client: recorded[client] for client in ("openai__args", "openai__main")}
    asyncio.run(_all(Replay(stage, REWRITES, edited), some))
    assert {*+edited.matched} == taken


@SOAK
def test_none_of_all_edited_histories_is(stage: Stage, recorded: dict[str, list[Recorded]]) -> None:
    edited = Edited(1)
    replayed(stage, recorded, REWRITES, seen=edited)
    assert +edited.matched == Counter()
    assert edited.tried > 100_000
