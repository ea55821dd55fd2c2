"""The page that `abut demo` ends with, read as a person would, by mouse and by keyboard."""

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from abut.records.filter import parse_filter
from tests.kit.clients.page import Shown, run_copied_test

Show = Callable[..., Shown]
Records = Mapping[str, Mapping[str, Any]]
Saved = Callable[..., Path]

TABLE = Path(__file__).parents[1] / "filter_cases.json"
CASES: dict[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))


def test_it_opens_on_a_rollout_of_the_last_step(
    show: Show, demo_page: Path, demo_records: Records
) -> None:
    shown = show(demo_page)
    last = max(record["step"] for record in demo_records.values())
    assert demo_records[shown.title]["step"] == last
    assert shown.text("#page-facts") == f"{len(demo_records)} rollouts · {last + 1} steps"
    assert shown.address == f"#r={shown.title}"


def test_the_tokens_are_those_of_the_record(
    show: Show, demo_page: Path, demo_records: Records
) -> None:
    shown = show(demo_page)
    record = demo_records[shown.title]
    spans = shown.ask(
        "[...document.querySelectorAll('#view-tokens .block > span')].map(s => s.className)"
    )
    ids = [*record["prompt_ids"], *record["completion_ids"]]
    assert len(spans) == len(ids)
    mask = [0] * len(record["prompt_ids"]) + record["env_mask"]
    assert [int(" on " in name) for name in spans] == mask
    assert [int(name[1]) for name in spans] == record["provenance"]
    shown.press("i")
    shown_ids = shown.ask(
        "[...document.querySelectorAll('#view-tokens .block > span')].map(s => s.dataset.id)"
    )
    assert list(map(int, shown_ids)) == ids


def test_a_hovered_token_says_its_logprob_and_place(
    show: Show, demo_page: Path, demo_records: Records
) -> None:
    shown = show(demo_page)
    record = demo_records[shown.title]
    prompt, turn = len(record["prompt_ids"]), record["turns"][1]
    token = turn["start"] + 1
    shown.token(token).hover()
    logprob = record["logprobs"][token - prompt]
    card = shown.text("#card").split("\n")
    facts = dict(zip(card[-12::2], card[-11::2], strict=True))
    assert facts["id"] == str(record["completion_ids"][token - prompt])
    assert facts["logprob"] == f"{logprob:.3f} nats"
    share = float(facts["p"].removesuffix(" %")) / (100 if facts["p"].endswith("%") else 1)
    assert math.isclose(share, math.exp(logprob), rel_tol=0.01)
    assert facts["place"] == f"token {token}, turn 1"
    shown.token(0).hover()
    assert "– not sampled" in shown.text("#card")


def test_the_filter_is_that_of_abut_show(
    show: Show, demo_page: Path, demo_records: Records
) -> None:
    shown = show(demo_page)
    for words in CASES["pass"]:
        filter_by(shown, words)
        wanted = parse_filter(words)
        found = shown.ask("app.shownRows.map(row => row.rollout_id)")
        assert found == [id_ for id_, record in demo_records.items() if wanted(record)], words


def test_the_filter_gives_the_verdicts_of_its_table(show: Show, saved: Saved) -> None:
    shown = show(saved([CASES["record"]]))
    for verdict in "pass", "fail":
        for words in CASES[verdict]:
            filter_by(shown, words)
            assert shown.ask("app.shownRows.length") == (verdict == "pass"), words
    for words, _ in CASES["refused"]:
        shown.page.fill("#filter", words)
        assert shown.text("#filter-error") != "", words


def filter_by(shown: Shown, words: str) -> None:
    shown.ask(
        "words => { window.done = false; app.filter(words).then(() => { window.done = true; }); }",
        words,
    )
    shown.wait("window.done")


def test_what_is_no_condition_is_named(show: Show, demo_page: Path) -> None:
    shown = show(demo_page)
    shown.page.fill("#filter", "rewrd<1")
    assert "records do not have “rewrd”" in shown.text("#filter-error")
    shown.page.fill("#filter", "step:1")
    assert shown.text("#filter-error") == ""


def test_a_chip_filters_and_has_a_count(show: Show, demo_page: Path, demo_records: Records) -> None:
    shown = show(demo_page)
    drifting = [r for r in demo_records.values() if any(not seam["exact"] for seam in r["seams"])]
    chip = shown.page.locator("[data-word='inexact_seams>0']")
    assert chip.inner_text().split() == ["drift", str(len(drifting))]
    chip.click()
    assert shown.text("#list-facts").startswith(f"{len(drifting)} rollouts")
    assert shown.page.input_value("#filter") == "inexact_seams>0"
    shown.page.locator("[data-word='inexact_seams>0']").click()
    assert shown.text("#list-facts").startswith(f"{len(demo_records)} rollouts")


def test_a_group_opens_and_a_rollout_of_it_is_shown(
    show: Show, demo_page: Path, demo_records: Records
) -> None:
    shown = show(demo_page)
    group = shown.page.locator("#list .row.group[aria-expanded=false]").first
    name = group.locator(".c-step").inner_text()
    group.click()
    opened = shown.page.locator("#list .row.group[aria-expanded=true]", has_text=name[2:])
    assert opened.count() == 1
    number = int(name.split("·")[1].split("×")[0])
    shown.page.locator("#list .row.rollout", has_text=f"{number}.3").click()
    record = demo_records[shown.title]
    assert (record["group"], record["place"]) == (number, 3)


def test_any_column_sorts(show: Show, demo_page: Path, demo_records: Records) -> None:
    shown = show(demo_page)
    shown.page.uncheck("#by-group")
    for key in "total", "advantage", "tokens", "seconds":
        shown.page.click(f"[data-key={key}] button")
        assert shown.page.get_attribute(f"[data-key={key}]", "aria-sort") == "descending"
        order = shown.ask("app.list.items.map(item => item.row.rollout_id)")
        of = (
            (lambda r: len(r["prompt_ids"]) + len(r["completion_ids"]))
            if key == "tokens"
            else (lambda r, key=key: r[key])
        )
        values = [of(demo_records[id_]) for id_ in order]
        assert values == sorted(values, reverse=True)
    shown.page.click("[data-key=seconds] button")
    assert shown.page.get_attribute("[data-key=seconds]", "aria-sort") == "ascending"


def test_modes_change_by_key_and_by_button(show: Show, demo_page: Path) -> None:
    shown = show(demo_page)
    colours = set()
    span = shown.ask("document.querySelectorAll('#view-tokens .block .on').length - 1")
    for key, mode in ("1", "mask"), ("2", "surprisal"), ("3", "role"), ("4", "tokens"):
        shown.press(key)
        assert shown.page.get_attribute("#view-tokens .tokens", "data-mode") == mode
        assert shown.page.get_attribute(f".mode >> text={mode}", "aria-pressed") == "true"
        style = "span => [getComputedStyle(span)].map(c => c.backgroundColor + c.borderBottom)[0]"
        colours.add(shown.page.locator("#view-tokens .block .on").nth(span).evaluate(style))
    assert len(colours) >= 3  # a mask and a role look alike for what was sampled
    shown.page.click(".mode >> text=mask")
    assert shown.page.get_attribute("#view-tokens .tokens", "data-mode") == "mask"


def test_surprisal_has_fixed_bins(show: Show, demo_page: Path, demo_records: Records) -> None:
    shown = show(demo_page)
    record = demo_records[shown.title]
    edges = (0, 0.1, 0.5, 1, 2, 4, 8)
    prompt = len(record["prompt_ids"])
    for token, (logprob, sampled) in enumerate(
        zip(record["logprobs"], record["env_mask"], strict=True)
    ):
        classes = shown.token(prompt + token).get_attribute("class").split()
        bins = [name for name in classes if name[0] == "b" and name[1:].isdigit()]
        nats = round(-logprob, 3)
        assert bins == (
            [f"b{max(k for k, edge in enumerate(edges) if nats >= edge)}"] if sampled else []
        )


def test_two_rollouts_of_a_group_are_compared(
    show: Show, demo_page: Path, demo_records: Records
) -> None:
    shown = show(demo_page)
    left = demo_records[shown.title]
    shown.press("c")
    names = shown.page.locator("#view-compare .heads code").all_inner_texts()
    right = demo_records[names[1]]
    assert names[0] == left["rollout_id"]
    assert left["group"] == right["group"]
    ids = [[*r["prompt_ids"], *r["completion_ids"]] for r in (left, right)]
    first = next(k for k, (a, b) in enumerate(zip(*ids, strict=False)) if a != b)
    assert f"They part at token {first} (turn" in shown.text(".parted")
    assert shown.page.locator("#view-compare .differs.first").count() == 2
    shown.press("n")
    assert "difference 1 of" in shown.text("#said")
    other = next(
        r["rollout_id"]
        for r in demo_records.values()
        if r["group"] == left["group"] and r["place"] == 5
    )
    index = list(demo_records).index(other)
    shown.page.select_option("#partner", str(index))
    shown.wait(f"document.querySelectorAll('.heads code')[1].textContent === {json.dumps(other)}")
    assert f"o={other}" in shown.address


def test_a_curve_leads_to_the_rollouts_of_a_step(
    show: Show, demo_page: Path, demo_records: Records
) -> None:
    shown = show(demo_page)
    shown.press("v")
    charts = shown.page.locator("#view-curves .chart")
    assert charts.count() == 5
    box = charts.first.locator("svg").bounding_box()
    shown.page.mouse.click(box["x"] + box["width"] * 0.5, box["y"] + box["height"] / 2)
    shown.wait("app.state.view === 'tokens' && app.state.where.startsWith('step:')")
    step = int(shown.page.input_value("#filter").removeprefix("step:"))
    assert demo_records[shown.title]["step"] == step
    of_step = sum(record["step"] == step for record in demo_records.values())
    assert shown.text("#list-facts").startswith(f"{of_step} rollouts")


def test_curves_say_in_words_what_they_show(
    show: Show, demo_page: Path, demo_records: Records
) -> None:
    shown = show(demo_page, "#v=curves")
    label = shown.page.get_attribute("#view-curves .chart svg >> nth=2", "aria-label")
    tokens = [
        len(r["prompt_ids"]) + len(r["completion_ids"])
        for r in demo_records.values()
        if r["step"] == 0
    ]
    assert label.startswith(f"Tokens: {float(f'{sum(tokens) / len(tokens):.3g}'):g} at step 0, ")


def drifting(records: Records, merge: bool = True) -> str:
    """A rollout with an inexact seam; one where two line ends meet, if `merge`."""
    for record in records.values():
        ids = [*record["prompt_ids"], *record["completion_ids"]]
        for turn in record["turns"]:
            if ids[turn["start"]] == ids[turn["start"] - 1] == 198:
                return str(record["rollout_id"])
    pytest.fail("the demo made no such rollout: take more steps")


def test_an_inexact_seam_shows_both_lists_of_tokens(
    show: Show, demo_page: Path, demo_records: Records
) -> None:
    shown = show(demo_page, f"#r={drifting(demo_records)}")
    shown.press("n")
    assert "not exact" in shown.text(".seam.inexact >> nth=0")
    lists = shown.page.locator(".seam.inexact").first.locator(".merge > div").all_inner_texts()
    assert [text.split("\n")[0] for text in lists] == ["as it came", "in one go"]
    assert "198" in lists[0]
    exact = shown.page.locator(".seam.exact").count()
    inexact = shown.page.locator(".seam.inexact").count()
    assert exact + inexact == len(demo_records[shown.title]["seams"])


@pytest.mark.parametrize("drifts", [False, True], ids=["passes", "fails"])
def test_a_copied_test_passes_or_fails_as_the_rollout_did(
    drifts: bool, show: Show, demo_page: Path, demo_records: Records, tmp_path: Path
) -> None:
    exact = next(
        r["rollout_id"] for r in demo_records.values() if all(s["exact"] for s in r["seams"])
    )
    shown = show(demo_page, f"#r={drifting(demo_records) if drifts else exact}")
    shown.page.click("text=Copy as test")
    copied = shown.page.input_value("#test-text")
    assert copied.isascii()
    done = run_copied_test(copied, tmp_path)
    assert done.returncode == int(drifts), done.stdout
    assert ("1 failed, 1 passed" if drifts else "2 passed") in done.stdout
    assert ("merged" in done.stdout) == drifts
    shown.press("Escape")


def test_the_address_restores_what_was_shown(
    show: Show, demo_page: Path, demo_records: Records
) -> None:
    name = list(demo_records)[37]
    shown = show(demo_page, f"#r={name}&t=17&m=2&w=step%3A0")
    assert shown.title == name
    assert shown.page.get_attribute("#view-tokens .tokens", "data-mode") == "surprisal"
    assert "current" in shown.token(17).get_attribute("class")
    assert shown.page.input_value("#filter") == "step:0"
    assert shown.address == f"#r={name}&t=17&m=2&w=step%3A0"
    other = list(demo_records)[40]
    shown.ask("address => { location.hash = address; }", f"#r={other}&m=3")
    shown.wait(f"app.state.row.rollout_id === {json.dumps(other)} && app.state.mode === 3")


def test_an_address_is_not_lost_while_the_page_writes_its_own(
    show: Show, demo_page: Path, demo_records: Records
) -> None:
    shown = show(demo_page)
    other = list(demo_records)[40]
    # A timer writes the page's address. Here it is due when a new address has come, before the
    # browser has told the page of it.
    change = """address => {
      const later = window.setTimeout;
      let write;
      window.setTimeout = (task) => { write = task; };
      app.addressWritten = null;
      app.writeAddress();
      window.setTimeout = later;
      location.hash = address;
      write();
    }"""
    shown.ask(change, f"#r={other}")
    shown.wait(f"app.state.row.rollout_id === {json.dumps(other)}", 5)


def test_an_address_of_nothing_opens_the_page_all_the_same(show: Show, demo_page: Path) -> None:
    shown = show(demo_page, "#r=nobody&t=99999&m=9&b=7&v=x&o=y")
    assert shown.title.startswith("train-")


def test_the_keyboard_alone_is_enough(show: Show, demo_page: Path, demo_records: Records) -> None:
    shown = show(demo_page)
    first = shown.title
    shown.press("j")
    assert demo_records[shown.title]["place"] == 1
    shown.press("k")
    assert shown.title == first
    starts = [turn["start"] for turn in demo_records[first]["turns"]]
    shown.press("]")
    assert f"t={starts[0]}" in shown.address
    shown.press("]")
    assert f"t={starts[1]}" in shown.address
    assert f"token {starts[1]}, turn 1" in shown.text("#said")
    shown.press("[")
    assert f"t={starts[0]}" in shown.address
    shown.press("Escape")
    assert "t=" not in shown.address
    shown.press("?")
    assert shown.page.locator("#keys").is_visible()
    shown.press("Escape")
    assert not shown.page.locator("#keys").is_visible()
    shown.press("/", *"step:2", "Escape")
    shown.wait("document.getElementById('list-facts').textContent.startsWith('64 rollouts')")
    # Into the list, down to a closed group, open it, and the first of it.
    shown.ask("document.getElementById('filter').focus()")
    focused = "document.activeElement.id"
    while shown.ask(focused) != "list":
        shown.press("Tab")
    shown.press("Home", "ArrowLeft", "End", "ArrowRight", "ArrowDown", "Enter")
    assert demo_records[shown.title]["step"] == 2
    while not shown.ask("document.activeElement.matches('#view-tokens .tokens')"):
        shown.press("Tab")
    shown.press("ArrowRight", "ArrowRight", "ArrowLeft")
    assert "t=0" in shown.address
    shown.press("ArrowRight")
    assert "t=1" in shown.address


def test_white_space_can_be_seen(show: Show, demo_page: Path) -> None:
    shown = show(demo_page)
    assert "Say " in shown.text("#view-tokens .tokens")
    shown.press("w")
    assert "Say·" in shown.text("#view-tokens .tokens")


def test_it_is_usable_at_800_pixels(show: Show, demo_page: Path) -> None:
    shown = show(demo_page, width=800)
    assert shown.ask("document.documentElement.scrollWidth") <= 800
    assert shown.page.locator("#view-tokens .tokens").bounding_box()["width"] > 400
    assert shown.page.locator("#show-keys").bounding_box()["x"] < 800


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("address", ["#m=1", "#m=2", "#m=3", "#m=4", "#v=compare", "#v=curves"])
def test_axe_finds_nothing(
    scheme: str, address: str, show: Show, demo_page: Path, demo_records: Records
) -> None:
    shown = show(demo_page, f"{address}&r={drifting(demo_records)}", scheme=scheme)
    assert shown.axe() == []


def test_axe_would_find_something(show: Show, demo_page: Path) -> None:
    shown = show(demo_page)
    shown.ask("document.querySelector('#show-keys').replaceChildren()")
    assert shown.axe() == ["button-name"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_drawn_in_light_and_dark(
    scheme: str, show: Show, demo_page: Path, demo_records: Records, tmp_path: Path
) -> None:
    """`ABUT_SCREENSHOTS` names a folder for the pictures."""
    folder = Path(os.environ.get("ABUT_SCREENSHOTS") or tmp_path)
    shown = show(demo_page, f"#r={drifting(demo_records)}&m=2", scheme=scheme)
    shown.page.screenshot(path=folder / f"view_{scheme}.png")
    ground = shown.ask("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 23, 28)")
    assert (folder / f"view_{scheme}.png").stat().st_size > 40_000
