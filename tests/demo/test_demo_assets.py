"""The demo's tokenizer, template, model and recipe, before any training."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.kit.checkout import ROOT

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from abut.demo.model import ASSETS, DemoRecipe, build_demo_model, load_demo_tokenizer

SCRIPT = ROOT / "scripts" / "train_demo_tokenizer.py"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_demo_tokenizer()


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_demo_tokenizer", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def render(tokenizer: Any, messages: list[dict[str, Any]], **keywords: Any) -> str:
    return str(tokenizer.apply_chat_template(messages, tokenize=False, **keywords))


def test_training_the_tokenizer_twice_gives_the_same_bytes(script: ModuleType) -> None:
    assert script.train().to_str() == script.train().to_str()


def test_the_committed_config_is_what_the_script_writes(script: ModuleType) -> None:
    # The merges are not compared: another Python version ships other docstrings.
    committed = json.loads((ASSETS / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert script.config(script.train()) == committed
    pipeline = json.loads((ASSETS / "tokenizer.json").read_text(encoding="utf-8"))
    trained = json.loads(script.train().to_str())
    for key in ("added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder"):
        assert pipeline[key] == trained[key], key


def test_a_turn_ends_on_im_end_and_padding_is_another_token(tokenizer: Any) -> None:
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert tokenizer.bos_token is None
    assert len(tokenizer) == 512


def test_markup_tokens_are_one_token_each_and_not_special(tokenizer: Any) -> None:
    for token in ("<think>", "</think>", "<tool_call>", "</tool_response>"):
        (token_id,) = tokenizer.encode(token, add_special_tokens=False)
        assert tokenizer.decode([token_id], skip_special_tokens=True) == token
    (token_id,) = tokenizer.encode("<|im_end|>", add_special_tokens=False)
    assert tokenizer.decode([token_id], skip_special_tokens=True) == ""


@pytest.mark.parametrize("text", ["Say 2222", "naïve café ☃ 🙂", "a\r\n\tb  c", "\x00\x7f"])
def test_any_text_survives_the_tokenizer(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_a_role_and_a_digit_are_one_token_each(tokenizer: Any) -> None:
    for word in ("system", "user", "assistant", "tool", *"0123456789"):
        assert len(tokenizer.encode(word, add_special_tokens=False)) == 1, word


def test_the_template_closes_every_message_and_opens_the_answer(tokenizer: Any) -> None:
    messages = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "U"},
        {"role": "assistant", "content": "A"},
        {"role": "user", "content": "V"},
    ]
    assert render(tokenizer, messages, add_generation_prompt=True) == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n"
        "<|im_start|>assistant\nA<|im_end|>\n<|im_start|>user\nV<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_neighbouring_tool_messages_share_one_user_turn(tokenizer: Any) -> None:
    messages = [{"role": "tool", "content": content} for content in "ab"]
    messages += [{"role": "assistant", "content": "c"}, {"role": "tool", "content": "d"}]
    assert render(tokenizer, messages) == (
        "<|im_start|>user\n<tool_response>\na\n</tool_response>\n"
        "<tool_response>\nb\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\nc<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\nd\n</tool_response><|im_end|>\n"
    )


def test_thinking_switched_off_writes_an_empty_block(tokenizer: Any) -> None:
    messages = [{"role": "user", "content": "U"}]
    on = render(tokenizer, messages, add_generation_prompt=True, enable_thinking=True)
    off = render(tokenizer, messages, add_generation_prompt=True, enable_thinking=False)
    assert on == render(tokenizer, messages, add_generation_prompt=True)
    assert off == on + "<think>\n\n</think>\n\n"


def test_thinking_and_tool_calls_of_the_history_are_kept(tokenizer: Any) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": {"a": [1, True]}}}
    messages = [
        {"role": "user", "content": "U"},
        {
            "role": "assistant",
            "content": "A",
            "reasoning_content": "R",
            "tool_calls": [call, {"name": "g", "arguments": '{"b": 2}'}],
        },
        {"role": "user", "content": "V"},
    ]
    assert render(tokenizer, messages) == (
        "<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n<think>\nR\n</think>\n\nA\n"
        '<tool_call>\n{"name": "f", "arguments": {"a": [1, true]}}\n</tool_call>\n'
        '<tool_call>\n{"name": "g", "arguments": {"b": 2}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\nV<|im_end|>\n"
    )


@pytest.mark.parametrize("system", ["", "S\n\n"])
def test_tools_stand_in_the_system_turn(tokenizer: Any, system: str) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    messages = [{"role": "user", "content": "U"}]
    if system:
        messages.insert(0, {"role": "system", "content": system.strip()})
    text = render(tokenizer, messages, tools=[tool])
    assert text.startswith(f"<|im_start|>system\n{system}Tools that you can call")
    assert json.dumps(tool) in text
    assert text.endswith("</tool_call><|im_end|>\n<|im_start|>user\nU<|im_end|>\n")
    assert text.count("<|im_start|>") == 2


def test_a_longer_conversation_only_adds_to_a_shorter_one(tokenizer: Any) -> None:
    messages = [
        {"role": "user", "content": "U"},
        {"role": "assistant", "content": "<think>\nR\n</think>\n\nA"},
        {"role": "tool", "content": "T"},
        {"role": "assistant", "content": "B"},
        {"role": "user", "content": "V"},
    ]
    whole = render(tokenizer, messages)
    for end in (1, 2, 3, 4):
        assert whole.startswith(render(tokenizer, messages[:end]))


def test_the_model_is_small_untied_float32_and_of_the_tokenizers_vocabulary(tokenizer: Any) -> None:
    model = build_demo_model(tokenizer, DemoRecipe())
    assert sum(parameter.numel() for parameter in model.parameters()) < 3_000_000
    assert model.lm_head.weight is not model.model.embed_tokens.weight
    assert model.dtype == torch.float32
    assert model.config.model_type == "qwen3"
    assert model.config.vocab_size == len(tokenizer)
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id


def test_the_seed_alone_decides_the_weights(tokenizer: Any) -> None:
    def weights(seed: int) -> torch.Tensor:
        return build_demo_model(tokenizer, DemoRecipe(seed=seed)).lm_head.weight.detach()

    first = weights(0)
    torch.manual_seed(123)
    before = torch.random.get_rng_state()
    assert torch.equal(weights(0), first)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not torch.equal(weights(1), first)


def test_the_rollout_fits_into_the_completion_limit(tokenizer: Any) -> None:
    recipe = DemoRecipe()
    env, text = recipe.env().reset("s")
    prompt = render(tokenizer, [{"role": "user", "content": text}], add_generation_prompt=True)
    prompt_tokens = len(tokenizer.encode(prompt, add_special_tokens=False))
    # Between two turns stand a synthesized close, the separator, and the next prompt.
    between = prompt_tokens + 2
    longest = recipe.max_turns * recipe.max_turn_tokens + (recipe.max_turns - 1) * between
    assert longest <= recipe.max_completion_tokens
    assert env.turns == recipe.max_turns


def test_trl_takes_the_recipes_arguments(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    recipe = DemoRecipe()
    config = trl.GRPOConfig(output_dir=str(tmp_path), **recipe.grpo_arguments())
    assert config.generation_batch_size == recipe.batch
    assert recipe.batch % recipe.group == 0
