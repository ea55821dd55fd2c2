"""A rollout as a chat: what each message says, its branches, and the place that a reader keeps."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import abut
from abut.demo.model import ASSETS as DEMO
from abut.records.image_folder import ImageFolder
from abut.records.read import from_record, read_records
from abut.records.record import to_record
from abut.rollout.rollout import Branch, Rollout
from tests.kit.clients.page import Shown
from tests.kit.data.records import a_pictured_rollout, a_played_rollout

Show = Callable[..., Shown]
Save = Callable[..., Path]

HOSTILE = "</script><img src=x onerror=alert(1)> \u202eabc <b>bold</b>"


def of(rollout: Rollout, **extra: Any) -> dict[str, Any]:
    """A rollout as it is read from a file."""
    said = {"step": 1, "mode": "train", "group": 0, "place": 0, "tokenizer": str(DEMO)} | extra
    return from_record(to_record(rollout, **said))


def a_chat(tokenizer: abut.Tokenizer, turns: int, rollout_id: str = "r0", **changes: Any) -> Any:
    """A rollout of so many turns, each of some lines."""
    said = [(f"policy {k}\n" * 9, f"reply {k}\n" * (5 + k % 7)) for k in range(turns)]
    return a_played_rollout(
        tokenizer, "begin", [*said[:-1], (said[-1][0], None)], rollout_id, **changes
    )


def heads(shown: Shown) -> list[str]:
    """The speaker of each message."""
    return list(shown.page.locator(".chat > .turn .message > .speaker").all_inner_texts())


def test_thinking_calls_and_results_of_an_agent_are_told_apart(
    show: Show, saved: Save, conversations: Path
) -> None:
    shown = show(saved(conversations / "agent.jsonl"), "#v=chat")
    assert heads(shown)[1:4] == ["user", "policy", "tool · search"]
    said = shown.page.locator(".message[data-role=assistant]").first
    assert said.locator(".thinking").get_attribute("open") is None
    assert "<think>" not in said.inner_text()
    assert "<tool_call>" not in said.inner_text()
    assert said.locator(".call > p").inner_text() == "call search"
    assert said.locator(".call dl").inner_text().split("\n") == [
        *("query", "source of the Rhine"),
        *("limit", "2"),
    ]
    shown.unfold(said)
    assert "The Rhine has several sources." in said.locator(".thinking").inner_text()
    shown.press("t")
    shown.wait("app.rollout.body === app.rollout.tokens")
    assert "<tool_call>" in shown.text("#view-tokens .tokens")


def test_the_system_prompt_and_the_tools_are_folded(
    show: Show, saved: Save, conversations: Path
) -> None:
    shown = show(saved(conversations / "agent.jsonl"), "#v=chat")
    folded = shown.page.locator(".chat .folded")
    assert folded.all_inner_texts() == [
        "Tools 1: search",
        "System prompt 82 characters · You answer questions about rivers.",
    ]
    shown.unfold(folded.nth(0))
    assert "Search the encyclopedia" in folded.nth(0).inner_text()
    assert '"query"' in folded.nth(0).inner_text()
    shown.unfold(folded.nth(1))
    assert "name your source" in folded.nth(1).inner_text()
    shown.page.locator(".branches button").nth(2).click()
    shown.wait("app.state.branch === 2")
    assert shown.page.locator(".chat .tools").count() == 0, "the critic was shown none"


def test_a_call_that_nobody_could_read_is_text(
    show: Show, saved: Save, conversations: Path
) -> None:
    shown = show(saved(conversations / "tools.jsonl"), "#v=chat")
    policy = shown.page.locator(".message[data-role=assistant]")
    assert policy.nth(0).locator(".call").count() == 2
    assert policy.nth(1).locator(".call").count() == 0
    assert '{"name": "add", "arguments": [1]}' in policy.nth(1).inner_text()


def test_a_record_that_does_not_tell_shows_the_text_as_it_is(
    show: Show, saved: Save, conversations: Path
) -> None:
    (record,) = read_records(conversations / "agent.jsonl")
    for turn in record["turns"]:
        del turn["spoken"], turn["message"]  # as in an older record
    shown = show(saved([record]), "#v=chat")
    assert shown.page.locator(".chat > .turn").count() == 4
    assert shown.page.locator(".chat > .turn .call").count() == 0
    assert "<think>" in shown.page.locator(".message[data-role=assistant]").first.inner_text()


def test_a_hosted_rollout_opens_as_a_chat_and_says_why_it_has_no_tokens(
    show: Show, saved: Save, conversations: Path
) -> None:
    shown = show(saved(conversations / "hosted.jsonl"))
    assert "v=" not in shown.address
    assert heads(shown)[1:] == ["user", "policy", "tool · add", "tool · add", "policy"]
    assert shown.page.locator(".call dl").first.inner_text().split() == ["a", "2", "b", "3"]
    assert "completion tokens\n20" in shown.text(".facts")
    assert shown.axe() == []
    shown.press("t")
    shown.wait("app.state.view === 'tokens'")
    assert "v=tokens" in shown.address
    assert shown.text(".tokens .note").startswith("No tokens: the policy answered in messages")
    shown.press("1", "2", "]", "n", "i", "w")
    shown.page.click("text=Read its messages")
    shown.wait("app.state.view === 'chat'")


def test_a_record_of_messages_alone_is_shown(show: Show, saved: Save) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    shown = show(saved([{"rollout_id": "r0", "messages": messages}]))
    said = [text.split() for text in shown.page.locator(".message").all_inner_texts()]
    assert said == [["user", "hi"], ["policy", "hello"]]


def test_what_policies_and_tools_say_is_never_markup(
    show: Show, saved: Save, tokenizer: abut.Tokenizer
) -> None:
    rollout = a_played_rollout(tokenizer, HOSTILE, [(HOSTILE, HOSTILE), ("ok", None)])
    call = {"function": {"name": HOSTILE, "arguments": {HOSTILE: [HOSTILE], "a": HOSTILE}}}
    rollout.turns[0].message = 1
    rollout.turns[0].spoken = {
        "content": HOSTILE,
        "reasoning_content": HOSTILE,
        "tool_calls": [call],
    }
    rollout.tools = [{"function": {"name": HOSTILE, "description": HOSTILE}}]
    rollout.messages[2] |= {"role": HOSTILE, "name": HOSTILE, HOSTILE: HOSTILE}
    shown = show(saved([of(rollout)]), "#v=chat")
    assert shown.ask("document.querySelectorAll('main img, main b, main script').length") == 0
    shown.ask("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert shown.text(".chat").count("onerror=alert(1)>") >= 10
    assert "\u202e" not in shown.text(".chat")
    assert shown.axe() == []


def test_images_of_messages_are_thumbnails(
    show: Show, saved: Save, tokenizer: abut.Tokenizer, tmp_path: Path
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (90, 400, 3), dtype=np.uint8)
    rollout = a_pictured_rollout(tokenizer, pixels)
    ImageFolder(tmp_path / "images").write(rollout)
    shown = show(saved([of(rollout)], images=tmp_path / "images"), "#v=chat")
    shown.wait("document.querySelector('.message img')?.naturalWidth === 192")
    assert "Which colour?" in shown.text(".message >> nth=0")


# ---- the place of a reader


AT_TOP = (
    "(() => { const top = app.rollout.top(); return [...document.querySelectorAll("
    "'#view-tokens .turn')].findLast((one) => one.getBoundingClientRect().top <= top + 3)"
    "?.dataset.turn; })()"
)


@pytest.mark.parametrize("turn", ["3", "17", "38"])
def test_switching_between_chat_and_tokens_keeps_the_turn(
    turn: str, show: Show, saved: Save, tokenizer: abut.Tokenizer
) -> None:
    shown = show(saved([of(a_chat(tokenizer, 40))]), "#v=chat")
    place = f"app.rollout.goTo({{ turn: '{turn}', share: 0.3 }})"
    shown.ask(place)
    shown.wait(f"{AT_TOP} === '{turn}'")
    for key, view in ("t", "tokens"), ("h", "chat"), ("t", "tokens"), ("h", "chat"):
        shown.press(key)
        shown.wait(f"app.state.view === '{view}' && app.rollout.body === app.rollout.{view}")
        shown.ask("new Promise((done) => setTimeout(done, 500))")  # until it has settled
        assert shown.ask(AT_TOP) == turn, view


def test_the_address_names_the_view_and_the_turn(
    show: Show, saved: Save, tokenizer: abut.Tokenizer
) -> None:
    record = of(a_chat(tokenizer, 30))
    start = record["turns"][20]["start"]
    shown = show(saved([record]), f"#r=r0&t={start}&v=chat")
    shown.wait(f"{AT_TOP} === '20'")
    shown.press("]")
    shown.wait(f"{AT_TOP} === '21'")
    shown.press("[", "[")
    shown.wait(f"{AT_TOP} === '20' || {AT_TOP} === '19'")
    assert "v=chat" in shown.address


def test_the_next_rollout_opens_in_the_same_view(
    show: Show, saved: Save, tokenizer: abut.Tokenizer
) -> None:
    records = [of(a_chat(tokenizer, 2, f"r{k}"), place=k) for k in range(2)]
    shown = show(saved(records), "#r=r0")
    shown.press("h", "j")
    shown.wait("app.state.row.rollout_id === 'r1' && app.rollout.body === app.rollout.chat")
    shown.press("t", "k")
    shown.wait("app.state.row.rollout_id === 'r0' && app.rollout.body === app.rollout.tokens")


# ---- branches


def test_branches_are_a_tree_with_the_turn_at_which_each_leaves(
    show: Show, saved: Save, conversations: Path
) -> None:
    shown = show(saved(conversations / "agent.jsonl"), "#v=chat")
    tree = shown.page.locator(".branches > ul")
    assert tree.locator("> li > button").all_inner_texts() == ["Row", "Branch 2 · critic · new"]
    fork = tree.locator("> li >> nth=0 >> ul > li")
    assert fork.locator("button").inner_text() == "Branch 1 · rewritten"
    assert fork.inner_text().endswith("forks from Row after turn 0, 1 turn, 664 tokens")
    fork.locator("button").click()
    shown.wait("app.state.branch === 1")
    assert (
        shown.page.locator(".chat > .turn > h3").all_inner_texts()[0].startswith("After the fork")
    )
    assert "A short answer, please." in shown.text(".chat")
    before = shown.page.locator(".chat > .before")
    assert before.inner_text() == "Before the fork: 3 messages of Row"
    shown.unfold(before)
    assert before.locator(".message").count() == 3
    assert before.locator(".call").count() == 1
    assert shown.axe() == []
    shown.press("t")
    shown.wait("app.rollout.body === app.rollout.tokens")
    assert "A short answer, please." in shown.text("#view-tokens .tokens")


def test_what_an_agent_never_received_is_marked(
    show: Show, saved: Save, tokenizer: abut.Tokenizer
) -> None:
    lost = a_played_rollout(tokenizer, "begin", [("lost", None)])
    kinds = [{"delivered": False}, {"followed": False}, {"auxiliary": True}, {"trained": False}]
    branches = [Branch(lost.columns, lost.provenance, cause="repeated", **kind) for kind in kinds]
    rollout = a_played_rollout(tokenizer, "begin", [("one", None)], branches=branches)
    shown = show(saved([of(rollout)]), "#v=chat")
    lines = shown.page.locator(".branches li")
    assert [line.inner_text() for line in lines.all()][1:] == [
        "Branch 1 · repeated · not delivered 0 turns, 15 tokens",
        "Branch 2 · repeated · not followed 0 turns, 15 tokens",
        "Branch 3 · repeated 0 turns, 15 tokens, auxiliary",
        "Branch 4 · repeated 0 turns, 15 tokens, not trained",
    ]
    assert shown.page.locator(".branches .dropped").count() == 2


def test_a_branch_without_messages_shows_the_texts_of_its_tokens(
    show: Show, saved: Save, tokenizer: abut.Tokenizer
) -> None:
    other = a_played_rollout(tokenizer, "begin", [("another", "go on"), ("way", None)])
    branch = Branch(other.columns, other.provenance, turns=other.turns)
    rollout = a_played_rollout(tokenizer, "begin", [("one", None)], branches=[branch])
    shown = show(saved([of(rollout)]), "#v=chat&b=1")
    assert "no messages of this branch" in shown.text(".chat .note")
    texts = shown.page.locator(".chat .message").all_inner_texts()
    assert [text.split("\n")[0] for text in texts] == ["prompt", "policy", "environment", "policy"]
    assert "another" in texts[1]
