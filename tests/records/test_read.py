"""Which files a path names: one run, or the runs below a folder."""

import json
import sys
from pathlib import Path

import pytest

from abut.records.read import RecordReader, find_sources, read_records
from abut.records.recorder import JsonlRecorder, ParquetRecorder
from tests.kit.data.records import a_rollout


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Three runs among files that are none, at two depths."""
    pytest.importorskip("pyarrow")
    root = tmp_path / "runs"
    for recorder in (
        JsonlRecorder(root / "first.jsonl"),
        ParquetRecorder(root / "second"),
        JsonlRecorder(root / "deep" / "third.jsonl"),
    ):
        name = recorder.path.stem
        recorder.write(a_rollout(name), step=0)
        if isinstance(recorder, ParquetRecorder):
            recorder.flush()
        recorder.write_scores(
            [{"rollout_id": name, "schema_version": 3, "rewards": [], "advantage": 1.0}]
        )
    (root / "log.jsonl").write_text('{"loss": 0.5}\n')
    (root / "list.jsonl").write_text("[]\n")
    (root / ".hidden").mkdir()
    (root / ".hidden" / "first.jsonl").write_bytes((root / "first.jsonl").read_bytes())
    (root / "empty.jsonl").touch()
    table = pytest.importorskip("pyarrow").table({"prompt": ["p"]})
    (root / "dataset").mkdir()
    pytest.importorskip("pyarrow.parquet").write_table(table, root / "dataset" / "d.parquet")
    if sys.platform != "win32":
        (root / "latest").symlink_to(root / "second")
    return root


def test_a_folder_of_runs_is_searched_for_records(runs: Path) -> None:
    sources = [(source.name, source.path) for source in find_sources([runs])]
    assert sources == [
        ("deep/third", runs / "deep" / "third.jsonl"),
        ("first", runs / "first.jsonl"),
        ("second", runs / "second"),
    ]
    records = list(read_records(runs))
    assert [record["rollout_id"] for record in records] == ["third", "first", "second"]
    assert {record["advantage"] for record in records} == {1.0}


def test_a_reader_says_where_a_record_is_from_and_how_much_it_has_read(runs: Path) -> None:
    reader = RecordReader(runs)
    names, shares = [], []
    for _ in reader:
        names.append(reader.sources[-1].name)
        shares.append(reader.share)
    assert names == ["deep/third", "first", "second"]
    assert shares == sorted(shares)
    assert 0 < shares[0] < 0.9
    assert shares[-1] == pytest.approx(1.0)


def test_a_folder_without_records_is_an_error_unless_they_may_come_later(tmp_path: Path) -> None:
    (tmp_path / "notes.jsonl").write_text(json.dumps({"text": "hi"}) + "\n")
    with pytest.raises(ValueError, match="the folder has no records\nhint: "):
        list(find_sources([tmp_path]))
    assert list(find_sources([tmp_path], known=())) == []
