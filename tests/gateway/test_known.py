"""What a request repeats is not compared again, and is found to be what it was."""

import copy
import random
from dataclasses import replace
from typing import Any

import pytest

from abut.gateway.dialects.chat_rewrites import ChatRewrites
from abut.gateway.ledger import matching
from abut.gateway.ledger.entry import BranchEntry
from abut.gateway.ledger.matching import History, match
from tests.kit.data.branches import CHANGES, Messages, a_branch, another_id, as_sent, no_text

CHAT = ChatRewrites()


def unknown(entries: list[BranchEntry]) -> list[BranchEntry]:
    """The entries, as if no client had written them yet."""
    return [replace(entry, spelling=None) for entry in entries]


def known(entries: list[BranchEntry], messages: Messages) -> int:
    """How many of the first messages are not compared again."""
    spelling = History(messages).known(entries, CHAT)
    return 0 if spelling is None else spelling.count


@pytest.mark.parametrize("seed", range(60))
def test_what_is_known_changes_no_match(seed: int) -> None:
    rng = random.Random(seed)
    whole = a_branch(8, rng)
    sent: list[Messages] = []
    for _ in range(25):
        entries = whole[: rng.randrange(1, len(whole) + 1)]  # which forks share
        if sent and rng.random() < 0.5:
            messages = copy.deepcopy(rng.choice(sent))
            messages += as_sent(whole[len(messages) :])[: rng.randrange(4)]
        else:
            messages = as_sent(whole[: rng.randrange(1, len(whole) + 1)])
        rng.choice(CHANGES)(messages, rng.randrange(len(messages)))
        if messages:
            sent.append(copy.deepcopy(messages))
            expected = match(unknown(entries), History(copy.deepcopy(messages)), CHAT)
            assert match(entries, History(messages), CHAT) == expected
            assert messages == sent[-1]


def test_only_what_is_new_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[Any] = []
    for name in ("rewrite_of", "comparable_message"):
        whole = getattr(matching, name)

        def noted(message: Any, *rest: Any, whole: Any = whole, **named: Any) -> Any:
            looked_at.append(message)
            return whole(message, *rest, **named)

        monkeypatch.setattr(matching, name, noted)
    entries = a_branch(100)
    for entry in entries[::2]:
        assert entry.comparable  # which it keeps
    for end in (101, 201):
        looked_at.clear()
        found = match(entries, History(as_sent(entries[:end])), CHAT)
        assert (found.entries, found.turns, found.same_ids) == (end, end // 2, end // 2)
        assert looked_at == as_sent(entries[end - 100 - (end == 101) : end])


@pytest.mark.parametrize(("said", "other"), [(1, True), (1, 1.0), ({"a": [0]}, {"a": [False]})])
def test_a_bool_is_no_known_number(said: Any, other: Any) -> None:
    entries = [BranchEntry({"role": "user", "content": "x", "n": said})]
    match(entries, History(as_sent(entries)), CHAT)
    assert known(entries, as_sent(entries)) == 1
    assert known(entries, [{"role": "user", "content": "x", "n": other}]) == 0


def test_a_message_in_another_way_is_learned_anew() -> None:
    entries = a_branch(3)
    match(entries, History(as_sent(entries)), CHAT)
    assert known(entries, as_sent(entries)) == len(entries)
    messages = as_sent(entries)
    no_text(messages, 3)
    found = match(entries, History(messages), CHAT)
    assert found.rewrites == {"text_lost": 1}
    assert known(entries, messages) == len(entries)
    assert known(entries, as_sent(entries)) == 3


def test_a_result_is_known_only_behind_the_ids_that_it_was_read_with() -> None:
    entries = a_branch(2)
    match(entries, History(as_sent(entries)), CHAT)
    renamed = as_sent(entries)
    another_id(renamed, 1)
    match(entries[:3], History(renamed[:3]), CHAT)
    mixed = renamed[:2] + as_sent(entries)[2:]
    assert known(entries, mixed) == 2
    assert match(entries, History(mixed), CHAT).entries == 2


def test_a_known_message_is_held_once() -> None:
    entries, first, second = (whole := a_branch(2)), as_sent(whole), as_sent(whole)
    match(entries, History(first), CHAT)
    match(entries, History(second), CHAT)
    assert all(again is message for again, message in zip(second, first, strict=True))


def test_another_protocol_knows_nothing() -> None:
    entries = a_branch(2)
    match(entries, History(as_sent(entries)), CHAT)
    assert History(as_sent(entries)).known(entries, ChatRewrites()) is None
