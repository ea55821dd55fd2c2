"""What code of others may do without more than its own rollout being lost."""

import asyncio
import gc
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

import abut.rollout.env_loops
from abut.errors import EnvError, RolloutError, SamplerError, text_of
from abut.samplers.sampler import Sample, SampleRequest
from tests.kit.stage.rollouts import (
    LIMIT_S,
    Batched,
    Recording,
    Stage,
    Talk,
    assert_done,
    asynced,
    env,
)

pytestmark = pytest.mark.usefixtures("no_thread_stays")


class Unsayable(Exception):
    def __str__(self) -> str:
        raise AttributeError("no text")


class Shy:
    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


def raises(error: BaseException) -> Any:
    def method(self: Any, *_: Any, **__: Any) -> Any:
        raise error

    return method


def rewarded(value: Any) -> Any:
    def step(self: Any, action: str) -> Any:
        returned = Talk.step(self, action)
        self.reward = value
        return returned

    return step


def in_itself(self: Any) -> Any:
    message: dict[str, Any] = {"role": "tool", "content": "x"}
    message["itself"] = message
    return [message]


class Lookup(Talk):
    def __getattr__(self, name: str) -> Any:
        return self.__dict__["data"][name]


class Leaves(Talk):
    turns = 5

    @property  # type: ignore[misc]
    def alive(self) -> bool:
        raise SystemExit(3)

    @alive.setter
    def alive(self, value: bool) -> None:
        pass


class Cancelled:
    async def lend(self, task: Any) -> Any:
        raise asyncio.CancelledError


BAD = {
    "an error without a text": (
        env(step=raises(Unsayable())),
        "Talk.step raised Unsayable (whose text raises AttributeError)",
    ),
    "a lookup that raises": (Lookup, "Lookup.close raised KeyError: 'data'"),
    "a reward beyond float": (
        env(step=rewarded(10**400)),
        "Talk.reward is inf, but a group's baseline needs finite rewards\nhint: set reward to "
        "None for an episode without a score",
    ),
    "a message in itself": (
        env(say=in_itself),
        "Talk.reset replied with a message that cannot be copied: RecursionError: the value is "
        "nested too deeply, or contains itself",
    ),
    "a reply without a text": (
        env(say=lambda self: Shy()),
        "Talk.reset must reply with a str or a list of messages, got Shy",
    ),
    "SystemExit in a property": (Leaves, "Leaves.alive raised SystemExit: 3"),
    "a pool that is cancelled": (Cancelled(), "Cancelled.lend raised CancelledError: "),
}


@pytest.mark.parametrize(("bad", "error"), BAD.values(), ids=BAD)
def test_it_costs_its_own_rollout(stage: Stage, bad: Any, error: str) -> None:
    rollouts = stage.play(bad, Talk, Talk, max_failed_frac=1.0).rollouts
    assert rollouts[0].error is not None
    if error.startswith("Lookup"):
        error = "Lookup."  # whatever is looked up first
    assert rollouts[0].error.startswith(f"EnvError: {error}")
    for rollout in rollouts[1:]:
        assert_done(rollout)


def test_a_sampler_that_cancels_itself_is_named(stage: Stage) -> None:
    class Gone(Recording):
        async def sample(self, request: SampleRequest) -> Sample:
            raise asyncio.CancelledError

    with pytest.raises(SamplerError) as raised:
        stage.play(sampler=Gone(stage.says()))
    assert str(raised.value) == (
        "rollout r0, turn 0: something other than the rollout cancelled the sampler"
    )


class Exhausted(Batched):
    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        return next(iter([]))


def test_a_stop_iteration_of_a_sampler_is_delivered(stage: Stage) -> None:
    with pytest.raises(RuntimeError, match=r"^StopIteration: $"):
        stage.play(Talk, Talk, sampler=Exhausted(stage.says()))


def test_a_stop_iteration_of_a_processor_is_delivered(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage.processor, "parse_agent_output", lambda text: next(iter([])))
    with pytest.raises(RuntimeError, match=r"^StopIteration: $"):
        stage.play(Talk, Talk)


@pytest.mark.parametrize("name", ["method", "what"])
def test_a_column_may_have_any_name(stage: Stage, name: str) -> None:
    got: list[Any] = []

    def reset(self: Any, *args: Any, **columns: Any) -> Any:
        got.append(columns)
        return Talk.reset(self, *args)

    played = stage.play(env(reset=reset), task={"columns": {name: 5, 7: "not a name"}})
    assert_done(played.one)
    assert got == [{name: 5, "episode_seed": 7}]


def test_the_seed_may_have_the_name_of_a_column(stage: Stage) -> None:
    got: list[Any] = []

    def reset(self: Any, question: str, *, level: int) -> Any:
        got.append((question, level))
        return Talk.reset(self, question)

    columns = {"question": "another", "level": 3}
    assert_done(stage.play(env(reset=reset), task={"columns": columns}).one)
    assert got == [("seed", 3)]


def test_environments_may_take_the_place_of_others(stage: Stage) -> None:
    """A step may return a new environment, at the address of one that is gone."""

    def step(self: Any, action: str) -> Any:
        _, reply = Talk.step(self, action)
        following = type(self)()
        following.__dict__.update(self.__dict__)
        return following, reply

    rollouts = stage.play(*[env(step=step, turns=4)] * 512, max_rollouts=8, retries=0).rollouts
    for rollout in rollouts:
        assert_done(rollout)


def test_what_async_environments_keep_can_be_used_in_the_next_batch(stage: Stage) -> None:
    loops = []
    gate = asyncio.Semaphore(1)
    background: list[asyncio.Task[None]] = []

    async def wait_for_ever() -> None:
        await asyncio.get_running_loop().create_future()

    class Gated(asynced(Talk)):  # type: ignore[misc]
        async def step(self, action: str) -> Any:
            if not background:
                background.append(asyncio.ensure_future(wait_for_ever()))
            async with gate:
                await asyncio.sleep(0)
                loops.append(asyncio.get_running_loop())
                return await super().step(action)

    engine = stage.engine(Recording(stage.says()))
    for _ in range(3):
        for rollout in engine.run(stage.tasks([Gated] * 4)):
            assert_done(rollout)
    assert len(set(loops)) == 1
    assert not background[0].done()
    (loop,) = set(loops)
    loops.clear()
    del engine
    gc.collect()
    assert background[0].cancelled()
    assert loop.is_closed()


def test_a_batch_after_an_interrupted_one_waits_for_it(stage: Stage) -> None:
    """Or says that it cannot begin; it never hangs."""
    released = threading.Event()
    engine = stage.engine(Recording(stage.says()))
    engine._unended = SimpleNamespace(has_ended=released.wait)  # the batch before
    threading.Timer(0.2, released.set).start()
    assert_done(engine.run(stage.tasks([Talk]))[0])


def test_a_batch_that_does_not_end_is_an_error(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("abut.rollout.engine._INTERRUPTED_S", 0.01)
    released = threading.Event()
    engine = stage.engine(Recording(stage.says()))
    engine._unended = SimpleNamespace(has_ended=released.wait)  # the batch before
    with pytest.raises(RolloutError) as raised:
        engine.run(stage.tasks([Talk]))
    released.set()
    assert str(raised.value) == (
        "the previous batch was interrupted, but its rollouts have not ended after 0.01 s\n"
        "hint: call again; if it keeps failing, check that the environment pool ends when it is "
        "cancelled"
    )


def test_who_scores_an_episode_changes_nothing(stage: Stage) -> None:
    def score_episode(self: Any, messages: list[Any]) -> None:
        for message in messages:
            message["content"] = message["content"].upper()
        if not failed:
            failed.append(True)
            raise ValueError("once")
        self.reward = 1.0

    failed: list[bool] = []
    task = {"messages": [{"role": "user", "content": "what is it?"}]}
    played = stage.play(env(score_episode=score_episode), task=task, retries=1)
    assert_done(played.one)
    prompts = {tuple(request.prompt_ids) for request, _ in played.sampler.calls if not request.turn}
    assert len(prompts) == 1, "both attempts begin alike"
    assert all(message["content"] != message["content"].upper() for message in played.one.messages)


def test_a_close_that_hung_once_stops_no_other(stage: Stage) -> None:
    closed: list[int] = []
    hang = threading.Event()

    class Closing(asynced(Talk)):  # type: ignore[misc]
        async def close(self) -> None:
            if hang.is_set():
                await asyncio.get_running_loop().create_future()
            await asyncio.sleep(0.02)
            closed.append(1)

    engine = stage.engine(Recording(stage.says()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(abut.rollout.env_loops, "_CLOSE_S", LIMIT_S)
        engine.run(stage.tasks([Closing] * 2))
        hang.set()
        engine.run(stage.tasks([Closing] * 2))
        hang.clear()
        engine.run(stage.tasks([Closing] * 2))
    assert len(closed) == 4


def test_the_text_of_an_error_is_short() -> None:
    assert text_of(ValueError("x" * 5_000)) == f"ValueError: {'x' * 2_000}… (5,000 characters)"
    assert text_of(EnvError("gone")) == "EnvError: gone"
