"""The worker of `AsyncDistillationTrainer` without a trainer: rows have the teacher's scores of
exactly their ids, or there are no such rows.
"""

import asyncio
import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")
pytest.importorskip("aiohttp")
datasets = pytest.importorskip("datasets")

from abut import AgentResult, RolloutConfig, agent  # noqa: E402
from abut.errors import MissingExtraError, RolloutError  # noqa: E402
from abut.records import JsonlRecorder, read_records  # noqa: E402
from abut.trl import (  # noqa: E402
    ModelTeacher,
    TeacherScores,
    VllmTeacher,
    make_distillation_worker,
    make_rollout_func,
)
from abut.trl.teachers.teacher import checked_scores  # noqa: E402
from abut.trl.version import ARRAYS_IN_ROWS, ASYNC_WORKER, trl_version  # noqa: E402

if trl_version() < ASYNC_WORKER:
    pytest.skip("this TRL has no AsyncDistillationTrainer", allow_module_level=True)

from tests.kit.servers.fake_server import FakeServer  # noqa: E402
from tests.kit.stage.agents import Client, user  # noqa: E402
from tests.kit.stage.rollouts import Recording, Stage, Talk, eventually, own_threads  # noqa: E402
from tests.kit.training.async_cpu import Kept, pushed_by  # noqa: E402
from tests.kit.training.distill_cpu import distill_args  # noqa: E402
from tests.kit.training.teacher_server import TeacherServer  # noqa: E402

pytestmark = pytest.mark.usefixtures("no_thread_stays")

WAIT_S = 60
ROWS = datasets.Dataset.from_dict({"prompt": [f"say {k}" for k in range(8)]})


class Made:
    """A teacher whose logprobs follow from the ids, and that notes what it was asked.

    Attributes:
        asked: the ids, positions, number of candidates and name of each row.
        fails: says of each row, by its number, what it raises instead; None: nothing.
    """

    def __init__(self, fails: Callable[[int], Any] = lambda number: None, **own: Any) -> None:
        self.asked: list[tuple[tuple[int, ...], tuple[int, ...], int, str]] = []
        self.fails = fails
        self.gate = threading.Event()
        self.gate.set()
        self.__dict__.update(own)

    async def score(self, ids: Any, positions: Any, top_k: int, name: str) -> TeacherScores:
        self.asked.append((tuple(ids.tolist()), tuple(positions.tolist()), top_k, name))
        if (error := self.fails(len(self.asked) - 1)) is not None:
            raise error
        while not self.gate.is_set():
            await asyncio.sleep(0.001)
        return made_scores(ids, positions, top_k)


def made_scores(ids: Any, positions: Any, top_k: int) -> TeacherScores:
    """Of the drawn token and its successors, of which each is less likely than the one before."""
    drawn, count = ids[positions], max(top_k, 1)
    candidates = (drawn[:, None] + np.arange(count)) % 512
    first = -1.0 - (np.cumsum(ids)[positions - 1] % 97) / 97  # what stands before the token counts
    logprobs = first[:, None] - np.arange(count)
    return TeacherScores(candidates, logprobs.astype(np.float32), logprobs[:, 0].astype(np.float32))


@pytest.fixture
def begin(stage: Stage, hf_tokenizer: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    begun: list[Any] = []

    def begin(env: Any = Talk, *, teacher: Any = None, rows: Any = ROWS, **named: Any) -> Any:
        settings = {"max_inflight_tasks": 4, "teacher_top_k": 2, **named.pop("args", {})}
        kept = Kept()
        make = {
            "sampler": Recording(stage.says()),
            "config": RolloutConfig(max_turns=3, retries=0),
            "recorder": kept,
            "teacher": teacher or Made(),
        }
        worker = make_distillation_worker(
            env,
            args=distill_args(tmp_path, **settings),
            train_dataset=rows,
            processing_class=hf_tokenizer,
            **make | named,
        )
        begun.append(worker)
        worker.update_model_version(1)
        ours = SimpleNamespace(worker=worker, kept=kept, pushed=pushed_by(worker), said={})
        ours.take = lambda count: [worker.rollout_buffer.get(timeout=WAIT_S) for _ in range(count)]
        ours.metrics = lambda: _metrics(ours)
        ours.fails = lambda: _fails(worker)
        worker.start()
        return ours

    yield begin
    for worker in begun:
        worker.stop()


def _metrics(ours: Any) -> dict[str, list[Any]]:
    """Of each, its values so far, one for each group."""
    while ours.worker.metrics_queue.qsize():
        for name, value in ours.worker.metrics_queue.get_nowait().items():
            ours.said.setdefault(name, []).append(value)
    return ours.said  # type: ignore[no-any-return]


def _fails(worker: Any) -> RolloutError:
    raised: list[RolloutError] = []

    def is_ill() -> bool:
        try:
            worker.check_health(1000.0)
        except RolloutError as error:
            raised.append(error)
        return bool(raised)

    assert eventually(is_ill)
    return raised[0]


def check_row(row: Any, scores: Callable[[Any, Any, int], TeacherScores], top_k: int = 2) -> None:
    """Its candidates are those of a teacher that is asked for exactly this row once more."""
    ids, mask = np.asarray(row.input_ids), np.asarray(row.completion_mask)
    at = np.flatnonzero(mask)
    right = checked_scores(scores(ids, at, top_k), ids[at], top_k, "again")
    assert mask.sum() == len(right.drawn) > 0
    if trl_version() < ARRAYS_IN_ROWS:
        assert [of_one for of_one, m in zip(row.teacher_topk_ids, mask, strict=True) if not m] == [
            [] for _ in range(int((1 - mask).sum()))
        ]
        found = [of_one for of_one, m in zip(row.teacher_topk_ids, mask, strict=True) if m]
        assert found == [[id_ for id_ in of_one if id_ >= 0] for of_one in right.ids.tolist()]
        return
    assert row.teacher_topk_ids.shape == (len(ids), top_k + 1)
    assert (row.teacher_topk_ids[mask == 0] == -1).all()
    assert np.isneginf(row.teacher_topk_logprobs[mask == 0]).all()
    assert row.teacher_topk_ids[mask == 1].tolist() == right.ids.tolist()
    assert row.teacher_topk_logprobs[mask == 1] == pytest.approx(right.logprobs, abs=1e-5)


@agent
async def three(endpoint: Any, prompt: Any) -> AgentResult:
    async with Client(endpoint) as asks:
        for text in ("one", "two", "three"):
            await asks.ask([user(f"{text} {prompt}")])
    return AgentResult(1.0)


# ---- rows


@pytest.mark.parametrize(("env", "rows"), [(Talk, 1), (three, 3)], ids=["env", "agent"])
def test_every_row_is_scored_by_itself(begin: Any, env: Any, rows: int) -> None:
    teacher = Made()
    ours = begin(env, teacher=teacher)
    taken = ours.take(2 * rows)
    for row in taken:
        check_row(row, made_scores)
        assert row.enqueued_at is not None
        assert row.model_version == 1
    assert len({row.prompt_id for row in taken}) == 2
    asked = [ids for ids, *_ in teacher.asked]
    assert {tuple(np.asarray(row.input_ids).tolist()) for row in taken} <= {*asked}
    trained = sum(row.trained_tokens for row in taken[:rows])
    first = next(r for r, extra in ours.kept.rollouts if extra["group"] == taken[0].group_id)
    assert trained == first.sampled_tokens + first.dropped_tokens


def test_a_model_scores_rows_as_a_forward_of_their_ids_does(begin: Any, tiny_model: Any) -> None:
    model = tiny_model(1)

    def again(ids: Any, positions: Any, top_k: int) -> TeacherScores:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids.tolist()])).logits[0, positions - 1].double()
        logprobs = logits.log_softmax(-1)
        best = logprobs.topk(top_k)
        drawn = logprobs.gather(-1, torch.tensor(ids[positions])[:, None])[:, 0]
        return TeacherScores(best.indices.numpy(), best.values.numpy(), drawn.numpy())

    ours = begin(three, teacher=ModelTeacher(model))
    rows = ours.take(6)
    for row in rows:
        check_row(row, again)
    with pytest.raises(AssertionError):
        check_row(rows[0], made_scores)


@pytest.mark.parametrize(("beta", "top_k"), [(0.0, 5), (0.5, 1), (1.0, 0)])
def test_no_more_candidates_are_asked_for_than_the_loss_takes(
    begin: Any, beta: float, top_k: int
) -> None:
    teacher = Made()
    ours = begin(teacher=teacher, args={"beta": beta, "teacher_top_k": 5})
    check_row(ours.take(1)[0], made_scores, top_k)
    assert {asked[2] for asked in teacher.asked} == {top_k}


def test_each_row_is_scored_by_the_teacher_that_its_prompt_names(begin: Any) -> None:
    names = ["math", "code"] * 4
    rows = ROWS.add_column("teacher_id", names)
    teacher = Made(names=("math", "code"))
    urls = {"math": "http://a", "code": "http://b"}
    ours = begin(rows=rows, teacher=teacher, args={"teacher_server_urls": urls})
    for row in ours.take(6):
        assert row.teacher_id == names[row.prompt_id]
    ours.worker.stop()
    for rollout, extra in ours.kept.rollouts:
        assert rollout.teacher == extra["columns"]["teacher_id"]
    assert {asked[3] for asked in teacher.asked} == {"math", "code"}


def test_a_prompt_is_played_as_often_as_is_asked(begin: Any) -> None:
    ours = begin(rollouts_per_prompt=3)
    rows: list[Any] = []
    while not {0, 1} <= {row.group_id for row in rows}:  # groups end in any order
        rows += ours.take(3)
    assert sorted(row.prompt_id for row in rows if row.group_id < 2) == [0, 0, 0, 1, 1, 1]


def test_rewards_are_metrics_and_decide_nothing(begin: Any) -> None:
    def judge(completions: Any, **_: Any) -> Any:
        return [2.0] * len(completions)

    row = begin(reward_funcs=[judge]).take(1)[0]
    assert row.metrics["reward"] == row.metrics["rewards/judge"] == 2.0
    assert begin().take(1)[0].metrics["rewards/env_reward"] == 1.0

    class Unscored(Talk):
        def step(self, action: str) -> Any:
            result = super().step(action)
            self.reward = None
            return result

    row = begin(Unscored).take(1)[0]
    assert not any(math.isnan(value) for value in row.metrics.values())
    assert "reward" not in row.metrics


def test_records_have_the_teachers_logprobs(begin: Any, tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    ours = begin(recorder=JsonlRecorder(path))
    row = ours.take(1)[0]
    ours.worker.stop()
    record = next(iter(read_records(path)))
    mask = np.asarray(row.completion_mask)
    right = made_scores(np.asarray(row.input_ids), np.flatnonzero(mask), 0).drawn
    found = [v for v, m in zip(record["teacher_logprobs"], record["env_mask"], strict=True) if m]
    assert found == pytest.approx(right.tolist(), abs=1e-5)
    assert record["teacher"] == "default"
    assert record["advantage"] is None
    assert record["rewards"] == {"env_reward": 1.0}


# ---- rows that are not scored


def gone(number: int) -> Any:
    return ConnectionResetError("gone") if number % 3 == 1 else None


@pytest.mark.parametrize(("env", "rows"), [(Talk, 1), (three, 3)], ids=["env", "agent"])
def test_a_row_that_is_not_scored_is_not_trained_and_is_counted(
    begin: Any, env: Any, rows: int
) -> None:
    teacher = Made(gone)
    config = RolloutConfig(max_turns=3, retries=0, max_failed_frac=1.0)
    ours = begin(env, teacher=teacher, config=config)
    taken = ours.take(12)
    ours.worker.stop()
    for row in taken:
        check_row(row, made_scores)
    unscored = ours.metrics()["rollout/teacher_unscored_frac"]
    assert {*unscored} == ({0, 1} if rows == 1 else {1 / 3})
    assert np.mean(unscored) == pytest.approx(1 / 3, abs=0.15)
    if rows == 3:  # the other rows of a rollout are trained
        groups = [row.group_id for row in taken]
        assert any(groups.count(group) == 2 for group in groups)


def test_too_many_rows_without_scores_end_the_run(begin: Any) -> None:
    error = begin(teacher=Made(lambda number: TimeoutError("no answer"))).fails()
    assert "32 of 32 rollouts failed, more than max_failed_frac=0.5 allows" in str(error)
    assert "did not score a row: TimeoutError: no answer" in str(error)


def test_a_teacher_that_refuses_ends_the_run_with_its_words(begin: Any) -> None:
    error = begin(teacher=Made(lambda number: ValueError("no such row"))).fails()
    assert "no such row" in str(error)


def test_a_teacher_is_killed_and_restarted_and_the_run_goes_on(
    begin: Any, tiny_model: Any, hf_tokenizer: Any
) -> None:
    model = tiny_model(1)
    config = RolloutConfig(max_turns=3, retries=0, max_failed_frac=1.0)
    first = TeacherServer(model, hf_tokenizer).__enter__()
    ours = begin(teacher=VllmTeacher(first.url, give_up_s=0.5), config=config)
    before = ours.take(4)
    first.__exit__()

    def are_lost() -> bool:
        return sum(ours.metrics().get("rollout/teacher_unscored_frac", ())) >= 2

    assert eventually(are_lost)
    ours.worker.check_health(1000.0)
    with TeacherServer(model, hf_tokenizer, port=first.port) as second:
        while not second.rows:
            ours.take(1)
        after = ours.take(8)
        ours.worker.stop()
    scored = {*first.rows, *second.rows}
    for row in [*before, *after]:
        assert tuple(np.asarray(row.input_ids).tolist()) in scored


def test_a_short_absence_of_the_teacher_costs_no_row(
    begin: Any, tiny_model: Any, hf_tokenizer: Any
) -> None:
    model = tiny_model(1)
    first = TeacherServer(model, hf_tokenizer).__enter__()
    ours = begin(teacher=VllmTeacher(first.url))
    ours.take(4)
    first.__exit__()
    played = len(ours.kept.rollouts)
    with TeacherServer(model, hf_tokenizer, port=first.port) as second:
        ours.take(played + 8)
        ours.worker.stop()
        assert second.rows
    assert not any(ours.metrics()["rollout/teacher_unscored_frac"])


def test_a_slow_teacher_holds_up_playing(stage: Stage, begin: Any) -> None:
    teacher, sampler = Made(), Recording(stage.says())
    teacher.gate.clear()
    ours = begin(teacher=teacher, sampler=sampler)
    assert eventually(lambda: len(teacher.asked) == 4)
    assert len({request.rollout_id for request, _ in sampler.calls}) == 4
    ours.worker.check_health(1000.0)
    teacher.gate.set()
    ours.take(8)


def test_a_worker_stops_while_its_teacher_is_not_there(begin: Any) -> None:
    with FakeServer() as server:
        url = server.url
    ours = begin(teacher=VllmTeacher(url))
    assert eventually(lambda: ours.worker._stream._loop is not None)
    ours.worker.stop()
    assert ours.worker._error is None
    assert eventually(lambda: not own_threads())


# ---- arguments


def test_arguments_are_refused_by_name(hf_tokenizer: Any, tmp_path: Path, monkeypatch: Any) -> None:
    def make(teacher: Any = None, rows: Any = ROWS, settings: Any = None, **changes: Any) -> Any:
        named = {
            "args": distill_args(tmp_path, **settings or {}),
            "train_dataset": rows,
            "processing_class": hf_tokenizer,
            "teacher": teacher or Made(),
        }
        return make_distillation_worker(Talk, **named | changes)

    with pytest.raises(TypeError, match="args must be the AsyncDistillationConfig of the trainer"):
        make(args={})
    with pytest.raises(TypeError, match="trains every token of a completion, including env"):
        make(args=SimpleNamespace(teacher_model_server_url="http://a"))
    with pytest.raises(TypeError, match="credit= does not work with distillation"):
        make(credit=object())
    with pytest.raises(TypeError, match="teacher must have a method `async score"):
        make(teacher=object())
    with pytest.raises(TypeError, match=r"RolloutConfig\(branch='longest'\)"):
        make(config=RolloutConfig(branch="longest"))
    with pytest.raises(ValueError, match="rollouts_per_prompt=0"):
        make(rollouts_per_prompt=0)
    with pytest.raises(
        ValueError, match=r"a loss that is always 0.*\nhint: set add_tail_bucket=True"
    ):
        make(settings={"beta": 1.0, "add_tail_bucket": False})
    with pytest.raises(ValueError, match=r"beta=0\.5 with teacher_top_k=0"):
        make(settings={"beta": 0.5, "teacher_top_k": 0})
    with pytest.raises(ValueError, match="teacher_top_k=-1"):
        make(settings={"teacher_top_k": -1})
    with pytest.raises(ValueError, match="at temperature 2, but VllmTeacher computes them at"):
        make(teacher=VllmTeacher("http://a"), settings={"teacher_temperature": 2.0})
    two = Made(names=("math", "code"))
    with pytest.raises(ValueError, match=r"args\.teacher_server_urls has 'default'"):
        make(teacher=two)
    urls = {"teacher_server_urls": {"math": "http://a", "code": "http://b"}}
    with pytest.raises(ValueError, match="no column 'teacher_id'"):
        make(teacher=two, settings=urls)
    rows = ROWS.add_column("teacher_id", ["math", "code", "art"] + ["math"] * 5)
    with pytest.raises(ValueError, match="row 2 of the dataset has teacher_id='art'"):
        make(teacher=two, rows=rows, settings=urls)
    monkeypatch.setattr("abut.trl.streaming.make_worker.trl_version", lambda: (1, 10))
    with pytest.raises(MissingExtraError, match=r"make_distillation_worker needs TRL 1\.11"):
        make()


def test_trls_server_distillation_is_refused_with_the_reason() -> None:
    from trl.experimental.server_distillation import ServerDistillationTrainer

    class Own(ServerDistillationTrainer):  # type: ignore[misc]
        """As users make one to have it call a rollout_func."""

    with pytest.raises(
        TypeError,
        match="its loss ignores the mask\nhint: to train only sampled",
    ):
        make_rollout_func(Talk)(["say"], object.__new__(Own))


def test_without_a_teacher_the_servers_of_the_trainer_are_asked(
    hf_tokenizer: Any, tmp_path: Path
) -> None:
    urls = {"math": "http://a:1", "code": "http://b:2"}
    worker = make_distillation_worker(
        Talk,
        args=distill_args(tmp_path, teacher_server_urls=urls),
        train_dataset=ROWS.add_column("teacher_id", ["math", "code"] * 4),
        processing_class=hf_tokenizer,
    )
    assert worker._args.ignore_data_skip, "a resumed run throws no rows away"
    teacher = worker._distillation._teacher
    assert teacher.names == ("math", "code")
    assert [address.url for address in teacher.addresses["code"]] == ["http://b:2"]


def test_epochs_of_several_rows_a_prompt_have_as_many_steps(
    hf_tokenizer: Any, tmp_path: Path
) -> None:
    def steps(env: Any = Talk, rollouts_per_prompt: int = 1, **settings: Any) -> int:
        args = distill_args(tmp_path, **{"max_steps": -1, "num_train_epochs": 2} | settings)
        worker = make_distillation_worker(
            env,
            args=args,
            train_dataset=ROWS,
            processing_class=hf_tokenizer,
            teacher=Made(),
            rollouts_per_prompt=rollouts_per_prompt,
        )
        assert worker.epoch_groups == (None if settings.get("max_steps") else 16)
        return int(args.max_steps)

    assert steps() == -1, "TRL counts right"
    assert steps(rollouts_per_prompt=3) == 2 * 8 * 3 / 4
    assert steps(three) == 10**9
    assert steps(three, max_steps=7) == 7
    with pytest.raises(ValueError, match="lr_scheduler_type='linear': a rollout of an agent may"):
        steps(three, lr_scheduler_type="linear")
