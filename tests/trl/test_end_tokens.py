"""A tokenizer by which TRL cannot tell that a completion ended is told of once."""

import copy
import warnings
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")

from abut.trl import make_rollout_func
from tests.kit.stage.rollouts import Recording, Stage
from tests.kit.training.trl_run import Talk, a_trainer

END = (
    ": TRL counts a completion that does not end with one of its EOS tokens as cut off (in "
    "completions/clipped_ratio, and with mask_truncated_completions it leaves it out of the "
    "loss)\n"
    "hint: set tokenizer.eos_token = '<|im_end|>'"
)


def told(stage: Stage, tokenizer: Any, **trainer: Any) -> list[str]:
    rollout_func = make_rollout_func(Talk, sampler=Recording(stage.says()))
    made = a_trainer(tokenizer, **trainer)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            rollout_func(["a", "a"], made)
    return [str(warning.message) for warning in caught]


@pytest.fixture
def changed(hf_tokenizer: Any) -> Any:
    return copy.deepcopy(hf_tokenizer)


def test_a_tokenizer_without_eos_is_told_of_once(stage: Stage, changed: Any) -> None:
    changed.eos_token = None
    assert told(stage, changed) == [f"the tokenizer {changed.name_or_path!r} has no EOS token{END}"]


def test_an_eos_that_ends_no_turn_is_told_of_once(stage: Stage, changed: Any) -> None:
    changed.eos_token = "<|endoftext|>"
    (text,) = told(stage, changed, eos_token_ids=[changed.eos_token_id])
    assert text == (
        "turns end with '<|im_end|>', but the EOS tokens of the tokenizer "
        f"{changed.name_or_path!r} and the model are '<|endoftext|>'{END}"
    )


def test_one_of_several_that_ends_turns_is_enough(stage: Stage, changed: Any) -> None:
    close = changed.eos_token_id
    assert not told(stage, changed)
    changed.eos_token = "<|endoftext|>"
    assert not told(stage, changed, eos_token_ids=[changed.eos_token_id, close])


def test_a_tokenizer_without_anything_to_fill_rows_up_with_is_an_error(
    stage: Stage, changed: Any
) -> None:
    changed.eos_token = changed.pad_token = None
    with pytest.raises(ValueError, match="pad token") as raised:
        told(stage, changed)
    assert str(raised.value) == (
        f"the tokenizer {changed.name_or_path!r} has no pad token, which is needed to pad rows, "
        "and no EOS token to use instead\n"
        "hint: set tokenizer.eos_token to the token that ends a turn, and tokenizer.pad_token"
    )
