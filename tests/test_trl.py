"""TRL: what `GRPOTrainer` gets is what the engine saw and sampled, and failures carry no weight."""

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

import abut  # noqa: E402
import abut.trl_version  # noqa: E402
from abut.errors import MissingExtraError, RolloutError  # noqa: E402
from abut.metrics import log_rollout_metrics  # noqa: E402
from abut.record import read_records  # noqa: E402
from abut.rollout import RolloutConfig, RolloutTask  # noqa: E402
from abut.samplers.transformers import TransformersSampler  # noqa: E402
from abut.samplers.vllm import VLLMServerSampler  # noqa: E402
from abut.trl import env_reward, make_rollout_func, scored_only  # noqa: E402
from abut.trl_sampler import sampler_of  # noqa: E402
from fake_server import FakeServer  # noqa: E402
from stage import BOTH, Recording, Stage, Talk, check_exact, env  # noqa: E402

CONFIG = RolloutConfig(max_turn_tokens=5, retries=0)


class Vowels(Talk):
    """Rewards vowels; the third environment of each eight cannot be used."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        self.broken = type(self).made % 8 == 2
        type(self).made += 1

    def step(self, action: str) -> Any:
        result = super().step(action)
        if self.broken and len(self.actions) == 2:
            raise ValueError("boom")
        self.reward = sum(c in "aeiou" for c in action) / max(len(action), 1) + len(action) / 64
        return result


class Run:
    """A real `GRPOTrainer` with the tiny model; keeps what it got and made of it."""

    def __init__(
        self,
        hf_tokenizer: Any,
        model: Any,
        folder: Path,
        env_class: Any,
        *,
        reward_funcs: Any = env_reward,
        prompts: Sequence[Any] = ("go",) * 8,
        make: dict[str, Any] | None = None,
        **args: Any,
    ) -> None:
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer

        self.outputs: list[Any] = []
        self.prompts: list[Any] = []
        self.batches: list[Any] = []
        self.recomputed: list[Any] = []
        self.rollout_func = make_rollout_func(env_class, **{"config": CONFIG} | (make or {}))
        dataset = Dataset.from_list([{"prompt": prompt} for prompt in prompts])
        settings = {
            "output_dir": str(folder),
            "use_cpu": True,
            "bf16": False,
            "max_steps": 2,
            "per_device_train_batch_size": 8,
            "per_device_eval_batch_size": 8,
            "num_generations": 4,
            "max_completion_length": 128,
            "report_to": "none",
            "logging_steps": 1,
            "learning_rate": 1e-3,
            "save_strategy": "no",
            "disable_tqdm": True,
        }
        self.trainer = GRPOTrainer(
            model=model,
            args=GRPOConfig(**settings | args),
            processing_class=hf_tokenizer,
            reward_funcs=reward_funcs,
            train_dataset=dataset,
            eval_dataset=dataset,
            rollout_func=self._keep,
        )
        self._score = self.trainer._generate_and_score_completions
        self.trainer._generate_and_score_completions = self._recompute

    def _keep(self, prompts: Any, trainer: Any) -> Any:
        self.prompts.append(prompts)
        self.outputs.append(self.rollout_func(prompts, trainer))
        return dict(self.outputs[-1])

    def _recompute(self, inputs: Any) -> Any:
        batch = self._score(inputs)
        with torch.no_grad():
            logprobs = self.trainer._get_per_token_logps_and_entropies(
                self.trainer.model,
                torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1),
                torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1),
                batch["completion_ids"].size(1),
            )[0]
        self.batches.append(batch)
        self.recomputed.append(logprobs)
        return batch

    def worst(self, roll: int = 0) -> float:
        """The largest difference between TRL's logprobs and ours, in nats."""
        most = 0.0
        for output, recomputed in zip(self.outputs, self.recomputed, strict=True):
            for row, theirs in enumerate(recomputed):
                mask = np.asarray(output["env_mask"][row], dtype=bool)
                ours = np.asarray(output["logprobs"][row])[mask]
                theirs_sampled = theirs[: len(mask)].numpy()[mask]
                if len(ours):
                    most = max(most, np.abs(np.roll(ours, roll) - theirs_sampled).max())
        return most


@pytest.fixture(scope="module", params=[1.0, 0.7], ids=["T=1", "T=0.7"])
def run(request: Any, hf_tokenizer: Any, tiny_model: Any, tmp_path_factory: Any) -> Iterator[Any]:
    """Two steps of training on an environment of which one in eight fails, all calls recorded."""
    calls: list[Any] = []
    sample_batch = TransformersSampler.sample_batch

    def recording(self: Any, requests: Any) -> Any:
        samples = sample_batch(self, requests)
        calls.extend(zip(requests, samples, strict=True))
        return samples

    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransformersSampler, "sample_batch", recording)
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
            # Rounded: the mean of equal rewards is not quite theirs.
            above = np.round(rewards - rewards.mean(), 9)
            assert np.sign([advantages[i] for i in rows]).tolist() == np.sign(above).tolist()


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


def test_filters_of_the_trainer_are_those_of_the_logprobs(
    hf_tokenizer: Any, tiny_model: Any, tmp_path: Path
) -> None:
    run = Run(hf_tokenizer, tiny_model(), tmp_path, Talk, top_k=3, max_steps=1)
    run.trainer.train()
    assert run.worst() > 0.1, "TRL recomputes without filters"
    for row in run.outputs[0]["logprobs"]:
        assert min(row) < 0
    sampler = run.rollout_func._engine._sampler
    assert sampler._settings["top_k"] == 3


# ---- prompts, seeds and groups, with a trainer that only has what we read


class Seeds(Talk):
    """Notes what reset got."""

    got: list[Any]

    def reset(self, seed: str, *, episode_seed: int, level: int = 0) -> Any:
        self.got.append((seed, episode_seed, level))
        return super().reset(seed)


def a_trainer(hf_tokenizer: Any, **changes: Any) -> Any:
    attributes = {
        "model": SimpleNamespace(
            training=True,
            config=SimpleNamespace(max_position_embeddings=1024),
            generation_config=SimpleNamespace(eos_token_id=[505, 503]),
        ),
        "processing_class": hf_tokenizer,
        "num_generations": 2,
        "num_generations_eval": 1,
        "accelerator": SimpleNamespace(process_index=0, num_processes=1),
        "state": SimpleNamespace(global_step=0),
        "args": SimpleNamespace(disable_tqdm=True),
        "reward_funcs": [env_reward],
        "max_completion_length": 256,
        "use_vllm": False,
    }
    return SimpleNamespace(**attributes | changes)


@pytest.fixture
def called(stage: Stage, hf_tokenizer: Any) -> Any:
    """Calls a rollout_func with a scripted sampler; returns its columns."""

    def call(prompts: Any, env_class: Any = Talk, trainer: Any = None, **make: Any) -> Any:
        rollout_func = make_rollout_func(env_class, **{"sampler": Recording(stage.says())} | make)
        return rollout_func(prompts, trainer or a_trainer(hf_tokenizer))

    return call


def user(content: str, **keys: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **keys}


def test_the_prompts_text_is_the_seed(called: Any) -> None:
    cls = env(Seeds, got=[])
    called(["a", "a", [user("b")], [user("first"), user("c")]], cls)
    assert sorted(seed for seed, _, _ in cls.got) == ["a", "a", "b", "c"]


def test_a_string_prompt_is_a_seed_and_nothing_else(called: Any, hf_tokenizer: Any) -> None:
    out = called(["a secret seed"])
    text = "<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n"
    assert hf_tokenizer.decode(out["prompt_ids"][0]) == text


def test_rows_are_in_the_order_of_the_prompts_whoever_is_first(
    called: Any, stage: Stage, hf_tokenizer: Any
) -> None:
    prompts = [f"number {k}" for k in range(6)]
    sampler = Recording(stage.says(), delay_s=lambda r: 0.05 - 0.01 * int(r.rollout_id[-1]))
    out = called(prompts, env(reset=lambda self, seed: (self, seed)), sampler=sampler)
    for prompt, ids in zip(prompts, out["prompt_ids"], strict=True):
        assert prompt in hf_tokenizer.decode(ids)


def test_the_row_reaches_reset_and_not_the_messages(called: Any) -> None:
    cls = env(Seeds, got=[])
    prompt = [user("text", row={"level": 4, "seed": "from the row", "unused": 1})]
    out = called([prompt], cls)
    ((seed, _, level),) = cls.got
    assert (seed, level) == ("from the row", 4)
    assert out["messages"][0][0] == user("text")
    assert "row" in prompt[0], "the trainer's prompt stays as it was"


def test_a_group_shares_its_episode_seed_and_groups_and_steps_differ(
    stage: Stage, hf_tokenizer: Any
) -> None:
    cls = env(Seeds, got=[])
    rollout_func = make_rollout_func(cls, sampler=Recording(stage.says()))
    trainer = a_trainer(hf_tokenizer)
    seeds = []
    for _ in range(2):
        cls.got.clear()
        rollout_func(["a", "a", "b", "b"], trainer)
        by_prompt = {p: {s for q, s, _ in cls.got if q == p} for p in "ab"}
        assert {len(s) for s in by_prompt.values()} == {1}
        seeds += [s for group in by_prompt.values() for s in group]
    assert len(set(seeds)) == 4


def test_a_group_that_two_ranks_share_has_one_seed(stage: Stage, hf_tokenizer: Any) -> None:
    seeds: list[Any] = []
    ids: list[str] = []
    for rank, prompts in enumerate((["a", "a", "a"], ["a", "b", "b"])):
        cls = env(Seeds, got=[])
        trainer = a_trainer(
            hf_tokenizer,
            num_generations=4,
            accelerator=SimpleNamespace(process_index=rank, num_processes=2),
        )
        rollout_func = make_rollout_func(cls, sampler=Recording(stage.says()))
        ids += rollout_func(prompts, trainer)["rollout_id"]
        seeds += [{s for p, s, _ in cls.got if p == prompt} for prompt in sorted(set(prompts))]
    assert [len(group) for group in seeds] == [1, 1, 1]
    assert seeds[0] == seeds[1] != seeds[2]
    assert len(set(ids)) == 6


def test_evaluation_has_groups_of_its_own_size(stage: Stage, hf_tokenizer: Any) -> None:
    cls = env(Seeds, got=[])
    trainer = a_trainer(hf_tokenizer)
    trainer.model.training = False
    make_rollout_func(cls, sampler=Recording(stage.says()))(["a", "a"], trainer)
    assert len({seed for _, seed, _ in cls.got}) == 2


class Counting:
    """A pool that notes the groups of its tasks."""

    def __init__(self) -> None:
        self.groups: list[int] = []

    async def lend(self, task: RolloutTask) -> Any:
        self.groups.append(task.group)
        return Talk()


@pytest.mark.parametrize("rank", [0, 1])
def test_groups_are_numbered_over_ranks_and_batches(
    stage: Stage, hf_tokenizer: Any, rank: int
) -> None:
    """Two ranks, three prompts each, groups of two: the second group is on both."""
    pool = Counting()
    rollout_func = make_rollout_func(pool, sampler=Recording(stage.says()))
    trainer = a_trainer(
        hf_tokenizer, accelerator=SimpleNamespace(process_index=rank, num_processes=2)
    )

    def groups() -> list[int]:
        pool.groups.clear()
        rollout_func(["a", "b", "c"], trainer)
        return pool.groups.copy()

    first = [[0, 0, 1], [1, 2, 2]][rank]
    assert groups() == first
    trainer.state.global_step = 1
    assert groups() == [group + 3 for group in first]
    trainer.model.training = False
    for step in (1, 2):  # each evaluation begins anew, here with two batches in groups of one
        trainer.state.global_step = step
        assert groups() == [3 * rank, 3 * rank + 1, 3 * rank + 2]
        assert groups() == [3 * rank + 6, 3 * rank + 7, 3 * rank + 8]
    trainer.model.training = True
    assert groups() == [group + 6 for group in first]


def test_a_resumed_run_does_not_begin_with_the_first_tasks(stage: Stage, hf_tokenizer: Any) -> None:
    pool = Counting()
    trainer = a_trainer(hf_tokenizer, state=SimpleNamespace(global_step=10))
    make_rollout_func(pool, sampler=Recording(stage.says()))(["a"] * 4, trainer)
    assert pool.groups == [20, 20, 21, 21]


def test_the_same_config_gives_the_same_rows(called: Any) -> None:
    one, two = called(["a"] * 4), called(["a"] * 4)
    for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask", "rollout_id"):
        assert one[name] == two[name]


def test_limits_come_from_the_trainer_unless_the_config_has_them(
    stage: Stage, hf_tokenizer: Any
) -> None:
    for config, limits in (
        (None, (256, 1024)),
        (RolloutConfig(max_completion_tokens=9, max_context_tokens=99), (9, 99)),
    ):
        rollout_func = make_rollout_func(Talk, config=config, sampler=Recording(stage.says()))
        rollout_func(["a"], a_trainer(hf_tokenizer))
        engine = rollout_func._engine
        assert engine is not None
        assert (engine.limits.max_completion_tokens, engine.limits.max_context_tokens) == limits
        assert engine.stop_token_ids == (505, 503)


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


def test_a_system_message_and_a_system_prompt_are_an_error(called: Any) -> None:
    with pytest.raises(ValueError, match="system") as raised:
        called(["a", [{"role": "system", "content": "S"}, user("b")]], system_prompt="T")
    assert str(raised.value) == (
        "prompt 1 has a system message and make_rollout_func has a system_prompt\n"
        "hint: give one of the two"
    )


@pytest.mark.parametrize("name", ["tools", "environment_factory", "environment_factories"])
def test_trls_own_tool_loop_is_refused(called: Any, hf_tokenizer: Any, name: str) -> None:
    with pytest.raises(ValueError, match="exclude") as raised:
        called(["a"], trainer=a_trainer(hf_tokenizer, **{name: [print]}))
    assert str(raised.value) == (
        f"GRPOTrainer({name}=…) and rollout_func exclude each other: TRL would run its own tool "
        "loop over finished rollouts\nhint: leave one of the two out"
    )


def test_vllm_in_the_trainers_process_is_not_asked(called: Any, hf_tokenizer: Any) -> None:
    trainer = a_trainer(hf_tokenizer, use_vllm=True, vllm_mode="colocate")
    with pytest.raises(ValueError, match="vllm_mode") as raised:
        called(["a"], trainer=trainer, sampler="auto")
    assert str(raised.value) == (
        "sampler='auto' cannot ask vLLM in vllm_mode='colocate'\n"
        "hint: GRPOConfig(vllm_mode='server') or use_vllm=False, or pass a sampler of your own"
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
        "the rollouts are sampled by a server, but the trainer has use_vllm=False: TRL sends the "
        "server no weights, and does not correct for the difference"
    )


def test_an_unknown_sampler_and_an_env_object_are_refused() -> None:
    with pytest.raises(ValueError, match="sampler") as raised:
        make_rollout_func(Talk, sampler="vllm")
    assert str(raised.value) == "sampler='vllm': expected 'auto' or a sampler object"
    with pytest.raises(TypeError, match="got one environment object"):
        make_rollout_func(Talk())


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


def test_no_rollouts_log_no_metrics() -> None:
    log_rollout_metrics([], lambda name, value: pytest.fail(name))


@pytest.fixture
def trl_version(monkeypatch: pytest.MonkeyPatch) -> Any:
    def be(text: str) -> None:
        monkeypatch.setattr(abut.trl_version, "version", lambda name: text)

    return be


def test_an_old_trl_is_refused_and_a_new_one_warned_of(trl_version: Any) -> None:
    trl_version("0.29.0")
    with pytest.raises(MissingExtraError) as raised:
        make_rollout_func(Talk)
    assert str(raised.value) == (
        "abut.trl needs TRL 0.29.1 or later, found 0.29.0\nhint: pip install 'trl>=0.29.1'"
    )
    trl_version("2.0.0.dev0")
    with pytest.warns(UserWarning, match="tested up to") as caught:
        make_rollout_func(Talk)
    assert str(caught[0].message) == "abut.trl was tested up to TRL 1.16 and found 2.0.0.dev0"
    for tested in "0.29.1", "1.16.3":
        trl_version(tested)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            make_rollout_func(Talk)


def test_without_trl_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import PackageNotFoundError

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(abut.trl_version, "version", missing)
    with pytest.raises(MissingExtraError) as raised:
        make_rollout_func(Talk)
    assert str(raised.value) == "abut.trl needs TRL: pip install 'abut[trl]'"


def test_a_trl_that_counts_none_as_zero_raises_on_failure(
    called: Any, trl_version: Any, caplog: pytest.LogCaptureFixture
) -> None:
    trl_version("1.5.0")
    with pytest.raises(RolloutError, match="rollout train-0-0-0 failed after 1 attempts"):
        called(["a"] * 8, env(Vowels, made=2), config=CONFIG)
    assert caplog.messages == [
        "TRL 1.5.0 counts a reward of None as 0, so a failed rollout raises here; TRL 1.6 and "
        "later leave it out"
    ]
