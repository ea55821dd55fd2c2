"""The newcomer's tutorial, from an empty folder to the worst rollouts of a trained model."""

import re
from pathlib import Path

import pytest

from abut.records import read_records
from tests.kit.page_run import numbers_of, run_page, same_but_for_numbers

pytest.importorskip("trl")


def evaluated(shown: str, printed: str) -> None:
    """The table of `abut eval`: counts that are certain are equal, rewards are near."""
    table = printed[printed.index("rollouts ") :]
    same_but_for_numbers(shown, re.sub(r"(, \w+ \d+)?$", r"\1", table))
    assert table.splitlines()[0] == shown.splitlines()[0]
    reward, expected = (numbers_of(text.splitlines()[1])[0] for text in (table, shown))
    assert reward == pytest.approx(expected, abs=0.15)


def rising(shown: str, printed: str) -> None:
    lines = [line for line in printed.splitlines() if line.startswith("step ")]
    same_but_for_numbers(shown, "\n".join(lines) + "\n")
    rewards = [numbers_of(line)[1] for line in lines]
    assert rewards[0] < 0.4
    assert rewards[-1] > 0.45


def listed(shown: str, printed: str) -> None:
    """The rollouts with a low reward: those on the page are of another run."""
    title, *rows = printed.splitlines()
    assert title.split() == shown.splitlines()[0].split()
    assert all(float(row.split()[3]) < 0.2 for row in rows)


@pytest.mark.docs
def test_a_newcomer_trains_an_environment_of_her_own(tmp_path: Path) -> None:
    run_page(
        "first_environment.md",
        tmp_path,
        differs={
            "pytest": same_but_for_numbers,
            "abut eval": evaluated,
            "python train.py": rising,
            "abut show": listed,
        },
    )
    before, after = ([*read_records(tmp_path / "runs" / name)] for name in ("before", "after"))
    assert len(before) == len(after) == 80
    assert (tmp_path / "runs" / "after.html").stat().st_size > 50_000
    won = [sum(record["reward"] == 1 for record in records) for records in (before, after)]
    assert won[0] < won[1]
