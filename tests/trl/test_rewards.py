"""Rewards: a rollout that failed is scored by nobody, and each batch logs the same metrics."""

import functools
import inspect
import math
import warnings
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")

import torch

from abut.images import Image, ImageSpan
from abut.rollout.config import RolloutConfig
from abut.rollout.rollout import Branch, Rollout, StopReason
from abut.trl import env_reward, scored_only
from abut.trl.metrics import log_rollout_metrics, note_images, rollout_stats
from tests.kit.data.records import a_rollout
from tests.kit.stage.rollouts import Talk, env
from tests.kit.training.trl_run import a_trainer, user


def other_reward(completions: Any, **kwargs: Any) -> list[float]:
    return [1.0] * len(completions)


def test_a_reward_function_that_scores_failures_is_warned_of(
    called: Any, hf_tokenizer: Any
) -> None:
    with pytest.warns(UserWarning, match="other_reward") as caught:
        called(["a"], trainer=a_trainer(hf_tokenizer, reward_funcs=[env_reward, other_reward]))
    assert [str(warning.message) for warning in caught] == [
        "the reward function other_reward also scores rollouts that failed, which biases the "
        "baseline of their group; wrap it: abut.trl.scored_only(other_reward)"
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wrapped = scored_only(other_reward)
        called(["a"], trainer=a_trainer(hf_tokenizer, reward_funcs=[env_reward, wrapped]))


def test_scored_only_leaves_failures_out() -> None:
    import asyncio

    async def later(completions: Any, **kwargs: Any) -> list[float]:
        return [2.0] * len(completions)

    measured = [True, False]
    assert scored_only(other_reward)(["x", "y"], measured=measured) == [1.0, None]
    assert asyncio.run(scored_only(later)(["x", "y"], measured=measured)) == [2.0, None]
    assert scored_only(other_reward).__name__ == "other_reward"
    assert scored_only(env_reward) is env_reward, "or its weight could not be told"


class Judge:
    """A reward function that is an object, and asynchronous."""

    async def __call__(self, completions: Any, **kwargs: Any) -> list[float]:
        return [3.0] * len(completions)


def test_what_is_asynchronous_for_trl_stays_so() -> None:
    import asyncio

    for judge in (Judge(), functools.partial(Judge(), extra=1)):
        wrapped = scored_only(judge)
        assert inspect.iscoroutinefunction(wrapped)
        rewards = wrapped(["x", "y"], measured=[True, False])
        assert asyncio.run(rewards) == [3.0, None]
        assert wrapped.__name__ == "Judge"
    partial = scored_only(functools.partial(other_reward, extra=1))
    assert partial(["x", "y"], measured=[True, False]) == [1.0, None]
    assert partial.__name__ == "other_reward"


MODEL_HINT = (
    "hint: call the model inside your own reward function, on messages or completions, and wrap "
    "that function with scored_only"
)


@pytest.mark.parametrize("model", ["folder/of-a-model", torch.nn.Linear(1, 1)])
def test_a_reward_model_cannot_be_wrapped(model: Any) -> None:
    with pytest.raises(TypeError) as raised:
        scored_only(model)
    name = model if isinstance(model, str) else "Linear"
    assert str(raised.value) == (
        f"scored_only({name}): TRL passes only tokens to a reward model, so it cannot tell which "
        "rollouts failed\n"
        f"{MODEL_HINT}"
    )


def test_a_reward_model_is_warned_of_with_what_to_do(called: Any, hf_tokenizer: Any) -> None:
    with pytest.warns(UserWarning, match="Linear") as caught:
        called(["a"], trainer=a_trainer(hf_tokenizer, reward_funcs=[torch.nn.Linear(1, 1)]))
    assert [str(warning.message) for warning in caught] == [
        "the reward model Linear also scores rollouts that failed, which biases the baseline of "
        "their group\n"
        f"{MODEL_HINT}"
    ]


def test_env_reward_works_without_metrics() -> None:
    assert env_reward(["x", "y"], env_reward=[0.5, None], prompts=[]) == [0.5, None]
    with pytest.raises(ValueError, match="rollout_func") as raised:
        env_reward(["x"], prompts=["p"])
    assert str(raised.value) == (
        "env_reward found no rewards of environments, because the trainer's rollout_func is not "
        "abut's\n"
        "hint: GRPOTrainer(…, rollout_func=make_rollout_func(YourEnv))"
    )


def test_what_is_done_to_messages_changes_no_rollout(called: Any) -> None:
    kept: list[Rollout] = []

    class Keep:
        def write(self, rollout: Rollout, /, **extra: Any) -> None:
            kept.append(rollout)

    blocks = [{"type": "text", "text": "go"}]
    out = called([[user("q", notes=blocks)]] * 2, recorder=Keep())
    for message in out["messages"][0]:
        message["content"] = "changed"
    out["messages"][0][0]["notes"][0]["text"] = "changed"
    untouched = user("q", notes=[{"type": "text", "text": "go"}])
    assert out["messages"][1][0] == untouched
    assert [rollout.messages[0] for rollout in kept] == [untouched] * 2
    assert blocks == untouched["notes"]


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
    stops, turns = ["env_done", "error"], [2, 0]
    more = {"rollout_id": ("a", "b"), "error": (None, "E"), "messages": ([], [])}
    extras = {"stop_reason": stops, "num_turns": turns, **more}
    env_reward([], env_reward=[0.5, None], log_extra=table.__setitem__, **extras)
    assert table == {"stop_reason": stops, "num_turns": turns}


def test_the_table_can_be_read_on_eighty_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("rich")
    from trl.trainer.utils import print_prompt_completions_sample

    monkeypatch.setenv("COLUMNS", "80")
    table: dict[str, list[Any]] = {}
    extras = {"num_turns": [3], "stop_reason": ["max_turns"], "error": [None], "rollout_id": ["a"]}
    env_reward([], env_reward=[0.5], log_extra=table.__setitem__, **extras)
    print_prompt_completions_sample(
        ["You are a helpful agent."], ["crane"], {"env_reward": [0.5]}, [0.1], 7, None, table
    )
    shown = capsys.readouterr().out
    for whole in ("Completion", "env_reward", "Advantage", "num_turns", "max_turns"):
        assert whole in shown


def test_no_rollouts_log_no_metrics() -> None:
    log_rollout_metrics([], lambda name, value: pytest.fail(name))


def test_images_are_counted_in_batches_that_have_some() -> None:
    image = Image.of(np.zeros((2, 2, 3), np.uint8))
    spans = [ImageSpan(image, 3, 7, 4), ImageSpan(image, 9, 13, 4)]
    branch = Branch(a_rollout().columns, [], images=spans[:1])
    stats = [
        rollout_stats(rollout)
        for rollout in (a_rollout(), a_rollout(images=spans, branches=[branch]))
    ]
    logged: dict[str, float] = {}
    log_rollout_metrics(stats, logged.__setitem__)
    assert (logged["rollout/images/mean"], logged["rollout/image_tokens/mean"]) == (1.5, 6)
    plain: dict[str, float] = {}
    log_rollout_metrics(stats[:1], plain.__setitem__)
    assert {*logged} - {*plain} == {"rollout/images/mean", "rollout/image_tokens/mean"}
    # Another rank has some: this one logs the same names.
    note_images(stats[:1], True)
    log_rollout_metrics(stats[:1], plain.__setitem__)
    assert ({*plain}, plain["rollout/images/mean"]) == ({*logged}, 0)
