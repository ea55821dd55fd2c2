"""Records on disk: whole ones only, in both forms, with what scored them."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import abut
from abut.records.read import from_record, read_records
from abut.records.record import ROLLOUT, SCHEMA_VERSION, SCORES, Type, arrow_schema, to_record
from abut.records.recorder import (
    JsonlRecorder,
    ParquetRecorder,
    recorder_at,
    scores_path,
)
from abut.rollout.rollout import Branch, TurnRecord
from tests.kit.checkout import ROOT
from tests.kit.data.records import a_rollout

pytest.importorskip("pyarrow")

FORMS = ("rollouts.jsonl", "rollouts")


HARD = [
    {"messages": [{"role": "user", "content": None}, {"role": "tool", "content": "x" * 10**7}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "é\u2028"}], "n": 1}]},
    {"messages": [{"role": "assistant", "content": "", "tool_calls": [{"f": {"a": [1]}}]}]},
    {"reward": None, "columns": None, "error": "EnvError: dead", "provenance": ()},
    {"messages": [], "turns": [], "seams": [], "control_spellings": {"<|im_end|>": 2}},
    {"attempt_errors": ["once"], "attempt_tracebacks": ["Traceback: once"], "attempts": 2},
    {"branches": [Branch(a_rollout().columns, cause="rewritten", delivered=False)]},
    {"extras": {"moves": [1, None]}, "client_rewrites": {"text_lost": 2}},
    {"name": "white", "session": "s", "row_reward": 0.5, "row_trained": False},
    {"names": {"s": "white"}, "rewards": {"white": 0.5, "chatcmpl-1": None}},
    {
        "branches": [
            Branch(
                a_rollout().columns,
                name="judge",
                reward=-1.0,
                trained=False,
                auxiliary=True,
                turns=[TurnRecord(2, 4, answer_id="chatcmpl-2")],
                turns_before=[TurnRecord(0, 1, reward=0.25), TurnRecord(1, 2)],
            )
        ]
    },
]


@pytest.mark.parametrize("form", FORMS)
def test_what_was_recorded_is_read_again(tmp_path: Path, form: str) -> None:
    recorder = recorder_at(tmp_path / form)
    rows = [{"n": k, "any": [None, "x", {"y": [k]}][k % 3]} for k in range(len(HARD))]
    rollouts = [a_rollout(f"r{k}", **changes) for k, changes in enumerate(HARD)]
    for row, rollout in zip(rows, rollouts, strict=True):
        recorder.write(rollout, step=3, mode="train", columns=row, run_id="run", rank=0)
    if isinstance(recorder, ParquetRecorder):
        recorder.flush()
    found = list(read_records(tmp_path / form))
    assert [record["columns"] for record in found] == rows
    for record, rollout in zip(found, rollouts, strict=True):
        assert record["messages"] == rollout.messages
        assert record["control_spellings"] == rollout.control_spellings
        assert record["schema_version"] == SCHEMA_VERSION
        kept = from_record(to_record(rollout))
        assert record.keys() == kept.keys()
        for name in kept.keys() - {"time", "columns", "run_id", "rank", "step", "mode"}:
            assert record[name] == kept[name], name


@pytest.mark.parametrize("form", FORMS)
def test_scores_are_joined_where_there_are_any(tmp_path: Path, form: str) -> None:
    recorder = recorder_at(tmp_path / form)
    for k in range(3):
        recorder.write(a_rollout(f"r{k}"), step=1)
    if isinstance(recorder, ParquetRecorder):
        recorder.flush()
    both = {"schema_version": 2, "run_id": "run", "time": 1.0, "total": 0.5}
    rewards = [{"name": "f", "value": 0.5}, {"name": "g", "value": None}]
    recorder.write_scores([{**both, "rollout_id": "r1", "rewards": rewards, "advantage": -1.0}])
    found = list(read_records(tmp_path / form))
    assert [record["advantage"] for record in found] == [None, -1.0, None]
    assert [record["rewards"] for record in found] == [None, {"f": 0.5, "g": None}, None]


@pytest.mark.parametrize("form", FORMS)
def test_scores_that_are_named_with_their_rollouts_are_passed_over(
    tmp_path: Path, form: str
) -> None:
    recorder = recorder_at(tmp_path / form)
    recorder.write(a_rollout("r0"), step=1)
    if isinstance(recorder, ParquetRecorder):
        recorder.flush()
    score = {"rollout_id": "r0", "rewards": [], "advantage": 1.0, "time": 1.0, "run_id": "run"}
    recorder.write_scores([{"schema_version": 2, **score}])
    found = list(read_records(sorted(tmp_path.glob("*"))))
    assert [(record["rollout_id"], record["advantage"]) for record in found] == [("r0", 1.0)]
    scores = scores_path(tmp_path / form)
    with pytest.raises(ValueError, match="holds scores") as raised:
        list(read_records(scores))
    assert str(raised.value).startswith(
        f"{scores} holds scores, which abut reads together with their"
    )


@pytest.mark.parametrize("form", FORMS)
def test_what_is_no_field_is_refused(tmp_path: Path, form: str) -> None:
    with pytest.raises(TypeError) as raised:
        recorder_at(tmp_path / form).write(a_rollout(), stepp=3)
    assert str(raised.value) == (
        "'stepp' is not a field of a record\nhint: docs/reference/records.md lists the fields"
    )


def test_records_of_the_first_schema_are_read(tmp_path: Path) -> None:
    old = {
        **{"schema_version": 1, "rollout_id": "train-0-0-1", "step": 3, "mode": "train"},
        **{"tokenizer": "qwen", "prompt_ids": [1], "completion_ids": [2], "env_mask": [1]},
        **{"logprobs": [-0.5], "provenance": [0, 3], "turns": [], "seams": []},
        **{"messages": [{"role": "user", "content": "hi", "n": 1}], "control_spellings": {}},
        **{"reward": 1.0, "stop_reason": "env_done", "error": None, "attempts": 1},
        **{"attempt_errors": [], "seconds": 0.5},
    }
    (tmp_path / "r.jsonl").write_text(json.dumps(old) + "\n")
    (read,) = read_records(tmp_path / "r.jsonl")
    assert {name: read[name] for name in old} == old
    assert (read["group"], read["attempt_tracebacks"], read["branches"]) == (None, [], [])
    assert (read["names"], read["given_rewards"], read["row_trained"]) == ({}, {}, True)


@pytest.mark.parametrize("form", FORMS)
def test_records_of_the_second_schema_are_read(tmp_path: Path, form: str) -> None:
    """They lack the names, sessions and rewards of conversations, and the turns of branches."""
    rollout = a_rollout(branches=[Branch(a_rollout().columns, cause="new")])
    old = to_record(rollout, step=3) | {"schema_version": 2}
    newer = {"name", "session", "row_reward", "row_trained", "names", "given_rewards", "teacher"}
    of_branch = {"name", "session", "reward", "trained", "auxiliary", "turns", "before"}
    streams = {"teacher_logprobs", "streams"}
    newer, of_branch = newer | streams, of_branch | streams
    old = {name: value for name, value in old.items() if name not in newer}
    old["branches"] = [{k: v for k, v in b.items() if k not in of_branch} for b in old["branches"]]
    old["turns"] = [{k: v for k, v in t.items() if k != "answer_id"} for t in old["turns"]]
    if form == "rollouts":
        pyarrow = pytest.importorskip("pyarrow")
        (tmp_path / form).mkdir()
        table = pyarrow.Table.from_pylist([old])
        pyarrow.parquet.write_table(table, tmp_path / form / "a.parquet")
    else:
        (tmp_path / form).write_text(json.dumps(old) + "\n")
    (read,) = read_records(tmp_path / form)
    expected = from_record(to_record(rollout, step=3)) | {"schema_version": 2}
    assert read.keys() == expected.keys()
    for name in expected.keys() - {"time"}:
        assert read[name] == expected[name], name


# ---- whole or absent

KILLED = """
import sys
sys.path[:0] = [sys.argv[1], sys.argv[2]]
from pathlib import Path
from abut.rollout.rollout import Branch, TurnRecord
from tests.kit.data.records import a_rollout
from abut.records.recorder import ParquetRecorder, recorder_at
recorder = recorder_at(Path(sys.argv[3]))
print("ready", flush=True)
for k in range(10**6):
    said = [{"role": "user", "content": "x" * 300_000}]
    recorder.write(a_rollout(f"r{k}", messages=said), step=k)
    if isinstance(recorder, ParquetRecorder):
        recorder.flush()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
@pytest.mark.parametrize("form", FORMS)
def test_a_killed_process_leaves_whole_records(tmp_path: Path, form: str) -> None:
    path = tmp_path / form
    for kills in range(1, 5):
        source = str(Path(abut.__file__).parents[1])
        command = [
            sys.executable,
            "-c",
            KILLED,
            str(ROOT),
            source,
            str(path),
        ]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert writer.stdout is not None
        writer.stdout.readline()
        written = threading.Event()
        while not written.wait(0.001):  # until this one has written something, whenever that is
            if form == "rollouts":
                enough = any(path.glob("*.parquet"))
            else:
                enough = path.exists() and path.stat().st_size > kills * 500_000
            if enough:
                written.set()
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        found = list(read_records(path))
        assert found
        assert all(len(record["messages"][0]["content"]) == 300_000 for record in found)
        if form == "rollouts":
            for file in path.glob("*.parquet"):
                file.unlink()


def test_what_a_killed_process_left_of_a_line_goes_before_the_next(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    recorder = JsonlRecorder(path)
    recorder.write(a_rollout("r0"))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 2])
    assert [record["rollout_id"] for record in read_records(path)] == ["r0"]
    recorder.write(a_rollout("r1"))
    assert [record["rollout_id"] for record in read_records(path)] == ["r0", "r1"]
    assert path.read_bytes().startswith(whole + b'{"schema_version"')


def test_threads_and_processes_share_a_file_of_lines(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    said = [{"role": "user", "content": "x" * 100_000}]

    def write(name: str) -> None:
        recorder = JsonlRecorder(path)
        for k in range(20):
            recorder.write(a_rollout(f"{name}{k}", messages=said))

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({record["rollout_id"] for record in read_records(path)}) == 80


def test_a_file_of_that_name_is_an_error_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = ParquetRecorder(tmp_path / "r")
    monkeypatch.setattr(recorder, "_name", lambda first: "same.parquet")
    recorder.write(a_rollout("r0"), step=0)
    recorder.flush()
    recorder.write(a_rollout("r1"), step=0)
    with pytest.raises(FileExistsError, match=r"same\.parquet already exists"):
        recorder.flush()
    assert [record["rollout_id"] for record in read_records(tmp_path / "r")] == ["r0"]
    assert sorted(file.name for file in (tmp_path / "r").iterdir()) == ["same.parquet"]
    monkeypatch.setattr(recorder, "_name", lambda first: "other.parquet")
    recorder.flush()
    found = {record["rollout_id"] for record in read_records(tmp_path / "r")}
    assert found == {"r0", "r1"}, "what could not be written is not lost"


def test_without_steps_files_are_written_by_number_and_by_age(tmp_path: Path) -> None:
    path = tmp_path / "many"
    recorder = ParquetRecorder(path, rollouts_per_file=3, seconds_per_file=3600)
    for k in range(7):
        recorder.write(a_rollout(f"r{k}"))
    assert len(list(path.glob("*.parquet"))) == 2
    recorder.flush()
    assert len(list(read_records(path))) == 7
    old = ParquetRecorder(tmp_path / "old", seconds_per_file=0.01)
    old.write(a_rollout("r0"))
    assert old._timer is None or old._timer.join(30) is None
    assert len(list(read_records(tmp_path / "old"))) == 1


def test_a_folder_and_limits_that_cannot_be_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file, but Parquet records need a folder"):
        ParquetRecorder(tmp_path / "file")
    with pytest.raises(ValueError, match="rollouts_per_file=0"):
        ParquetRecorder(tmp_path / "r", rollouts_per_file=0)


def test_a_path_without_records_says_so(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    with pytest.raises(ValueError, match="the folder has no records"):
        list(read_records(tmp_path / "r"))
    (tmp_path / "r" / "x.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match="not a file of records"):
        list(read_records(tmp_path / "r"))
    with pytest.raises(FileNotFoundError):
        list(read_records(tmp_path / "nowhere.jsonl"))


def test_half_a_surrogate_pair_is_kept_as_a_question_mark(tmp_path: Path) -> None:
    for form in FORMS:
        recorder = recorder_at(tmp_path / form)
        recorder.write(a_rollout(messages=[{"role": "user", "content": "a\ud800b"}]), step=0)
        if isinstance(recorder, ParquetRecorder):
            recorder.flush()
        (read,) = read_records(tmp_path / form)
        assert read["messages"][0]["content"] == "a?b"


# ---- other tools


@pytest.fixture(scope="module")
def run(tmp_path_factory: Any) -> Path:
    """Many rollouts, of which only the last one fails, calls a tool and has scores of its own."""
    path = tmp_path_factory.mktemp("run") / "rollouts"
    recorder = ParquetRecorder(path)
    for step in range(40):
        for k in range(8):
            changes: dict[str, Any] = {"reward": None, "messages": []}
            row: dict[str, Any] = {"answer": None}
            if (step, k) == (39, 7):
                changes = HARD[2] | {"error": "EnvError: late", "reward": 1.5}
                row = {"answer": {"deep": [1.5]}}
            recorder.write(a_rollout(f"r{step}-{k}", **changes), step=step, columns=row)
        recorder.flush()
    return path


def test_pandas_reads_it(run: Path) -> None:
    frame = pytest.importorskip("pandas").read_parquet(run)
    assert len(frame) == 320
    late = frame.loc[frame["error"].notna()].iloc[0]
    assert (late["reward"], late["completion_ids"].tolist()) == (1.5, [3, 4, 5])
    assert json.loads(late["messages"][0]["extra"])["tool_calls"]


def test_polars_reads_it(run: Path) -> None:
    polars = pytest.importorskip("polars")
    frame = polars.read_parquet(run / "*.parquet")
    assert frame.filter(polars.col("error").is_not_null())["reward"].to_list() == [1.5]
    assert polars.read_parquet(run).shape[0] == 320


def test_duckdb_reads_it(run: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    query = f"select count(*), max(reward), any_value(error) from '{run}/*.parquet'"
    assert duckdb.sql(query).fetchall() == [(320, 1.5, "EnvError: late")]


def test_datasets_reads_it(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    dataset = datasets.load_dataset(str(run), cache_dir=str(tmp_path / "cache"), split="train")
    assert dataset.num_rows == 320
    assert dataset[319]["messages"][0]["content"] == ""
    assert dataset.filter(lambda row: row["error"] is not None)["reward"][:] == [1.5]


def test_datasets_reads_lines_with_the_schema(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    recorder = JsonlRecorder(tmp_path / "r.jsonl")
    for k in range(20):
        recorder.write(a_rollout(f"r{k}", reward=None, messages=[]))
    recorder.write(a_rollout("late", error="EnvError: late"))
    features = datasets.Features.from_arrow_schema(arrow_schema(ROLLOUT))
    dataset = datasets.load_dataset(
        "json",
        data_files=str(tmp_path / "r.jsonl"),
        features=features,
        cache_dir=str(tmp_path / "cache"),
        split="train",
    )
    assert dataset[20]["error"] == "EnvError: late"


# ---- the page

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "records.md"


_BRANCH = ROLLOUT["branches"][0]  # type: ignore[index]
SECTIONS: dict[str, Mapping[str, Type]] = {
    "## A rollout": ROLLOUT,
    "## A turn": ROLLOUT["turns"][0],
    "## An image": ROLLOUT["images"][0],
    "## A branch": {name: t for name, t in _BRANCH.items() if ROLLOUT.get(name) != t}
    | {name: _BRANCH[name] for name in ("name", "session", "reward", "messages", "tools")},
    "## Dropped images": ROLLOUT["dropped_images"][0],
    "## Streams": ROLLOUT["streams"][0],
    "## Scores": SCORES,
    "### A trained row": SCORES["rows"][0],
}  # type: ignore[assignment]
"""The tables of the page. A branch lists what is not a column of the row."""


@pytest.mark.parametrize("title", SECTIONS)
def test_the_page_and_the_writer_have_the_same_fields(title: str) -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.count(f"{title}\n") == 1
    section = re.split(r"\n#+ ", text.partition(f"{title}\n")[2])[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| `")]
    told = {row[0].strip("| `"): row[1].strip("` ") for row in rows}
    assert told == {name: type_name(type_) for name, type_ in SECTIONS[title].items()}
    assert all(len(row) == 4 and all(cell.strip("| ") for cell in row) for row in rows)


def test_logprobs_and_ids_survive_in_their_types(tmp_path: Path) -> None:
    ids = np.arange(150_000, 150_100)
    columns = abut.Columns(
        prompt_ids=ids,
        completion_ids=ids,
        logprobs=np.full(100, -1.25, dtype=np.float32),
        env_mask=np.ones(100, dtype=np.uint8),
    )
    recorder = ParquetRecorder(tmp_path / "r")
    recorder.write(a_rollout(columns=columns), step=0)
    recorder.flush()
    (read,) = read_records(tmp_path / "r")
    assert read["completion_ids"] == ids.tolist()
    assert read["logprobs"] == [-1.25] * 100
    assert read["env_mask"] == [1] * 100
    assert os.listdir(tmp_path) == ["r"]
    assert scores_path(tmp_path / "r.jsonl") == tmp_path / "r.scores.jsonl"


def type_name(type_: Type) -> str:
    """Return the type as the page writes it, where a struct with a table has a name."""
    named = {"A turn": "turn", "An image": "image", "Dropped images": "dropped images"}
    named |= {"Streams": "stream", "A trained row": "trained row"}
    if type_ == _BRANCH:
        return "branch"
    for title, fields in SECTIONS.items():
        if type_ == fields and title.strip("# ") in named:
            return named[title.strip("# ")]
    if isinstance(type_, str):
        return type_.removesuffix("_")
    if isinstance(type_, list):
        return f"list of {type_name(type_[0])}"
    return "{" + ", ".join(f"{name}: {type_name(inner)}" for name, inner in type_.items()) + "}"
