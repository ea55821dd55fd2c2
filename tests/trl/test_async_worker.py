"""The rollout worker without a trainer: what it pushes, when it waits, and how it ends."""

import asyncio
import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")

import abut
from abut import AgentResult, RolloutConfig, agent
from abut.errors import MissingExtraError, RolloutError
from abut.records.read import read_records
from abut.trl import env_reward, make_rollout_worker
from tests.kit.stage.rollouts import (
    Batched,
    Recording,
    Stage,
    Talk,
    asynced,
    check_exact,
    env,
    eventually,
    own_threads,
)
from tests.kit.training.async_cpu import Kept, a_worker, async_args, pushed_by
from tests.kit.training.example_run import DOCS

pytestmark = pytest.mark.usefixtures("no_thread_stays")

WAIT_S = 60
ROWS = [{"prompt": f"say {k}"} for k in range(8)]
CONFIG = RolloutConfig(max_turns=3, retries=0)
FEW = RolloutConfig(max_turns=3, max_turn_tokens=4, retries=0)


class Worker:
    """A worker whose rows a test takes."""

    def __init__(self, worker: Any, kept: Kept) -> None:
        self.worker = worker
        self.kept = kept
        self.pushed = pushed_by(worker)
        self._metrics: dict[str, Any] = {}

    def take(self, rows: int) -> list[Any]:
        return [self.worker.rollout_buffer.get(timeout=WAIT_S) for _ in range(rows)]

    def metrics(self) -> dict[str, Any]:
        """The last of each, as far as they were said."""
        while self.worker.metrics_queue.qsize():
            self._metrics |= self.worker.metrics_queue.get_nowait()
        return self._metrics

    def fails(self) -> RolloutError:
        """What `check_health` raises at last."""
        raised: list[RolloutError] = []

        def is_ill() -> bool:
            try:
                self.worker.check_health(1000.0)
            except RolloutError as error:
                raised.append(error)
            return bool(raised)

        assert eventually(is_ill)
        return raised[0]


@pytest.fixture
def begin(stage: Stage, hf_tokenizer: Any, tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    begun: list[Any] = []

    def begin(env: Any = Talk, *, rows: Any = None, start: bool = True, **named: Any) -> Worker:
        settings = {"max_inflight_tasks": 4, **named.pop("args", {})}
        args = async_args(tmp_path, **settings)
        make = {"sampler": Recording(stage.says()), "config": CONFIG, "recorder": Kept()} | named
        worker = a_worker(env, args, rows or ROWS, hf_tokenizer, **make)
        begun.append(worker)
        worker.update_model_version(1)
        if start:
            worker.start()
        return Worker(worker, make["recorder"])

    yield begin
    for worker in begun:
        worker.stop()


def test_a_worker_begins_nothing_before_start(begin: Any) -> None:
    before = set(own_threads())  # those of earlier tests end by themselves
    worker = begin(start=False).worker
    assert set(own_threads()) <= before
    worker.stop()
    with pytest.raises(RolloutError, match="is not running: it was never started"):
        worker.check_health(1.0)


@pytest.mark.parametrize("kind", [Recording, Batched])
@pytest.mark.parametrize("twin", [lambda cls: cls, asynced], ids=["sync", "async"])
def test_every_row_is_what_the_engine_saw_and_sampled(
    stage: Stage, begin: Any, kind: Any, twin: Any
) -> None:
    sampler = kind(stage.says())
    ours = begin(twin(Talk), sampler=sampler)
    rows = ours.take(8)
    ours.worker.stop()
    recorded = {
        (*r.columns.prompt_ids.tolist(), *r.columns.completion_ids.tolist()): r
        for r, _ in ours.kept.rollouts
    }
    for row in rows:
        rollout = recorded[tuple(row.input_ids.tolist())]
        calls = [call for call in sampler.calls if call[0].rollout_id == rollout.rollout_id]
        start = len(rollout.columns.prompt_ids)
        check_exact(rollout.columns, calls)
        assert row.completion_mask[:start].sum() == row.old_log_probs[:start].sum() == 0
        assert row.completion_mask[start:].tolist() == rollout.columns.env_mask.tolist()
        assert row.old_log_probs[start:].tolist() == rollout.columns.logprobs.tolist()
        assert row.enqueued_at is not None


class Rated(Talk):
    """Rewards by the place that it was made in: 0, 1, 2, 3, 0, …; the second is not scored."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        self.rate = type(self).made % 4
        type(self).made += 1

    def step(self, action: str) -> Any:
        result = super().step(action)
        self.reward = None if self.rate == 1 else float(self.rate)
        return result


def test_a_group_has_trls_advantages_and_unscored_rollouts_are_not_pushed(begin: Any) -> None:
    ours = begin(env(Rated, made=0), args={"max_inflight_tasks": 1})
    rows = ours.take(3)
    scored = np.array([0.0, 2.0, 3.0])
    right = (scored - scored.mean()) / (scored.std() + 1e-8)
    assert [row.advantage for row in rows] == pytest.approx(right.tolist())
    assert {row.group_id for row in rows} == {0}
    assert [row.metrics["reward"] for row in rows] == [0.0, 2.0, 3.0]
    assert rows[0].metrics["reward_std"] == pytest.approx(scored.std())
    assert rows[0].metrics["rewards/env_reward"] == 0.0
    assert rows[0].completion[0]["role"] == "assistant"
    assert rows[0].prompt[-1]["role"] == "user"


class Fails(Rated):
    def step(self, action: str) -> Any:
        if self.rate == 1:
            raise ValueError("boom")
        return super().step(action)


@pytest.mark.parametrize(("on_failure", "mean"), [("unscored", 5 / 3), ("zero", 5 / 4)])
def test_what_failed_is_never_a_row(begin: Any, on_failure: Any, mean: float) -> None:
    config = RolloutConfig(max_turns=3, retries=0, on_failure=on_failure)
    ours = begin(env(Fails, made=0), config=config, args={"max_inflight_tasks": 1})
    rows = ours.take(3)
    std = rows[0].metrics["reward_std"]
    assert [row.advantage for row in rows] == pytest.approx(
        [(value - mean) / (std + 1e-8) for value in (0.0, 2.0, 3.0)]
    )
    (failed,) = [r for r, extra in ours.kept.rollouts if extra["group"] == 0 and r.failed]
    assert "boom" in failed.error


def test_a_group_of_which_nothing_is_scored_is_passed_over(begin: Any) -> None:
    class Unscored(Talk):
        def step(self, action: str) -> Any:
            result = super().step(action)
            self.reward = None
            return result

    hard = {"say 0": Unscored}

    class Mixed(Talk):
        def reset(self, seed: str) -> Any:
            self.cls = hard.get(seed, Talk)
            return super().reset(seed)

        def step(self, action: str) -> Any:
            result = super().step(action)
            if self.cls is Unscored:
                self.reward = math.nan
            return result

    assert {row.group_id for row in begin(Mixed).take(8)} & {0} == set()


def test_reward_functions_get_what_a_batch_would_give_them(begin: Any) -> None:
    seen: list[dict[str, Any]] = []

    def judge(completions: Any, **named: Any) -> list[float]:
        seen.append({"completions": completions, **named})
        named["log_metric"]("judge/asked", 1.0)
        return [float(k) for k in range(len(completions))]

    async def bonus(prompts: Any, **_: Any) -> list[Any]:
        return [10.0, None, None, None]

    rows = [{"prompt": "say", "level": 3}]
    ours = begin(rows=rows, reward_funcs=[judge, bonus, env_reward])
    pushed = ours.take(4)
    asked = seen[0]
    assert asked["level"] == [3] * 4
    assert asked["prompts"] == ["say"] * 4
    assert asked["env_reward"] == [1.0] * 4
    assert [message["role"] for message in asked["completions"][0][:2]] == ["assistant", "user"]
    assert sorted(row.metrics["reward"] for row in pushed) == [2.0, 3.0, 4.0, 11.0]
    bonuses = [row.metrics["rewards/bonus"] for row in pushed]
    assert sum(math.isnan(value) for value in bonuses) == 3
    assert eventually(lambda: "judge/asked" in ours.metrics())


def test_metrics_are_what_the_trainer_takes(begin: Any) -> None:
    ours = begin()
    ours.take(4)
    assert eventually(lambda: ours.worker.metrics_queue.qsize() > 0)
    metrics = ours.metrics()
    assert metrics["rollout/turns/mean"] == 3
    assert metrics["rollout/stop/env_done"] == 1
    trained, sampled = metrics["rollout/trained_sampled_frac"]
    assert trained == sampled > 0
    assert metrics["rollout/ended_stale_total"] == metrics["rollout/dropped_stale_total"] == 0
    page = (DOCS / "reference" / "metrics.md").read_text(encoding="utf-8")
    for name in metrics:
        assert f"`{name.removeprefix('rollout/stop/')}`" in page


# ---- branches


@pytest.fixture
def client() -> Any:
    pytest.importorskip("aiohttp")
    from tests.kit.stage.agents import Client, user

    return SimpleNamespace(open=Client, user=user)


def test_an_agent_of_three_branches_gives_three_rows(stage: Stage, begin: Any, client: Any) -> None:
    @agent
    async def three(endpoint: Any, prompt: Any) -> AgentResult:
        async with client.open(endpoint) as asks:
            for text in ("one", "two", "three"):
                await asks.ask([client.user(text)])
        return AgentResult(len(endpoint.rollout_id) % 3, {"agent/asked": 3.0})

    sampler = Recording(stage.says())
    ours = begin(three, sampler=sampler, args={"num_generations": 2})
    rows = ours.take(6)
    ours.worker.stop()
    by_rollout: dict[Any, list[Any]] = {}
    for row in rows[:3], rows[3:]:
        assert len({row_.advantage for row_ in row}) == len({row_.group_id for row_ in row}) == 1
        by_rollout.setdefault(id(row), row)
    first = ours.kept.rollouts[0][0]
    calls = [c for c in sampler.calls if c[0].rollout_id.startswith(first.rollout_id)]
    sampled = sorted(tuple(sample.ids.tolist()) for _, sample in calls)
    trained = sorted(tuple(row.input_ids[row.completion_mask == 1].tolist()) for row in rows[:3])
    assert trained == sampled
    asked = {tuple(request.prompt_ids.tolist()) for request, _ in calls}
    assert {tuple(r.input_ids[r.completion_mask == 0].tolist()) for r in rows[:3]} == asked
    assert {*first.branches[0].streams["versions"].tolist()} == {1}


def test_a_branch_that_goes_on_trains_each_token_once(
    stage: Stage, begin: Any, client: Any
) -> None:
    @agent
    async def forks(endpoint: Any) -> float:
        async with client.open(endpoint) as asks:
            message = await asks.ask([client.user("one")])
            for text in ("two", "three"):
                await asks.ask([client.user("one"), message, client.user(text)])
        return 1.0

    sampler = Recording(stage.says())
    ours = begin(forks, sampler=sampler, args={"num_generations": 1})
    one, other = ours.take(2)
    ours.worker.stop()
    tokens = sum(
        len(sample.ids)
        for request, sample in sampler.calls
        if request.rollout_id.startswith(ours.kept.rollouts[0][0].rollout_id)
    )
    assert one.trained_tokens + other.trained_tokens == tokens
    shared = min(len(one.input_ids), len(other.input_ids))
    both = (one.completion_mask[:shared] == 1) & (other.completion_mask[:shared] == 1)
    same = one.input_ids[:shared] == other.input_ids[:shared]
    until = int(np.argmin(np.append(same, False)))
    assert not both[:until].any()


def test_an_agent_settles_each_group(begin: Any, client: Any) -> None:
    class Ranked:
        groups: ClassVar[list[set[int]]] = []

        async def run(self, endpoint: Any, task: Any) -> None:
            async with client.open(endpoint) as asks:
                await asks.ask([client.user("hi")])

        async def settle(self, played: Any, tokenizer: Any) -> None:
            self.groups.append({task.group for task, _ in played})
            for task, rollout in played:
                rollout.reward = float(task.member)

    ranked = Ranked()
    rows = begin(ranked).take(4)
    assert sorted(row.metrics["reward"] for row in rows) == [0, 1, 2, 3]
    assert all(len(groups) == 1 for groups in ranked.groups)


class Game:
    """Two seats with rewards of their own, a judge that is not trained, and a title."""

    async def run(self, endpoint: Any, task: Any) -> AgentResult:
        seats = {"first": endpoint.named("first"), "second": endpoint.named("second")}
        seats["judge"] = endpoint.named("judge", train=False)
        for name, seat in seats.items():
            async with self.client.open(seat) as asks:
                await asks.ask([self.client.user(f"{name} of {task.member}")])
        async with self.client.open(endpoint) as asks:
            await asks.ask([self.client.user(f"title of {task.member}")])
            await asks.ask([self.client.user(f"work of {task.member}")], tools=[self.lookup])
        if task.member == 3:  # nothing else scores its seats
            return AgentResult(None, rewards={"first": 3.0, "second": None})
        rewards = {"first": float(task.member), "second": -10.0 * task.member}
        return AgentResult(task.member / 2, rewards=rewards)

    client: Any
    lookup: Any


@pytest.mark.parametrize("auxiliary", ["train", "leave_out"])
def test_names_have_rewards_and_baselines_of_their_own(
    stage: Stage, begin: Any, client: Any, auxiliary: Any, caplog: pytest.LogCaptureFixture
) -> None:
    from tests.kit.stage.agents import LOOKUP

    game = Game()
    game.client, game.lookup = client, LOOKUP
    # The rollout's own reward is what its function says, which does not count for the seats.
    ours = begin(
        game,
        config=RolloutConfig(retries=0, auxiliary=auxiliary),
        reward_funcs=lambda env_reward, **_: [None if r is None else 2 * r for r in env_reward],
    )
    titles = 3 if auxiliary == "train" else 0
    rows = ours.take(3 * 3 + 1 + titles)
    ours.worker.stop()
    group = [(r, extra) for r, extra in ours.kept.rollouts if extra["group"] == 0]
    advantages: dict[Any, dict[int, float]] = {}
    for rollout, extra in group:
        for branch in [rollout.main_row, *rollout.branches]:
            ids = [*branch.columns.prompt_ids.tolist(), *branch.columns.completion_ids.tolist()]
            of_branch = [row.advantage for row in rows if row.input_ids.tolist() == ids]
            name = "title" if branch.auxiliary else branch.name
            if of_branch:
                advantages.setdefault(name, {})[extra["place"]] = of_branch[0]

    def trls(*rewards: float) -> Any:
        values = np.array(rewards)
        expected = (values - values.mean()) / (values.std() + 1e-8)
        return pytest.approx(dict(enumerate(expected.tolist())), abs=1e-6)

    assert advantages.pop("first") == trls(0.0, 1.0, 2.0, 3.0)
    assert advantages.pop("second") == trls(0.0, -10.0, -20.0)
    assert advantages.pop(None) == trls(0.0, 1.0, 2.0)
    if titles:
        assert advantages.pop("title") == trls(0.0, 1.0, 2.0)
    assert advantages == {}, "the judge is never a row"
    assert sum(math.isnan(row.metrics["reward"]) for row in rows) == 1
    alone, of = ours.metrics()["rollout/alone_frac"]
    assert (alone, of) == (0.0, 4.0)
    said = [
        record for record in caplog.records if "judged by that reward alone" in record.getMessage()
    ]
    assert len(said) == 1


# ---- waiting, and being told to stop


def test_a_full_queue_is_waited_for(stage: Stage, begin: Any) -> None:
    sampler = Recording(stage.says())
    ours = begin(sampler=sampler, args={"queue_maxsize": 3})
    assert eventually(lambda: ours.worker.rollout_buffer.full())
    stream = ours.worker._stream
    assert eventually(lambda: len(stream._batch.attempts) == 0), "nothing is played meanwhile"
    played = len({request.rollout_id for request, _ in sampler.calls})
    assert played <= 3 + 4 + 4 + 4, "in the queue, on its way, in flight"
    groups = [row.group_id for row in ours.take(40)]
    assert groups == sorted(groups, key=groups.index), "and goes on"
    assert len(groups) == 40
    metrics = ours.metrics()
    assert metrics["rollout/backpressure_s"] > 0


def test_a_worker_with_a_full_queue_stops(begin: Any) -> None:
    ours = begin(args={"queue_maxsize": 1})
    assert eventually(lambda: ours.worker.rollout_buffer.full())
    ours.worker.stop()
    assert eventually(lambda: not own_threads())
    assert ours.worker._error is None


def test_a_paused_server_is_waited_for(begin: Any, monkeypatch: Any) -> None:
    pytest.importorskip("aiohttp")
    from abut.samplers import fleet
    from tests.kit.training.async_cpu import PolicyServer

    monkeypatch.setattr(fleet, "_WATCH_S", 0.3)
    with PolicyServer(_model()) as server:
        ours = begin(sampler="auto", config=FEW, args={"vllm_server_base_url": server.url})
        ours.take(4)
        server.pause()
        assert eventually(lambda: server.waiting == 4)
        # A minute of a server's silence is six rounds of asking for its health.
        asked = server.health
        assert eventually(lambda: server.health >= asked + 6)
        ours.worker.check_health(1000.0)
        assert server.waiting == 4
        server.resume()
        ours.take(8)
        ours.worker.stop()
        assert all(rollout.error is None for rollout, _ in ours.kept.rollouts)


def test_a_paused_server_does_not_hold_up_the_end(begin: Any) -> None:
    pytest.importorskip("aiohttp")
    from tests.kit.training.async_cpu import PolicyServer

    with PolicyServer(_model()) as server:
        ours = begin(sampler="auto", config=FEW, args={"vllm_server_base_url": server.url})
        ours.take(4)
        server.pause()
        assert eventually(lambda: server.waiting == 4)
        ours.worker.stop()
        assert eventually(lambda: not own_threads())
        server.resume()


def _model() -> Any:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 8}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=512, **small, **heads))


def test_adapters_are_asked_for_by_the_version_of_now(begin: Any) -> None:
    pytest.importorskip("aiohttp")
    from tests.kit.servers.fake_server import FakeServer

    names = ["base", "trl-policy-v1", "trl-policy-v2"]
    models = [{"id": name, "max_model_len": 512} for name in names]
    with FakeServer(models=models) as server:
        ours = begin(sampler="auto", args={"vllm_server_base_url": server.url})
        ours.take(4)
        assert {body["model"] for body in server.requests} == {"trl-policy-v1"}
        ours.worker.update_model_version(2)
        assert eventually(lambda: server.requests[-1]["model"] == "trl-policy-v2")
        settings = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "repetition_penalty": 1.0}
        assert settings.items() <= server.requests[0].items()
        ours.worker.stop()


# ---- staleness


class Gated(Recording):
    """Answers where the gate is open."""

    def __init__(self, script: Any) -> None:
        super().__init__(script)
        self.gate = threading.Event()
        self.waiting = 0

    async def sample(self, request: Any) -> Any:
        self.waiting += 1
        try:
            while not self.gate.is_set():
                await asyncio.sleep(0.001)
        finally:
            self.waiting -= 1
        return await super().sample(request)


def test_rollouts_that_get_too_old_are_ended_and_none_is_trained_in_vain(
    stage: Stage, begin: Any
) -> None:
    sampler = Gated(stage.says())
    ours = begin(sampler=sampler)
    assert eventually(lambda: sampler.waiting == 4)
    ours.worker.update_model_version(4)  # max_staleness is 2
    assert eventually(lambda: len(ours.kept.rollouts) >= 4)
    assert {rollout.stop_reason for rollout, _ in ours.kept.rollouts[:4]} == {"stale"}
    sampler.gate.set()
    assert all(row.model_version == 4 for row in ours.take(8))
    assert eventually(lambda: ours.metrics().get("rollout/ended_stale_total") is not None)


def test_rows_that_wait_until_they_are_too_old_are_not_pushed(stage: Stage, begin: Any) -> None:
    ours = begin(args={"queue_maxsize": 2})
    assert eventually(lambda: ours.worker.rollout_buffer.full())
    assert eventually(lambda: len(ours.worker._stream._batch.attempts) == 0)
    ours.worker.update_model_version(9)
    old = ours.take(2)
    assert [row.model_version for row in old] == [1, 1], "pushed before"
    assert all(row.model_version == 9 for row in ours.take(8))


def test_fresh_rows_that_wait_are_pushed(begin: Any) -> None:
    """The negative control of the test above."""
    ours = begin(args={"queue_maxsize": 2})
    assert eventually(lambda: ours.worker.rollout_buffer.full())
    ours.worker.update_model_version(3)
    assert all(row.model_version == 1 for row in ours.take(4))


# ---- what fails


def test_a_failure_is_named_with_its_cause(begin: Any) -> None:
    def judge(**_: Any) -> Any:
        raise LookupError("no such judge")

    error = begin(reward_funcs=judge).fails()
    assert str(error).startswith("the rollout worker failed: RolloutError: the reward function")
    assert "no such judge" in str(error.__cause__)
    assert eventually(lambda: not own_threads())


def test_environments_that_all_fail_are_named(begin: Any) -> None:
    class Broken(Talk):
        def reset(self, seed: str) -> Any:
            raise OSError("no display")

    error = begin(Broken).fails()
    assert "32 of 32 rollouts failed, more than max_failed_frac=0.5 allows" in str(error)
    assert "no display" in str(error)


def test_an_image_that_an_environment_shows_fails_its_rollout(begin: Any) -> None:
    pytest.importorskip("PIL")
    shows = {"type": "image", "image": np.zeros((8, 8, 3), np.uint8)}

    class Screen(Talk):
        def step(self, action: str) -> Any:
            env, _ = super().step(action)
            return env, [shows, {"type": "text", "text": "Look."}]

    error = begin(Screen).fails()
    assert "32 of 32 rollouts failed" in str(error)
    assert "Screen.step replied with an image in a 'user' message" in str(error)
    assert "abut.trl.GRPOTrainer with the model's processor as processing_class" in str(error)


def test_a_dataset_that_breaks_off_is_named(begin: Any) -> None:
    class Rows:
        def __iter__(self) -> Any:
            yield {"prompt": "one"}
            raise ConnectionError("the hub is gone")

    assert "the hub is gone" in str(begin(rows=Rows()).fails())


def test_a_loop_that_is_blocked_is_said_to_hang(begin: Any) -> None:
    blocked, go = threading.Event(), threading.Event()

    class Blocking:
        async def lend(self, task: Any) -> Any:
            blocked.set()
            go.wait(WAIT_S)
            return asynced(Talk)()

    ours = begin(Blocking())
    assert blocked.wait(WAIT_S)
    ours.worker.check_health(1000.0)
    ours.worker.check_health(1000.0)
    with pytest.raises(RolloutError, match="hangs: its event loop has not responded for 0 s"):
        ours.worker.check_health(0.0)
    go.set()
    assert eventually(lambda: ours.worker._pinged_at is None)
    ours.worker.check_health(0.0)


def test_what_is_recorded_is_read_again(begin: Any, tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    ours = begin(recorder=abut.records.JsonlRecorder(path))
    ours.take(8)
    ours.worker.stop()
    records = list(read_records(path))
    assert len(records) >= 8
    for record in records:
        sampled = [v for v, m in zip(record["versions"], record["env_mask"], strict=True) if m]
        assert {*sampled} == {1}
        assert {turn["newest_version"] for turn in record["turns"]} == {1}
        assert record["rewards"] == {"env_reward": 1.0}
        assert record["advantage"] == 0


# ---- arguments


def test_arguments_are_refused_by_name(hf_tokenizer: Any, tmp_path: Path, monkeypatch: Any) -> None:
    args = async_args(tmp_path)

    def make(**changes: Any) -> Any:
        named = {"args": args, "train_dataset": ROWS, "processing_class": hf_tokenizer}
        return make_rollout_worker(Talk, **named | changes)

    with pytest.raises(TypeError, match="args must be the AsyncGRPOConfig of the trainer"):
        make(args={})
    with pytest.raises(TypeError, match="base_urls= works only with sampler='auto'"):
        make(base_urls="http://a", sampler=Recording(lambda request: [5]))
    with pytest.raises(ValueError, match="reward_funcs is empty"):
        make(reward_funcs=[])
    with pytest.raises(TypeError, match="config must be a RolloutConfig"):
        make(config=3)
    with pytest.raises(TypeError) as raised:
        make(credit=lambda group: group)
    assert str(raised.value) == (
        "credit= does not work with the asynchronous worker, because AsyncGRPOTrainer takes one "
        "advantage per row, not per token\n"
        "hint: leave credit out, or train with abut.trl.GRPOTrainer; rewards of whole "
        "conversations (AgentResult.rewards) work with both"
    )
    for branch in ("longest", "last", "random"):
        with pytest.raises(TypeError) as raised:
            make(config=RolloutConfig(branch=branch))  # type: ignore[arg-type]
        assert str(raised.value) == (
            f"RolloutConfig(branch={branch!r}) does not work with the asynchronous worker, which "
            "trains every conversation\n"
            "hint: leave branch out"
        )
    make(config=RolloutConfig(branch="all"))
    with pytest.raises(TypeError) as raised:
        make(processor=SimpleNamespace(images=object()))
    assert str(raised.value) == (
        "processor=SimpleNamespace(…) writes images, but asynchronous trainers do not pass "
        "pixels to the model\n"
        "hint: leave images= out of the processor, or train with abut.trl.GRPOTrainer"
    )
    assert make()._arguments.config.turn_timeout_s == args.request_timeout
    monkeypatch.setattr("abut.trl.streaming.make_worker.trl_version", lambda: (1, 10))
    with pytest.raises(MissingExtraError, match=r"make_rollout_worker needs TRL 1\.11 or later"):
        make()


def test_a_worker_stays_in_its_process(begin: Any) -> None:
    import pickle

    with pytest.raises(TypeError, match="call make_rollout_worker in the process that trains"):
        pickle.dumps(begin(start=False).worker)


def test_it_is_public() -> None:
    assert abut.trl.make_rollout_worker is make_rollout_worker
