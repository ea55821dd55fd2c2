"""A synchronous environment stays on one thread, from its constructor to `close`."""

import asyncio
import concurrent.futures
import os
import shutil
import signal
import sqlite3
import threading
from typing import Any, ClassVar

import pytest

from abut.concurrency.process_limits import ThreadLimit
from abut.errors import RolloutError
from abut.rollout import env_loops
from tests.kit.stage.rollouts import LIMIT_S, Stage, Talk, asynced, env, eventually, own_threads

pytestmark = pytest.mark.usefixtures("no_thread_stays")

ROLLOUTS = 64


def assert_played(played: Any) -> None:
    assert [rollout.error for rollout in played.rollouts] == [None] * len(played.rollouts)


class Table(Talk):
    """A database in memory, which may be used only where it was made."""

    closed: list[int]

    def __init__(self) -> None:
        super().__init__()
        self.base = sqlite3.connect(":memory:")
        self.base.execute("create table said (text)")

    def step(self, action: str) -> Any:
        self.base.execute("insert into said values (?)", (action,))
        return super().step(action)

    def say(self) -> str:
        return f"{self.base.execute('select count(*) from said').fetchone()[0]} said"

    def score_episode(self, messages: Any) -> None:
        self.reward = float(self.base.execute("select count(*) from said").fetchone()[0])

    def close(self) -> None:
        self.base.close()
        self.closed.append(threading.get_ident())


def test_sqlite_is_made_used_scored_and_closed_on_its_thread(stage: Stage) -> None:
    table = env(Table, closed=[])
    played = stage.play(*[table] * ROLLOUTS)
    assert_played(played)
    assert {rollout.reward for rollout in played.rollouts} == {3.0}
    assert eventually(lambda: len(table.closed) == ROLLOUTS)


class Local(Talk):
    """Keeps what it knows where only its thread finds it; its attributes are looked up there."""

    here = threading.local()

    def __init__(self) -> None:
        super().__init__()
        self.here.actions = self.actions
        self.thread = threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        if name in ("score_episode", "close"):
            assert threading.get_ident() == self.thread, name
        raise AttributeError(name)

    @property
    def alive(self) -> bool:
        assert threading.get_ident() == self.thread
        return len(self.here.actions) < self.turns

    @alive.setter
    def alive(self, alive: bool) -> None: ...

    def say(self) -> str:
        assert self.here.actions is self.actions
        return "go on"


def test_what_is_local_to_a_thread_is_there_at_every_call(stage: Stage) -> None:
    assert_played(stage.play(*[Local] * ROLLOUTS))


class Looping(Talk):
    """Has an event loop of its own, with a task that goes on from step to step."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        self.queue: asyncio.Queue[str] = asyncio.Queue()
        self.task = self.loop.create_task(self.listen())
        self.heard = 0

    async def listen(self) -> None:
        while True:
            await self.queue.get()
            self.heard += 1

    def step(self, action: str) -> Any:
        assert asyncio.get_event_loop() is self.loop

        async def tell() -> None:
            await self.queue.put(action)
            await asyncio.sleep(0)

        self.loop.run_until_complete(tell())
        returned = super().step(action)
        assert self.heard == len(self.actions)
        return returned

    def close(self) -> None:
        self.task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()
        asyncio.set_event_loop(None)


def test_an_environment_may_hold_an_event_loop(stage: Stage) -> None:
    assert_played(stage.play(*[Looping] * 16))


class Browsing(Talk):
    """A page in a browser, by Playwright's synchronous API."""

    def __init__(self) -> None:
        super().__init__()
        from playwright.sync_api import sync_playwright

        self.playwright = sync_playwright().start()
        self.browser = self.playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox"] if os.geteuid() == 0 else [],
        )
        self.page = self.browser.new_page()
        self.page.set_content("<p>0</p>")

    def say(self) -> str:
        count = len(self.actions)
        self.page.evaluate(f"document.querySelector('p').textContent = '{count} said'")
        return self.page.inner_text("p")

    def close(self) -> None:
        self.browser.close()
        self.playwright.stop()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Debian's chromium")
def test_a_browser_is_driven_by_playwrights_sync_api(stage: Stage) -> None:
    pytest.importorskip("playwright")
    played = stage.play(*[Browsing] * 4)
    assert_played(played)
    assert [m["content"] for m in played.rollouts[0].messages if m["role"] == "user"] == [
        "0 said",
        "1 said",
        "2 said",
        "3 said",
    ]


def test_a_signal_is_refused_with_a_way_out(stage: Stage) -> None:
    class Alarmed(Talk):
        def step(self, action: str) -> Any:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            raise AssertionError

    played = stage.play(Alarmed, retries=0, max_failed_frac=1.0)
    error = played.one.error
    assert "Alarmed.step raised ValueError: signal only works in main thread" in error
    assert error.endswith(
        "hint: an environment does not run on the main thread, so it cannot use signals; "
        "RolloutConfig.reset_timeout_s limits a reset, step_timeout_s a step"
    )


def test_close_follows_a_step_that_hangs_when_that_returns(stage: Stage, caplog: Any) -> None:
    hold, calls = threading.Event(), []

    class Hanging(Talk):
        def step(self, action: str) -> Any:
            hold.wait(600)
            calls.append(("step", threading.get_ident()))
            return super().step(action)

        def close(self) -> None:
            calls.append(("close", threading.get_ident()))

    played = stage.play(
        Hanging, *[Talk] * 7, retries=0, step_timeout_s=LIMIT_S, max_failed_frac=1.0
    )
    assert not calls, "a batch does not wait for a call that hangs"
    errors = [rollout.error for rollout in played.rollouts]
    assert "did not answer within step_timeout_s=6" in errors[0]
    assert errors[1:] == [None] * 7
    assert [r.message for r in caplog.records if "have not returned" in r.message] == [
        "1 calls of environments have not returned: each keeps a thread until it returns, and "
        "then its environment is closed"
    ]
    hold.set()
    assert eventually(lambda: len(calls) == 2)
    (_, step), (_, close) = calls
    assert step == close


def test_a_batch_that_gives_up_waits_for_the_calls_of_its_other_rollouts(
    stage: Stage, caplog: Any, monkeypatch: Any
) -> None:
    busy, hold, closed = threading.Event(), threading.Event(), []

    class Busy(Talk):
        def step(self, action: str) -> Any:
            busy.set()
            assert hold.wait(30)
            return super().step(action)

        def close(self) -> None:
            closed.append(self)

    class Failing(Talk):
        def step(self, action: str) -> Any:
            assert busy.wait(30)
            raise OSError("gone")

    def wait_for(futures: Any, timeout_s: float) -> Any:
        if len(futures) == 2:
            hold.set()
        return concurrent.futures.wait(futures, 30)

    monkeypatch.setattr(env_loops, "wait_for", wait_for)
    with pytest.raises(RolloutError, match="gone"):
        stage.play(Busy, Failing, retries=0, on_failure="raise")
    hold.set()
    assert len(closed) == 1
    assert ["OSError: gone" in message for message in caplog.messages] == [True]


class Lent(Talk):
    """Notes on which threads it is played."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[int] = set()
        self.free = True

    def reset(self, seed: str) -> Any:
        self.threads.add(threading.get_ident())
        self.actions.clear()
        self.alive = True
        return self, "go on"

    def step(self, action: str) -> Any:
        self.threads.add(threading.get_ident())
        return super().step(action)

    def close(self) -> None:
        self.threads.add(threading.get_ident())
        self.free = True


class Few:
    """A pool of environments that outlive their episodes."""

    def __init__(self, made: list[Any]) -> None:
        self.made = made

    async def lend(self, task: Any) -> Any:
        while True:
            for lent in self.made:
                if lent.free:
                    lent.free = False
                    return lent
            await asyncio.sleep(0.001)


def test_what_a_pool_lends_stays_on_its_thread_from_loan_to_loan(stage: Stage) -> None:
    pool = Few([Lent(), Lent(), Lent()])
    for _ in range(3):
        assert_played(stage.play(*[pool] * 12))
    threads = [lent.threads for lent in pool.made]
    assert [len(one) for one in threads] == [1, 1, 1]
    assert len(set.union(*threads)) == 3
    assert len(own_threads()) >= 3, "they wait for their environment's next episode"
    pool.made.clear()  # and end with it


def test_what_cannot_be_told_to_end_has_no_thread(stage: Stage) -> None:
    class Slotted:
        __slots__ = ("alive", "reward")

        def reset(self, seed: str) -> Any: ...

        def step(self, action: str) -> Any: ...

    class One:
        async def lend(self, task: Any) -> Any:
            return Slotted()

    played = stage.play(One(), retries=0, max_failed_frac=1.0)
    assert "a pool lent a Slotted that cannot be weakly referenced" in played.one.error


def test_where_no_thread_starts_the_error_says_what_to_do(stage: Stage, monkeypatch: Any) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("abut.concurrency.threads._CachedThread.__init__", refuse)
    played = stage.play(Talk, retries=0, max_failed_frac=1.0)
    assert (
        "could not start a thread for an environment: RuntimeError: can't start new thread"
        in played.one.error
    )
    assert "max_rollouts" in played.one.error


class TestMoreRolloutsThanThreads:
    @pytest.fixture(autouse=True)
    def five_threads(self, monkeypatch: Any) -> None:
        limit = ThreadLimit(5, "kernel.pid_max")
        monkeypatch.setattr("abut.rollout.batch.thread_limit", lambda: limit)

    def test_are_refused_before_any_has_played(self, stage: Stage) -> None:
        with pytest.raises(ValueError, match="may have only 5 threads") as refused:
            stage.play(*[Talk] * 6)
        assert "max_rollouts=None" in str(refused.value)
        assert "hint: set max_rollouts" in str(refused.value)

    def test_play_where_fewer_are_in_flight(self, stage: Stage) -> None:
        assert_played(stage.play(*[Talk] * 6, max_rollouts=5))

    def test_play_where_they_are_asynchronous(self, stage: Stage) -> None:
        assert_played(stage.play(*[asynced(Talk)] * 6))

    def test_play_where_a_pool_has_fewer(self, stage: Stage) -> None:
        assert_played(stage.play(*[Few([Lent()])] * 6))


def test_an_asynchronous_environment_is_looked_at_on_its_loop(stage: Stage) -> None:
    class Looked(asynced(Talk)):  # type: ignore[misc]
        seen: ClassVar[set[str]] = set()

        @property
        def alive(self) -> bool:
            self.seen.add(threading.current_thread().name)
            return len(self.actions) < self.turns

        @alive.setter
        def alive(self, alive: bool) -> None: ...

    assert_played(stage.play(*[Looked] * 4))
    assert Looked.seen == {"abut-env-loop"}


def test_a_long_reply_of_an_asynchronous_environment_is_written_on_a_thread(
    stage: Stage, monkeypatch: Any
) -> None:
    """And a short one where it arrives."""
    from abut.rollout.conversation import Conversation

    where: dict[int, set[str]] = {}
    reply = Conversation.reply

    def noted(self: Any, messages: Any = ()) -> Any:
        said = self.messages[-1]["content"]
        where.setdefault(len(said), set()).add(threading.current_thread().name.split("-")[1])
        return reply(self, messages)

    monkeypatch.setattr(Conversation, "reply", noted)
    twin = asynced(env(turns=9, texts=["short", "short", "x " * 10_000]))
    assert_played(stage.play(twin, max_turns=9, completion=10**6))
    assert where[20_000] == {"thread"}
    assert "loop" in where[5]


def test_a_turn_of_a_synchronous_environment_crosses_once_and_back(
    stage: Stage, monkeypatch: Any
) -> None:
    """The sample is written, the step taken and the reply written on its thread, in one go."""
    from abut.concurrency.threads import CallQueue
    from abut.rollout.conversation import Conversation

    asked, where = [0], set()
    ask = CallQueue.ask

    def counted(self: Any, call: Any, **last: Any) -> Any:
        asked[0] += 1
        return ask(self, call, **last)

    def noted(name: str) -> None:
        method = getattr(Conversation, name)

        def note(self: Any, *args: Any, **keywords: Any) -> Any:
            where.add(threading.get_ident())
            return method(self, *args, **keywords)

        monkeypatch.setattr(Conversation, name, note)

    monkeypatch.setattr(CallQueue, "ask", counted)
    for name in ("open", "hear", "reply"):
        noted(name)

    class Here(env(turns=5)):  # type: ignore[misc]
        def step(self, action: str) -> Any:
            where.add(threading.get_ident())
            return super().step(action)

    assert_played(stage.play(Here, max_turns=5))
    assert asked == [1 + 5], "one for the reset, one for each turn"
    assert len(where) == 1
