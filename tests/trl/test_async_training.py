"""`AsyncGRPOTrainer` learns from our worker: a small model, on the CPU, at a server of its own."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")
pytest.importorskip("aiohttp")

from transformers import TrainerCallback  # noqa: E402

from abut.errors import RolloutError  # noqa: E402
from abut.rollout.rollout import StopReason  # noqa: E402
from abut.samplers.sampler import VERSIONS  # noqa: E402
from abut.trl import env_reward  # noqa: E402
from tests.kit.stage.rollouts import eventually, own_threads  # noqa: E402
from tests.kit.training.async_cpu import AsyncRun, PolicyServer, Saying, Vowels, Weights, on_cpu  # noqa: E402
from tests.kit.training.trl_run import Run  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("no_thread_stays"),
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers"),
]


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: Any, tiny_model: Any, hf_tokenizer: Any) -> Path:
    folder = tmp_path_factory.mktemp("model")
    build(tiny_model).save_pretrained(folder)
    hf_tokenizer.save_pretrained(folder)
    return folder  # type: ignore[no-any-return]


def build(tiny_model: Any) -> Any:
    model = tiny_model()
    with torch.no_grad():
        model.lm_head.weight.div_(20)  # as it was made: one that is undecided learns sooner
    return model


@pytest.fixture
def server(tiny_model: Any) -> Iterator[PolicyServer]:
    with PolicyServer(build(tiny_model)) as server, on_cpu():
        yield server


@pytest.fixture
def run(server: Any, model_path: Any, hf_tokenizer: Any, tmp_path: Path) -> Any:
    def begin(*given: Any, **named: Any) -> AsyncRun:
        return AsyncRun(tmp_path / "run", model_path, server, hf_tokenizer, *given, **named)

    return begin


def worst(server: Any, rollout: Any, versions: Any) -> float:
    """The largest difference, in nats, to logprobs recomputed with the weights of `versions`."""
    columns = rollout.columns
    ids = [*columns.prompt_ids.tolist(), *columns.completion_ids.tolist()]
    start, most = len(columns.prompt_ids), 0.0
    for version in {*np.asarray(versions)[columns.env_mask == 1].tolist()}:
        logprobs = server.logprobs_of(version, ids)
        for k in np.flatnonzero((versions == version) & (columns.env_mask == 1)):
            right = float(logprobs[start + k - 1, ids[start + k]])
            most = max(most, abs(right - float(columns.logprobs[k])))
    return most


def drawn_with(server: Any, rollout: Any) -> Any:
    """The versions of the weights that drew its tokens, as the server knows it."""
    columns = rollout.columns
    ids = [*columns.prompt_ids.tolist(), *columns.completion_ids.tolist()]
    versions, start = np.full(len(columns.completion_ids), -1), len(columns.prompt_ids)
    for turn in rollout.turns:
        drawn = server.drawn[tuple(ids[: turn.start]), tuple(ids[turn.start : turn.end])]
        versions[turn.start - start : turn.end - start] = drawn
    return versions


def test_the_reward_rises_as_with_the_synchronous_trainer(
    run: Any, server: Any, tiny_model: Any, hf_tokenizer: Any, tmp_path: Path
) -> None:
    # What is trained is older than what samples, so that clipping would slow it down; a
    # synchronous trainer has no ratios but 1.
    settings = {
        "max_steps": 25,
        "per_device_train_batch_size": 16,
        "num_generations": 4,
        "learning_rate": 2e-2,
        "lr_scheduler_type": "constant",
        "max_completion_length": 64,
        "gradient_checkpointing": False,
    }
    ours = run(max_staleness=1, epsilon=10.0, **settings)
    ours.trainer.train()
    theirs = Run(
        hf_tokenizer,
        build(tiny_model),
        tmp_path / "sync",
        Vowels,
        prompts=[f"say {k}" for k in range(64)],
        make={"config": ours.worker._arguments.config},
        **settings,
    )
    theirs.trainer.train()
    rewards = [log["reward"] for log in theirs.trainer.state.log_history if "reward" in log]
    risen = np.mean(rewards[-5:]) - np.mean(rewards[:5])
    assert risen > 0.3
    assert ours.mean_reward(-5, None) - ours.mean_reward(0, 5) > 0.9 * risen
    assert abs(ours.logs[0]["ratio"] - 1) < 1e-4
    assert server.events[:6] == ["pause", "weights 1", "resume", "pause", "weights 2", "resume"]
    # The rows of the last step may arrive during an earlier one, whose log then has their metrics.
    last = [log for log in ours.logs if "rollout/turns/mean" in log][-1]
    # On a busy machine a rollout may get too old for max_staleness after its first turn.
    turns, stale = (last[f"rollout/{name}"] for name in ("turns/mean", "stop/stale"))
    assert 2 - 2 * stale <= turns <= 2
    assert last["rollout/error_frac"] == 0


def test_every_logprob_is_that_of_the_weights_that_its_token_bears(run: Any, server: Any) -> None:
    ours = run(max_steps=8, make={"sampler": Saying(server)})
    ours.trainer.train()
    assert server.crossed
    rollouts = {rollout.rollout_id: rollout for rollout, _ in ours.kept.rollouts}
    checked = 0
    for rollout in rollouts.values():
        if rollout.stop_reason is StopReason.STALE:
            continue
        versions = rollout.streams[VERSIONS]
        assert worst(server, rollout, versions) < 1e-4
        others = np.where(versions > 1, versions - 1, versions + 1)
        assert worst(server, rollout, others) > 1e-3, "the negative control: a wrong version"
        checked += 1
    assert checked > 32
    assert any(len({*rollout.streams[VERSIONS]}) > 2 for rollout in rollouts.values()), (
        "an update crossed"
    )


def test_a_server_that_says_nothing_leaves_the_oldest_version_that_can_be(
    run: Any, server: Any
) -> None:
    ours = run(max_steps=8)
    ours.trainer.train()
    assert server.crossed
    for rollout, _ in ours.kept.rollouts:
        if rollout.stop_reason is StopReason.STALE:
            continue
        drawn = drawn_with(server, rollout)
        assert worst(server, rollout, drawn) < 1e-4
        start = len(rollout.columns.prompt_ids)
        for turn in rollout.turns:
            of_turn = slice(turn.start - start, turn.end - start)
            assert (turn.streams[VERSIONS] <= drawn[of_turn]).all()
            # A server has new weights before the trainer says so.
            assert (drawn[of_turn] <= turn.newest_version + 1).all()
    for row in ours.pushed:
        of_group = [r for r, extra in ours.kept.rollouts if extra["group"] == row.group_id]
        same = [r for r in of_group if _ids(r) == row.input_ids.tolist()]
        versions = [rollout.streams[VERSIONS] for rollout in same]
        assert row.model_version in {int(one[one >= 0].min()) for one in versions}


def _ids(rollout: Any) -> list[int]:
    if rollout.columns is None:
        return []
    return [*rollout.columns.prompt_ids.tolist(), *rollout.columns.completion_ids.tolist()]


def test_records_say_where_a_rollout_belongs(run: Any) -> None:
    ours = run(max_steps=2)
    ours.trainer.train()
    (rollout, extra), *_ = ours.kept.rollouts
    assert rollout.rollout_id.startswith(f"train-{extra['group']}-{extra['place']}-")
    assert (extra["mode"], extra["rank"]) == ("train", 0)
    assert extra["columns"] == {"prompt": f"say {extra['group']}"}
    scored = {score["rollout_id"]: score for score in ours.kept.scores}
    by_id = {rollout.rollout_id: rollout for rollout, _ in ours.kept.rollouts}
    assert scored.keys() == by_id.keys()
    for id_, score in scored.items():
        assert score["rewards"] == [{"name": "env_reward", "value": by_id[id_].reward}]


def test_several_servers_sample(run: Any, server: Any, tiny_model: Any) -> None:
    with PolicyServer(build(tiny_model)) as other:
        urls = [server.url, other.url]
        ours = run(max_steps=3, make={"base_urls": urls}, weights=Weights(server, other))
        ours.trainer.train()
        assert server.requests
        assert other.requests


# ---- checkpoints


def test_a_resumed_run_trains_no_row_twice_and_loses_none(run: Any) -> None:
    # Six rows of groups of four: the checkpoint cuts a group.
    settings = {
        "per_device_train_batch_size": 6,
        "max_staleness": 100,
        "max_inflight_tasks": 8,
        "save_strategy": "steps",
        "save_steps": 3,
    }
    first = run(max_steps=3, **settings)
    first.trainer.train()
    kept = first.trainer.state.stateful_callbacks["AbutRollouts"]["attributes"]
    assert kept["rows"], "a group was cut"
    second = run(max_steps=7, **settings)
    second.trainer.train(resume_from_checkpoint=True)
    assert second.trainer.state.global_step == 7
    trained = [*first.trained_rows(), *second.trained_rows()]
    assert len(trained) == 7 * 6
    rows = [tuple(np.asarray(row.old_log_probs).tolist()) for row in trained]
    assert len({*rows}) == len(rows), "no row twice"
    groups = [row.group_id for row in trained]
    state = second.worker.position.state(1)
    assert state["first"] >= 7
    groups += [row["group_id"] for row in state["rows"]]  # the last step cuts a group, too
    assert all(groups.count(group) == 4 for group in range(state["first"])), "and none lost"
    assert {row.group_id for row in first.pushed} & {row.group_id for row in second.pushed}


def test_a_run_that_is_not_resumed_begins_anew(run: Any) -> None:
    """The negative control of the test above."""
    settings = {"max_staleness": 100, "max_inflight_tasks": 8}
    first, second = run(max_steps=2, **settings), run(max_steps=2, **settings)
    first.trainer.train()
    second.trainer.train()
    assert min(row.group_id for row in second.trained_rows()) == 0


def test_without_the_callback_it_is_said(run: Any, caplog: Any) -> None:
    first = run(callback=False, max_steps=2, save_strategy="steps", save_steps=2)
    first.trainer.train()
    assert "will start again at the first row of the dataset" in caplog.text
    assert not first.worker.position._rows
    caplog.clear()
    second = run(max_steps=3)
    second.trainer.train(resume_from_checkpoint=True)
    assert "the checkpoint does not say which rows of the dataset were trained" in caplog.text


def test_a_resumed_run_trains_what_is_left_of_its_epochs(run: Any) -> None:
    settings = {
        "rows": 6,
        "max_steps": -1,
        "num_train_epochs": 1,
        "max_staleness": 100,
        "max_inflight_tasks": 4,
        "save_strategy": "steps",
        "save_steps": 1,
    }

    class Stop(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = state.global_step == 2

    run(callbacks=[Stop()], **settings).trainer.train()
    second = run(**settings)
    second.trainer.train(resume_from_checkpoint=True)
    # Six groups of four rows are three steps of eight; what is prefetched is not trained.
    assert second.trainer.state.global_step == 3


# ---- what fails


def test_a_worker_that_crashes_ends_training(run: Any) -> None:
    calls: list[int] = []

    def reward(completions: Any, **_: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise ZeroDivisionError("no judge")
        return [0.0] * len(completions)

    ours = run(make={"reward_funcs": [reward, env_reward]}, max_steps=50)
    message = "the rollout worker failed: RolloutError: the reward function reward raised ZeroD"
    with pytest.raises(RolloutError, match=message) as raised:
        ours.trainer.train()
    assert "no judge" in str(raised.value.__cause__)
    assert "destroy" in ours.trainer.weight_transfer.events


def test_a_server_that_is_gone_ends_training(run: Any, server: Any) -> None:
    class Leave(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 2:
                server._loop.call_soon_threadsafe(server._stop.set)
                server._thread.join(10)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step >= 3:  # nobody is left to be paused
                weights.servers = ()

    weights = Weights(server)
    ours = run(callbacks=[Leave()], weights=weights, max_steps=50, max_inflight_tasks=8)
    with pytest.raises(RolloutError, match=r"SamplerError: the server at .* is down"):
        ours.trainer.train()


@pytest.mark.skipif(os.name == "nt", reason="no SIGINT to a process of one's own")
def test_ctrl_c_ends_all(run: Any, server: Any) -> None:
    class Press(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 2:
                os.kill(os.getpid(), signal.SIGINT)

    ours = run(callbacks=[Press()], max_steps=50)
    with pytest.raises(KeyboardInterrupt):
        ours.trainer.train()
    assert eventually(lambda: not own_threads()), own_threads()
    assert eventually(lambda: not server._serving), "no connection is left"
    written = {rollout.rollout_id for rollout, _ in ours.kept.rollouts}
    assert written == {score["rollout_id"] for score in ours.kept.scores}
