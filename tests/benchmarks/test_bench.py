"""`python -m benchmarks` compares results before times, and names all that it cannot measure.

The tests do not check any time, so they pass on slow machines too.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest

import abut
from abut.demo.model import ASSETS
from benchmarks import peers, worker
from benchmarks.__main__ import main
from benchmarks.command import BenchError, Plan, run, tokenizer_folder
from benchmarks.figures import Figure, Need, ResultsDiffer, Row, require_same
from benchmarks.measured_conversation import MeasuredConversation, render
from benchmarks.next_prompt import BRIDGE, RENDER, SUFFIX, TML
from benchmarks.picture import picture
from benchmarks.rows import ROWS, append
from benchmarks.scale import Scale
from benchmarks.table import lines, number, page
from benchmarks.texts import SHARES, Corpus, Replies
from benchmarks.timing import all_rounds, interleave
from benchmarks.workbench import Workbench
from tests.kit.checkout import ROOT

pytest.importorskip("tokenizers")
pytest.importorskip("transformers")


MACHINE = {
    "processor": "a processor", "cores": 2, "load_before": 0.1, "system": "Linux 6",
    "python": "3.11.7", "versions": {"abut": "0.1.0", "trl": None}, "tokenizer": "qwen3",
    "vocab_size": 151_669, "encoder": "hf",
}  # fmt: skip


@pytest.fixture
def workbench() -> Workbench:
    return Workbench(ASSETS, Scale.quick(), {})


@pytest.fixture
def row() -> Row:
    row = Row("append", "append a reply", equal="all ids", notes=["a note"])
    for tokens in (1_000, 10_000):
        case = f"to {tokens} tokens"
        row.add(case, {"abut": [1e-5, 2e-5, 3e-5], "a peer": [1e-3 * tokens]}, tokens=tokens)
        row.need_faster("a peer", case, 100_000)
    row.missing["another"] = "it needs Python 4"
    return row


# ---- what is measured


def test_results_that_differ_are_an_error_that_says_where():
    require_same("ids", "a peer", [1, 2, 3], np.array([1, 2, 3]))
    with pytest.raises(ResultsDiffer) as caught:
        require_same("ids", "a peer", [1, 2, 3], [1, 5])
    assert str(caught.value) == (
        "ids: abut and a peer differ, first at index 1: 2 and 5 (lengths 3 and 2)\n"
        "hint: times are not compared if the results differ, so this row has none; look at the "
        "text at that index, and report it if abut is wrong"
    )
    with pytest.raises(ResultsDiffer, match="first at index 2: 3 and nothing"):
        require_same("ids", "a peer", [1, 2, 3], [1, 2])


def test_sides_run_in_turn_and_the_warm_up_is_not_counted():
    ran, checked = [], []

    def prepare(number):
        sides = {"a": lambda: ran.append(f"a{number}"), "b": lambda: ran.append(f"b{number}")}
        return sides, lambda results: checked.append(sorted(results))

    taken = interleave(prepare, 2)
    assert ran == ["a-1", "b-1", "a0", "b0", "a1", "b1"]
    assert checked == [["a", "b"]] * 3
    assert [len(values) for values in taken.values()] == [2, 2]
    assert [len(values) for values in all_rounds([taken, {"a": [1.0]}]).values()] == [3, 2]


def test_a_text_is_never_given_twice():
    corpus = Corpus(1)
    first, second = corpus.mixed(30_000), corpus.mixed(30_000)
    assert 29_996 < len(first.encode()) <= 30_000
    shared = {*first.splitlines()} & {*second.splitlines()}
    assert max(map(len, shared)) < 100, "only short lines of code may come again"
    replies = Replies(1, 300, pool_bytes=20_000).take(200)
    assert len(set(replies)) == 200
    assert all(250 < len(reply.encode()) <= 300 and reply == reply.strip() for reply in replies)


def test_mixed_text_has_a_share_of_every_kind_and_the_same_seed_writes_the_same():
    text = Corpus(3).mixed(200_000)
    assert Corpus(3).mixed(200_000) == text
    cjk = sum(len(char.encode()) for char in text if "\u3000" < char < "\ud7b0")
    assert 0.5 < cjk / len(text.encode()) / SHARES["cjk"] < 1.5
    assert '"created_at": "20' in text
    assert "def " in text


def test_ordinary_text_is_ascii():
    assert len(Corpus(4).ordinary(5_000)) == 5_000
    assert Corpus(4).ordinary(5_000).isascii()


def test_a_conversation_is_what_its_template_renders(workbench):
    conversation = MeasuredConversation.of_length(
        workbench, Replies(2, 300, pool_bytes=50_000), 900
    )
    assert len(conversation.trajectory) >= 900
    conversation.append({"role": "tool", "name": "search", "content": "nothing"})
    assert conversation.trajectory.ids.tolist() == render(
        workbench.hf_tokenizer, conversation.messages
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_every_row_can_be_measured(workbench, name):
    if name == "async_rollouts":
        pytest.importorskip("trl", reason="it has TRL's trainer on both sides")
        if os.environ.get("ABUT_TOKENIZERS"):
            pytest.skip("test_async_row.py measures it, with a real tokenizer")
    if name in ("image_turn", "saved", "image_memory"):
        pytest.importorskip("torch", reason="image processors and the trained model need it")
    row = ROWS[name](workbench)
    assert row.error is None
    assert row.figures
    assert all(figure.values for figure in row.figures)
    assert row.equal
    assert Row.from_dict(json.loads(json.dumps(row.as_dict()))).work == row.work


@pytest.mark.slow
def test_every_row_has_its_peers_on_the_real_tokenizer(qwen3):
    workbench = Workbench(Path(qwen3.name_or_path), Scale.quick(), {})
    pytest.importorskip("trl")
    for name in ("append", "rollouts", "pace", "stitch"):
        row = ROWS[name](workbench)
        assert not {peer for peer in row.missing if peer.startswith(("TRL", "apply"))}


def test_loading_has_to_take_half_the_time_and_no_more_memory(workbench):
    needs = {need.what: (need.how, need.bound) for need in ROWS["load"](workbench).needs}
    assert needs.pop("abut ÷ tokenizers, time") == ("at most", 0.5)
    # Where the system says what memory a process has.
    assert needs.pop("abut ÷ tokenizers, memory", ("at most", 1.0)) == ("at most", 1.0)
    assert not needs


def test_a_peer_that_gives_another_result_fails_the_row(workbench, monkeypatch):
    right = workbench.oracle

    class Wrong:
        encode_batch_fast = right.encode_batch_fast

        def encode(self, text, **options):
            return right.encode("x" + text, **options)

    there = workbench.peer

    def peer(name, module=None):
        if name != "tokenizers":
            return there(name, module)
        return SimpleNamespace(Tokenizer=SimpleNamespace(from_file=lambda file: Wrong()))

    monkeypatch.setattr(workbench, "peer", peer)
    row = worker.measure("encode", workbench)
    assert row.error is not None
    assert row.error.startswith("tokens of mixed text: abut and tokenizers encode differ")
    assert row.figures == []
    assert "NOT MEASURED" in "\n".join(lines(row))


def test_a_row_that_raises_says_so_and_stops_no_other(workbench, monkeypatch, capsys):
    def broken(workbench):
        raise KeyError("x")

    monkeypatch.setitem(ROWS, "encode", broken)
    assert worker.measure("encode", workbench).error == "KeyError: 'x'"
    assert "Traceback" in capsys.readouterr().err


# ---- what is said


def test_a_requirement_is_met_or_missed():
    assert Need("x", 20.0, "at least", 20).met
    assert not Need("x", 19.9, "at least", 20).met
    assert Need("x", 1.5, "at most", 1.5).met
    assert not Need("x", 1.6, "at most", 1.5).met


def test_the_lines_say_what_is_needed_and_what_is_missing(row):
    assert list(lines(row)) == [
        "\nappend a reply",
        f"  {'to 1000 tokens':<46}{'median':>15}{'min':>15}{'max':>15}  runs",
        f"    {'abut':<44}{'20 µs':>15}{'10 µs':>15}{'30 µs':>15}     3",
        f"    {'a peer':<44}{'1 s':>15}{'1 s':>15}{'1 s':>15}     1",
        f"  {'to 10000 tokens':<46}{'median':>15}{'min':>15}{'max':>15}  runs",
        f"    {'abut':<44}{'20 µs':>15}{'10 µs':>15}{'30 µs':>15}     3",
        f"    {'a peer':<44}{'10 s':>15}{'10 s':>15}{'10 s':>15}     1",
        "    another: not measured: it needs Python 4",
        "  required: a peer ÷ abut, to 1000 tokens ≥ 100,000x; measured: 50,000x; missed",
        "  required: a peer ÷ abut, to 10000 tokens ≥ 100,000x; measured: 500,000x; met",
    ]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1.234, None, "1.23x"),
        (2_140.4, None, "2,140x"),
        (0.0123, "s", "12.3 ms"),
        (123e-6, "s", "123 µs"),
        (2e-7, "s", "0.2 µs"),
        (103e6, "B", "103 MB"),
        (9.5, "B/token", "9.5 B/token"),
    ],
)
def test_numbers_have_three_digits_and_a_unit(value, unit, text):
    assert number(value, unit) == text


def test_the_page_has_every_requirement_and_every_figure(row):
    failed = Row("x", "fail", error="no")
    text = page([row, failed], MACHINE, "python -m benchmarks", "performance.svg")
    assert (
        "| append a reply | a peer ÷ abut, to 1000 tokens | ≥ 100,000x | 50,000x | **missed** |"
        in text
    )
    assert "| to 1000 tokens | abut | 20 µs | 10 µs | 30 µs | 3 |" in text
    assert "- another was not measured: it needs Python 4" in text
    assert "Not measured: no" in text
    assert "trl missing" in text
    assert "](performance.svg)" in text
    assert text.index("# Performance") < text.index("`make bench`") < text.index("measured alone")


def test_a_page_of_less_than_everything_says_so_before_all_else(row):
    reservations = ["A trial.", "Only some rows."]
    text = page([row], MACHINE, "python -m benchmarks", None, reservations=reservations)
    assert text.startswith("# Performance\n\n**A trial.**\n\n**Only some rows.**\n\nThis page")
    assert "**A trial" not in page([row], MACHINE, "python -m benchmarks", None)


def test_peers_that_give_the_whole_prompt_are_divided_by_abut_with_its_request():
    row, (first, last) = Row("append", "append"), (1_000, 120_000)
    for case in (append.case(first), append.case(last)):
        row.add(case, {"abut": [1.0], append.REQUEST: [2.0], SUFFIX: [30.0]})
        row.add(case, {RENDER: [4e3], BRIDGE: [60.0], TML: [1e3]})
        row.add(case + ", measured alone", {"abut": [1.0]})
    append._require(row, (first, last))
    found = {need.what: (need.value, need.bound) for need in row.needs}
    assert found == {
        f"{SUFFIX} ÷ abut, to 1,000 tokens": (30, 20),
        f"{SUFFIX} ÷ abut, to 120,000 tokens": (30, 20),
        "abut, to 120,000 tokens, measured alone ÷ to 1,000 tokens, measured alone": (1, 1.2),
        "abut, to 120,000 tokens, measured alone": (1, 25e-6),
        f"{RENDER} ÷ abut with request(), to 120,000 tokens": (2_000, 2_000),
        f"{BRIDGE} ÷ abut with request(), to 120,000 tokens": (30, 30),
        f"{TML} ÷ abut with request(), to 120,000 tokens": (500, 500),
    }


def test_the_picture_is_xml_with_a_line_for_every_side(row):
    drawn = ElementTree.fromstring(picture(row))
    kinds = [element.tag.partition("}")[2] for element in drawn]
    assert kinds.count("polyline") == 2
    assert picture(Row("x", "y", figures=[Figure("abut", "a case", (1.0,))])) is None


# ---- the command


def plan(tmp_path: Path, **changes) -> Plan:
    values = {
        "rows": ("collate",),
        "tokenizer": ASSETS,
        "quick": True,
        "write": tmp_path / "docs" / "background" / "performance.md",
        "json": tmp_path / "bench.json",
    }
    return Plan(**values | changes)


def test_the_command_writes_the_page_and_the_values(tmp_path):
    said = []
    assert run(plan(tmp_path), said.append, said.append) == 0
    assert "collate 4 x 128 tokens" in "\n".join(said)
    found = json.loads((tmp_path / "bench.json").read_text())
    assert found["machine"]["versions"]["abut"] == abut.__version__
    (row,) = found["rows"]
    assert len(row["figures"][0]["values"]) == Scale.quick().collate_rounds
    text = (tmp_path / "docs" / "background" / "performance.md").read_text()
    assert "### Collate 4 x 128 tokens" in text
    others = ", ".join(name for name in ROWS if name != "collate")
    assert text.startswith(
        "# Performance\n\n"
        "**A trial run (`--quick`): it shows that the rows run; its numbers are meaningless.**\n\n"
        f"**Not all rows were measured. Missing: {others}.**"
        "\n\nThis page"
    )
    picture = tmp_path / "docs" / "background" / "performance.svg"
    assert not picture.exists(), "no row of these has lengths"


def test_only_strict_fails_where_a_requirement_is_missed(tmp_path):
    # Four short rows are never copied as fast as one long array.
    quiet = [].append
    assert run(plan(tmp_path, strict=True), quiet, quiet) == 1


def unmeasured(monkeypatch) -> None:
    """Fail the test where the worker is started."""

    def started(*_, **__):
        raise AssertionError("measured before the files were looked at")

    monkeypatch.setattr(subprocess, "Popen", started)


@pytest.mark.parametrize("which", ["write", "json"])
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(
    which, tmp_path, monkeypatch
):
    unmeasured(monkeypatch)
    (tmp_path / "a").write_text("")
    (tmp_path / "folder").mkdir()
    quiet = [].append
    for file, error in (
        (tmp_path / "folder", f"[Errno 21] Is a directory: '{tmp_path}/folder'"),
        (tmp_path / "a" / "x.md", f"[Errno 17] File exists: '{tmp_path}/a'"),
        (tmp_path / "a" / "b" / "x.md", f"[Errno 20] Not a directory: '{tmp_path}/a/b'"),
    ):
        with pytest.raises(BenchError) as caught:
            run(plan(tmp_path, **{which: file}), quiet, quiet)
        assert str(caught.value) == (
            f"{file}: cannot be written: {error}\n"
            "hint: name a file in a folder that you can write to"
        )
    assert (tmp_path / "a").read_text() == ""


def test_a_name_without_a_file_is_refused(tmp_path, monkeypatch):
    unmeasured(monkeypatch)
    quiet = [].append
    for name in (".", "..", "/"):
        with pytest.raises(BenchError, match="cannot be written"):
            run(plan(tmp_path, write=Path(name)), quiet, quiet)


def test_the_page_its_picture_and_the_values_are_three_files(tmp_path, monkeypatch):
    unmeasured(monkeypatch)
    quiet = [].append
    drawn = tmp_path / "x.svg"
    for changes in (
        {"write": drawn},
        {"write": tmp_path / "x.md", "json": drawn},
        {"write": drawn, "json": drawn},
    ):
        with pytest.raises(BenchError) as caught:
            run(plan(tmp_path, **changes), quiet, quiet)
        assert str(caught.value) == (
            f"{drawn}: the page, its chart and the values need three different files\n"
            "hint: give --write a name that ends in .md, and --json a different name"
        )
    with pytest.raises(BenchError, match="need three different files"):
        run(plan(tmp_path, write=drawn.with_suffix(""), json=drawn), quiet, quiet)


def test_looking_whether_a_file_can_be_written_leaves_it_as_it_was(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    json_file = tmp_path / "bench.json"
    json_file.write_text("kept")
    quiet = [].append
    with pytest.raises(BenchError, match="the worker ended"):
        run(plan(tmp_path, tokenizer=empty), quiet, quiet)
    assert json_file.read_text() == "kept"
    assert list((tmp_path / "docs" / "background").iterdir()) == []


def test_make_bench_writes_the_page_only_where_all_rows_are_measured():
    def written(flags: str) -> bool:
        make = ["make", "--dry-run", "--directory", str(ROOT), "bench", f"BENCH_FLAGS={flags}"]
        return "--write" in subprocess.check_output(make, text=True)

    assert written("")
    assert written("--strict")
    assert not written("--rows encode")
    assert not written("--strict --quick")


def test_a_worker_that_ends_is_an_error(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    quiet = [].append
    with pytest.raises(BenchError, match="the worker ended with exit status 1\nhint: its output"):
        run(plan(tmp_path, tokenizer=empty), quiet, quiet)


def test_without_a_tokenizer_the_command_says_what_to_pass(monkeypatch, capsys, tmp_path):
    monkeypatch.delenv("ABUT_TOKENIZERS", raising=False)
    assert main(["--here"]) == 1
    assert capsys.readouterr().err == (
        "benchmarks: no tokenizer given: the ratios are meaningful only with a real one\n"
        "hint: pass --tokenizer FOLDER with the tokenizer.json, tokenizer_config.json and chat "
        "template of Qwen3, or set ABUT_TOKENIZERS to the parent of such a folder `qwen3`\n"
    )
    assert main(["--here", "--tokenizer", str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        f"benchmarks: {tmp_path}: tokenizer.json is missing\n"
        "hint: pass a folder that save_pretrained of a fast tokenizer wrote\n"
    )
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": null}')
    assert main(["--here", "--tokenizer", str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        f"benchmarks: {tmp_path}: the tokenizer has no chat template\n"
        "hint: pass the tokenizer of a chat model, or save its template next to tokenizer.json as "
        "chat_template.jinja\n"
    )
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    assert tokenizer_folder(tmp_path) == tmp_path
    monkeypatch.setenv("ABUT_TOKENIZERS", str(ASSETS.parent))
    assert tokenizer_folder(ASSETS) == ASSETS


def test_the_help_names_every_row_and_what_strict_fails_for(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert f"(default: all): {', '.join(ROWS)} --tokenizer" in text
    assert "with --strict also if a requirement is missed or a peer is missing." in text
    assert "exit with 1 if a requirement is missed or a peer is missing" in text


def test_rows_may_have_spaces_between_them(monkeypatch):
    plans = []
    monkeypatch.setattr("benchmarks.__main__.run", lambda plan, out, say: plans.append(plan) or 0)
    assert main(["--here", "--tokenizer", str(ASSETS), "--rows", "seam, load"]) == 0
    assert plans[0].rows == ("seam", "load")


def test_an_unknown_row_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--rows", "collate,x"])
    assert f"unknown row 'x': use {', '.join(ROWS)}" in capsys.readouterr().err


# ---- the peers


def test_a_peer_that_is_not_installed_has_a_reason():
    with pytest.raises(peers.PeerMissing, match="ModuleNotFoundError: No module named 'no_such'"):
        peers.load("trl", "no_such", {})
    with pytest.raises(peers.PeerMissing, match=r"^pip could not$"):
        peers.load("trl", "no_such", {"trl": "pip could not"})


def test_peers_that_know_one_template_are_not_asked_for_another(workbench):
    with pytest.raises(peers.PeerMissing, match="it supports Qwen3's template, and "):
        workbench.require_qwen3()


def test_no_environment_of_peers_is_made_over_the_one_that_runs():
    with pytest.raises(FileExistsError, match="it has the running Python"):
        peers.make_venv(Path(sys.prefix), print)


@pytest.mark.slow
def test_the_peers_environment_has_what_is_here_and_the_abut_that_runs(tmp_path, monkeypatch):
    nothing = peers.Peer("none", ("abut-has-no-such-peer==1",), ("--no-index",))
    monkeypatch.setattr(peers, "PEERS", {"none": nothing})
    monkeypatch.delenv("PYTHONPATH", raising=False)
    said: list[str] = []
    python, reasons = peers.make_venv(tmp_path / "env", said.append)
    assert reasons == {
        "none": "pip cannot install it: No matching distribution found for abut-has-no-such-peer==1"
    }
    code = "import abut, tokenizers; print(abut.__file__)"
    found = subprocess.check_output([python, "-c", code], text=True).strip()
    assert Path(found).is_relative_to(tmp_path / "env")
    # The second time only what failed is tried again.
    said.clear()
    peers.make_venv(tmp_path / "env", said.append)
    assert said == ["installing none"]


def test_a_folder_of_something_else_is_not_made_an_environment(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    quiet = [].append
    with pytest.raises(BenchError) as caught:
        run(plan(tmp_path, peers_env=tmp_path), quiet, quiet)
    assert str(caught.value) == (
        f"{tmp_path}: cannot create an environment for the peers there: the folder has other files "
        "in it\nhint: pass another folder with --peers-env, or --here to use the packages of this "
        "Python"
    )
    assert (tmp_path / "thesis.tex").exists()
