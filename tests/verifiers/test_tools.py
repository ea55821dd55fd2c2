"""Tools by MCP: verifiers starts a server for each rollout, and the policy calls it."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")

from abut import RolloutConfig, Tokenizer
from abut.verifiers import verifiers_env
from tests.kit.stage.agents import a_call
from tests.kit.training.episode_run import EpisodeRun
from tests.kit.training.models import rank_model

CONFIG = RolloutConfig(retries=0, max_failed_frac=1.0, rollout_timeout_s=400.0)


def test_a_call_its_result_and_the_answer_are_one_row(tmp_path: Path) -> None:
    facts = verifiers_env("abut_facts")
    hf_tokenizer, _ = rank_model()
    tokenizer = Tokenizer.from_pretrained(hf_tokenizer)

    def says(request: Any) -> list[int]:
        prompt = hf_tokenizer.decode(request.prompt_ids.tolist())
        text = a_call("facts_lookup", name="iron")
        if "number 26" in prompt:
            text = "It is iron."
        ids = tokenizer.encode(text, added="parse").tolist()
        return [*ids, hf_tokenizer.eos_token_id]

    run = EpisodeRun(
        facts,
        facts.dataset(1),
        tmp_path,
        config=CONFIG,
        says=says,
        per_device_train_batch_size=2,
        max_completion_length=4096,
    ).train()
    assert run.errors() == [None] * 2
    assert run.worst() < 1e-5
    for rollout in run.played:
        assert rollout.branches == []
        assert len(rollout.turns) == 2
        assert [m["role"] for m in rollout.messages] == ["user", "assistant", "tool", "assistant"]
        assert rollout.messages[2]["content"] == "Fe, number 26"
        assert rollout.reward == 1.0
        assert [tool["function"]["name"] for tool in rollout.tools] == ["facts_lookup"]
