"""trl-env's names: what was written for it runs after one change, and its rows are exact."""

import copy
import re
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

import abut  # noqa: E402
from abut import trl_env  # noqa: E402
from abut.errors import TemplateError  # noqa: E402
from abut.parts import Scaffold  # noqa: E402
from abut.samplers.transformers import TransformersSampler  # noqa: E402
from abut.template.processor import ChatTemplateProcessor  # noqa: E402
from abut.trl_env.processor import parts_processor  # noqa: E402
from tests.kit.stage.rollouts import Talk, check_exact, env  # noqa: E402
from tests.kit.training.example_run import CPU  # noqa: E402

# As in a script for trl-env, which has each of these in a module of its own.
SCRIPT = """
from trl_env.decoder_transformer import TransformerDecoderFactory
from trl_env.environment import Action, Delta, Env, Seed
from trl_env.processor import qwen3_instruct_processor
from trl_env.rollout import make_reward_func, make_rollout_func
from trl_env.tokenizer import TransformerTokenizer


class HigherLower(Env):
    def reset(self, seed: Seed) -> tuple[Env, Delta]:
        self.reward, self.alive, self.number = 0.0, True, int(seed)
        self.steps = 0
        return self, "Which number from 1 to 9 do I think of?"

    def step(self, action: Action) -> tuple[Env, Delta]:
        self.steps += 1
        digits = [c for c in action if c.isdigit()]
        if self.number == 5 and self.steps == 2:
            raise RuntimeError("the game server is gone")
        if not digits:
            self.reward = 1 / (2 + len(action))
            return self, "That is no number."
        self.alive = int(digits[-1]) != self.number
        self.reward = 1 / (1 + abs(int(digits[-1]) - self.number))
        return self, "Wrong." if self.alive else "Right."


def refuse(*args, **kwargs):
    raise RuntimeError("nobody renders the template")


processing_class.apply_chat_template = refuse
tokenizer = TransformerTokenizer(processing_class)
rollout_func = make_rollout_func(
    processor=qwen3_instruct_processor,
    tokenizer=tokenizer,
    decoder_factory=TransformerDecoderFactory(
        temperature=1.0,
        eos_token_set={processing_class.eos_token_id, tokenizer.encode("<|endoftext|>")[0]},
        max_completion_length=8,
    ),
    env_factory=HigherLower,
    system_prompt="You guess.",
    max_conversation_length=160,
)
trainer = GRPOTrainer(
    model=model,
    args=GRPOConfig(
        output_dir=output_dir,
        max_completion_length=160,
        num_generations=4,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        max_steps=2,
        **settings,
    ),
    processing_class=tokenizer.processing_class,
    rollout_func=lambda prompts, trainer: keep(rollout_func(prompts, trainer)),
    reward_funcs=make_reward_func(),
    train_dataset=Dataset.from_list([{"prompt": str(1 + k % 8)} for k in range(16)]),
)
trainer.train()
"""


@pytest.fixture(scope="module")
def run(hf_tokenizer: Any, tiny_model: Any, tmp_path_factory: Any) -> Any:
    """The script above, with one kind of import changed."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    calls: list[Any] = []
    outputs: list[Any] = []
    sample_batch = TransformersSampler.sample_batch

    def recording(self: Any, requests: Any) -> Any:
        samples = sample_batch(self, requests)
        calls.extend(zip(requests, samples, strict=True))
        return samples

    def keep(columns: Any) -> Any:
        outputs.append(dict(columns))
        return columns

    variables = {
        "processing_class": copy.deepcopy(hf_tokenizer),
        "model": tiny_model(),
        "output_dir": str(tmp_path_factory.mktemp("run")),
        "settings": CPU | {"logging_steps": 1},
        "keep": keep,
        **{"Dataset": Dataset, "GRPOConfig": GRPOConfig, "GRPOTrainer": GRPOTrainer},
    }
    script, changed = re.subn(r"^from trl_env\.", "from abut.trl_env.", SCRIPT, flags=re.MULTILINE)
    assert changed == 5
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransformersSampler, "sample_batch", recording)
        exec(compile(script, "train.py", "exec"), variables)
    return SimpleNamespace(**variables, calls=calls, outputs=outputs)


def columns_of(output: Any, k: int) -> Any:
    names = ("prompt_ids", "completion_ids", "logprobs", "env_mask")
    return abut.Columns(**{name: output[name][k] for name in names})


def test_a_script_for_trl_env_trains_on_exact_rows(run: Any) -> None:
    assert run.trainer.state.global_step == 2
    assert len(run.outputs) == 2
    checked = 0
    for output in run.outputs:
        assert len(output["reward"]) == 8
        for k, rollout_id in enumerate(output["rollout_id"]):
            if output["error"][k] is None:
                columns = columns_of(output, k)
                check_exact(columns, [c for c in run.calls if c[0].rollout_id == rollout_id])
                assert len(columns.prompt_ids) + len(columns.completion_ids) <= 160
                checked += 1
    assert checked >= 12


def test_a_turn_is_closed_and_separated_as_the_template_does_it(run: Any) -> None:
    """trl-env leaves out the close of a cut turn, and the newline before every later turn."""
    turns = 0
    for output in run.outputs:
        for k, error in enumerate(output["error"]):
            row = columns_of(output, k)
            text = run.processing_class.decode([*row.prompt_ids, *row.completion_ids])
            if error is not None or "<|endoftext|>" in text:
                continue
            heads = re.findall(r"(?s)(.{11})<\|im_start\|>(?:user|assistant)", text)
            turns += len(heads) // 2
            assert set(heads) == {"<|im_end|>\n"}
    assert turns > 20


def test_the_reward_is_the_environments_and_none_where_it_failed(run: Any) -> None:
    rewards = [reward for output in run.outputs for reward in output["reward"]]
    errors = [error for output in run.outputs for error in output["error"]]
    assert [reward is None for reward in rewards] == [error is not None for error in errors]
    assert {error for error in errors if error} <= {
        "EnvError: HigherLower.step raised RuntimeError: the game server is gone"
    }
    logged = run.trainer.state.log_history[0]
    scored = [reward for reward in run.outputs[0]["reward"] if reward is not None]
    assert logged["rewards/reward_func/mean"] == pytest.approx(np.mean(scored), abs=1e-5)
    assert "rollout/turns/mean" in logged


# ---- processors


def test_the_presets_write_what_qwen3s_template_writes(qwen3: Any) -> None:
    parts = parts_processor(trl_env.qwen3_instruct_processor, qwen3, {qwen3.eos_token_id})
    template = ChatTemplateProcessor(qwen3, enable_thinking=False)
    first = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    for name, messages in (("opening", first), ("increment", first[1:]), ("closing", first[1:])):
        texts = ["".join(getattr(p, name)(messages)) for p in (parts, template)]
        assert texts[0] == texts[1]
    assert parts.increment(first[1:])[0].startswith("\n<|im_start|>user")
    assert set(template.stop_token_ids) >= set(parts.stop_token_ids)


@pytest.mark.parametrize(
    ("preset", "end", "separator"),
    [
        (trl_env.qwen3_processor, "<|im_end|>", "\n"),
        (trl_env.gemma4_instruct_processor, "<turn|>", "\n"),
        (trl_env.gemma4_processor, "<turn|>", "\n"),
        (trl_env.deepseekr1_processor, "<｜end▁of▁sentence｜>", ""),
    ],
)
def test_each_preset_ends_turns_on_its_own_token(preset: Any, end: str, separator: str) -> None:
    from tests.kit.data.templates import tiny_tokenizer

    hf_tokenizer = tiny_tokenizer(None, end, "<eos>")
    parts = parts_processor(preset, hf_tokenizer, {3})
    (scaffold, content, tail) = parts.increment([{"role": "user", "content": "U"}])
    assert scaffold == separator + preset.config.prefix_user
    assert (content, tail) == ("U", preset.config.suffix_user)
    assert parts.closing() == [Scaffold(end)]
    assert parts.stop_token_ids[:1] == tuple(hf_tokenizer.encode(end))
    assert 3 in parts.stop_token_ids


def test_the_answer_stands_behind_the_last_begin_and_before_the_first_end() -> None:
    parse = trl_env.qwen3_processor.parse_agent_output
    assert parse("hm</think>a</think>\n5<|im_end|>x<|im_end|>") == ("hm</think>a", "\n5")
    assert parse("5") == ("", "5")


def test_an_end_that_is_no_token_is_refused(hf_tokenizer: Any) -> None:
    with pytest.raises(TemplateError) as raised:
        parts_processor(trl_env.gemma4_processor, hf_tokenizer, ())
    assert str(raised.value) == (
        f"'<turn|>' is not a token of {hf_tokenizer.name_or_path!r}, so abut cannot tell where "
        "a turn ends\nhint: pass the token that closes a turn; in ChatML it is <|im_end|>"
    )


def test_a_chat_template_processor_may_stand_in_for_a_preset(hf_tokenizer: Any) -> None:
    parts = parts_processor(ChatTemplateProcessor(hf_tokenizer), hf_tokenizer, {3})
    assert parts.stop_token_ids == (505, 3)


# ---- tokenizer, decoders, and what is refused


def test_a_text_is_encoded_alone() -> None:
    class Bos:
        def __call__(self, text: str, add_special_tokens: bool = True) -> Any:
            return SimpleNamespace(input_ids=[1] * add_special_tokens + [ord(c) for c in text])

        def decode(self, ids: Any) -> str:
            return "".join(map(chr, ids))

    tokenizer = trl_env.TransformerTokenizer(Bos())
    assert tokenizer.encode("ab") == [97, 98]
    assert tokenizer.decode([97, 98]) == "ab"


class Decoder:
    """A user's own: says the same ids in each turn, one turn after the other."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids

    def make_decoder(self, trainer: Any) -> "Decoder":
        return self

    def generate(self, input_ids: list[int]) -> tuple[list[int], list[float]]:
        assert all(type(i) is int for i in input_ids)
        return self.ids, [-float(k + 1) for k in range(len(self.ids))]


def a_trainer(hf_tokenizer: Any, **changes: Any) -> Any:
    """What of a trainer is looked at."""
    model = SimpleNamespace(
        training=True, config=SimpleNamespace(max_position_embeddings=1024), generation_config=None
    )
    return SimpleNamespace(
        **{
            "model": model,
            "processing_class": hf_tokenizer,
            "num_generations": 2,
            "accelerator": SimpleNamespace(process_index=0, num_processes=1),
            "state": SimpleNamespace(global_step=0),
            "args": SimpleNamespace(disable_tqdm=True),
            "reward_funcs": [trl_env.make_reward_func()],
            "max_completion_length": 256,
            "use_vllm": False,
            "temperature": 1.0,
        }
        | changes
    )


def roll_out(hf_tokenizer: Any, decoder_factory: Any, trainer: Any = None, **changes: Any) -> Any:
    arguments = {
        "processor": trl_env.qwen3_instruct_processor,
        "tokenizer": trl_env.TransformerTokenizer(hf_tokenizer),
        "decoder_factory": decoder_factory,
        "env_factory": env(Talk, turns=2),
        "system_prompt": "S",
        "max_conversation_length": 200,
    }
    rollout_func = trl_env.make_rollout_func_mp(**arguments | changes)
    return rollout_func(["1", "1"], trainer or a_trainer(hf_tokenizer))


def test_a_decoder_of_ones_own_samples_the_turns(hf_tokenizer: Any, tokenizer: Any) -> None:
    ids = [*tokenizer.encode("yes").tolist(), 505]
    out = roll_out(hf_tokenizer, Decoder(ids))
    assert out["reward"] == [1.0, 1.0]
    for completion, mask, logprobs in zip(
        out["completion_ids"], out["env_mask"], out["logprobs"], strict=True
    ):
        sampled = [i for i, m in zip(completion, mask, strict=True) if m]
        assert sampled == ids * 2
        assert [p for p, m in zip(logprobs, mask, strict=True) if m] == [
            -float(k + 1) for k in range(len(ids))
        ] * 2
        assert tokenizer.decode(completion).startswith("yes<|im_end|>\n<|im_start|>user\ngo on")


def test_a_decoder_that_says_too_much_is_cut_at_the_budget(
    hf_tokenizer: Any, tokenizer: Any
) -> None:
    out = roll_out(hf_tokenizer, Decoder(tokenizer.encode("no " * 300).tolist()))
    assert out["stop_reason"] == ["max_context_tokens"] * 2
    assert [
        len(p) + len(c) for p, c in zip(out["prompt_ids"], out["completion_ids"], strict=True)
    ] == [200] * 2


def refused(*args: Any, **kwargs: Any) -> str:
    with pytest.raises((TypeError, ValueError)) as raised:
        roll_out(*args, **kwargs)
    return str(raised.value)


def test_what_would_train_on_wrong_logprobs_is_refused(hf_tokenizer: Any) -> None:
    model = trl_env.TransformerDecoderFactory(0.7, {505}, 8)
    assert refused(hf_tokenizer, model) == (
        "TransformerDecoderFactory(temperature=0.7), but the trainer computes logprobs with "
        "temperature=1\n"
        "hint: set GRPOConfig(temperature=0.7)"
    )
    model = trl_env.TransformerDecoderFactory(1.0, {505}, 8)
    assert refused(hf_tokenizer, model, a_trainer(hf_tokenizer, use_vllm=True)) == (
        "TransformerDecoderFactory samples with the trainer's model, but the trainer has "
        "use_vllm=True\n"
        "hint: use VLLMDecoderFactory, or set GRPOConfig(use_vllm=False)"
    )
    vllm = trl_env.VLLMDecoderFactory(1.0, {505}, 8)
    assert refused(hf_tokenizer, vllm) == (
        "VLLMDecoderFactory samples with the trainer's vLLM, but the trainer has use_vllm=False\n"
        'hint: set GRPOConfig(use_vllm=True, vllm_mode="colocate", '
        "vllm_gpu_memory_utilization=0.5, vllm_enable_sleep_mode=True)"
    )


def test_another_tokenizer_than_the_trainers_is_refused(hf_tokenizer: Any) -> None:
    decoder = Decoder([505])
    assert refused(hf_tokenizer, decoder, a_trainer(copy.deepcopy(hf_tokenizer))) == (
        "make_rollout_func has a different tokenizer than the trainer\n"
        "hint: GRPOTrainer(processing_class=tokenizer.processing_class, …)"
    )
    assert refused(hf_tokenizer, decoder, tokenizer=Talk()) == (
        "tokenizer must hold the trainer's tokenizer, got Talk\n"
        "hint: pass TransformerTokenizer(processing_class)"
    )


def test_another_vllm_than_the_script_says_is_warned_of(hf_tokenizer: Any) -> None:
    args = SimpleNamespace(vllm_gpu_memory_utilization=0.3, vllm_enable_sleep_mode=False)
    trainer = a_trainer(hf_tokenizer, use_vllm=True, vllm_mode="colocate", args=args)
    with pytest.warns(UserWarning, match="VLLMDecoderFactory has") as warned:
        trl_env.VLLMDecoderFactory(1.0, {505}, 8).check_trainer(trainer)
    assert str(warned[0].message) == (
        "VLLMDecoderFactory has {'vllm_gpu_memory_utilization': 0.5, 'vllm_enable_sleep_mode': "
        "True}, but the trainer's vLLM has {'vllm_gpu_memory_utilization': 0.3, "
        "'vllm_enable_sleep_mode': False}\n"
        "hint: set GRPOConfig(vllm_gpu_memory_utilization=0.5, vllm_enable_sleep_mode=True)"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trl_env.VLLMDecoderFactory(1.0, {505}, 8, 0.3, False).check_trainer(trainer)
