"""One eval of the process, which several tasks share, and which makes way for the next batch."""

import asyncio
import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kit.stage.evals import answers
from tests.kit.stage.rollouts import Recording, Stage

pytest.importorskip("inspect_ai")

from inspect_ai import eval_async
from inspect_ai.log import read_eval_log

from abut import evaluate
from abut.envs.signatures import UnplayableRow
from abut.errors import SamplerError
from abut.inspect_ai import inspect_task
from abut.samplers import ScriptedReplies
from tests.kit.stage.inspect_tasks import does, gives, play_tasks, sums


def test_sixteen_rollouts_are_played_at_once(stage: Stage) -> None:
    """Each waits until all have begun."""
    gate: list[asyncio.Barrier] = []

    async def meets(state: Any, generate: Any) -> Any:
        gate[:] = gate or [asyncio.Barrier(16)]
        async with gate[0]:
            return await generate(state)

    agent = inspect_task(sums(solver=does(meets)), log_dir=None)
    assert play_tasks(stage, agent, generations=8).rewards == [1.0] * 8 + [0.0] * 8


def test_two_tasks_play_at_once_with_a_log_each(stage: Stage, logs: Path) -> None:
    """A rollout of one waits for one of the other."""
    gate: list[asyncio.Barrier] = []

    async def meets(state: Any, generate: Any) -> Any:
        gate[:] = gate or [asyncio.Barrier(4)]
        async with gate[0]:
            return await generate(state)

    tasks = [sums("a", solver=does(meets)), sums("b", solver=does(meets), scorer=gives(0.5))]
    agents = [inspect_task(task, log_dir=str(logs), limit=1) for task in tasks]
    batch = play_tasks(stage, *agents)
    assert batch.rewards == [1.0, 1.0, 0.5, 0.5]
    assert [set(rollout.extras) for rollout in batch.rollouts[1:3]] == [
        {"a/includes", "a/limit"},
        {"b/gives", "b/limit"},
    ]
    headers = [read_eval_log(str(path), header_only=True) for path in logs.iterdir()]
    assert sorted(h.eval.metadata["abut_environment"] for h in headers) == ["a", "b"]
    assert {h.status for h in headers} == {"success"}
    assert len({h.eval.run_id for h in headers}) == 1  # of one eval


def test_tasks_that_log_to_two_folders_cannot_share_an_eval(stage: Stage, logs: Path) -> None:
    agents = [inspect_task(sums(name), log_dir=str(logs / name)) for name in "ab"]
    with pytest.raises(
        UnplayableRow, match=r"cannot start: it logs to .*, but another task of the"
    ):
        play_tasks(stage, *agents)
    assert play_tasks(stage, agents[0]).rewards == [1.0, 1.0, 0.0, 0.0]  # and later it can begin


@contextmanager
def running_eval(logs: Path) -> Iterator[None]:
    """An eval of the user's, on a thread, that runs until it is left."""
    runs, over = threading.Event(), threading.Event()

    async def waits(state: Any, generate: Any) -> None:
        runs.set()
        await asyncio.to_thread(over.wait)

    async def run() -> Any:
        return await eval_async(
            sums("theirs", solver=does(waits), scorer=None), model="judge/x", log_dir=str(logs)
        )

    thread = threading.Thread(target=asyncio.run, args=[run()])
    thread.start()
    try:
        assert runs.wait(120)
        yield
    finally:
        over.set()
        thread.join()


def test_an_eval_of_the_user_at_that_time_is_an_error(stage: Stage, logs: Path) -> None:
    agent = inspect_task(sums(), log_dir=str(logs))
    with running_eval(logs), pytest.raises(UnplayableRow) as raised:
        play_tasks(stage, agent)
    assert str(raised.value) == (
        "sums cannot start: this process already runs an eval of Inspect, and Inspect allows "
        "only one at a time\nhint: run the other eval before or after training, or in another "
        "process"
    )
    assert play_tasks(stage, agent).rewards == [1.0, 1.0, 0.0, 0.0]


def test_a_task_that_cannot_begin_says_why(stage: Stage) -> None:
    agent = inspect_task(sums(), sandbox="moon", log_dir=None)
    with pytest.raises(UnplayableRow, match=r"sums cannot start: .*moon"):
        play_tasks(stage, agent)


def test_a_batch_that_was_given_up_leaves_nothing_behind(stage: Stage, logs: Path) -> None:
    """The sampler fails in the middle; the next batch has an eval of its own."""

    class Fails(Recording):
        async def sample(self, request: Any) -> Any:
            raise SamplerError("the server is down")

    agent = inspect_task(sums(), log_dir=str(logs))
    with pytest.raises(SamplerError, match="the server is down"):
        play_tasks(stage, agent, sampler=Fails(answers(stage, lambda text: "4")))
    assert play_tasks(stage, agent).rewards == [1.0, 1.0, 0.0, 0.0]
    assert len(list(logs.iterdir())) == 2


def test_each_batch_has_an_eval_and_a_log_of_its_own(stage: Stage, logs: Path) -> None:
    agent = inspect_task(sums(metadata={"mine": 1}), log_dir=str(logs))
    for _ in range(2):
        play_tasks(stage, agent)
    found = [read_eval_log(str(p), header_only=True).eval.metadata for p in sorted(logs.iterdir())]
    assert sorted(found, key=json.dumps) == [
        {
            "mine": 1,
            "abut_batch": number,
            "abut_environment": "sums",
            "abut_run": "run0",
            "abut_step": 3,
            "abut_mode": "train",
        }
        for number in (1, 2)
    ]


def test_a_task_is_evaluated_without_a_trainer(hf_tokenizer: Any) -> None:
    agent = inspect_task(sums(), log_dir=None)
    sampler = ScriptedReplies(["4"])
    result = evaluate(agent, agent.dataset(), sampler=sampler, tokenizer=hf_tokenizer, k=2)
    assert result.rewards.tolist() == [[1.0, 1.0], [0.0, 0.0]]


def test_the_level_of_the_users_log_stays(stage: Stage) -> None:
    root = logging.getLogger()
    before = root.level
    try:
        for level in (logging.DEBUG, logging.ERROR):
            root.setLevel(level)
            play_tasks(stage, inspect_task(sums(), log_dir=None, limit=1), generations=1)
            assert root.level == level
    finally:
        root.setLevel(before)


def test_no_log_is_kept_unless_a_folder_is_named(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    play_tasks(stage, inspect_task(sums(), log_dir=None))
    assert list(tmp_path.iterdir()) == [tmp_path / "temporary"]
    assert list((tmp_path / "temporary").iterdir()) == []
    play_tasks(stage, inspect_task(sums()))
    assert len(list((tmp_path / "logs").iterdir())) == 1
