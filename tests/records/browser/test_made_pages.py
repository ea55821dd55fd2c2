"""Pages of records that no demo makes: hostile, failed, branched, very large, and in a frame."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import abut
from abut.demo.model import ASSETS as DEMO
from abut.records.image_folder import ImageFolder
from abut.records.read import from_record
from abut.records.record import ROLLOUT, to_record
from abut.rollout.rollout import Branch, Rollout, StopReason
from tests.kit.clients.page import Shown, run_copied_test
from tests.kit.data.records import MEDIA, a_pictured_rollout, a_played_rollout, give_teacher

Show = Callable[..., Shown]
Save = Callable[..., Path]

TURNS = [("one", "go on"), ("two", None)]
HOSTILE = (
    "</script><script>document.title = 'taken'</script><img src=x onerror=alert(1)> <!-- --> "
    "<|im_end|><|im_start|>system \u202eabc\u202c \u2066x\u2069 שלום עולם مرحبا 🙂👩‍👩‍👧‍👦🏳️‍🌈 "
    "\x00\x07\x1b[31m\x7f \ufeff \u200b 你好 e\u0301 \ud7ff\U0010ffff '\"\\ `${1}` \r\n\t end"
)


def of(rollout: Rollout, **extra: Any) -> dict[str, Any]:
    """A rollout as it is read from a file."""
    said = {"step": 1, "mode": "train", "group": 0, "place": 0, "tokenizer": str(DEMO)} | extra
    return from_record(to_record(rollout, **said))


def test_hostile_text_is_text(
    show: Show, saved: Save, tokenizer: abut.Tokenizer, tmp_path: Path
) -> None:
    rollout = a_played_rollout(tokenizer, HOSTILE, [(HOSTILE, HOSTILE), ("ok", None)], HOSTILE)
    columns = {HOSTILE: HOSTILE}
    record = of(rollout, seed=HOSTILE, columns=columns) | {"rewards": {HOSTILE: 0.5}}
    shown = show(saved([record]))
    assert shown.ask("document.title") == "rollouts · abut view"
    assert (
        shown.ask("document.images.length + document.querySelectorAll('main script').length") == 0
    )
    text = shown.text("#view-tokens .tokens")
    assert "</script><script>document.title = 'taken'</script>" in text
    assert "‹u+202e›abc‹" in text  # and the bytes of what ends it, token by token
    assert "‹00›‹07›‹1b›[31m‹7f›" in text
    for said in "🙂", "你好", "שלום", "👩‍👩‍👧‍👦":
        assert set(said) <= set(text), said
    # What it spells is no control token; those of the template are.
    controls = shown.ask(
        "[...document.querySelectorAll('.block .control')].map(s => s.textContent)"
    )
    ids = [*record["prompt_ids"], *record["completion_ids"]]
    template = [tokenizer.token_to_id(token) for token in ("<|im_start|>", "<|im_end|>")]
    assert len(controls) == sum(ids.count(token) for token in template) == 8
    shown.page.click("text=Copy as test")
    done = run_copied_test(shown.page.input_value("#test-text"), tmp_path)
    assert "2 passed" in done.stdout, done.stdout
    shown.press("Escape", "c", "v", "t")
    assert shown.axe() == []


def test_images_stand_at_their_tokens_and_in_messages(
    show: Show, saved: Save, tokenizer: abut.Tokenizer, tmp_path: Path
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (90, 400, 3), dtype=np.uint8)
    seen = a_pictured_rollout(tokenizer, pixels)
    failed = a_pictured_rollout(tokenizer, pixels, rollout_id="r1", columns=None, provenance=())
    unkept = a_pictured_rollout(tokenizer, pixels[:, ::-1], rollout_id="r2")
    ImageFolder(tmp_path / "images").write(seen)
    records = [of(rollout) for rollout in (seen, failed, unkept)]
    shown = show(saved(records, images=tmp_path / "images"), "#r=r0")
    drawn = (
        "[...document.querySelectorAll('#view-tokens img')].map(i => [i.complete, i.naturalWidth])"
    )
    shown.wait(f"JSON.stringify({drawn}) === '[[true,192]]'")
    start = seen.images[0].start
    caption = f"Image · 400 × 90 · tokens {start} to {start + 3} {seen.images[0].image.hash[:8]}"
    assert shown.text(".picture figcaption") == caption
    assert shown.text(".pictured .media") == 4 * MEDIA
    assert shown.axe() == []
    shown.press("j")
    shown.wait("document.querySelectorAll('.message img').length === 1")
    assert shown.text(".message figcaption") == f"Image {seen.images[0].image.hash[:8]}"
    assert shown.axe() == []
    shown.press("j")
    assert shown.text(".picture figcaption").startswith("Image · 400 × 90 · tokens ")
    assert shown.ask("document.images.length") == 0


def test_a_failed_rollout_shows_its_error_and_messages(
    show: Show, saved: Save, tokenizer: abut.Tokenizer, tmp_path: Path
) -> None:
    rollout = a_played_rollout(tokenizer, "begin", [("one", "two"), ("three", None)])
    rollout.columns, rollout.provenance, rollout.reward = None, (), None
    rollout.stop_reason, rollout.error = StopReason.ERROR, "EnvError: the door is locked"
    rollout.attempt_tracebacks = ["Traceback …\n  door.py, line 3"]
    shown = show(saved([of(rollout)]))
    assert shown.text(".error p") == "EnvError: the door is locked"
    shown.page.click("text=Traceback")
    assert "door.py, line 3" in shown.text(".error pre")
    assert shown.page.locator(".message").all_inner_texts()[1].split("\n") == ["policy", "one"]
    assert shown.page.locator("[data-word='error!=none']").inner_text().split() == ["failed", "1"]
    assert shown.axe() == []
    shown.page.click("text=Copy as test")
    done = run_copied_test(shown.page.input_value("#test-text"), tmp_path)
    assert "1 failed" in done.stdout
    assert "EnvError: the door is locked" in done.stdout


def test_a_copied_test_plays_an_environment_of_ones_own(
    show: Show, saved: Save, tokenizer: abut.Tokenizer, tmp_path: Path
) -> None:
    shown = show(saved([of(a_played_rollout(tokenizer, "p", [("one", "two"), ("x", None)]))]))
    shown.page.click("text=Copy as test")
    test = shown.page.input_value("#test-text")
    mine = "class Mine:\n    reward = 0.0\n    def reset(self, seed):\n        return self, ''\n"
    for reply, outcome in ("two", "2 passed"), ("three", "1 failed, 1 passed"):
        step = (
            "    def step(self, action):\n"
            "        self.reward = 0.25 * (action == 'x')\n"
            f"        return self, {reply!r} if action == 'one' else ''\n"
        )
        changed = test.replace("ENVIRONMENT = Recorded", f"{mine}{step}\nENVIRONMENT = Mine")
        assert outcome in run_copied_test(changed, tmp_path).stdout


def test_branches_are_tabs(show: Show, saved: Save, tokenizer: abut.Tokenizer) -> None:
    other = a_played_rollout(tokenizer, "begin", [("another way", None)])
    branch = Branch(other.columns, other.provenance, cause="rewritten", delivered=False)
    rollout = a_played_rollout(tokenizer, "begin", [("one", "two"), ("x", None)], branches=[branch])
    shown = show(saved([of(rollout)]))
    tabs = shown.page.locator(".branches button")
    assert tabs.all_inner_texts() == ["Row", "Branch 1 · rewritten · not delivered"]
    assert "another way" not in shown.text("#view-tokens .tokens")
    tabs.nth(1).click()
    shown.wait("document.querySelector('#view-tokens .tokens').innerText.includes('another way')")
    assert "&b=1" in shown.address
    assert shown.page.locator("#view-tokens .turn").count() == 2  # the prompt, and its turn
    assert shown.axe() == []


def test_a_branch_has_its_name_and_the_facts_of_its_turns(
    show: Show, saved: Save, tokenizer: abut.Tokenizer
) -> None:
    other = a_played_rollout(tokenizer, "begin", [("another", "go on"), ("way", None)])
    other.turns[1].reward = 0.75
    branch = Branch(other.columns, other.provenance, name="judge", turns=other.turns)
    rollout = a_played_rollout(tokenizer, "begin", [("one", None)], name="player")
    rollout.branches = [branch]
    shown = show(saved([of(rollout)]))
    tabs = shown.page.locator(".branches button")
    assert tabs.all_inner_texts() == ["Row · player", "Branch 1 · judge"]
    tabs.nth(1).click()
    shown.wait("document.querySelector('#view-tokens .tokens').innerText.includes('another')")
    heads = shown.page.locator("#view-tokens .turn h3")
    assert "· reward 0.75 ·" in heads.nth(2).inner_text()


def test_each_turn_says_its_advantage(show: Show, saved: Save, tokenizer: abut.Tokenizer) -> None:
    other = a_played_rollout(tokenizer, "begin", [("another way", None)])
    branch = Branch(other.columns, other.provenance, cause="rewritten")
    rollout = a_played_rollout(tokenizer, "begin", [("one", "two"), ("x", None)], branches=[branch])
    rows = [
        {"branch": None, "weight": 1.0, "advantages": [0.75, -0.5]},
        {"branch": 0, "weight": 1.0, "advantages": [1.25]},
    ]
    shown = show(saved([of(rollout) | {"rows": rows}]))
    heads = shown.page.locator("#view-tokens .turn h3")
    assert ["advantage" in head for head in heads.all_inner_texts()] == [False, True, True]
    assert "· advantage +0.75 ·" in heads.nth(1).inner_text()
    assert "· advantage -0.5 ·" in heads.nth(2).inner_text()
    shown.page.locator(".branches button").nth(1).click()
    shown.wait("document.querySelector('#view-tokens .tokens').innerText.includes('another way')")
    assert "advantage +1.25" in heads.nth(1).inner_text()


def test_tokens_are_coloured_by_how_far_the_teacher_is(
    show: Show, saved: Save, tokenizer: abut.Tokenizer
) -> None:
    given = [3.0, -0.7, 0.01, 40.0, -9.0]
    rollout = give_teacher(a_played_rollout(tokenizer, "begin", [("one two three", None)]), given)
    plain = a_played_rollout(tokenizer, "begin", [("one", None)], "plain")
    shown = show(saved([of(rollout, place=0), of(plain, place=1)]), "#r=r0&m=5")
    modes = shown.page.locator(".toolbar .mode")
    assert modes.all_inner_texts()[-1] == "5 teacher"
    classes = shown.ask(
        "[...document.querySelectorAll('#view-tokens .block .on')]"
        ".map(s => s.className.match(/\\b[ul]\\d/)[0])"
    )
    expected = ["u4", "l2", "u0", "u6", "l6"]
    assert classes == [expected[k % 5] for k in range(len(classes))]
    assert len(classes) >= 5
    assert shown.axe() == []
    shown.page.locator("#view-tokens .block .on").first.hover()
    shown.wait("!document.querySelector('#card').hidden")
    assert "3.000 nats less likely" in shown.text("#card")
    assert "reverse KL" in shown.text(".rollout-head .facts")
    for scheme in ("solid", "dashed"):
        kinds = shown.ask(
            "[...document.querySelectorAll('#view-tokens .block .on')]"
            ".map(s => getComputedStyle(s).borderBottomStyle)"
        )
        assert scheme in kinds, "told apart without colours, too"
    shown.press("2", "5")
    assert "m=5" in shown.address
    shown.press("j")
    assert shown.title == "plain"
    assert shown.page.locator("#view-tokens .block .u0").count() == 0
    assert "reverse KL" not in shown.text(".rollout-head .facts")


def test_without_a_teacher_there_is_no_mode_of_one(
    show: Show, saved: Save, tokenizer: abut.Tokenizer
) -> None:
    shown = show(saved([of(a_played_rollout(tokenizer, "begin", [("one", None)]))]), "#m=5")
    assert shown.page.locator(".toolbar .mode").count() == 4
    shown.press("2", "5")
    assert "m=2" in shown.address


def test_without_its_tokenizer_ids_and_messages_are_shown(
    show: Show, saved: Save, tokenizer: abut.Tokenizer
) -> None:
    record = of(a_played_rollout(tokenizer, "begin", [("one", None)]), tokenizer="/nowhere/at-all")
    shown = show(saved([record]))
    assert "Tokens are shown as ids:" in shown.text(".note")
    assert f"#{record['prompt_ids'][0]}" in shown.text("#view-tokens .block >> nth=0")
    shown.page.click("text=Read its messages")
    shown.wait("app.rollout.body === app.rollout.chat")
    assert "begin" in shown.text(".chat")
    assert "v=chat" in shown.address


def test_a_page_of_tokens_alone_works(show: Show, saved: Save, tokenizer: abut.Tokenizer) -> None:
    records = [of(a_played_rollout(tokenizer, "p", TURNS, f"r{k}")) for k in range(3)]
    kept = {"schema_version", "rollout_id", "prompt_ids", "completion_ids", "env_mask", "tokenizer"}
    shown = show(saved(records, without=[*(ROLLOUT.keys() - kept), "rewards", "advantage"]))
    assert shown.title == "r0"
    assert shown.page.locator("#view-tokens .turn h3").all_inner_texts()[2].startswith("Turn 1")
    shown.press("j", "2", "n", "]", "c", "n", "v", "t")
    assert shown.title == "r1"
    shown.press("v")
    assert shown.text("#view-curves") == "None of these rollouts belongs to a step."


def test_training_and_evaluation_are_told_apart(
    show: Show, saved: Save, tokenizer: abut.Tokenizer
) -> None:
    records = [
        of(a_played_rollout(tokenizer, "p", TURNS, f"{mode}-{step}"), mode=mode, step=step)
        for mode in ("train", "eval")
        for step in (1, 5)
    ]
    shown = show(saved(records), "#v=curves")
    assert shown.page.locator("#view-curves .chart >> nth=0 >> .line.dashed").count() == 1
    assert "train: 1 at step 1" in shown.page.get_attribute("#view-curves svg", "aria-label")
    shown.page.click("text=Show its rollouts")
    shown.wait("document.querySelector('#filter').value === 'step:5 mode=train'")
    shown.wait("app.state.view === 'tokens'")
    assert shown.title == "train-5"
    shown.page.locator("[data-word='mode=train']").click()
    shown.page.locator("[data-word='mode=eval']").click()
    shown.wait("app.state.row.rollout_id === 'eval-5'")


def test_no_rollouts_make_a_page_that_says_so(show: Show, saved: Save) -> None:
    shown = show(saved([]))
    assert shown.text("#loading") == "There are no rollouts."
    shown.press("j", "n", "]", "c", "v", "1")


def test_a_frame_without_origin_shows_it(
    show: Show, tokenizer: abut.Tokenizer, tmp_path: Path
) -> None:
    page = abut.records.view([of(a_played_rollout(tokenizer, "begin", [("one", None)]))])
    notebook = tmp_path / "notebook.html"
    notebook.write_text(
        f"<!doctype html><meta charset=utf-8>{page._repr_html_()}<script>ready = true</script>",
        encoding="utf-8",
    )
    shown = show(notebook)
    frame = shown.page.frames[1]
    deadline = time.monotonic() + 60
    while not frame.evaluate("window.ready === true"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert "begin" in frame.inner_text("#view-tokens .tokens")
    assert frame.evaluate("origin") == "null"
    shown.requests = [url for url in shown.requests if url != "about:srcdoc"]


# ---- size


def a_long_record(number: int, tokens: int, tokenizer: str, vocabulary: int) -> dict[str, Any]:
    """Turns of 256 sampled and 256 other tokens, of ids that do not compress as text does."""
    draw = np.random.default_rng(number)
    ids = np.minimum(draw.zipf(1.2, size=tokens) * 7 % vocabulary, vocabulary - 1)
    prompt = 200
    mask = (np.arange(tokens - prompt) // 256 % 2 == 0).astype(int)
    logprobs = np.where(mask, -draw.exponential(0.6, size=len(mask)), 0).round(6)
    columns = abut.Columns(
        prompt_ids=ids[:prompt], completion_ids=ids[prompt:], logprobs=logprobs, env_mask=mask
    )
    rollout = Rollout(
        f"long-{number}",
        0,
        columns=columns,
        provenance=[0] * prompt + np.where(mask, 3, 1).tolist(),
        reward=float(draw.random()),
        stop_reason=StopReason.ENV_DONE,
    )
    return of(rollout, tokenizer=tokenizer, group=number // 8, place=number % 8)


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    records = [a_long_record(k, 8192, str(DEMO), 500) for k in range(64)]
    return abut.records.view(records).save(tmp_path_factory.mktemp("large") / "large.html")


def test_half_a_million_tokens_load_in_two_seconds_and_200_mb(show: Show, large: Path) -> None:
    shown = show(None)
    shown.measure()
    shown.open(large)
    assert shown.cpu_s < 2
    assert shown.ask("app.rollout.text.sequence.tokens") == 8192
    shown.session.send("HeapProfiler.collectGarbage")
    usage = shown.session.send("Runtime.getHeapUsage")
    held = sum(usage[kind] for kind in ("usedSize", "embedderHeapUsedSize", "backingStorageSize"))
    assert 1e6 < held < 200e6
    shown.press(*"jjj")
    shown.wait("app.rollout.rollout.row === app.list.chosen")
    shown.ask("app.filter('text:nothing')")
    shown.wait("app.shownRows.length === 0")


def test_the_time_of_the_processor_is_seen(show: Show, saved: Save) -> None:
    shown = show(saved([]))
    shown.measure()
    before = shown.cpu_s
    shown.ask("() => { for (let k = 0; k < 5e8; k++); }")
    assert shown.cpu_s > before + 0.05


def test_a_hundred_thousand_tokens_scroll(show: Show, saved: Save) -> None:
    shown = show(saved([a_long_record(0, 100_000, str(DEMO), 500)]), "#t=99000")
    assert "current" in shown.ask("app.rollout.text.span(99000).className")
    shown.wait("app.rollout.text.span(99000).getBoundingClientRect().top < 800")
    # Spans are there where one looks, and text everywhere.
    spans = "document.querySelectorAll('#view-tokens .block span').length"
    assert shown.ask(spans) < 20_000
    length = shown.ask("document.querySelector('#view-tokens .tokens').textContent.length")
    assert length > 100_000
    shown.measure()
    before = shown.cpu_s
    shown.ask(
        """() => new Promise((done) => {
            const main = document.getElementById("main");
            main.scrollTop = 0;
            const step = (frames) => {
                if (!frames) return done();
                main.scrollTop += 400;
                requestAnimationFrame(() => step(frames - 1));
            };
            step(100);
        })"""
    )
    assert (shown.cpu_s - before) / 100 < 0.05
    block = (
        "[...document.querySelectorAll('.block')].map(b => [b.getBoundingClientRect(), b])"
        ".find(([box]) => box.top < 500 && box.bottom > 400)[1]"
    )
    shown.wait(f"{block}.children.length > 0")
    shown.press("]", "]")
    assert "t=" in shown.address


def test_a_reply_of_ten_megabytes_does_not_stop_the_page(
    show: Show, saved: Save, tokenizer: abut.Tokenizer
) -> None:
    reply = "All work and no play. 🙂\n" * 400_000
    rollout = a_played_rollout(tokenizer, "begin", [("one", None)])
    rollout.messages.append({"role": "user", "content": reply})
    rollout.columns, rollout.provenance, rollout.error = None, (), "EnvError: too long"
    page = saved([of(rollout)])
    assert len(reply.encode()) > 10_000_000
    assert page.stat().st_size < 1_000_000
    shown = show(page)
    assert shown.ask("document.querySelector('.chat').textContent.length") < 100_000
    shown.page.click("text=Show all")
    assert shown.ask("document.querySelector('.chat').textContent.length") > len(reply)
    shown.page.fill("#filter", "text:play")
    shown.wait("app.shownRows.length === 1")


def test_a_reply_of_ten_megabytes_among_the_tokens(
    show: Show, saved: Save, tokenizer: abut.Tokenizer
) -> None:
    reply = "All work and no play makes Jack a dull boy. " * 230_000
    rollout = a_played_rollout(tokenizer, "begin", [("one", reply), ("two", None)])
    page = saved([of(rollout)])
    shown = show(page)
    assert shown.ask("document.querySelector('#view-tokens .tokens').textContent.length") > len(
        reply
    )
    shown.press("]", "]")
    place = "app.rollout.text.span(app.state.token).getBoundingClientRect()"
    shown.wait(f"{place}.top > 0 && {place}.bottom < 800")
