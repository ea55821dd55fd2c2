"""The row `async_rollouts` plays both workers, and compares before it counts anything."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")
pytest.importorskip("aiohttp")

from abut.demo.model import ASSETS
from benchmarks.figures import ResultsDiffer
from benchmarks.rows import async_rollouts
from benchmarks.rows.async_rollouts import ABUT, TRL
from benchmarks.scale import Scale
from benchmarks.workbench import Workbench


@pytest.mark.slow
def test_both_workers_play_the_same_game(qwen3: Any) -> None:
    row = async_rollouts.measure(Workbench(Path(qwen3.name_or_path), Scale.quick(), {}))
    assert row.missing == {}
    sides = {(figure.side, figure.case) for figure in row.figures}
    assert sides == {
        (side, case) for side in (ABUT, TRL) for case in async_rollouts._CASES.values()
    }
    assert "abut: 100% of sampled tokens are trained." in row.notes
    # TRL renders each turn again, as this template renders past turns.
    (theirs,) = [note for note in row.notes if note.startswith(f"{TRL}: ")]
    assert theirs != f"{TRL}: 100% of sampled tokens are trained."


@pytest.mark.parametrize("reward", [1.0, 0.5])
def test_other_rewards_have_no_figures(reward: float, monkeypatch: Any) -> None:
    def played(workbench: Any, side: str) -> Any:
        rewards = [1.0, reward if side == TRL else 1.0]
        return {"rewards": rewards, "s": 1.0, "cpu": 1.0, "trained": 1.0}

    monkeypatch.setattr(async_rollouts, "_played", played)
    workbench = Workbench(ASSETS, Scale.quick(), {})
    if reward == 1.0:
        assert async_rollouts.measure(workbench).figures
    else:
        with pytest.raises(ResultsDiffer, match="rewards: abut and TRL AsyncRolloutWorker differ"):
            async_rollouts.measure(workbench)


def test_a_template_that_trl_cannot_parse_is_said(monkeypatch: Any) -> None:
    def played(workbench: Any, side: str) -> Any:
        if side == TRL:
            return {"missing": "it cannot parse this template's tool calls"}
        return {"rewards": [1.0], "s": 1.0, "cpu": 1.0, "trained": 1.0}

    monkeypatch.setattr(async_rollouts, "_played", played)
    row = async_rollouts.measure(Workbench(ASSETS, Scale.quick(), {}))
    assert row.missing == {TRL: "it cannot parse this template's tool calls"}
    assert {figure.side for figure in row.figures} == {ABUT}
