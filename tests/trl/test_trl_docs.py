"""The example of docs/integrations/trl.md does what the page says; every metric has its meaning."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.kit.training.example_run import DOCS, blocks_of, run_block

pytest.importorskip("trl")
METRICS = (DOCS / "reference" / "metrics.md").read_text(encoding="utf-8")


def test_the_example_trains_on_both_environments(
    hf_tokenizer: Any, tiny_model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = blocks_of("trl.md")
    monkeypatch.chdir(tmp_path)
    variables, _ = run_block(
        monkeypatch,
        block,
        hf_tokenizer,
        tiny_model(),
        max_steps=1,
        per_device_train_batch_size=8,
        num_generations=4,
        logging_steps=1,
        shuffle_dataset=False,
    )
    trainer = variables["trainer"]
    prompts = list(trainer._logs["prompt"])
    assert sorted(prompts) == ["a shout"] * 4 + ["a sum"] * 4
    logged = trainer.state.log_history[0]
    assert logged["rollout/stop/env_done"] == 1
    assert logged["rewards/brevity/mean"] == pytest.approx(0.1)


def test_the_page_names_every_extra_and_every_metric(called: Any) -> None:
    from abut.trl import env_reward

    page = (DOCS / "integrations" / "trl.md").read_text(encoding="utf-8")
    out = called(["a"])
    required = {"prompt_ids", "completion_ids", "logprobs", "env_mask"}
    named = set(re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE))
    assert set(out) - required == named & set(out)
    metrics: dict[str, float] = {}
    env_reward([], log_metric=metrics.__setitem__, **out)
    for name in metrics:
        shown = name.removeprefix("rollout/stop/")  # the reasons have a table of their own
        assert f"`{shown}`" in METRICS
