"""The progress bar says how many rollouts ended, with how many turns, and how many failed."""

import io
import sys
from typing import Any

import pytest

from abut.errors import EnvError
from tests.kit.stage.rollouts import Recording, Stage, Talk, env

tqdm_auto = pytest.importorskip("tqdm.auto")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def raises(self: Any, action: str) -> Any:
    raise EnvError("gone")


def shown(stage: Stage, monkeypatch: pytest.MonkeyPatch, out: io.StringIO, enabled: bool) -> str:
    monkeypatch.setattr(sys, "stderr", out)
    # Every change is drawn, not only ten in a second.
    monkeypatch.setattr(tqdm_auto.tqdm, "monitor_interval", 0)
    draw = tqdm_auto.tqdm.update
    monkeypatch.setattr(tqdm_auto.tqdm, "update", lambda bar: draw(bar) or bar.refresh())
    engine = stage.engine(Recording(stage.says()), retries=0, max_rollouts=1, progress=enabled)
    engine.run(stage.tasks([Talk, env(step=raises), Talk]))
    return out.getvalue()


def test_the_bar_counts_rollouts_turns_and_failures(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = shown(stage, monkeypatch, Terminal(), True)
    for line in (
        "rollouts 0/3 · turns 0 · failed 0 |",
        "rollouts 1/3 · turns 3 · failed 0 |",
        "rollouts 2/3 · turns 4 · failed 1 |",
        "rollouts 3/3 · turns 7 · failed 1 |",
    ):
        assert line in text


def test_nothing_is_drawn_where_nobody_watches(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shown(stage, monkeypatch, io.StringIO(), True) == ""
    assert shown(stage, monkeypatch, Terminal(), False) == ""
