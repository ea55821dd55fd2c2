"""What is the history of a branch, where random clients once found that it was not."""

from typing import Any

import pytest

from abut import agent
from abut.gateway.dialects.chat import Chat
from abut.gateway.ledger.entry import BranchEntry
from abut.gateway.ledger.matching import History, match
from tests.kit.clients.random_policy import naming
from tests.kit.stage.agents import LOOKUP, Client, a_call, check_tree, play_agents, user
from tests.kit.stage.rollouts import Recording, Stage

CHAT = Chat()


def assistant(content: str, **keys: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **keys}


def branch(*messages: dict[str, Any]) -> list[BranchEntry]:
    """Entries in which each answer is the policy's."""
    history = History(messages)
    return [
        BranchEntry(message, ours=True)
        if message["role"] == "assistant"
        else BranchEntry(message, answered_call=history.call_of(place))
        for place, message in enumerate(messages)
    ]


@pytest.mark.parametrize("later", [[], [user("b")], [user("b"), assistant("yes")]])
def test_an_answer_in_the_place_of_an_empty_one_is_an_edit(later: list[Any]) -> None:
    entries = branch(user("a"), assistant(""), *later)
    forged = match(entries, History([user("a"), assistant("forged"), user("c")]), CHAT)
    assert (forged.turns, forged.entries, forged.messages) == (0, 1, 1)
    assert not forged.rewrites


def test_an_empty_answer_may_be_left_out_before_what_is_shared() -> None:
    entries = branch(user("a"), assistant(""), user("b"), assistant("yes"))
    found = match(entries, History([user("a"), user("b"), assistant("other")]), CHAT)
    assert (found.turns, found.answered_entries, found.answered_messages) == (1, 2, 1)
    assert found.rewrites == {"empty_turn_left_out": 1}
    at_end = match(entries[:2], History([user("a"), user("b")]), CHAT)
    assert at_end.turns == 1


def calls(*ids: str) -> list[dict[str, Any]]:
    function = {"name": "lookup", "arguments": "{}"}
    return [{"id": id_, "type": "function", "function": function} for id_ in ids]


def result(id_: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id_, "content": "found"}


def test_a_result_is_that_of_a_call_wherever_the_calls_before_are_written_as_text() -> None:
    """The second answer is the first with calls, where those of the first became text."""
    first, second = calls("a1"), calls("a2")
    entries = branch(
        user("?"),
        assistant("", tool_calls=first),
        user("go on"),
        assistant("", tool_calls=second),
        result("a1"),
    )
    line = f"Calling tools:\n{[{**first[0], 'function': {'name': 'lookup', 'arguments': {}}}]!r}"
    written = [user("?"), assistant(line), user("go on"), assistant("", tool_calls=second)]
    found = match(entries, History([*written, result("a2")]), CHAT)
    assert (found.turns, found.messages) == (2, 4)
    own = match(entries, History([entry.message for entry in entries]), CHAT)
    assert own.messages == 5


@pytest.mark.parametrize("renamed", [False, True])
def test_a_result_is_named_after_its_call_whatever_id_a_client_gives_it(
    hf_tokenizer: Any, tokenizer: Any, renamed: bool
) -> None:
    from abut.template.processor import ChatTemplateProcessor

    stage = Stage(tokenizer, ChatTemplateProcessor(naming(hf_tokenizer)))
    texts = [a_call(a="x"), a_call(a="y"), "It is y."]

    def script(request: Any) -> list[int]:
        ids = stage.tokenizer.encode(texts[request.turn], added="parse")
        return [*ids, stage.processor.close_token_id]

    @agent
    async def looks_up(endpoint: Any) -> float:
        async with Client(endpoint) as client:
            messages: list[Any] = [user("?")]
            for turn in range(3):
                message = await client.ask(messages, tools=[LOOKUP])
                messages.append(message)
                for call in message.get("tool_calls", ()):
                    if renamed:
                        call["id"] = f"mine_{turn}"
                    messages.append(result(call["id"]))
        return 1.0

    sampler = Recording(script)
    rollout = play_agents(stage, looks_up, sampler=sampler).one
    assert (rollout.error, len(rollout.turns), rollout.branches) == (None, 3, [])
    assert stage.row_text(rollout).count("<tool_response>\nlookup: found") == 2
    check_tree(rollout, sampler.calls)
