"""Rewards: a rollout that failed is scored by nobody, and each batch logs the same metrics."""

import math
import warnings
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")

from abut.metrics import log_rollout_metrics
from abut.rollout import RolloutConfig, StopReason
from abut.trl import env_reward, scored_only
from stage import Talk, env
from trl_run import a_trainer


def other_reward(completions: Any, **kwargs: Any) -> list[float]:
    return [1.0] * len(completions)


def test_a_reward_function_that_scores_failures_is_warned_of(
    called: Any, hf_tokenizer: Any
) -> None:
    with pytest.warns(UserWarning, match="other_reward") as caught:
        called(["a"], trainer=a_trainer(hf_tokenizer, reward_funcs=[env_reward, other_reward]))
    assert [str(warning.message) for warning in caught] == [
        "the reward function other_reward also scores rollouts that failed, which pollutes their "
        "group's baseline; wrap it: abut.trl.scored_only(other_reward)"
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wrapped = scored_only(other_reward)
        called(["a"], trainer=a_trainer(hf_tokenizer, reward_funcs=[env_reward, wrapped]))


def test_scored_only_leaves_failures_out() -> None:
    import asyncio

    async def later(completions: Any, **kwargs: Any) -> list[float]:
        return [2.0] * len(completions)

    own = [0.5, None]
    assert scored_only(other_reward)(["x", "y"], env_reward=own) == [1.0, None]
    assert asyncio.run(scored_only(later)(["x", "y"], env_reward=own)) == [2.0, None]
    assert scored_only(other_reward).__name__ == "other_reward"


def test_env_reward_works_without_metrics() -> None:
    assert env_reward(["x", "y"], env_reward=[0.5, None], prompts=[]) == [0.5, None]


def test_every_batch_logs_the_same_names(called: Any) -> None:
    """Also one in which all failed: ranks would wait for each other's names for ever."""

    def broken(self: Any, seed: str) -> Any:
        raise OSError("no port")

    config = RolloutConfig(retries=0, max_failed_frac=1.0)
    logged: list[dict[str, float]] = []
    for cls in (Talk, env(reset=broken), env(turns=99)):
        out = called(["a", "b"], cls, config=config)
        names: dict[str, float] = {}
        env_reward([], log_metric=names.__setitem__, **out)
        logged.append(names)
    fine, failed, long = logged
    assert list(fine) == list(failed) == list(long)
    assert {f"rollout/stop/{reason}" for reason in StopReason} < set(fine)
    assert (fine["rollout/stop/env_done"], fine["rollout/stop/error"]) == (1, 0)
    assert (failed["rollout/stop/error"], failed["rollout/error_frac"]) == (1, 1)
    assert (long["rollout/stop/max_turns"], long["rollout/turns/mean"]) == (1, 8)
    assert math.isnan(failed["rollout/seams/exact_frac"])
    assert fine["rollout/seams/exact_frac"] + fine["rollout/seams/merged_frac"] == 1


def test_what_a_table_needs_is_logged_where_a_table_is_kept() -> None:
    table: dict[str, list[Any]] = {}
    extras = {"rollout_id": ("a", "b"), "error": (None, "E"), "messages": ([], [])}
    env_reward([], env_reward=[0.5, None], log_extra=table.__setitem__, **extras)
    assert table == {"rollout_id": ["a", "b"], "error": [None, "E"]}


def test_no_rollouts_log_no_metrics() -> None:
    log_rollout_metrics([], lambda name, value: pytest.fail(name))
