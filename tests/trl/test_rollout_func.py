"""TRL: what `GRPOTrainer` gets is what the engine saw and sampled, and failures carry no weight."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")

import abut
from abut.envs.task import RolloutTask
from abut.errors import RolloutError
from abut.records.read import read_records
from abut.rollout.config import RolloutConfig
from abut.rollout.rollout import Rollout
from abut.samplers.vllm import VLLMServerSampler
from abut.trl import env_reward, make_rollout_func, scored_only
from abut.trl.rows.columns import rows_of
from abut.trl.trainer_sampler import sampler_of
from tests.kit.servers.fake_server import FakeServer
from tests.kit.stage.rollouts import BOTH, Recording, Stage, Talk, check_exact, env
from tests.kit.training.trl_run import CONFIG, Run, Vowels, a_trainer, recorded_calls, user


@pytest.fixture(scope="module", params=[1.0, 0.7], ids=["T=1", "T=0.7"])
def run(request: Any, hf_tokenizer: Any, tiny_model: Any, tmp_path_factory: Any) -> Iterator[Any]:
    """Two steps of training on an environment of which one in eight fails, all calls recorded."""
    folder = tmp_path_factory.mktemp("run")
    with recorded_calls() as calls:
        run = Run(
            hf_tokenizer,
            tiny_model(),
            folder,
            env(Vowels, made=0),
            temperature=request.param,
            make={"recorder": str(folder / "rollouts.jsonl")},
        )
        run.trainer.train()
    run.calls, run.folder = calls, folder  # type: ignore[attr-defined]
    return run


# ---- a real trainer


def test_each_row_is_exactly_what_the_model_saw_and_sampled(run: Any) -> None:
    checked = 0
    for output in run.outputs:
        for k, rollout_id in enumerate(output["rollout_id"]):
            if output["error"][k] is None:
                columns = abut.Columns(
                    **{
                        name: output[name][k]
                        for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask")
                    }
                )
                check_exact(columns, [c for c in run.calls if c[0].rollout_id == rollout_id])
                checked += 1
    assert checked == 14


def test_trl_recomputes_our_logprobs(run: Any) -> None:
    assert run.worst() < 1e-3


def test_logprobs_that_are_rotated_fail_the_same_bound(run: Any) -> None:
    assert run.worst(roll=1) > 0.1


def test_there_is_one_row_for_each_prompt_and_every_column_fits(run: Any) -> None:
    assert len(run.outputs) == 2
    for prompts, output in zip(run.prompts, run.outputs, strict=True):
        assert {len(values) for values in output.values()} == {len(prompts)} == {8}
        for k in range(8):
            length = len(output["completion_ids"][k])
            assert length == len(output["logprobs"][k]) == len(output["env_mask"][k]) > 0
            assert all(type(p) is float for p in output["logprobs"][k])


def test_a_failed_rollout_carries_no_weight_and_the_step_goes_on(run: Any) -> None:
    close = 505
    assert run.trainer.state.global_step == 2
    for output, batch in zip(run.outputs, run.batches, strict=True):
        failed = [k for k, error in enumerate(output["error"]) if error]
        assert [output["error"][k] for k in failed] == [
            "EnvError: Vowels.step raised ValueError: boom"
        ]
        (k,) = failed
        assert output["completion_ids"][k] == [close]
        assert (output["logprobs"][k], output["env_mask"][k]) == ([0.0], [0])
        assert output["prompt_ids"][k] == output["prompt_ids"][k - 1]
        assert (output["env_reward"][k], output["stop_reason"][k]) == (None, "error")
        advantages = batch["advantages"].tolist()
        assert advantages[k] == 0
        assert any(a != 0 for i, a in enumerate(advantages) if i != k)
        for first in range(0, len(advantages), 4):
            rows = [i for i in range(first, first + 4) if i != k]
            rewards = np.array([output["env_reward"][i] for i in rows])
            # Rounded: a reward that is the mean of all is not quite that, least in float32.
            above = np.round(rewards - rewards.mean(), 4)
            better = np.round([advantages[i] for i in rows], 4)
            assert np.sign(better).tolist() == np.sign(above).tolist()


def test_the_metrics_of_the_batch_are_logged(run: Any) -> None:
    logged = run.trainer.state.log_history[0]
    assert logged["rollout/error_frac"] == pytest.approx(1 / 8)
    assert logged["rollout/stop/env_done"] == pytest.approx(7 / 8)
    assert logged["rollout/stop/error"] == pytest.approx(1 / 8)
    assert logged["rollout/turns/mean"] == pytest.approx((7 * 3 + 2) / 8)
    stats = run.outputs[0]["rollout_stats"]
    sampled = sum(row["sampled_tokens"] for row in stats) / 8
    assert logged["rollout/sampled_tokens/mean"] == pytest.approx(sampled)
    assert 0 < logged["rollout/seams/exact_frac"] <= 1
    assert logged["rollout/time/generate_s/mean"] > logged["rollout/time/env_s/mean"] > 0
    scored = [r for r in run.outputs[0]["env_reward"] if r is not None]
    assert logged["rewards/env_reward/mean"] == pytest.approx(np.mean(scored), abs=1e-5)
    assert logged["rollout/time/rollout_s/max"] >= logged["rollout/time/rollout_s/mean"] > 0
    assert logged["rollout/unscored_frac"] == pytest.approx(1 / 8)


def test_the_table_of_completions_says_how_each_rollout_ended(run: Any) -> None:
    extra = run.trainer._logs["extra"]
    assert set(extra) == {"num_turns", "stop_reason"}
    for name in extra:
        assert list(extra[name])[-8:] == run.outputs[-1][name]


def test_every_rollout_is_in_the_record(run: Any) -> None:
    records = list(read_records(run.folder / "rollouts.jsonl"))
    assert [r["rollout_id"] for r in records] == [i for o in run.outputs for i in o["rollout_id"]]
    assert [r["step"] for r in records] == [0] * 8 + [1] * 8
    assert sum(r["error"] is not None for r in records) == 2
    for record, ids in zip(records, run.outputs[0]["completion_ids"], strict=False):
        assert record["completion_ids"] in (ids, [])


def test_every_rollout_has_a_name_of_its_own(run: Any) -> None:
    ids = [rollout_id for output in run.outputs for rollout_id in output["rollout_id"]]
    assert len(set(ids)) == 16


@BOTH
def test_evaluation_and_extras_work_with_message_prompts(
    hf_tokenizer: Any, tiny_model: Any, tmp_path: Path, twin: Any
) -> None:
    seen: dict[str, Any] = {}

    @scored_only
    def longest(completions: Any, messages: Any, num_turns: Any, **kwargs: Any) -> list[float]:
        seen.update(kwargs, messages=messages, num_turns=num_turns)
        return [1.0 for _ in completions]

    prompt = [{"role": "user", "content": "say something"}]
    run = Run(
        hf_tokenizer,
        tiny_model(),
        tmp_path,
        twin(Talk),
        prompts=[prompt] * 8,
        reward_funcs=[env_reward, longest],
        num_generations_eval=2,
        make={"system_prompt": "Be brief."},
    )
    metrics = run.trainer.evaluate()
    assert metrics["eval_rewards/env_reward/mean"] == 1.0
    assert metrics["eval_rollout/turns/mean"] == 3.0
    assert seen["num_turns"] == [3] * 8
    assert seen["env_step_rewards"][0] == pytest.approx([1 / 3, 2 / 3, 1.0])
    assert [m["role"] for m in seen["messages"][0]][:3] == ["system", "user", "user"]
    assert all(rollout_id.startswith("eval-") for rollout_id in seen["rollout_id"])
    text = hf_tokenizer.decode(run.outputs[0]["prompt_ids"][0])
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nsay something<|im_end|>\n"
        "<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n"
    )


def test_each_evaluation_of_a_trainer_has_the_same_groups(
    hf_tokenizer: Any, tiny_model: Any, tmp_path: Path
) -> None:
    """Also the second of one step: what an environment does for a group can be compared."""
    groups: list[int] = []

    class Pool:
        async def lend(self, task: RolloutTask) -> Any:
            groups.append(task.group)
            return env(turns=1)()

    args = {"num_generations_eval": 2, "prompts": ["go"] * 4, "per_device_eval_batch_size": 4}
    run = Run(hf_tokenizer, tiny_model(), tmp_path, Pool(), **args)
    for _ in range(3):
        groups.clear()
        run.trainer.evaluate()
        assert sorted(groups[:4]) == [0, 0, 1, 1]
        assert sorted(groups[4:]) == [2, 2, 3, 3]


def test_filters_of_the_trainer_are_those_of_the_logprobs(
    hf_tokenizer: Any, tiny_model: Any, tmp_path: Path
) -> None:
    run = Run(hf_tokenizer, tiny_model(), tmp_path, Talk, top_k=3, max_steps=1)
    run.trainer.train()
    assert run.worst() > 0.1, "TRL recomputes without filters"
    for row in run.outputs[0]["logprobs"]:
        assert min(row) < 0
    sampler = run.rollout_func._engine._parts.sampler
    assert sampler._settings.top_k == 3


# ---- one call, with a trainer that only has what we read


def test_limits_come_from_the_trainer_unless_the_config_has_them(
    stage: Stage, hf_tokenizer: Any
) -> None:
    for config, limits in (
        (None, (256, 1024)),
        (RolloutConfig(max_completion_tokens=9, max_context_tokens=99), (9, 99)),
    ):
        sampler = Recording(stage.says())
        rollout_func = make_rollout_func(Talk, config=config, sampler=sampler)
        rollout_func(["a"], a_trainer(hf_tokenizer))
        engine = rollout_func._engine
        assert engine is not None
        assert (engine.config.max_completion_tokens, engine.config.max_context_tokens) == limits
        assert sampler.requests[0].stop_token_ids == (505, 503)


def test_the_chat_template_gets_the_trainers_keywords(called: Any, hf_tokenizer: Any) -> None:
    trainer = a_trainer(
        hf_tokenizer,
        chat_template="{{- told }}" + hf_tokenizer.chat_template,
        chat_template_kwargs={"told": "!"},
    )
    out = called(["a"], trainer=trainer)
    assert hf_tokenizer.decode(out["prompt_ids"][0]).startswith("!<|im_start|>user")


def test_a_rollout_without_any_request_still_has_its_prompt(called: Any, hf_tokenizer: Any) -> None:
    def broken(self: Any, seed: str) -> Any:
        raise OSError("no port")

    config = RolloutConfig(retries=0, max_failed_frac=1.0)
    cls = env(reset=broken)
    out = called(["a", [user("b")]], cls, config=config, system_prompt="S")
    texts = [hf_tokenizer.decode(ids) for ids in out["prompt_ids"]]
    head, tail = "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\n", "<|im_end|>\n<|im_start|>"
    assert texts == [f"{head}{text}{tail}assistant\n" for text in "ab"]
    assert out["completion_ids"] == [[505]] * 2


def test_what_is_no_recorder_is_refused() -> None:
    with pytest.raises(TypeError) as raised:
        make_rollout_func(Talk, recorder=3)  # type: ignore[arg-type]
    assert str(raised.value) == (
        "recorder must be a path or have a method write(rollout, **extra), got 3\n"
        "hint: set recorder='rollouts.jsonl', or a folder for Parquet"
    )


def test_a_failed_batch_is_in_the_record(called: Any, tmp_path: Path) -> None:
    cls = env(Vowels, made=2)
    with pytest.raises(RolloutError):
        called(["a"], cls, config=CONFIG, recorder=str(tmp_path / "r.jsonl"))
    (record,) = read_records(tmp_path / "r.jsonl")
    assert record["error"] == "EnvError: Vowels.step raised ValueError: boom"


def test_nothing_sampled_is_a_row_without_weight(called: Any) -> None:
    out = called(["a"], sampler=Recording(lambda r: []))
    assert (out["completion_ids"], out["env_mask"], out["env_reward"]) == ([[505]], [[0]], [None])
    assert (out["stop_reason"], out["error"]) == (["empty_sample"], [None])


# ---- what is refused, and what is warned of


@pytest.mark.parametrize("name", ["tools", "environment_factory", "environment_factories"])
def test_trls_own_tool_loop_is_refused(called: Any, hf_tokenizer: Any, name: str) -> None:
    with pytest.raises(ValueError, match="do not work together") as raised:
        called(["a"], trainer=a_trainer(hf_tokenizer, **{name: [print]}))
    assert str(raised.value) == (
        f"GRPOTrainer({name}=…) and rollout_func do not work together: TRL would run its own "
        "tool loop over finished rollouts\n"
        "hint: leave one of the two out"
    )


VLLM_ARGS = {
    "generation_kwargs": {"min_tokens": 2},
    "vllm_server_base_url": None,
    "vllm_server_host": "127.0.0.1",
    "vllm_server_port": 8123,
    "vllm_server_timeout": 1.5,
    "disable_tqdm": True,
}
SAMPLING = {"temperature": 0.7, "top_k": 0, "top_p": 1.0, "min_p": None, "repetition_penalty": 1.0}


def test_the_trainers_server_is_asked_with_the_trainers_settings(
    called: Any, hf_tokenizer: Any
) -> None:
    waited: list[int] = []
    ranks = SimpleNamespace(
        process_index=0, num_processes=1, wait_for_everyone=lambda: waited.append(1)
    )
    with FakeServer(models=[{"id": "tiny", "max_model_len": 2048}]) as server:
        trainer = a_trainer(
            hf_tokenizer,
            use_vllm=True,
            vllm_mode="server",
            args=SimpleNamespace(**VLLM_ARGS | {"vllm_server_base_url": server.url}),
            accelerator=ranks,
            **SAMPLING,
        )
        out = called(["a", "b"], trainer=trainer, sampler="auto")
    assert [len(ids) for ids in out["completion_ids"]] == [len(m) for m in out["env_mask"]]
    assert waited == [1], "no rank samples before rank 0 has sent the weights"
    sent = {"temperature": 0.7, "min_p": 0.0, "min_tokens": 2}
    assert all(sent.items() <= body.items() for body in server.requests)


@pytest.mark.parametrize(
    ("trl", "cls"), [((1, 10, 0), "TRLServerSampler"), ((1, 11, 0), "VLLMServerSampler")]
)
def test_trls_own_server_was_another_one(hf_tokenizer: Any, trl: Any, cls: str) -> None:
    trainer = a_trainer(
        hf_tokenizer,
        use_vllm=True,
        vllm_mode="server",
        args=SimpleNamespace(**VLLM_ARGS),
        **SAMPLING,
    )
    sampler: Any = sampler_of(trainer, hf_tokenizer, trl)
    assert type(sampler).__name__ == cls
    assert sampler.base_urls == ("http://127.0.0.1:8123",)


def test_a_server_without_weight_sync_is_warned_of(called: Any) -> None:
    with (
        FakeServer(models=[{"id": "tiny", "max_model_len": 2048}]) as server,
        pytest.warns(UserWarning, match="use_vllm=False") as warned,
    ):
        called(["a"], sampler=VLLMServerSampler(server.url))
    assert str(warned[0].message) == (
        "a server samples the rollouts, but the trainer has use_vllm=False, so TRL does not send "
        "weights to the server and does not correct for the difference"
    )


def test_an_unknown_sampler_and_an_env_object_are_refused() -> None:
    with pytest.raises(ValueError, match="sampler") as raised:
        make_rollout_func(Talk, sampler="vllm")
    assert str(raised.value) == "sampler='vllm': expected 'auto' or a sampler object"
    with pytest.raises(TypeError, match="got one environment object"):
        make_rollout_func(Talk())


def test_a_failed_row_has_its_own_question_for_a_prompt(stage: Stage) -> None:
    """Not what a column `seed` says."""
    columns = {"prompt": "What is 1 + 2?", "seed": 42}
    tasks = stage.tasks([Talk], seed="42", columns=columns)
    rows = rows_of([Rollout("r0", 0)], tasks, stage.engine(Recording(stage.says())))
    prompt = stage.tokenizer.decode(rows["prompt_ids"][0])
    assert "What is 1 + 2?" in prompt
    assert "42" not in prompt


@pytest.mark.parametrize("asked", [True, False], ids=["asked", "not asked"])
def test_a_failed_row_has_no_more_of_its_prompt_than_the_trainer_holds(
    stage: Stage, asked: bool
) -> None:
    tasks = stage.tasks([Talk], columns={"prompt": "word " * 5000})
    failed = Rollout("r0", 0, prompt_ids=list(range(6052)) if asked else None)
    engine = stage.engine(Recording(stage.says()), completion=100, context=512)
    (prompt_ids,) = rows_of([failed], tasks, engine)["prompt_ids"]
    assert len(prompt_ids) == 511, "with its stop token it is what fits"
    whole = stage.engine(Recording(stage.says()), completion=100)
    assert len(rows_of([failed], tasks, whole)["prompt_ids"][0]) > 5000


def test_a_vanished_question_is_warned_of_once_in_a_run(
    stage: Stage, hf_tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    deaf = env(Talk, texts=("Solve the task.",))
    rollout_func = make_rollout_func(deaf, sampler=Recording(stage.says()))
    trainer = a_trainer(hf_tokenizer)
    for _ in range(2):
        rollout_func(["What is 2+2?", "What is 3+3?"], trainer)
    assert caplog.text.count("the policy never sees the") == 1


def test_a_multimodal_processor_renders_the_prompts_as_trl_does(
    called: Any, hf_tokenizer: Any
) -> None:
    from transformers import ProcessorMixin

    class Speech(ProcessorMixin):  # type: ignore[misc]
        def __init__(self, tokenizer: Any, chat_template: str) -> None:
            super().__init__(tokenizer, chat_template=chat_template)

    own = "{{ '<|im_start|>system\nSee.<|im_end|>\n' }}" + hf_tokenizer.chat_template
    processor = Speech(hf_tokenizer, own)
    trainer = a_trainer(hf_tokenizer, processing_class=processor)
    (prompt_ids,) = called([[user("b")]], env(Talk, texts=("",)), trainer=trainer)["prompt_ids"]
    written = processor.apply_chat_template([user("b")], tokenize=False, add_generation_prompt=True)
    assert hf_tokenizer.decode(prompt_ids) == written
    assert written.startswith("<|im_start|>system\nSee.")
