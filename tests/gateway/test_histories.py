"""The index finds what comparing with every rollout finds, and compares with few."""

import random
from typing import Any

import pytest

from abut.gateway.dialects.chat import Chat
from abut.gateway.ledger import histories
from abut.gateway.ledger.agent_call import AgentRequest
from abut.gateway.ledger.branch import LedgerBranch, find_continuation
from abut.gateway.ledger.callers import Callers
from abut.gateway.ledger.entry import BranchEntry
from abut.gateway.ledger.histories import Histories, find_open_ends
from abut.gateway.ledger.matching import History
from abut.gateway.ledger.writer import Writer
from tests.kit.data.branches import CHANGES, a_branch, as_sent

CHAT = Chat()


class Told:
    """A rollout in which this was said, as far as the index looks at one."""

    def __init__(self) -> None:
        self.branches: list[LedgerBranch] = []
        self.follower: Histories | None = None
        self.callers = Callers()

    def says(self, histories: Histories, frame: str, entries: list[BranchEntry]) -> None:
        """One branch, told to the index answer by answer."""
        branch = LedgerBranch(frame, Writer(None, None), None)  # type: ignore[arg-type]
        self.branches.append(branch)
        for entry in entries:
            branch.entries.append(entry)
            if entry.ours:
                branch.calls.append(_call())
                histories.heard(self, branch)  # type: ignore[arg-type]
            elif branch.calls:
                histories.passed(self, branch, len(branch.entries) - 1)  # type: ignore[arg-type]


def _call() -> Any:
    class Call:
        sample = None
        delivery = 0

    return Call()


def told(histories: Histories, entries: list[BranchEntry], frame: str = "") -> Told:
    rollout = Told()
    histories.add(rollout)  # type: ignore[arg-type]
    rollout.says(histories, frame, entries)
    return rollout


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The branches that a request was compared with."""
    seen: list[Any] = []

    def noted(branches: Any, *rest: Any) -> Any:
        seen.extend(branches)
        return find_continuation(branches, *rest)

    monkeypatch.setattr(histories, "find_continuation", noted)
    return seen


def a_request(messages: list[Any]) -> AgentRequest:
    return AgentRequest(messages=messages, dialect=CHAT)


@pytest.mark.parametrize("seed", range(40))
def test_the_index_finds_the_longest_history_that_there_is(seed: int) -> None:
    rng = random.Random(seed)
    histories, rollouts = Histories(), []
    frame = a_request([]).frame
    wholes = [a_branch(5, random.Random(rng.randrange(3))) for _ in range(12)]
    for whole in wholes:
        rollouts.append(told(histories, whole[: rng.randrange(2, len(whole) + 1)], frame))
    branches = [branch for rollout in rollouts for branch in rollout.branches]
    for _ in range(30):
        whole = rng.choice(wholes)
        messages = as_sent(whole[: rng.randrange(1, len(whole) + 1)])
        rng.choice(CHANGES)(messages, rng.randrange(len(messages)))
        if not messages:
            continue
        request = a_request(messages)
        best = find_continuation(branches, frame, History(messages), CHAT)
        turns = 0 if best is None else best.found.turns
        found = find_open_ends(histories, request)
        theirs = find_continuation([s.branch for s in found], frame, History(messages), CHAT)
        assert (0 if theirs is None else theirs.found.turns) == turns


@pytest.mark.parametrize("equal", [True, False])
def test_a_request_is_compared_with_its_own_rollout_among_hundreds(
    compared: list[Any], equal: bool
) -> None:
    histories = Histories()
    request = a_request([])
    for number in range(300):
        entries = a_branch(3)
        if not equal:
            entries[1].message["content"] = f"mine is {number}"
        told(histories, entries[:-1], request.frame)
    entries = a_branch(3)
    if not equal:
        entries[1].message["content"] = "mine is 170"
    request = a_request(as_sent(entries))
    claimed = []
    for _ in range(3 if equal else 1):
        compared.clear()
        (spot,) = find_open_ends(histories, a_request(request.messages))
        assert len(compared) == 1
        claim = a_request(request.messages)
        histories.claim(claim, spot)
        claimed.append((claim, spot))
    assert len({spot for _, spot in claimed}) == len(claimed)


def test_a_spot_that_was_claimed_in_vain_is_free_again() -> None:
    histories, request = Histories(), a_request([])
    told(histories, a_branch(1)[:-1], request.frame)
    first, second = a_request(as_sent(a_branch(1))), a_request(as_sent(a_branch(1)))
    (spot,) = find_open_ends(histories, first)
    histories.claim(first, spot)
    assert not spot.is_free
    histories.settled(first)
    assert spot.is_free
    assert find_open_ends(histories, second) == [spot]


def test_nothing_is_left_of_rollouts_that_ended() -> None:
    histories = Histories()
    rollouts = [told(histories, a_branch(4, random.Random(seed))) for seed in range(8)]
    for rollout in rollouts:
        histories.asked(rollout, b"body")  # type: ignore[arg-type]
    for rollout in rollouts:
        histories.remove(rollout)  # type: ignore[arg-type]
    del histories.on_change
    assert [value for value in vars(histories).values() if value] == []
