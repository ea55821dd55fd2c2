"""What stands left of a rollout: runs, rewards, failures and ends, and a page that is watched."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import abut
from abut.demo.model import ASSETS as DEMO
from abut.records.filter import parse_filter
from abut.records.read import read_records
from abut.records.recorder import JsonlRecorder
from abut.records.scores import score_record
from abut.records.viewer.catalog import Catalog
from abut.records.viewer.watch import Watch
from abut.rollout.rollout import StopReason
from tests.kit.clients.page import Shown
from tests.kit.data.records import a_played_rollout

Show = Callable[..., Shown]

LATE = "EnvError: Door.step raised TimeoutError: no answer in 30 s"
SHUT = 'EnvError: the <b>door</b> is "shut"'


class Run:
    """Writes a run as training does: rollouts of a step, and then their scores."""

    def __init__(self, path: Path, tokenizer: abut.Tokenizer, run_id: str) -> None:
        self.recorder = JsonlRecorder(path)
        self.tokenizer, self.run_id = tokenizer, run_id

    def play(self, step: int, rewards: list[float | None], error: str | None = None) -> None:
        scores = []
        for place, reward in enumerate(rewards):
            name = f"train-{step}-{place}-{self.run_id}"
            rollout = a_played_rollout(self.tokenizer, f"begin {step}", [("one", None)], name)
            rollout.reward = reward
            if reward is None:
                rollout.error, rollout.stop_reason = error, StopReason.ERROR
                rollout.columns, rollout.provenance = None, ()
            self.recorder.write(
                rollout,
                **{"run_id": self.run_id, "step": step, "group": step, "place": place},
                **{"mode": "train", "tokenizer": str(DEMO), "time": 1e9 + 60 * step},
            )
            if reward is not None:
                given = {"right": reward, "short form": 1.0}
                scores.append(score_record(self.run_id, name, given, total=reward + 1))
        self.recorder.write_scores(scores)


@pytest.fixture
def runs(tmp_path: Path, tokenizer: abut.Tokenizer) -> Path:
    """One run that was resumed, one that was begun anew in the same file, and one of its own."""
    first = tmp_path / "runs" / "first.jsonl"
    Run(first, tokenizer, "aaaa").play(0, [0.0, 0.25, None, 0.5], LATE)
    Run(first, tokenizer, "aaaa").play(1, [0.25, 0.25, None, 1.0], LATE.replace("30", "31"))
    Run(first, tokenizer, "bbbb").play(2, [0.75, None], SHUT)
    Run(tmp_path / "runs" / "deep" / "second.jsonl", tokenizer, "cccc").play(0, [0.5, 1.0])
    return tmp_path / "runs"


@pytest.fixture
def page(runs: Path, tmp_path: Path) -> Path:
    return abut.records.view(runs).save(tmp_path / "page.html")


def ids(shown: Shown) -> list[str]:
    return sorted(shown.ask("app.shownRows.map(row => row.rollout_id)"))


def passing(runs: Path, words: str) -> list[str]:
    return sorted(r["rollout_id"] for r in read_records(runs) if parse_filter(words)(r))


# ---- runs


def test_runs_are_listed_and_a_resumed_one_is_one_run(show: Show, page: Path) -> None:
    shown = show(page)
    assert shown.text("#runs-said") == "All 2 runs"
    shown.page.click("#runs summary")
    rows = shown.page.locator("#runs-table tbody tr")
    cells = [row.split("\t") for row in rows.all_inner_texts()]
    assert [[name, *rest] for name, _, *rest in cells] == [
        ["All", "–", "12", "1.5"],
        ["first resumed", "0–2", "10", "1.43"],
        ["part 1 aaaa", "0–1", "8", "1.38"],
        ["part 2 bbbb", "2", "2", "1.75"],
        ["deep/second", "0", "2", "1.75"],
    ]
    rows.nth(1).locator("button").click()
    assert len(ids(shown)) == 10
    assert shown.text("#page-facts") == "10 rollouts · 3 steps"
    rows.nth(3).locator("button").click()
    assert ids(shown) == ["train-2-0-bbbb", "train-2-1-bbbb"]
    assert shown.title.startswith("train-2-")
    assert shown.address.endswith("&run=first%3Abbbb")
    assert shown.axe() == []
    rows.nth(3).locator("button").click()
    assert len(ids(shown)) == 12
    assert "run=" not in shown.address


def test_the_run_is_part_of_the_address(show: Show, page: Path) -> None:
    shown = show(page, "#run=deep%2Fsecond&w=rewards.right%3E0.1")
    assert shown.text("#runs-said") == "deep/second"
    assert ids(shown) == ["train-0-0-cccc", "train-0-1-cccc"]
    shown = show(page, "#run=nobody&w=rewrd%3C1")
    assert shown.text("#runs-said") == "All 2 runs"
    assert "records do not have “rewrd”" in shown.text("#filter-error")
    assert len(ids(shown)) == 12


def test_a_run_that_is_begun_anew_in_its_file_is_another_one(
    show: Show, tmp_path: Path, tokenizer: abut.Tokenizer
) -> None:
    path = tmp_path / "r.jsonl"
    for run_id in "aaaa", "bbbb":
        Run(path, tokenizer, run_id).play(0, [0.5])
    shown = show(abut.records.view(path).save(tmp_path / "page.html"))
    names = shown.ask("app.records.runs.map(({ name, parts }) => [name, parts.length])")
    assert names == [["r", 1], ["r (2)", 1]]


def test_one_run_has_no_picker(show: Show, tmp_path: Path, tokenizer: abut.Tokenizer) -> None:
    Run(tmp_path / "r.jsonl", tokenizer, "aaaa").play(0, [0.5])
    shown = show(abut.records.view(tmp_path / "r.jsonl").save(tmp_path / "page.html"))
    assert not shown.page.locator("#runs").is_visible()


# ---- rewards


def bars(shown: Shown) -> list[list[Any]]:
    """The words of each bar, how many rollouts it has, and how many of them are shown."""
    return shown.ask(  # type: ignore[no-any-return]
        """[...document.querySelectorAll('.bin')].map((bin) => [bin.dataset.word,
            Number(bin.title.match(/(\\d+) rollout/)[1]),
            bin.querySelectorAll('.passing').length])"""
    )


def test_each_bar_counts_what_its_words_let_pass(show: Show, page: Path, runs: Path) -> None:
    shown = show(page)
    for name in "total", "right":
        shown.page.select_option("#histogram select", name)
        counts = {words: count for words, count, _ in bars(shown)}
        assert sum(counts.values()) == 9
        assert max(counts.values()) == 3
        for words, count in counts.items():
            assert len(passing(runs, words)) == count, words


def test_a_bar_filters_and_another_click_takes_it_off(show: Show, page: Path, runs: Path) -> None:
    shown = show(page)
    before = bars(shown)
    words = max(before, key=lambda bar: bar[1])[0]
    bar = shown.page.locator(f".bin[data-word='{words}']")
    bar.click()
    assert shown.page.input_value("#filter") == words
    assert ids(shown) == passing(runs, words)
    assert bar.get_attribute("aria-pressed") == "true"
    assert [bar[:2] for bar in bars(shown)] == [bar[:2] for bar in before], (
        "the rest stays in sight"
    )
    assert sum(shown_ for *_, shown_ in bars(shown)) == 1
    other = next(word for word, count, _ in before if count and word != words)
    shown.page.click(f".bin[data-word='{other}']")
    assert shown.page.input_value("#filter") == other
    shown.page.click(f".bin[data-word='{other}']")
    assert shown.page.input_value("#filter") == ""
    assert len(ids(shown)) == 12


def test_bars_are_reached_by_arrow_keys(show: Show, page: Path, runs: Path) -> None:
    shown = show(page)
    assert shown.page.locator(".bin[tabindex='0']").count() == 1
    shown.ask("document.querySelector(\".bin[tabindex='0']\").focus()")
    shown.press("ArrowRight", "Enter")
    words = shown.page.input_value("#filter")
    assert words == [word for word, count, _ in bars(shown) if count][1]
    assert ids(shown) == passing(runs, words)
    assert shown.ask("document.activeElement.dataset.word") == words, "the focus stays"


def test_those_without_a_reward_are_counted_beside(show: Show, page: Path, runs: Path) -> None:
    shown = show(page)
    none = shown.page.locator("#histogram .chip")
    assert none.inner_text().split() == ["no", "reward", "3"]
    none.click()
    assert ids(shown) == passing(runs, "total=none")
    assert len(ids(shown)) == 3


def test_a_reward_whose_name_no_filter_can_have_is_shown_only(show: Show, page: Path) -> None:
    shown = show(page)
    shown.page.select_option("#histogram select", "short form")
    assert [count for _, count, _ in bars(shown)] == [9]
    assert shown.page.locator(".bin:enabled").count() == 0


@pytest.mark.parametrize(
    "values", [[0.1, 0.2, 0.3, 0.30000000000000004], [-1e-7, 3e-7], [1e6, 1e6 + 3], [0.7] * 3]
)
def test_bars_are_exact_at_their_edges(
    values: list[float], show: Show, tmp_path: Path, tokenizer: abut.Tokenizer
) -> None:
    path = tmp_path / "r.jsonl"
    for k, value in enumerate(values):
        rollout = a_played_rollout(tokenizer, "begin", [("one", None)], f"r{k}", reward=value)
        JsonlRecorder(path).write(rollout, tokenizer=str(DEMO))
    shown = show(abut.records.view(path).save(tmp_path / "page.html"))
    found = bars(shown)
    assert sum(count for _, count, _ in found) == len(values)
    assert 1 <= len(found) <= 18
    for words, count, _ in found:
        assert len(passing(path, words)) == count, words


# ---- failures and ends


def test_failures_are_counted_by_kind(show: Show, page: Path, runs: Path) -> None:
    shown = show(page)
    kinds = shown.page.locator("#failures .chip")
    texts = [text.split("\n") for text in kinds.all_inner_texts()]
    assert texts == [[LATE.replace("30", "…"), "2"], [SHUT, "1"]]
    for k, count in (0, 2), (1, 1):
        kinds.nth(k).click()
        words = shown.page.input_value("#filter")
        assert words.startswith('failure="EnvError: ')
        assert ids(shown) == passing(runs, words)
        assert len(ids(shown)) == count
        assert kinds.nth(1 - k).get_attribute("aria-pressed") == "false"
    kinds.nth(1).click()
    assert shown.page.input_value("#filter") == ""


def test_ends_are_counted_and_one_replaces_the_other(show: Show, page: Path, runs: Path) -> None:
    shown = show(page)
    ends = shown.page.locator("#ends .chip")
    assert [text.split("\n") for text in ends.all_inner_texts()] == [
        ["env_done", "9"],
        ["error", "3"],
    ]
    ends.nth(1).click()
    ends.nth(0).click()
    assert shown.page.input_value("#filter") == "stop_reason=env_done"
    assert ids(shown) == passing(runs, "stop_reason=env_done")
    shown.page.fill("#filter", "stop_reason=env_done step>0")
    assert [text.split("\n")[1] for text in ends.all_inner_texts()] == ["4", "2"]


def test_many_kinds_of_failures_are_folded(
    show: Show, tmp_path: Path, tokenizer: abut.Tokenizer
) -> None:
    run = Run(tmp_path / "r.jsonl", tokenizer, "aaaa")
    for step, word in enumerate(["one", "two", "three", "four", "five", "six"]):
        run.play(step, [None], f"EnvError: {word}")
    shown = show(abut.records.view(tmp_path / "r.jsonl").save(tmp_path / "page.html"))
    kinds = shown.page.locator("#failures .chip")
    assert kinds.all_inner_texts()[-1] == "2 more"
    kinds.last.click()
    assert kinds.count() == 6


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 800, 500])
def test_nothing_is_cut_off_and_axe_finds_nothing(
    width: int, scheme: str, show: Show, page: Path
) -> None:
    shown = show(page, "#w=stop_reason%3Derror", width=width, scheme=scheme)
    shown.ask("document.querySelectorAll('.left details').forEach(box => { box.open = true; })")
    shown.ask("document.body.dataset.screen = 'list'")
    shown.wait("document.querySelectorAll('#ends .chip').length === 2")
    over = shown.ask(
        """[...document.querySelectorAll('.left *')].filter((one) => !one.closest('.row, .hidden')
            && one.checkVisibility() && one.getBoundingClientRect().right > innerWidth + 1)
            .map((one) => one.outerHTML)"""
    )
    assert over == []
    assert shown.ask("document.documentElement.scrollWidth") <= width
    assert shown.axe() == []


# ---- a page that is watched


@pytest.fixture
def watch(runs: Path) -> Iterator[Watch]:
    """Serves the runs. Tests name it before `show`, so that pages are closed before it ends."""
    watch = Watch(Catalog([runs]), "runs", look_s=0.02)
    yield watch
    watch.close()


def watched(show: Show, watch: Watch, address: str = "") -> Shown:
    shown = show(None, online=True)
    shown.page.goto(watch.url + address)
    shown.wait("window.ready === true")
    return shown


def test_a_watched_page_shows_what_the_file_shows(watch: Watch, show: Show, page: Path) -> None:
    live, filed = watched(show, watch), show(page)
    rows = "app.records.rows.map(({ chunk, place_in_chunk, tokenizer, ...rest }) => rest)"
    assert live.ask(rows) == filed.ask(rows)
    for one in "train-1-3-aaaa", "train-2-0-bbbb":
        for shown in live, filed:
            shown.ask("one => app.openRollout(app.records.byRolloutId.get(one))", one)
            shown.wait(f"document.querySelector('#view-tokens code').textContent === '{one}'")
        assert live.text("#view-tokens .tokens") == filed.text("#view-tokens .tokens")
    for words in "text:begin step:2", 'text:"begin 1" total>1.9':
        for shown in live, filed:
            shown.page.fill("#filter", words)
        count = len(passing(Path(str(watch_root(page))), words))
        for shown in live, filed:
            shown.wait(f"app.shownRows.length === {count}")
    live.press("Escape")
    assert live.axe() == []


def watch_root(page: Path) -> Path:
    return page.with_name("runs")


def test_what_is_written_appears_and_the_place_is_kept(
    watch: Watch, show: Show, runs: Path, tokenizer: abut.Tokenizer
) -> None:
    run = Run(runs / "first.jsonl", tokenizer, "bbbb")
    for step in range(3, 40):
        run.play(step, [0.5, 0.25])
    shown = watched(show, watch, "#r=train-1-3-aaaa&w=error%3Anone")
    shown.wait("app.shownRows.length === 83")
    shown.press("]")
    token = shown.ask("app.state.token")
    shown.ask("document.getElementById('list').scrollTop = 400")
    where = (
        "(id => [...document.querySelectorAll('#list .row')].find(row => row.title === id)"
        ".getBoundingClientRect().top)('train-1-3-aaaa')"
    )
    shown.ask("app.list.mark(app.state.row)")
    top = shown.ask(where)
    scroll = shown.ask("document.getElementById('list').scrollTop")
    assert scroll > 0
    run.play(40, [1.0, None], LATE)
    Run(runs / "third.jsonl", tokenizer, "dddd").play(0, [0.5])
    shown.wait("app.shownRows.length === 85 && app.records.runs.length === 3")
    shown.wait("app.records.byRolloutId.get('train-40-0-bbbb').total === 2")
    assert shown.ask("document.getElementById('list').scrollTop") > scroll
    assert shown.ask(where) == top
    assert shown.title == "train-1-3-aaaa"
    assert shown.ask("app.state.token") == token
    assert shown.page.input_value("#filter") == "error:none"
    shown.page.fill("#filter", "error:none rewr")  # somebody is typing
    run.play(41, [1.0])
    shown.wait("app.shownRows.length === 86")
    assert shown.page.input_value("#filter") == "error:none rewr"
    assert "is not a condition" in shown.text("#filter-error")


def test_scores_of_the_rollout_that_is_shown_come_later(
    watch: Watch, show: Show, runs: Path
) -> None:
    shown = watched(show, watch, "#r=train-0-0-cccc")
    main = "document.getElementById('main')"
    assert "advantage –" in shown.text("#view-tokens .facts").replace("\n", " ")
    record = score_record("cccc", "train-0-0-cccc", {"right": 0.5}, total=0.5, advantage=-1.25)
    JsonlRecorder(runs / "deep" / "second.jsonl").write_scores([record])
    shown.wait("document.querySelector('#view-tokens .facts').textContent.includes('-1.25')")
    assert shown.ask(f"{main}.scrollTop") == 0
    assert shown.title == "train-0-0-cccc"


def test_a_file_that_is_replaced_keeps_the_place(
    watch: Watch, show: Show, runs: Path, tokenizer: abut.Tokenizer
) -> None:
    shown = watched(show, watch, "#r=train-0-1-cccc&w=step%3A0")
    again = runs.with_name("again.jsonl")
    Run(again, tokenizer, "aaaa").play(0, [0.125, 0.25])
    again.replace(runs / "first.jsonl")
    shown.wait("app.records.epoch === 2 && app.shownRows.length === 4")
    assert shown.title == "train-0-1-cccc"
    shown.ask("app.openRollout(app.records.byRolloutId.get('train-0-0-aaaa'))")
    shown.wait("document.querySelector('#view-tokens code').textContent === 'train-0-0-aaaa'")


def test_a_page_whose_server_has_ended_says_so(watch: Watch, show: Show) -> None:
    shown = watched(show, watch)
    watch.close()
    shown.wait("document.getElementById('watch-said').textContent.startsWith('No longer refresh')")
    assert "Is “abut view --watch” still running?" in shown.text("#watch-said")
    shown.ask("app.openRollout(app.records.rows[0])")
    shown.wait("document.getElementById('loading').textContent.includes('cannot be read')")
    assert json.dumps(shown.complaints).count("ERR_CONNECTION_REFUSED") >= 1
    shown.page.goto("about:blank")  # where nothing is asked again
    shown.complaints.clear()
    shown.requests.clear()
