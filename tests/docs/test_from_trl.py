"""The scripts of docs/tutorials/from_trl.md train, before and after the move to abut."""

import copy
from pathlib import Path
from typing import Any

import pytest

from tests.kit.page_run import page_blocks
from tests.kit.training.example_run import run_block

pytest.importorskip("torch")
pytest.importorskip("trl")

SCRIPTS = {block.title: block.text for block in page_blocks("from_trl.md") if block.title}


@pytest.fixture
def trained(
    hf_tokenizer: Any, tiny_model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """Runs a script for one step, with a small model and Qwen3's template."""
    from trl.chat_template_utils import qwen3_chat_template

    tokenizer = copy.deepcopy(hf_tokenizer)
    tokenizer.chat_template = qwen3_chat_template  # TRL reads the calls of templates that it knows
    monkeypatch.chdir(tmp_path)

    def run(script: str) -> tuple[dict[str, Any], list[Any]]:
        return run_block(
            monkeypatch,
            SCRIPTS[script].replace("length=1024", "length=64"),
            tokenizer,
            tiny_model(max_position_embeddings=2048),
            max_steps=1,
            per_device_train_batch_size=4,
            num_generations=2,
            logging_steps=1,
        )

    return run


def prompts_of(trainer: Any) -> list[str]:
    """Have the trainer generate a batch; returns the prompts as the model sees them."""
    rows = [trainer.train_dataset[0]] * 2
    batch = trainer._generate_and_score_completions(rows)
    decoded: list[str] = trainer.processing_class.batch_decode(batch["prompt_ids"])
    return [text[text.index("<|im_start|>") :] for text in decoded]


@pytest.mark.parametrize("what", ["tools", "factory"])
def test_the_policy_sees_the_same_prompt_before_and_after(trained: Any, what: str) -> None:
    before, after = (trained(f"{when}_{what}.py")[0]["trainer"] for when in ("before", "after"))
    assert prompts_of(after) == prompts_of(before)


def test_rewards_keep_their_names_or_get_the_one_that_the_page_says(trained: Any) -> None:
    for script, name in {
        "before_factory.py": "rewards/Counter/mean",
        "after_factory.py": "rewards/env_reward/mean",
        "after_tools.py": "rewards/is_right/mean",
    }.items():
        logged = trained(script)[0]["trainer"].state.log_history[0]
        assert name in logged, script
        assert "tools/call_frequency" in logged


def test_the_loop_of_ones_own_makes_the_mistakes_that_the_page_says(trained: Any) -> None:
    variables, _ = trained("before_rollout_func.py")
    trainer = variables["trainer"]
    output = variables["rollout_func"](["x"], trainer)  # three wrong guesses
    assert "env_mask" not in output, "2: the game's words are trained"
    text = trainer.processing_class.decode(output["completion_ids"][0])
    assert text.count("No. Again.") == 3
    game, logprobs = text.index("No. Again."), output["logprobs"][0]
    first_words = len(trainer.processing_class(text[:game])["input_ids"])
    assert logprobs[first_words] != 0, "3: a logprob of the second turn"
    assert logprobs[-1] == 0


def test_afterwards_each_sampled_token_has_its_logprob(trained: Any) -> None:
    _, (output,) = trained("after_rollout_func.py")
    assert output["stop_reason"] == ["max_turns"] * 4
    for mask, logprobs in zip(output["env_mask"], output["logprobs"], strict=True):
        assert 0 < sum(mask) < len(mask)
        assert [logprob != 0 for logprob in logprobs] == [bool(one) for one in mask]


def test_the_pairs_differ_in_nothing_but_what_the_page_says() -> None:
    for what, own in {
        "tools": {"abut", "scored_only", "make_rollout_func", "GRPOTrainer"},
        "factory": {"env_reward", "make_rollout_func", "GRPOTrainer"},
    }.items():
        before, after = (SCRIPTS[f"{when}_{what}.py"].splitlines() for when in ("before", "after"))
        new = [line for line in after if line not in before]
        assert all(any(name in line for name in own) for line in new if "GRPOConfig" not in line)
        assert len(new) <= 5
