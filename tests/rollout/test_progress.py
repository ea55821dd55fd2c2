"""The bar and the lines in the log: rollouts that ended, their turns, failures, the slowest."""

import io
import logging
import re
import sys
import threading
from typing import Any

import pytest

from abut.errors import EnvError
from abut.rollout.progress import Progress
from abut.rollout.stream import Stream
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


class Lines(logging.Handler):
    """Keeps the lines of the log, and sets `seen` at the first that `pattern` matches."""

    def __init__(self, pattern: str) -> None:
        super().__init__()
        self.lines: list[tuple[str, str]] = []
        self.seen = threading.Event()
        self._pattern = pattern

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.levelname, record.getMessage()))
        if re.fullmatch(self._pattern, record.getMessage()):
            self.seen.set()


@pytest.fixture
def log() -> Any:
    """Listens to the lines, until one matches."""
    logger = logging.getLogger("abut.rollout.progress")
    handlers: list[Lines] = []

    def listen(pattern: str) -> Lines:
        handlers.append(Lines(pattern))
        logger.addHandler(handlers[-1])
        return handlers[-1]

    yield listen
    for handler in handlers:
        logger.removeHandler(handler)


def waiting(event: threading.Event) -> Any:
    """An environment whose step answers when the event has happened."""

    def step(self: Any, action: str) -> Any:
        assert event.wait(60)
        return Talk.step(self, action)

    return env(step=step)


def test_a_line_in_the_log_names_the_rollout_that_stalls(stage: Stage, log: Any) -> None:
    lines = log(r"rollouts 2/3 · turns 4 · failed 1 · playing 1, the slowest for \d+ s: r1")
    tasks = stage.tasks([Talk, waiting(lines.seen), env(step=raises)])
    engine = stage.engine(Recording(stage.says()), retries=0, log_every_s=0.01)
    rollouts = engine.run(tasks)
    assert lines.seen.is_set(), lines.lines
    assert [rollout.failed for rollout in rollouts] == [False, False, True]


def test_a_stream_logs_too_without_a_total(stage: Stage, log: Any) -> None:
    lines = log(r"rollouts 1 · turns 3 · failed 0 · playing 1, the slowest for \d+ s: r1")

    async def take(batch: Any, played: Any) -> None: ...

    groups = [[task] for task in stage.tasks([Talk, waiting(lines.seen)])]
    engine = stage.engine(Recording(stage.says()), log_every_s=0.01)
    engine.stream(Stream(groups, take, at_once=2, judged=None))
    assert lines.seen.is_set(), lines.lines


def test_the_lines_are_seen_whatever_the_log_shows(
    stage: Stage, log: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for level in (logging.WARNING, logging.INFO):
        lines = log(".*playing 1.*")
        tasks = stage.tasks([waiting(lines.seen)])
        with caplog.at_level(level, logger="abut.rollout.progress"):
            stage.engine(Recording(stage.says()), log_every_s=0.01).run(tasks)
        assert {shown for shown, _ in lines.lines} == {logging.getLevelName(level)}


def test_without_rollouts_none_is_the_slowest() -> None:
    assert Progress(None).line == "rollouts 0 · turns 0 · failed 0 · playing 0"


def test_no_line_without_the_setting(stage: Stage, log: Any) -> None:
    lines = log(".*")
    stage.engine(Recording(stage.says())).run(stage.tasks([Talk, Talk]))
    assert lines.lines == []
