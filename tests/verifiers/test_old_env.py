"""Environments of verifiers' old API under a real trainer: rows by replay, scores and failures."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
trl = pytest.importorskip("trl")

from abut import RolloutConfig, Tokenizer  # noqa: E402
from abut.agents import UnplayableRow  # noqa: E402
from abut.envs.task import RolloutTask  # noqa: E402
from abut.verifiers import verifiers_env  # noqa: E402
from tests.kit.stage.agents import a_call  # noqa: E402
from tests.kit.training.episode_run import SHORT, EpisodeRun  # noqa: E402
from tests.kit.training.models import rank_model  # noqa: E402

EXACT = 1e-5


def an_env(shape: str = "talk", *kinds: str) -> Any:
    return verifiers_env(
        "abut-old", args={"shape": shape, "kinds": json.dumps(kinds or ("fine", "fine"))}
    )


def trained(folder: Path, shape: str, *kinds: str, **options: Any) -> EpisodeRun:
    """Two rollouts of each kind."""
    env = an_env(shape, *kinds)
    size = 2 * len(kinds)
    run = EpisodeRun(env, env.dataset(), folder, per_device_train_batch_size=size, **options)
    run.train()
    assert run.worst() < EXACT < 1e-2 < run.worst(roll=1)
    return run


def by_kind(run: EpisodeRun, *kinds: str) -> dict[str, list[Any]]:
    return {kind: run.played[2 * k : 2 * k + 2] for k, kind in enumerate(kinds)}


def test_a_dataset_has_the_rows_as_they_are() -> None:
    env = an_env("talk", "a", "b", "c")
    rows = env.dataset()
    assert rows.column_names == ["prompt", "environment", "row_id", "verifiers_row"]
    assert rows["prompt"] == ["task a", "task b", "task c"]
    assert {*rows["environment"]} == {"abut-old"}
    assert rows["row_id"] == ["0", "1", "2"]
    theirs = [dict(row) for row in env._env.get_dataset()]
    assert [json.loads(text) for text in rows["verifiers_row"]] == theirs
    assert env.dataset(2)["row_id"] == ["0", "1"]
    some = env.dataset(2, shuffle=True, seed=3)["row_id"]
    assert some == env.dataset(2, shuffle=True, seed=3)["row_id"]


def test_turns_rewards_and_metrics(tmp_path: Path) -> None:
    run = trained(tmp_path, "talk", "fine", "fine")
    assert run.errors() == [None] * 4
    for rollout in run.played:
        assert len(rollout.turns) == 3
        said = run.text_of(rollout.columns)
        assert ["turn 1: more" in said, "turn 2: more" in said] == [True, True]
        extras = rollout.extras
        assert extras["abut-old/num_turns"] == extras["abut-old/counts"] == 3.0
        assert rollout.reward == extras["abut-old/length"] + 0.5 * extras["abut-old/fussy"]
    log = run.trainer.state.log_history[0]
    lengths = [rollout.extras["abut-old/length"] for rollout in run.played]
    assert log["abut-old/length"] == pytest.approx(sum(lengths) / 4)


def test_failures_and_missing_scores(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kinds = ("fine", "typed", "untyped", "raises", "none", "nan", "text", "metric")
    run = trained(tmp_path, "talk", *kinds)
    found = by_kind(run, *kinds)
    for kind in ("typed", "untyped"):
        for rollout in found[kind]:
            assert rollout.failed
            assert rollout.reward is None
            assert "the environment is broken" in rollout.error
    for kind in ("raises", "none", "nan", "text"):
        for rollout in found[kind]:
            assert rollout.error is None, kind
            assert (rollout.reward, rollout.measured) == (None, False), kind
            assert not rollout.row_trained
            assert "abut-old/fussy" not in rollout.extras
            assert rollout.extras["abut-old/counts"] == 3.0
    for rollout in found["metric"]:
        assert rollout.reward == rollout.extras["abut-old/length"] + 0.25
        assert "abut-old/counts" not in rollout.extras
    assert all(rollout.reward > 0 for rollout in found["fine"])
    said = "abut-old: fussy raised RuntimeError: the reward is broken, which is not a score, so its"
    assert [said in message for message in caplog.messages].count(True) == 1


def test_a_group_is_scored_together(tmp_path: Path) -> None:
    run = trained(tmp_path, "group", "fine", "raises", "short")
    found = by_kind(run, "fine", "raises", "short")
    lengths = [len(run.tokenizer.decode(r.columns.completion_ids)) for r in found["fine"]]
    expected = [float(one == max(lengths)) for one in lengths]
    assert [rollout.reward for rollout in found["fine"]] == expected
    assert [r.extras["abut-old/place"] for r in found["fine"]] == [0.0, 1.0]
    for rollout in found["raises"]:
        assert (rollout.error, rollout.reward, rollout.measured) == (None, None, False)
        assert not rollout.row_trained
    # A function that returns a score too few breaks the rubric itself.
    assert [rollout.reward for rollout in found["short"]] == [None, None]


def test_a_group_without_a_failed_rollout_is_scored(tmp_path: Path) -> None:
    """Two groups of four, of which the first rollout of each says nothing."""
    tokenizer = rank_model()[0]

    def says(request: Any) -> list[int] | None:
        index = request.rollout_id.rsplit("-", 2)[1]
        return [tokenizer.eos_token_id] if index in ("0", "4") else None

    env = an_env("group", "fine", "fine")
    sizes = {"per_device_train_batch_size": 8, "num_generations": 4}
    run = EpisodeRun(env, env.dataset(), tmp_path, says=says, **sizes).train()
    failed = [rollout.failed for rollout in run.played]
    assert failed.count(True) == 2
    for rollout in run.played:
        assert rollout.failed == (rollout.reward is None)
        if rollout.failed:
            assert "EmptyModelResponseError" in rollout.error
    assert {r.extras["abut-old/place"] for r in run.played if not r.failed} == {0.0, 1.0, 2.0}


def test_a_group_that_ranks_share_is_refused() -> None:
    env = an_env("group", "fine")
    task = RolloutTask(
        0,
        "r0",
        lambda: None,  # type: ignore[arg-type, return-value]
        messages=[],
        seed="s",
        episode_seed=1,
        columns=env.dataset()[0],
        whole_group=False,
    )
    with pytest.raises(UnplayableRow, match=r"abut-old scores all generations of a row together"):
        asyncio.run(env.run(None, task))


def test_tools_are_called(tmp_path: Path) -> None:
    hf_tokenizer = rank_model()[0]
    tokenizer = Tokenizer.from_pretrained(hf_tokenizer)
    call = tokenizer.encode(a_call("lookup", word="seven"), added="parse").tolist()

    def says(request: Any) -> list[int] | None:
        if "seven is a number" in hf_tokenizer.decode(request.prompt_ids.tolist()):
            return None
        return [*call, hf_tokenizer.eos_token_id]

    whole = RolloutConfig(retries=0, max_failed_frac=1.0)  # SHORT would cut the call
    run = trained(tmp_path, "tools", "fine", "fine", says=says, config=whole)
    assert run.errors() == [None] * 4
    for rollout in run.played:
        assert len(rollout.turns) == 2
        assert "seven is a number" in run.text_of(rollout.columns)


def test_metrics_alone_leave_the_score_to_reward_functions(tmp_path: Path) -> None:
    run = trained(tmp_path, "metrics", "fine")
    for rollout in run.played:
        assert (rollout.reward, rollout.measured) == (None, True)
        assert rollout.extras["abut-old/counts"] == 3.0


def test_a_used_up_budget_ends_a_rollout_that_is_scored(tmp_path: Path) -> None:
    run = trained(tmp_path, "talk", "fine", max_completion_length=24)
    for rollout in run.played:
        assert rollout.error is None
        assert rollout.stop_reason == "max_completion_tokens"
        assert rollout.reward is not None


def test_a_limit_of_time_fails_a_rollout(tmp_path: Path) -> None:
    config = RolloutConfig(**{**vars(SHORT), "rollout_timeout_s": 0.001})
    env = an_env("talk", "fine")
    run = EpisodeRun(env, env.dataset(), tmp_path, per_device_train_batch_size=2, config=config)
    run.train()
    assert all(rollout.failed for rollout in run.played)


def test_batches_and_evaluation_share_one_client(tmp_path: Path) -> None:
    env = an_env("talk", "fine", "fine")
    run = EpisodeRun(env, env.dataset(), tmp_path, max_steps=2)
    run.train(stop=False)
    client = env._client._entered.result()
    assert not client.is_closed()
    assert run.evaluate()["eval_abut-old/num_turns"] == 3.0
    assert client.is_closed()
    assert run.errors() == [None] * len(run.errors())
    assert run.worst() < EXACT


def test_a_loaded_environment_is_taken(tmp_path: Path) -> None:
    from abut_old import load_environment  # type: ignore[import-not-found]

    loaded = load_environment("talk", '["raises"]')
    env = verifiers_env(loaded)
    assert env.name == "Talk"
    twice = verifiers_env(loaded, name="again")
    run = EpisodeRun(twice, twice.dataset(), tmp_path, per_device_train_batch_size=2).train()
    assert [rollout.reward for rollout in run.played] == [None, None]
    with pytest.raises(
        TypeError,
        match="args= works only if you pass an id, but this environment is already loaded",
    ):
        verifiers_env(loaded, args={"shape": "talk"})


def test_what_is_not_there_or_of_the_other_api_is_an_error() -> None:
    with pytest.raises(ImportError, match="abut_no_such"):
        verifiers_env("abut-no-such")
    with pytest.raises(ValueError, match="verifiers cannot load 'abut-old'"):
        verifiers_env("abut-old", args={"kinds": "no JSON"})
    with pytest.raises(TypeError, match=r"train= is for the API of verifiers 0\.4"):
        verifiers_env("abut-old", train="player0")
