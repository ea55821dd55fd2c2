"""The page of rollouts: what is in the file. What a browser makes of it, `browser/` tests."""

import base64
import gzip
import hashlib
import html
import json
import os
import re
import stat
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import abut
from abut.cli.__main__ import main
from abut.demo.model import ASSETS as DEMO
from abut.images import Image
from abut.records.image_folder import ImageFolder
from abut.records.read import from_record
from abut.records.record import to_record
from abut.records.show import render
from abut.records.viewer import packed, pictures
from abut.records.viewer import page as page_module
from abut.records.viewer.packed import Pieces
from abut.records.viewer.page import ASSETS, SCRIPTS, STYLES, WATCHED_SCRIPTS
from abut.records.viewer.seams import merges, seam_offsets
from abut.rollout.rollout import TEACHER_LOGPROBS, Branch, Rollout, give_stream
from tests.kit.data.records import (
    a_pictured_rollout,
    a_played_rollout,
    a_rollout,
    give_teacher,
)

TOKENIZER = abut.Tokenizer.from_file(DEMO / "tokenizer.json")
HOSTILE = "</script><script>alert(1)</script><!-- data --> \u202e \x1b[31m 🙂 שלום"


def of(rollout: Rollout, **extra: Any) -> dict[str, Any]:
    """A rollout as it is read from a file."""
    return from_record(json.loads(json.dumps(to_record(rollout, **extra))))


def a_record(*args: Any, **extra: Any) -> dict[str, Any]:
    extra = {"step": 3, "mode": "train", "group": 1, "place": 0, "tokenizer": str(DEMO)} | extra
    return of(a_played_rollout(TOKENIZER, *args), **extra)


def blocks(page: abut.records.Page) -> dict[str, tuple[dict[str, Any], bytes]]:
    block = r'<script type="application/octet-stream" id="(.*?)">(.*?)</script>'
    found = re.findall(block, page.html)
    unpacked = {}
    for name, data in found:
        raw = gzip.decompress(base64.b64decode(data))
        end = 4 + int.from_bytes(raw[:4], "little")
        unpacked[name] = json.loads(raw[4:end]), raw[end:]
    return unpacked


TALK = ("Say something that is long enough", [("Yes, and this is it", "And then?"), ("Done", None)])


def test_the_tokens_come_back_as_they_were_recorded() -> None:
    record = a_record(*TALK)
    page = abut.records.view([record, a_record("x", [("y", None)])])
    data = blocks(page)
    chunk, columns = data["chunk-0"]
    facts, texts = data["pieces-0"]
    rollout = chunk["rollouts"][0]
    count = sum(one["tokens"] for one in chunk["rollouts"])
    planes = np.frombuffer(columns[: 3 * count], np.uint8).reshape(3, count).astype(np.int64)
    numbers = (planes[0] + (planes[1] << 8) + (planes[2] << 16))[: rollout["tokens"]]
    ids = [*record["prompt_ids"], *record["completion_ids"]]
    assert [facts["ids"][number] for number in numbers] == ids
    ends = np.cumsum([0, *facts["lengths"]])
    said = b"".join(texts[ends[number] : ends[number + 1]] for number in numbers)
    assert said == TOKENIZER.decode_bytes(ids)
    codes = np.repeat(rollout["runs"][::2], rollout["runs"][1::2])
    assert (codes & 7).tolist() == record["provenance"]
    assert (codes[rollout["prompt"] :] >> 3).tolist() == record["env_mask"]
    sampled = (len(columns) - 3 * count) // 2
    low, high = np.frombuffer(columns[3 * count :], np.uint8).reshape(2, sampled).astype(int)
    nats = -np.asarray(record["logprobs"])[np.asarray(record["env_mask"]) == 1]
    assert ((low + 256 * high)[: len(nats)] / 1000).tolist() == pytest.approx(nats.tolist())


def test_the_divergences_from_a_teacher_come_back() -> None:
    """Behind all surprisals, of the rows alone that a teacher scored."""
    scored = give_teacher(a_played_rollout(TOKENIZER, *TALK), [1.5, -0.25, 0.0, 40.0])
    plain = a_played_rollout(TOKENIZER, "x", [("y", None)], "plain")
    records = [of(rollout, tokenizer=str(DEMO)) for rollout in (plain, scored)]
    data = blocks(abut.records.view(records))
    assert data["head"][0]["rollouts"]["teacher"] == [None, "maths"]
    chunk, columns = data["chunk-0"]
    assert [one["has_teacher"] for one in chunk["rollouts"]] == [False, True]
    count = sum(one["tokens"] for one in chunk["rollouts"])
    sampled = [sum(record["env_mask"]) for record in records]
    behind = np.frombuffer(columns[3 * count + 2 * sum(sampled) :], np.uint8)
    low, high = behind.reshape(2, sampled[1]).astype(np.uint16)
    found = (low | high << 8).astype(np.int16) / 1000
    expected = np.resize([1.5, -0.25, 0.0, 32.767], sampled[1])
    assert found.tolist() == pytest.approx(expected.tolist(), abs=1e-3)


def test_show_says_how_far_each_turn_is_from_the_teacher() -> None:
    rollout = give_teacher(a_played_rollout(TOKENIZER, *TALK), [0.5])
    branch = Branch(rollout.columns, turns=rollout.turns)
    give_stream(rollout.turns[1:], TEACHER_LOGPROBS, rollout.turns[1].streams[TEACHER_LOGPROBS] - 1)
    rollout.branches = [branch]
    shown = "".join(f"{line}\n" for line in render(of(rollout), TOKENIZER, color=False))
    assert re.search(r"^teacher maths  reverse KL 0\.\d+ nats$", shown, re.MULTILINE)
    (first, second) = re.findall(r"^turn .*$", shown, re.MULTILINE)
    assert first.endswith("  reverse KL 0.5")
    assert second.endswith("  reverse KL 1.5")
    plain = "".join(render(of(a_rollout()), TOKENIZER, color=False))
    assert "teacher" not in plain


def test_a_message_that_the_tokens_say_is_kept_as_its_place() -> None:
    record = a_record(*TALK)
    chunk, _ = blocks(abut.records.view([record]))["chunk-0"]
    messages = chunk["rollouts"][0]["messages"]
    text = TOKENIZER.decode_bytes([*record["prompt_ids"], *record["completion_ids"]])
    prompt, answer, short, _ = messages
    for message, said in (prompt, TALK[0]), (answer, TALK[1][0][0]):
        at, length = message["at"]
        assert text[at : at + length].decode() == said
    assert short["content"] == "And then?"


def test_the_list_has_what_the_filter_asks_for() -> None:
    record = {**a_record(*TALK), "rewards": {"f": 0.5}, "advantage": -1.0}
    rows = blocks(abut.records.view([record]))["head"][0]["rollouts"]
    assert rows["rewards"] == [{"f": 0.5}]
    assert (rows["turns"], rows["seams"], rows["inexact_seams"]) == ([2], [4], [0])
    assert rows["sampled_tokens"] == [sum(record["env_mask"])]


def test_infinity_and_nan_are_unknown_on_the_page() -> None:
    record = {**a_record(*TALK), "reward": float("nan"), "seconds": float("inf")}
    rows = blocks(abut.records.view([record]))["head"][0]["rollouts"]
    assert (rows["reward"], rows["seconds"]) == ([None], [None])


# ---- what a browser is let run


def test_the_policy_lets_run_what_the_page_has_and_nothing_else() -> None:
    page = abut.records.view([a_record(HOSTILE, [(HOSTILE, None)])])
    (policy,) = re.findall(r'Content-Security-Policy" content="(.*?)">', page.html)
    scripts = re.findall(r"<script>(.*?)</script>", page.html, flags=re.DOTALL)
    styles = re.findall(r"<style>(.*?)</style>", page.html, flags=re.DOTALL)
    assert (len(scripts), len(styles)) == (len(SCRIPTS), len(STYLES))
    for kind, texts in ("script-src", scripts), ("style-src", styles):
        digests = (hashlib.sha256(text.encode()).digest() for text in texts)
        hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
        assert f"{kind} {hashes};" in policy
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy


def test_nothing_that_a_record_says_stands_in_the_markup() -> None:
    plain = abut.records.view([a_record("p", [("a", None)])]).html
    hostile = abut.records.view([a_record(HOSTILE, [(HOSTILE, None)], error=None)]).html
    tags = re.compile(r"<(?!script type=\"application/octet-stream\")[^>]*>")
    assert tags.findall(plain) == tags.findall(hostile)
    assert "alert(1)" not in hostile


def test_a_name_of_a_file_is_escaped(tmp_path: Path) -> None:
    path = tmp_path / "<b>&.jsonl"
    abut.records.JsonlRecorder(path).write(a_rollout())
    assert "<title>&lt;b&gt;&amp;.jsonl · abut view</title>" in abut.records.view(path).html


def test_the_scripts_never_parse_markup_nor_ask_a_network() -> None:
    forbidden = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|srcdoc|"
        r"XMLHttpRequest|fetch\(|WebSocket|import\(|https?://(?!www\.w3\.org/2000/svg)|url\("
    )
    files = list(ASSETS.iterdir())
    assert {path.name for path in files} == {*WATCHED_SCRIPTS, *STYLES, "page.html"}
    for path in files:
        text = path.read_text(encoding="utf-8")
        # A page that is watched asks its own server, which its policy limits it to.
        found = {"fetch("} if path.name == "watch.js" else set()
        assert {*forbidden.findall(text)} == found, path.name
        assert len(text.splitlines()) <= 400, path.name
    assert forbidden.search("element.innerHTML = text")
    assert {*WATCHED_SCRIPTS} - {*SCRIPTS} == {"watch.js"}
    page = abut.records.view([a_record(*TALK)]).html
    assert "fetch(" not in page
    assert "connect-src" not in page


def test_a_notebook_shows_it_in_a_frame_that_may_run_scripts_only() -> None:
    page = abut.records.view([a_record(*TALK)])
    frame = page._repr_html_()
    (sandbox,) = re.findall(r' sandbox="(.*?)"', frame)
    assert sandbox == "allow-scripts"
    (srcdoc,) = re.findall(r' srcdoc="(.*?)"', frame, flags=re.DOTALL)
    assert html.unescape(srcdoc) == page.html


# ---- what is taken, and what is left out


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    recorder = abut.records.JsonlRecorder(tmp_path / "r.jsonl")
    for k in range(4):
        rollout = a_played_rollout(TOKENIZER, *TALK, f"r{k}", reward=k / 4)
        rollout.attempt_tracebacks = ["/home/ann/env.py"]
        recorder.write(rollout, step=k, tokenizer=str(DEMO), columns={"answer": f"secret {k}"})
    return tmp_path / "r.jsonl"


def ids_of(page: abut.records.Page) -> list[str]:
    return blocks(page)["head"][0]["rollouts"].get("rollout_id", [])


def test_a_path_several_and_records_make_the_same_page(recorded: Path) -> None:
    everything = ["r0", "r1", "r2", "r3"]
    assert ids_of(abut.records.view(recorded)) == everything
    assert ids_of(abut.records.view([str(recorded)])) == everything
    assert ids_of(abut.records.view(abut.records.read_records(recorded))) == everything
    assert abut.records.view([]).rollouts == 0


def test_only_those_that_are_wanted_are_in_the_page(recorded: Path) -> None:
    assert ids_of(abut.records.view(recorded, where="reward>0.3 step<3")) == ["r2"]


def test_what_is_left_out_is_not_in_the_page(recorded: Path) -> None:
    def said(page: abut.records.Page) -> str:
        return json.dumps([facts for facts, _ in blocks(page).values()])

    assert "secret 2" in said(abut.records.view(recorded))
    assert "/home/ann" in said(abut.records.view(recorded))
    shared = said(abut.records.view(recorded, without=["columns", "traceback"]))
    assert "secret" not in shared
    assert "/home/ann" not in shared
    without = abut.records.view(
        recorded, without=["turns", "messages", "seams", "logprobs", "provenance"]
    )
    (rollout, *_) = blocks(without)["chunk-0"][0]["rollouts"]
    assert (rollout["messages"], rollout["seams"], rollout["has_logprobs"]) == ([], [], False)


def test_what_the_page_is_made_of_cannot_be_left_out(recorded: Path) -> None:
    with pytest.raises(ValueError, match="a page needs the field 'env_mask'"):
        abut.records.view(recorded, without=["env_mask"])
    with pytest.raises(ValueError, match="records do not have a field 'colums'"):
        abut.records.view(recorded, without=["colums"])


def test_without_its_tokenizer_a_page_has_ids_and_says_why() -> None:
    page = abut.records.view([{**a_record(*TALK), "tokenizer": "/nowhere/at-all"}])
    assert len(page.troubles) == 1
    facts, texts = blocks(page)["pieces-0"]
    assert (facts["source"], texts) == ("/nowhere/at-all", b"")
    assert page.troubles == [f"tokens have no text: {facts['trouble']}"]
    with pytest.raises((OSError, ValueError)):
        abut.records.view([a_record(*TALK)], tokenizer="/nowhere/at-all")
    named = abut.records.view([{**a_record(*TALK), "tokenizer": None}], tokenizer=str(DEMO))
    assert named.troubles == []


def test_a_page_is_written_again_and_other_files_are_not(tmp_path: Path) -> None:
    page = abut.records.view([a_record(*TALK)])
    path = page.save(tmp_path / "new" / "page.html")
    assert path.read_text(encoding="utf-8") == page.html
    assert page.save(path) == path
    (tmp_path / "mine.html").write_text("<html>")
    with pytest.raises(FileExistsError, match="not a page of abut\nhint"):
        page.save(tmp_path / "mine.html")


def test_the_same_records_make_the_same_tokens_byte_for_byte() -> None:
    first, second = (blocks(abut.records.view([a_record(*TALK)])) for _ in range(2))
    assert first["pieces-0"] == second["pieces-0"]


# ---- images


PIXELS = np.random.default_rng(0).integers(0, 256, (90, 400, 3), dtype=np.uint8)


def pictured(folder: Path | None = None, pixels: Any = PIXELS, **changes: Any) -> dict[str, Any]:
    """A record with an image, which is kept in a folder."""
    rollout = a_pictured_rollout(TOKENIZER, pixels, **changes)
    if folder is not None:
        ImageFolder(folder).write(rollout)
    return of(rollout, tokenizer=str(DEMO))


def thumbnails(page: abut.records.Page) -> dict[str, Any]:
    data = blocks(page)
    found: dict[str, Any] = {}
    for number, hashes in enumerate(data["head"][0]["pictures"]):
        texts, _ = data[f"pictures-{number}"]
        assert [*texts] == hashes
        found |= {key: Image(base64.b64decode(text)) for key, text in texts.items()}
    return found


def test_a_page_has_a_thumbnail_of_each_image_once(tmp_path: Path) -> None:
    records = [pictured(tmp_path), pictured(tmp_path, rollout_id="r1")]
    page = abut.records.view(records, images=tmp_path)
    ((key, thumbnail),) = thumbnails(page).items()
    (span,) = records[0]["images"]
    assert (key, page.troubles) == (span["hash"], [])
    assert (thumbnail.width, thumbnail.height) == (192, 43)
    whole = np.asarray(Image.of(PIXELS).to_pil().resize((192, 43)), float)
    assert np.abs(thumbnail.pixels - whole).mean() < 24  # a JPEG; of noise, unrelated ones are 60
    for rollout in blocks(page)["chunk-0"][0]["rollouts"]:
        assert rollout["images"] == [span]
    assert "img-src data:; " in page.html


def test_without_its_file_an_image_has_its_size_and_hash(tmp_path: Path) -> None:
    record = pictured()
    (span,) = record["images"]
    for images in (None, tmp_path):
        page = abut.records.view([record], images=images)
        assert thumbnails(page) == {}
        assert blocks(page)["chunk-0"][0]["rollouts"][0]["images"] == [span]
        assert page.troubles == [
            f"1 images are not shown, such as {span['hash']}: the folder of images has no such file"
        ] * (images is not None)
    (tmp_path / f"{span['hash']}.png").write_bytes(b"\x89PNG, and then nothing")
    page = abut.records.view([record], images=tmp_path)
    assert "are not an image in a format that abut reads" in page.troubles[0]
    assert thumbnails(abut.records.view([record], images=tmp_path, where="reward>9")) == {}


def test_a_page_has_only_so_many_bytes_of_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [pictured(tmp_path, PIXELS[:, k : k + 90]) for k in range(5)]
    full = thumbnails(abut.records.view(records, images=tmp_path))
    sizes = [len(image.data) for image in full.values()]
    monkeypatch.setattr(pictures, "MOST_BYTES", sum(sizes[:3]))
    monkeypatch.setattr(pictures, "_BLOCK_BYTES", sizes[0])
    page = abut.records.view(records, images=tmp_path)
    assert [*thumbnails(page)] == [*full][:3]
    assert blocks(page)["head"][0]["pictures"] == [[key] for key in [*full][:3]]
    (trouble,) = page.troubles
    assert trouble.startswith("2 images are left out, for the page has")
    with pytest.raises(FileNotFoundError):
        abut.records.view(records, images=tmp_path / "missing")


def test_show_names_images() -> None:
    record = pictured()
    (span,) = record["images"]
    said = "\n".join(render(record, None, color=False))
    assert f"image 0  tokens {span['start']}:{span['end']}  400x90  {span['hash']}\n" in said
    assert f"[user]\nWhich colour?[image {span['hash']}]\n" in said


# ---- seams


@pytest.mark.parametrize("cut", [(), (0,), (0, 1), (1,)])
def test_each_seam_has_the_place_at_which_it_was_made(cut: tuple[int, ...]) -> None:
    turns = [("one", "go on"), ("two", "and on"), ("three", None)]
    rollout = a_played_rollout(TOKENIZER, "begin", turns, cut=cut)
    record = of(rollout)
    length = len(record["prompt_ids"]) + len(record["completion_ids"])
    expected = [0]
    for number, turn in enumerate(rollout.turns):
        expected.append(turn.start)
        if number < 2:
            expected += [turn.end, turn.end + 1] if number in cut else [turn.end]
    assert seam_offsets(record, length) == expected


def test_seams_behind_the_row_and_of_another_order_have_no_place() -> None:
    record = of(a_played_rollout(TOKENIZER, *TALK))
    length = len(record["prompt_ids"]) + len(record["completion_ids"])
    seam = {"kind": "barrier", "exact": True}
    behind = {**record, "seams": [*record["seams"], seam]}
    assert seam_offsets(behind, length)[-1] is None
    assert seam_offsets(behind, length)[0] == 0
    strange = {**record, "seams": [*record["seams"], *[seam] * 3]}
    assert seam_offsets(strange, length) == [None] * len(strange["seams"])


def merges_of(record: dict[str, Any], tokenizer: abut.Tokenizer = TOKENIZER) -> Any:
    ids = np.asarray([*record["prompt_ids"], *record["completion_ids"]])
    return merges(
        record, ids, seam_offsets(record, len(ids)), tokenizer, Pieces("x", tokenizer).control_ids
    )


def test_an_inexact_seam_has_the_tokens_on_both_sides() -> None:
    # The template's prompt ends on a line end, and two of them are one token.
    record = from_record(
        to_record(a_played_rollout(TOKENIZER, "p", [("\nyes", "go"), ("b", None)]))
    )
    line, lines = (TOKENIZER.encode(text).tolist() for text in ("\n", "\n\n"))
    assert [seam["exact"] for seam in record["seams"]] == [True, False, True, True]
    (number, merge), *others = merges_of(record).items()
    assert (number, others) == (1, [])
    assert merge.left_ids.tolist() + merge.right_ids.tolist() == line + line
    assert merge.merged_ids.tolist() == lines


def test_inside_a_character_there_are_no_other_tokens() -> None:
    record = of(a_played_rollout(TOKENIZER, "p", [("\nyes", None)]))
    half = next(i for i in range(512) if TOKENIZER.decode_bytes([i]) == b"\x98")
    record["completion_ids"][0] = half
    assert merges_of(record) == {1: None}


def test_a_seam_that_this_tokenizer_does_not_make_again_is_not_explained() -> None:
    record = of(a_played_rollout(TOKENIZER, "p", [("yes", "go"), ("b", None)]))
    record["seams"][1] = {"kind": "merged", "exact": False}  # it was exact
    assert merges_of(record) == {}
    assert seam_offsets(record, 10_000)[1] is not None


# ---- the command


def test_the_command_writes_the_page_beside_the_records(
    recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["view", str(recorded), "--no-open"]) == 0
    out, err = capsys.readouterr()
    assert out == f"{recorded.with_name('r.html')}\n"
    assert err.startswith("abut view: 4 rollouts, 0.")
    assert main(["view", str(recorded), "--no-open", "-o", str(recorded)]) == 1
    assert "already exists and is not a page of abut" in capsys.readouterr().err
    chosen = recorded.with_name("chosen.html")
    words = ["--where", "step:2", "--without", "columns,traceback", "--output", str(chosen)]
    assert main(["view", str(recorded), "--no-open", *words]) == 0
    assert "r2" in ids_of(abut.records.Page(chosen.read_text(encoding="utf-8"), 1))


def test_the_folder_that_one_is_in_has_a_name(
    recorded: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(recorded.parent)
    assert main(["view", ".", "--no-open"]) == 0
    page = recorded.parent.with_name(f"{recorded.parent.name}.html")
    assert capsys.readouterr().out == f"{page}\n"
    assert f"<title>{recorded.parent.name} · abut view</title>" in page.read_text("utf-8")
    page.unlink()


def test_a_large_page_is_written_only_if_its_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = abut.records.JsonlRecorder(tmp_path / "r.jsonl")
    for k in range(100):
        recorder.write(a_played_rollout(TOKENIZER, *TALK, f"r{k}"), tokenizer=str(DEMO))
    read, whole = [], abut.records.view(recorder.path)
    chunks = sum(map(len, re.findall(r'id="chunk-\d+">(.*?)<', whole.html)))
    monkeypatch.setattr(packed, "_CHUNK_ROLLOUTS", 10)
    monkeypatch.setattr(packed.Chunk, "add", counted(packed.Chunk.add, read))
    monkeypatch.setattr(page_module, "LARGE_BYTES", 0.3 * chunks)
    assert main(["view", str(recorder.path), "--no-open"]) == 1
    said = capsys.readouterr().err
    assert re.match(
        r"abut view: the page would have about \d+ MB, and browsers are slow above 50 MB\n"
        r"hint: --where 'step>90' shows fewer rollouts; --watch serves the page instead; "
        r"-o FILE\.html writes it anyway\n$",
        said,
    )
    assert len(read) < 60, "most of it is not packed"
    assert [*tmp_path.glob("*.html")] == []
    assert main(["view", str(recorder.path), "--no-open", "-o", str(tmp_path / "x.html")]) == 0
    assert capsys.readouterr().err.startswith("abut view: the page will have about ")
    assert (tmp_path / "x.html").exists()


def counted(real: Any, calls: list[Any]) -> Any:
    def call(*args: Any) -> Any:
        calls.append(args)
        return real(*args)

    return call


def test_the_size_of_a_page_is_estimated_from_its_first_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = abut.records.JsonlRecorder(tmp_path / "r.jsonl")
    for k in range(100):
        recorder.write(a_played_rollout(TOKENIZER, *TALK, f"r{k}"), tokenizer=str(DEMO))
    options: Any = {"where": "", "without": (), "tokenizer": None, "images": None}
    sizes: list[float] = []
    monkeypatch.setattr(packed, "_CHUNK_ROLLOUTS", 10)
    monkeypatch.setattr(page_module, "LARGE_BYTES", 3000)
    page = page_module.make_page(recorder.path, **options, on_large=sizes.append)
    chunks = sum(len(data) for data in re.findall(r'id="chunk-\d+">(.*?)<', page.html))
    assert sizes == [pytest.approx(chunks, rel=0.2)]


@pytest.mark.skipif(sys.platform == "win32", reason="$BROWSER is of Unix")
def test_the_command_opens_it_in_the_browser(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > "{opened}"\n')
    browser.chmod(browser.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    assert main(["view", str(recorded)]) == 0
    assert opened.read_text() == recorded.with_name("r.html").as_uri()


def test_where_there_is_no_browser_the_command_says_so(
    recorded: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    assert main(["view", str(recorded)]) == 0
    assert "this machine has no browser; open the file on another one" in capsys.readouterr().err
    assert os.path.exists(recorded.with_name("r.html"))
