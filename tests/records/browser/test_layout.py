"""Every view at 1400, 800 and 500 pixels: nothing beyond the edge, and both panes in reach."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import abut
from abut.demo.model import ASSETS as DEMO
from abut.records.read import from_record, read_records
from abut.records.record import to_record
from abut.rollout.rollout import Branch, StopReason
from tests.kit.clients.page import Shown
from tests.kit.data.records import a_pictured_rollout, a_played_rollout

Show = Callable[..., Shown]
Save = Callable[..., Path]

WIDTHS = (1400, 800, 500)
LONG = "https://example.org/" + 40 * "without-a-break/"

BEYOND = """() => {
    const cut = [];
    for (const one of document.querySelectorAll("body *")) {
        const box = one.getBoundingClientRect();
        const isShown = box.width && box.height && !one.closest(".hidden");
        if (isShown && box.right > innerWidth + 0.5) cut.push(`${one.tagName}.${one.className}`);
    }
    return cut;
}"""
SCROLLS = """() => [document.documentElement, document.getElementById("main"),
    document.getElementById("list")].filter((one) => one.scrollWidth > one.clientWidth + 1)
    .map((one) => one.tagName + one.id)"""


@pytest.fixture(scope="module")
def wide(
    conversations: Path, tokenizer: abut.Tokenizer, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A page of what may be too wide: lines, names, calls, errors, pictures, branches."""
    lost = a_played_rollout(tokenizer, "begin", [("lost", None)])
    names = [LONG, "critic", None]
    branches = [Branch(lost.columns, lost.provenance, cause="repeated", name=n) for n in names]
    talk = a_played_rollout(tokenizer, LONG, [(LONG, LONG), ("x", None)], "wide", branches=branches)
    call = {"function": {"name": LONG, "arguments": {LONG: LONG, "list": [LONG, LONG]}}}
    talk.turns[0].message = 1
    talk.turns[0].spoken = {"content": LONG, "reasoning_content": LONG, "tool_calls": [call]}
    talk.tools = [{"function": {"name": LONG, "description": LONG}}]
    failed = a_played_rollout(tokenizer, "begin", [("one", None)], "failed")
    failed.stop_reason, failed.error = StopReason.ERROR, f"EnvError: {LONG}"
    pixels = np.zeros((40, 400, 3), np.uint8)
    pictured = a_pictured_rollout(tokenizer, pixels, rollout_id="pictured")
    place: dict[str, Any] = {"step": 1, "mode": "train", "group": 0, "tokenizer": str(DEMO)}
    records = [
        from_record(to_record(one, **place, place=k, columns={"answer": LONG}))
        for k, one in enumerate([talk, failed, pictured])
    ]
    (agent,) = read_records(conversations / "agent.jsonl")
    hosted, *_ = read_records(conversations / "hosted.jsonl")
    path = tmp_path_factory.mktemp("wide") / "wide.html"
    named = [{**agent, "rollout_id": "agent"}, {**hosted, "rollout_id": "hosted"}]
    return abut.records.view([*records, *named]).save(path)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_cut_off(scheme: str, width: int, show: Show, wide: Path) -> None:
    addresses = ["#r=wide&v=chat", "#r=wide&m=2", "#r=wide&v=compare", "#r=wide&v=curves"]
    addresses += ["#r=failed", "#r=pictured", "#r=agent&v=chat&b=1", "#r=agent", "#r=hosted"]
    shown = show(wide, addresses[0], scheme=scheme, width=width)
    for address in addresses:
        shown.ask("address => { location.hash = address; }", address)
        rollout = address.removeprefix("#r=").split("&")[0]
        view = address.split("v=")[1].split("&")[0] if "v=" in address else None
        view = view or ("chat" if rollout == "hosted" else "tokens")
        shown.wait(f"app.state.row.rollout_id === '{rollout}' && app.state.view === '{view}'")
        shown.wait("app.state.view === 'curves' || document.querySelector('main h2') !== null")
        shown.ask("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        assert shown.ask(BEYOND) == [], address
        assert shown.ask(SCROLLS) == [], address


def test_something_that_is_cut_off_would_be_seen(show: Show, wide: Path) -> None:
    shown = show(wide, width=500)
    shown.ask("document.getElementById('page-facts').style.minWidth = '600px'")
    shown.ask("document.getElementById('page-facts').style.display = 'block'")
    assert shown.ask(BEYOND) != []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_screen_shows_the_list_or_the_rollout(scheme: str, show: Show, wide: Path) -> None:
    shown = show(wide, scheme=scheme, width=500)
    assert shown.page.locator("#list").is_visible()
    assert not shown.page.locator("#main").is_visible()
    assert shown.ask(BEYOND) == []
    assert shown.ask(SCROLLS) == []
    assert shown.axe() == []
    shown.page.locator("#list .row.rollout").nth(1).click()
    shown.wait("document.body.dataset.screen === 'main'")
    assert not shown.page.locator("#list").is_visible()
    box = shown.page.locator("#view-tokens .rollout-head").bounding_box()
    assert box["x"] >= 0
    assert box["width"] > 450
    assert shown.axe() == []
    shown.page.click("#to-list")
    assert shown.page.locator("#list").is_visible()
    assert shown.ask("document.activeElement.id") == "list"
    shown.press("Enter")
    shown.wait("document.body.dataset.screen === 'main'")
    shown.press("/")
    assert shown.ask("document.activeElement.id") == "filter"


def test_an_address_of_a_rollout_opens_it_on_a_narrow_screen(show: Show, wide: Path) -> None:
    shown = show(wide, "#r=wide", width=500)
    assert shown.page.locator("#view-tokens .rollout-head").is_visible()
    assert not shown.page.locator("#list").is_visible()


@pytest.mark.parametrize("width", [1400, 800])
def test_a_wide_screen_shows_both(width: int, show: Show, wide: Path) -> None:
    shown = show(wide, width=width)
    assert shown.page.locator("#list").is_visible()
    assert shown.page.locator("#view-tokens .rollout-head").is_visible()
    assert not shown.page.locator("#to-list").is_visible()
