"""What `GRPOTrainer` makes of our rows, the same in every version of TRL that abut takes.

The versions differ in three places, and only there do these tests ask which one it is: failed
rollouts raise below 1.6, metrics are logged from 1.0 on, and up to 1.10 the server is TRL's own.
"""

import os
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

import abut  # noqa: E402
from abut.errors import RolloutError  # noqa: E402
from abut.rollout.config import RolloutConfig  # noqa: E402
from abut.trl import env_reward, make_rollout_func, scored_only  # noqa: E402
from abut.trl.trainer_sampler import sampler_of  # noqa: E402
from abut.trl.version import trl_version  # noqa: E402
from tests.kit.stage.rollouts import Talk, check_exact, env  # noqa: E402
from tests.kit.training.example_run import CPU  # noqa: E402
from tests.kit.training.trl_run import CONFIG, Columns, Run, Vowels, recorded_calls, user  # noqa: E402

KEYS = ("prompt_ids", "completion_ids", "logprobs", "env_mask")
TEXTS = ("go on", "", "and <|im_end|> then", [{"role": "user", "content": "last"}])


class Talkative(Vowels):
    """Strings, silence, a spelled control token, and messages; nothing breaks."""

    texts = TEXTS
    turns = 4

    def __init__(self) -> None:
        super().__init__()
        self.broken = False


@pytest.fixture(scope="module")
def run(hf_tokenizer: Any, tiny_model: Any, tmp_path_factory: Any) -> Iterator[Any]:
    """Two steps of training, several turns each, then an evaluation."""
    seen: list[dict[str, Any]] = []

    @scored_only
    def notes(completions: Any, **extras: Any) -> list[float]:
        seen.append({"completions": completions, **extras})
        return [0.0] * len(completions)

    with recorded_calls() as calls:
        run = Run(
            hf_tokenizer,
            tiny_model(),
            tmp_path_factory.mktemp("run"),
            Talkative,
            prompts=[[user("say something")], [user("say another thing")]] * 4,
            reward_funcs=[env_reward, notes],
            num_generations_eval=2,
        )
        run.trainer.train()
        run.trainer.evaluate()
    run.calls, run.seen = calls, seen  # type: ignore[attr-defined]
    return run


def test_the_environment_has_the_version_that_is_asked_for() -> None:
    assert version("trl") == os.environ["ABUT_TRL_VERSION"]


def test_the_environment_has_pillow() -> None:
    """Without it the tests of rows with images would be skipped."""
    assert version("pillow")


def test_every_row_is_what_the_model_saw_and_sampled(run: Any) -> None:
    rows = 0
    for output in run.outputs:
        for k, rollout_id in enumerate(output["rollout_id"]):
            row = abut.Columns(**{key: output[key][k] for key in KEYS})
            check_exact(row, [call for call in run.calls if call[0].rollout_id == rollout_id])
            assert output["num_turns"][k] == 4
            rows += 1
    assert rows == 2 * 8 + 16


def test_generate_returns_the_rows_token_for_token(run: Any) -> None:
    assert len(run.generated) == len(run.outputs) == 4
    for generated, output in zip(run.generated, run.outputs, strict=True):
        prompt_ids, completion_ids, mask = generated[:3]
        assert prompt_ids == output["prompt_ids"]
        assert completion_ids == output["completion_ids"]
        assert mask == output["env_mask"]
        assert any(part == output["logprobs"] for part in generated[3:])


def test_the_loss_sees_the_rows_token_for_token(run: Any) -> None:
    for batch, output in zip(run.batches, run.outputs, strict=True):
        tool_mask = batch.get("tool_mask", batch["completion_mask"])
        for k, ids in enumerate(output["completion_ids"]):
            real = batch["prompt_mask"][k].bool()
            assert batch["prompt_ids"][k][real].tolist() == output["prompt_ids"][k]
            assert batch["completion_ids"][k][: len(ids)].tolist() == ids
            trained = (batch["completion_mask"] * tool_mask)[k]
            assert trained[: len(ids)].tolist() == output["env_mask"][k]
            assert trained[len(ids) :].sum() == 0


def test_trl_recomputes_our_logprobs(run: Any) -> None:
    assert run.worst() < 1e-3
    assert run.worst(roll=1) > 0.1


def test_extras_reach_reward_functions_row_for_row(run: Any) -> None:
    for seen, output in zip(run.seen, run.outputs, strict=True):
        for name in set(output) - set(KEYS):
            assert seen[name] == output[name]
            assert len(seen[name]) == len(seen["completions"]) == 8
        assert [len(rewards) for rewards in seen["env_step_rewards"]] == [4] * 8


def test_training_moves_by_the_environments_reward(run: Any) -> None:
    for batch, output in zip(run.batches[:2], run.outputs, strict=False):
        rewards = np.asarray(output["env_reward"]).reshape(-1, 4)
        above = np.round(rewards - rewards.mean(axis=1, keepdims=True), 6).reshape(-1)
        assert np.sign(batch["advantages"].numpy()).tolist() == np.sign(above).tolist()
        assert above.any()


def test_evaluation_has_its_own_groups(run: Any) -> None:
    ids = [rollout_id for output in run.outputs[2:] for rollout_id in output["rollout_id"]]
    assert len(set(ids)) == 16
    assert {rollout_id.split("-")[0] for rollout_id in ids} == {"eval"}
    assert run.trainer.state.log_history[-1]["eval_rewards/env_reward/mean"] > 0


def test_metrics_are_logged_where_trl_has_a_way(run: Any) -> None:
    logged = run.trainer.state.log_history[0]
    if trl_version() < (1, 0):
        assert not [name for name in logged if name.startswith("rollout/")]
    else:
        assert logged["rollout/turns/mean"] == 4
        assert logged["rollout/stop/env_done"] == 1
        assert logged["rollout/stop/error"] == 0


@pytest.mark.parametrize("kind", ["string", "messages"])
def test_columns_reach_reset_from_the_first_batch_on(
    hf_tokenizer: Any, tiny_model: Any, tmp_path: Path, kind: str
) -> None:
    math, game = env(Columns, got=[]), env(Columns, got=[])
    prompts = ["p", "q"] if kind == "string" else [[user("p")], [user("q")]]
    run = Run(
        hf_tokenizer,
        tiny_model(),
        tmp_path,
        {"math": math, "game": game},
        prompts=prompts,
        columns={"environment": ["math", "game"], "level": [1, 2], "seed": [None, 9]},
        max_steps=1,
    )
    run.trainer.train()
    for kind_of_env, expected in ((math, ("p", 1)), (game, ("9", 2))):
        assert {(seed, level) for seed, _, level in kind_of_env.got} == {expected}
        assert len({episode_seed for _, episode_seed, _ in kind_of_env.got}) == 1
        assert len(kind_of_env.got) == 4


def test_a_failed_rollout_carries_no_weight_or_raises(
    hf_tokenizer: Any, tiny_model: Any, tmp_path: Path
) -> None:
    run = Run(hf_tokenizer, tiny_model(), tmp_path, env(Vowels, made=0), max_steps=1)
    if trl_version() < (1, 6):
        with pytest.raises(RolloutError, match="Vowels"):
            run.trainer.train()
        return
    run.trainer.train()
    (output,), (batch,) = run.outputs, run.batches
    (k,) = [k for k, error in enumerate(output["error"]) if error]
    assert (output["env_mask"][k], output["env_reward"][k]) == ([0], None)
    assert batch["advantages"][k] == 0
    first = k - k % 4
    rewards = [output["env_reward"][i] for i in range(first, first + 4) if i != k]
    others = [batch["advantages"][i].item() for i in range(first, first + 4) if i != k]
    above = np.round(np.asarray(rewards) - np.mean(rewards), 6)
    assert np.sign(others).tolist() == np.sign(above).tolist()


def test_lora_samples_with_its_adapter(hf_tokenizer: Any, tiny_model: Any, tmp_path: Path) -> None:
    from peft import LoraConfig

    run = Run(
        hf_tokenizer,
        tiny_model(),
        tmp_path,
        Talkative,
        peft_config=LoraConfig(
            r=4, lora_alpha=64, target_modules=["q_proj", "v_proj", "o_proj", "up_proj"]
        ),
        max_steps=3,
        learning_rate=0.1,
    )
    run.trainer.train()
    assert run.worst() < 1e-3
    # What the last batch would have been worth without the adapter: far from what was sampled.
    batch, model = run.batches[-1], run.trainer.model
    with torch.no_grad(), model.disable_adapter():
        plain = run.trainer._get_per_token_logps_and_entropies(
            model,
            torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1),
            torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1),
            batch["completion_ids"].size(1),
        )[0]
    run.recomputed[-1] = plain
    assert run.worst() > 0.1


def test_settings_of_the_trainer_are_heard(
    hf_tokenizer: Any, tiny_model: Any, tmp_path: Path
) -> None:
    template = hf_tokenizer.chat_template
    told = "{%- if shout %}{{- '!' }}{%- endif %}" + template
    try:
        hf_tokenizer.chat_template = told
        run = Run(
            hf_tokenizer,
            tiny_model(),
            tmp_path,
            Talk,
            chat_template_kwargs={"shout": True},
            temperature=0.5,
            generation_kwargs={"top_k": 2},
            max_steps=1,
        )
        run.trainer.train()
    finally:
        hf_tokenizer.chat_template = template
    (output,) = run.outputs
    assert {hf_tokenizer.decode(ids)[:13] for ids in output["prompt_ids"]} == {"!<|im_start|>"}
    assert run.worst() > 0.1, "TRL recomputes without filters"
    # Of two candidates at temperature 0.5, the one that was drawn is rarely below 1 in 1000.
    assert min(min(row) for row in output["logprobs"]) > -10


def test_the_whole_loop_of_trl_runs_with_our_function_alone(
    hf_tokenizer: Any, tiny_model: Any, tmp_path: Path
) -> None:
    """No wrapper of ours or of a test between TRL and the function."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    noted = env(Columns, got=[])
    trainer = GRPOTrainer(
        model=(model := tiny_model()),
        args=GRPOConfig(
            output_dir=str(tmp_path),
            max_steps=1,
            per_device_train_batch_size=4,
            num_generations=4,
            learning_rate=1e-2,
            **CPU,
        ),
        processing_class=hf_tokenizer,
        reward_funcs=[env_reward, scored_only(lambda completions, **_: [0.1, 0.2, 0.3, 0.4])],
        train_dataset=Dataset.from_dict({"prompt": ["p"] * 4, "level": [7] * 4}),
        rollout_func=make_rollout_func(noted, config=CONFIG),
    )
    before = [parameter.detach().clone() for parameter in model.parameters()]
    trainer.train()
    assert {(seed, level) for seed, _, level in noted.got} == {("p", 7)}
    moved = [not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
    assert any(moved)


def test_the_trainers_server_is_the_one_that_its_settings_name(hf_tokenizer: Any) -> None:
    from trl import GRPOConfig

    args = GRPOConfig(
        output_dir="unused",
        use_cpu=True,
        bf16=False,
        use_vllm=True,
        vllm_mode="server",
        vllm_server_port=8123,
        report_to="none",
    )
    trainer = SimpleNamespace(
        args=args,
        use_vllm=True,
        vllm_mode="server",
        **{
            name: getattr(args, name)
            for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
        },
    )
    sampler: Any = sampler_of(trainer, hf_tokenizer, trl_version())
    own = trl_version() < (1, 11)
    assert type(sampler).__name__ == ("TRLServerSampler" if own else "VLLMServerSampler")
    assert sampler.base_urls == ("http://0.0.0.0:8123",)


def test_limits_of_the_trainer_bound_the_completion(
    hf_tokenizer: Any, tiny_model: Any, tmp_path: Path
) -> None:
    run = Run(
        hf_tokenizer,
        tiny_model(),
        tmp_path,
        Talk,
        make={"config": RolloutConfig()},
        max_completion_length=6,
        max_steps=1,
    )
    run.trainer.train()
    assert max(len(ids) for ids in run.outputs[0]["completion_ids"]) <= 6
