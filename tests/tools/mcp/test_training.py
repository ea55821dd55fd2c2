"""A real `GRPOTrainer` with a server's tools: what was called and answered is the row."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")
pytest.importorskip("mcp")

import abut
from abut import Tokenizer
from tests.kit.servers import mcp_stdio
from tests.kit.training.replayed_run import ReplayedRun, ScriptedModel

CALL = '<tool_call>\n{"name": "count", "arguments": {}}\n</tool_call>'


def test_a_step_trains_on_the_tools_of_a_server(
    hf_tokenizer: Any, tiny_model: Any, tmp_path: Path
) -> None:
    def script(conversation: str) -> str:
        return CALL if conversation.count(" in ") < 2 else "done"

    def reward(messages: Any) -> float:
        answers = [m["content"] for m in messages if m["role"] == "tool"]
        return float([re.sub(" in .*", "", text) for text in answers] == ["1", "2"])

    command = [sys.executable, "-S", mcp_stdio.__file__]
    env = abut.tool_env(
        mcp={"small": {"command": command, "tools": ["count"]}}, reward=reward, timeout_s=300
    )
    model = tiny_model(max_position_embeddings=4096)
    tokenizer = Tokenizer.from_pretrained(hf_tokenizer)
    config = abut.RolloutConfig(retries=0, reset_timeout_s=500, step_timeout_s=500)
    sampler = ScriptedModel(model, tokenizer, hf_tokenizer.eos_token_id, script, 0.7)
    run = ReplayedRun(
        hf_tokenizer,
        model,
        tmp_path,
        env,
        prompts=["Count."],
        make={"config": config, "sampler": sampler},
        max_steps=1,
        per_device_train_batch_size=2,
        num_generations=2,
        max_completion_length=1500,
        temperature=0.7,
    )
    run.trainer.train()
    assert run.outputs[0]["env_reward"] == [1.0, 1.0]
    assert run.worst_replay < 1e-4
    assert run.worst_shifted > 1e-2
