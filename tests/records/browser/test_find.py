"""The search within a rollout: what it counts, marks and goes to, in tokens and in messages."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import abut
from abut.demo.model import ASSETS as DEMO
from abut.records.read import from_record
from abut.records.record import to_record
from tests.kit.clients.page import Shown
from tests.kit.data.records import a_played_rollout

Show = Callable[..., Shown]
Save = Callable[..., Path]

FOUND = "[...(CSS.highlights.get('found') ?? [])]"
TEXTS = f"{FOUND}.map(r => {{ const own = document.createRange(); own.setStart(r.startContainer, r.startOffset); own.setEnd(r.endContainer, r.endOffset); return own.toString(); }})"  # noqa: E501
NOW = "[...CSS.highlights.get('found-now')][0]"


def page_of(saved: Save, tokenizer: abut.Tokenizer, turns: Any, **changes: Any) -> Path:
    rollout = a_played_rollout(tokenizer, "begin here", turns, **changes)
    place = {"step": 1, "mode": "train", "group": 0, "place": 0, "tokenizer": str(DEMO)}
    return saved([from_record(to_record(rollout, **place))])


def find(shown: Shown, text: str) -> str:
    """Type a text into the field; returns what it says of the matches."""
    shown.press("Escape", "f")
    shown.page.keyboard.type(text)
    return shown.text(".find-count")


@pytest.mark.parametrize("view", ["tokens", "chat"])
def test_matches_are_counted_marked_and_gone_to(
    view: str, show: Show, saved: Save, tokenizer: abut.Tokenizer
) -> None:
    turns = [("Hippopotamus one", "a hippoPOTAmus?"), ("yes, hippopotamus", None)]
    shown = show(page_of(saved, tokenizer, turns), f"#v={view}")
    assert find(shown, "hippopotamus") == "3"
    assert shown.ask(TEXTS) == ["Hippopotamus", "hippoPOTAmus", "hippopotamus"]
    if view == "tokens":
        of_tokens = (
            f"{FOUND}.map(r => r.startContainer.parentElement !== r.endContainer.parentElement)"
        )
        assert shown.ask(of_tokens) == [True] * 3, "each spans several tokens"
    for expected in "1 of 3", "2 of 3", "3 of 3", "1 of 3":
        shown.press("Enter")
        assert shown.text(".find-count") == expected
    shown.press("Shift+Enter")
    assert shown.text(".find-count") == "3 of 3"
    shown.press("Escape", ",")
    assert shown.text("#said") == "match 2 of 3"
    shown.press(".")
    assert shown.text("#said") == "match 3 of 3"
    assert shown.axe() == []
    assert find(shown, "nowhere") == "not found"
    assert shown.ask(TEXTS) == []


def test_a_match_stays_found_when_the_view_or_what_tokens_show_changes(
    show: Show, saved: Save, tokenizer: abut.Tokenizer
) -> None:
    shown = show(page_of(saved, tokenizer, [("two words", "two  words"), ("x", None)]))
    assert find(shown, "two words") == "1"
    shown.press("Escape", "w")
    shown.wait(f"JSON.stringify({TEXTS}) === '[\"two·words\"]'")
    shown.press("h")
    shown.wait(f"app.state.view === 'chat' && JSON.stringify({TEXTS}) === '[\"two words\"]'")
    shown.press("i", "t")
    shown.wait(f"app.state.view === 'tokens' && {FOUND}.length === 1")


def test_what_is_folded_or_cut_is_found_and_shown(
    show: Show, saved: Save, tokenizer: abut.Tokenizer
) -> None:
    long = "All work. " * 5_000 + "needle"
    rollout_messages = [
        {"role": "system", "content": "a needle in the system prompt"},
        {"role": "user", "content": long},
    ]
    page = page_of(saved, tokenizer, [("x", None)], messages=rollout_messages)
    shown = show(page, "#v=chat")
    assert find(shown, "needle") == "2"
    shown.press("Enter")
    shown.wait("document.querySelector('.folded').open")
    shown.press("Enter")
    in_sight = f"(() => {{ const {{ startContainer }} = {NOW}; const box = startContainer.parentElement.getBoundingClientRect(); return box.bottom > 0 && box.bottom < 1200; }})()"  # noqa: E501
    shown.wait(in_sight)


def test_a_match_far_down_in_a_long_rollout_comes_into_sight(
    show: Show, saved: Save, tokenizer: abut.Tokenizer
) -> None:
    filler = "\n".join(f"line {k} of the reply" for k in range(3000))
    shown = show(page_of(saved, tokenizer, [("one", f"{filler}\nneedle\n{filler}"), ("x", None)]))
    assert shown.ask("app.rollout.text.near !== null"), "long enough for blocks of plain text"
    assert find(shown, "needle") == "1"
    shown.press("Enter")
    box = f"(() => {{ const r = {NOW}; const own = document.createRange(); own.setStart(r.startContainer, r.startOffset); own.setEnd(r.endContainer, r.endOffset); return own.getBoundingClientRect(); }})()"  # noqa: E501
    shown.wait(f"{box}.top > 40 && {box}.bottom < 800 && {box}.width > 0")
    shown.ask("new Promise((done) => setTimeout(done, 500))")  # until blocks have their spans
    assert shown.ask(f"{box}.top > 40 && {box}.bottom < 800")
    assert shown.text(".find-count") == "1 of 1"


def test_many_matches_take_no_long(show: Show, saved: Save, tokenizer: abut.Tokenizer) -> None:
    filler = "\n".join(f"line {k} of the reply" for k in range(6000))
    shown = show(page_of(saved, tokenizer, [("one", filler), ("x", None)]))
    shown.measure()
    before = shown.cpu_s
    assert (
        find(shown, "e").endswith("000") or int(shown.text(".find-count").replace(",", "")) > 12_000
    )
    assert shown.cpu_s - before < 2


def test_the_filter_of_the_list_marks_the_text_that_it_asks_for(
    show: Show, saved: Save, tokenizer: abut.Tokenizer
) -> None:
    shown = show(page_of(saved, tokenizer, [("needle", None)]))
    shown.page.fill("#filter", "text:needle")
    shown.wait(f"{FOUND}.length === 1")
    shown.page.fill("#filter", "")
    shown.wait(f"{FOUND}.length === 0")
    assert find(shown, "begin") == "1"
    shown.page.fill("#filter", "text:needle")
    shown.wait("app.state.where === 'text:needle'")
    assert shown.page.input_value("#find") == "begin", "what somebody looks for stays"


def test_the_search_of_the_browser_is_left_alone(
    show: Show, saved: Save, tokenizer: abut.Tokenizer
) -> None:
    shown = show(page_of(saved, tokenizer, [("one", None)]))
    pressed = (
        "['f', 'g'].map((key) => !document.body.dispatchEvent(new KeyboardEvent("
        "'keydown', { key, ctrlKey: true, bubbles: true, cancelable: true })))"
    )
    assert shown.ask(pressed) == [False, False]
    assert shown.ask("document.activeElement.id") != "find"
    assert shown.ask("window.find('begin here')"), "the text is there for it"


def test_the_list_of_keys_names_it(show: Show, saved: Save, tokenizer: abut.Tokenizer) -> None:
    shown = show(page_of(saved, tokenizer, [("one", None)]))
    shown.press("?")
    keys = shown.text("#keys dl")
    assert "find in the rollout" in keys
    assert "next, previous match" in keys
    assert "chat: the rollout as messages" in keys
