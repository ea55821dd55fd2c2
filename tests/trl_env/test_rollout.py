"""trl-env's `rollout`: one episode without a trainer, as its own test script plays it."""

import copy
import re
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from abut import trl_env  # noqa: E402
from abut.errors import RolloutError  # noqa: E402
from abut.trl_env.rollout import rollout  # noqa: E402
from tests.kit.stage.rollouts import Talk, env  # noqa: E402

# What discrete_logarithm_test.py of trl-env does, with another model, environment and seed.
SCRIPT = """
from trl_env.decoder import RolloutDecoder
from trl_env.decoder_transformer import TransformerDecoderFactory
from trl_env.rollout import rollout
from trl_env.processor import qwen3_instruct_processor
from trl_env.tokenizer import TransformerTokenizer

decoder = TransformerDecoderFactory(
    temperature=0.6, eos_token_set={t.eos_token_id}, max_completion_length=8
).make_decoder(SimpleNamespace(model=model))
state = rollout(
    processor=qwen3_instruct_processor,
    tokenizer=TransformerTokenizer(t),
    decoder=decoder,
    env=Env(),
    seed="7",
    system_prompt="You talk.",
    max_conversation_length=200,
    conversation_logger=lambda role, content: said.append((role, content)),
)
"""


class Scripted:
    """A decoder of one's own."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids

    def generate(self, input_ids: list[int]) -> tuple[list[int], list[float]]:
        return self.ids, [-0.5] * len(self.ids)


def play(hf_tokenizer: Any, decoder: Any, cls: Any = Talk, **changes: Any) -> Any:
    arguments = {
        "processor": trl_env.qwen3_instruct_processor,
        "tokenizer": trl_env.TransformerTokenizer(hf_tokenizer),
        "decoder": decoder,
        "env": cls(),
        "system_prompt": "S",
        "max_conversation_length": 200,
        "seed": "7",
    }
    return rollout(**arguments | changes)


def test_a_test_script_for_trl_env_runs(hf_tokenizer: Any, tiny_model: Any) -> None:
    said: list[Any] = []
    script, changed = re.subn(r"^from trl_env\.", "from abut.trl_env.", SCRIPT, flags=re.MULTILINE)
    assert changed == 5
    variables = {
        "t": copy.deepcopy(hf_tokenizer),
        "model": tiny_model(),
        "Env": Talk,
        "SimpleNamespace": SimpleNamespace,
        "said": said,
    }
    exec(compile(script, "discrete_logarithm_test.py", "exec"), variables)
    state: Any = variables["state"]
    assert state.reward == 1.0
    assert [role for role, _ in said] == ["system", "user", *["assistant", "user"] * 3]
    assert said[:2] == [("system", "You talk."), ("user", "go on")]
    assert hf_tokenizer.decode(state.conversation[: state.initial_length]).startswith(
        "<|im_start|>system\nYou talk.<|im_end|>\n<|im_start|>user\ngo on<|im_end|>\n"
    )


def test_its_tokens_are_those_of_make_rollout_func(hf_tokenizer: Any, tokenizer: Any) -> None:
    ids = [*tokenizer.encode("yes").tolist(), 505]
    state = play(hf_tokenizer, Scripted(ids))
    completion = state.conversation[state.initial_length :]
    assert len(completion) == len(state.env_mask) == len(state.logprobs)
    assert [i for i, m in zip(completion, state.env_mask, strict=True) if m] == ids * 3
    logprobs = [p for p, m in zip(state.logprobs, state.env_mask, strict=True) if m]
    assert logprobs == [-0.5] * len(ids) * 3
    assert "yes<|im_end|>\n<|im_start|>user\ngo on" in tokenizer.decode(completion)
    assert state.env_mask[-1] == 1, "it ends on a sampled token"


def test_the_conversation_is_never_longer_than_it_may_be(hf_tokenizer: Any, tokenizer: Any) -> None:
    ids = tokenizer.encode("no " * 100).tolist()
    state = play(hf_tokenizer, Scripted(ids), max_conversation_length=60)
    assert len(state.conversation) == 60


def test_an_environment_that_raises_is_an_error(hf_tokenizer: Any) -> None:
    def step(self: Any, action: str) -> Any:
        raise OSError("gone")

    with pytest.raises(RolloutError, match="OSError: gone"):
        play(hf_tokenizer, Scripted([505]), env(step=step))


def test_a_factory_without_decoders_says_what_to_call() -> None:
    with pytest.raises(TypeError) as raised:
        trl_env.VLLMDecoderFactory(1.0, {505}, 8).make_decoder(SimpleNamespace())
    assert str(raised.value) == (
        "VLLMDecoderFactory cannot make a decoder, because make_rollout_func samples with the "
        "trainer's engine\n"
        "hint: for rollout(…), use TransformerDecoderFactory(…).make_decoder(trainer), or your "
        "own object with generate(input_ids)"
    )
