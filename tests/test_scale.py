"""The tables of `docs/background/scale.md` are generated from `performance.json`."""

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from benchmarks.figures import Row
from benchmarks.rows import environments
from benchmarks.scale import Scale

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "background" / "scale.md").read_text(encoding="utf-8")
MEASURED = json.loads(
    (ROOT / "docs" / "background" / "performance.json").read_text(encoding="utf-8")
)
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "write_scale.py"))
NOT_YET = SCRIPT["NOT_YET"]


def a_row(name: str, figures: dict[tuple[str, str], float]) -> dict[str, Any]:
    row = Row(name, name)
    for (case, side), value in figures.items():
        row.add(case, {side: [value]})
    return row.as_dict()


def without(name: str) -> dict[str, Any]:
    return {"rows": [row for row in MEASURED["rows"] if row["name"] != name]}


def test_the_page_has_the_tables_of_what_was_measured() -> None:
    written = SCRIPT["written"](PAGE, MEASURED)
    assert written == PAGE, "run scripts.write_scale"


def test_other_figures_are_another_page() -> None:
    engine = SCRIPT["ENGINE"]
    rows = json.loads(json.dumps(MEASURED))["rows"]
    (turns,) = [row for row in rows if row["name"] == engine.row]
    for figure in turns["figures"]:
        figure["median"] *= 2
    assert SCRIPT["written"](PAGE, {"rows": rows}) != PAGE


def test_a_row_that_was_not_measured_is_said_and_a_case_that_is_gone_is_an_error() -> None:
    cited = SCRIPT["ENGINE"]
    line = SCRIPT["limits"](SCRIPT["Measured"](without(cited.row))).splitlines()[2]
    assert line.count(NOT_YET) == 2
    found = {"rows": [a_row(cited.row, {("another case", cited.side): 1.0})]}
    with pytest.raises(KeyError):
        SCRIPT["tables"](found)


def test_what_is_cited_of_the_row_of_environments_are_its_cases() -> None:
    """Check this at full size, even if the row was changed and not measured again."""
    run = {"start": 1.0, "hosts": 1.0, "environment": 1.0}
    loads = [{"turn": 1e-3, "own": 1e-3, "all": 1e-3} for _ in environments.loads_of(Scale())]
    cases = {case for case, _ in environments._values(Scale(), {**run, "loads": loads})}
    figures = {(case, side): 1e-3 for case in cases for side in SCRIPT["POOLS"]}
    rows = [*without("environments")["rows"], a_row("environments", figures)]
    text = SCRIPT["pools"](SCRIPT["Measured"]({"rows": rows}))
    assert NOT_YET not in text
    assert "| 1,000 turns/s | 1,000 turns/s | 1,000 turns/s |" in text


def test_a_page_without_a_place_for_a_table_is_an_error() -> None:
    with pytest.raises(ValueError, match="has no <!-- begin plan -->"):
        SCRIPT["written"](PAGE.replace("begin plan", "began plan"), MEASURED)


def test_only_the_tables_have_figures_of_the_benchmark() -> None:
    """Figures in hand-written text would not change with the tables."""
    by_hand = re.sub(r"<!-- begin (\w+) -->.*?<!-- end \1 -->", "", PAGE, flags=re.DOTALL)
    assert not re.findall(r"\d (?:µs|turns/s|calls/s|rollouts/s)", by_hand)
