"""What a request repeats is not compared again, and is found to be what it was."""

import copy
import random
from typing import Any

import pytest

from abut.gateway.dialects.chat import Chat
from abut.gateway.ledger import matching
from abut.gateway.ledger.comparable import KnownPrefix
from abut.gateway.ledger.matching import History, match
from tests.kit.data.branches import CHANGES, Messages, a_branch, as_sent, no_text

CHAT = Chat()


@pytest.mark.parametrize("seed", range(60))
def test_what_is_known_changes_no_match(seed: int) -> None:
    rng = random.Random(seed)
    whole = a_branch(8, rng)
    known = KnownPrefix()
    sent: list[Messages] = []
    for _ in range(25):
        entries = whole[: rng.randrange(1, len(whole) + 1)]
        known = known.first(len(entries))  # as of a fork: a branch itself only grows
        if sent and rng.random() < 0.5:
            messages = copy.deepcopy(rng.choice(sent))
            messages += as_sent(whole[len(messages) :])[: rng.randrange(4)]
        else:
            messages = as_sent(whole[: rng.randrange(1, len(whole) + 1)])
        rng.choice(CHANGES)(messages, rng.randrange(len(messages)))
        if messages:
            sent.append(messages)
            expected = match(entries, History(messages), CHAT)
            assert match(entries, History(messages), CHAT, known) == expected


def test_only_what_is_new_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[Any] = []
    for name in ("rewrite_of", "comparable_message"):
        whole = getattr(matching, name)

        def noted(message: Any, *rest: Any, whole: Any = whole, **named: Any) -> Any:
            looked_at.append(message)
            return whole(message, *rest, **named)

        monkeypatch.setattr(matching, name, noted)
    entries, known = a_branch(100), KnownPrefix()
    for entry in entries[::2]:
        assert entry.comparable  # which it keeps
    for end in (101, 201):
        looked_at.clear()
        found = match(entries, History(as_sent(entries[:end])), CHAT, known)
        assert (found.entries, found.turns, found.same_ids) == (end, end // 2, end // 2)
        assert looked_at == as_sent(entries[end - 100 - (end == 101) : end])


@pytest.mark.parametrize(("known", "other"), [(1, True), (1, 1.0), ({"a": [0]}, {"a": [False]})])
def test_a_bool_is_no_known_number(known: Any, other: Any) -> None:
    beginning = KnownPrefix()
    beginning.learn(0, {"role": "user", "content": "x", "n": known}, ours=False)
    assert beginning.common([{"role": "user", "content": "x", "n": copy.deepcopy(known)}]) == 1
    assert beginning.common([{"role": "user", "content": "x", "n": other}]) == 0


def test_a_message_in_another_way_is_learned_anew() -> None:
    entries, known = a_branch(3), KnownPrefix()
    messages = as_sent(entries)
    match(entries, History(messages), CHAT, known)
    assert known.common(messages) == len(entries)
    messages = as_sent(entries)
    no_text(messages, 3)
    found = match(entries, History(messages), CHAT, known)
    assert found.rewrites == {"text_lost": 1}
    assert known.common(messages) == len(entries)
    assert known.common(as_sent(entries)) == 3
