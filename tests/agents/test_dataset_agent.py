"""Parts of agents that bring their own datasets: rows, scores and folders."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from abut.agents import UnplayableRow
from abut.agents.dataset_agent import (
    JsonRow,
    OutputFolder,
    as_metrics,
    choose,
    choose_reward,
    content_text,
    finite,
    json_dataset,
    preview,
    rollout_info,
    row_text,
)
from abut.envs.task import RolloutTask


def a_task(columns: dict[str, Any], **options: Any) -> RolloutTask:
    options = {"messages": [], "seed": "s", "episode_seed": 1, **options}
    return RolloutTask(0, "r0", lambda: None, columns=columns, **options)  # type: ignore[arg-type, return-value]


def test_a_row_comes_out_of_the_dataset_as_it_went_in() -> None:
    """Arrow alone would add the keys of one row to the other, as nulls."""
    pytest.importorskip("datasets")
    rows = [{"a": 1}, {"b": [{"deep": None}], "text": "ü\u2028"}]
    made = json_dataset(
        [JsonRow(f"p{n}", json.dumps(row), {"row_id": f"id{n}"}) for n, row in enumerate(rows)],
        "my_row",
        "mine",
    )
    assert made.column_names == ["prompt", "environment", "row_id", "my_row"]
    assert (made["prompt"], made["environment"]) == (["p0", "p1"], ["mine", "mine"])
    read = [row_text(a_task(row), "my_row", "mine") for row in made]
    assert [json.loads(text) for text in read] == rows
    with pytest.raises(ValueError, match="mine has no rows"):
        json_dataset([], "my_row", "mine")


def test_a_task_without_a_row_is_told_where_one_comes_from() -> None:
    for task, hint in (
        (a_task({"my_row": None}), r"use train_dataset=mine\.dataset\(\)"),
        (a_task({}, removed_columns=["my_row"]), "leave remove_unused_columns=True out"),
    ):
        with pytest.raises(UnplayableRow, match=rf"needs the column .my_row. .*\nhint: .*{hint}"):
            row_text(task, "my_row", "mine")


def test_a_choice_of_rows() -> None:
    items = list(range(100))
    assert choose(items, None) == items
    assert choose(items, 3) == [0, 1, 2]
    assert choose(items, 1000) == items
    some = choose(items, 10, shuffle=True, seed=1)
    assert some == choose(items, 10, shuffle=True, seed=1) != choose(items, 10, shuffle=True)
    assert len({*some}) == 10
    assert max(some) > 10
    assert items == list(range(100))
    with pytest.raises(ValueError, match=r"dataset\(n=0\): must be at least 1"):
        choose(items, 0)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, 1.0),
        (True, 1.0),
        (np.float32(0.5), 0.5),
        *((value, None) for value in (None, math.nan, math.inf, -math.inf, 10**400)),
        *((value, None) for value in ("0.5", b"1", "", [], {}, object(), 1j)),
    ],
)
def test_a_score_is_a_finite_number_or_none(value: Any, expected: float | None) -> None:
    assert finite(value) == expected
    assert as_metrics("env", {"x": value}) == ({} if expected is None else {"env/x": expected})


def test_the_reward_is_the_only_score_or_the_chosen_one() -> None:
    assert choose_reward({"a": 0.5}, None, "env") == 0.5
    assert choose_reward({"a": math.nan}, None, "env") is None
    assert choose_reward({}, None, "env") is None
    assert choose_reward({}, "a", "env") is None
    assert choose_reward({"a": 0.5, "b": 1.0}, "b", "env") == 1.0
    assert choose_reward({"a": 0.5, "b": None}, "b", "env") is None
    both = {"a": 0.5, "b": 1.0}
    assert choose_reward(both, lambda scores: sum(map(float, scores.values())), "env") == 1.5  # type: ignore[arg-type]
    with pytest.raises(UnplayableRow) as raised:
        choose_reward(both, None, "env")
    assert str(raised.value) == (
        "env has 2 scores, so reward= must choose one: 'a', 'b'\n"
        "hint: set reward='a' to use one of them, or reward=lambda scores: … to combine them"
    )
    with pytest.raises(UnplayableRow, match=r"env has no score 'c'\nhint: its scores are 'a', 'b'"):
        choose_reward(both, "c", "env")


def test_a_preview_shows_the_text_of_messages() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    parts = [{"type": "text", "text": "what"}, image, SimpleNamespace(text=" is it?")]
    assert content_text(parts) == "what is it?"
    assert preview([("system", ""), ("user", parts)]) == "what is it?"
    assert preview([("system", "Be brief."), ("user", "hi")]) == "system: Be brief.\n\nuser: hi"
    assert preview([("user", [image])], otherwise="row 3") == "row 3"
    assert preview([("user", "ab" * 2000)]) == "ab" * 1000
    assert preview([("system", "x" * 5000), ("user", "the end")]).endswith("x\n\nuser: the end")


def test_a_log_is_told_where_its_rollout_stands() -> None:
    task = a_task({}, group=3, member=1, run_id="run", step=7, mode="eval")
    assert rollout_info(task) == {
        "rollout_id": "r0",
        "run_id": "run",
        "step": 7,
        "group": 3,
        "generation": 1,
        "mode": "eval",
    }


def test_a_folder_is_deleted_only_if_it_is_temporary(tmp_path: Path) -> None:
    given = OutputFolder(tmp_path / "a" / "logs", "abut")
    (given.path / "log").touch()
    given.delete()
    assert (given.path / "log").exists()

    temporary = OutputFolder(None, "abut")
    first = temporary.path
    assert first.name.startswith("abut-")
    assert first == temporary.path
    temporary.delete()
    temporary.delete()
    assert not first.exists()
    assert temporary.path != first
    temporary.delete()
