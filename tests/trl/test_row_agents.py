"""Agents with several conversations, behind a real gateway: each token that they got is trained."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
trl = pytest.importorskip("trl")
pytest.importorskip("aiohttp")

import abut.trl  # noqa: E402
from abut import agent  # noqa: E402
from abut.rollout.config import RolloutConfig  # noqa: E402
from abut.trl import env_reward, make_rollout_func  # noqa: E402
from tests.kit.stage.agents import Client, check_tree, user  # noqa: E402
from tests.kit.training.example_run import CPU  # noqa: E402
from tests.kit.training.trl_run import recorded_calls  # noqa: E402


@agent
async def manager(endpoint: Any, question: str) -> float:
    """A title, two samples of one point, a sub-agent, and a history that is compacted."""
    async with Client(endpoint) as client:
        await client.ask([user(f"A title for {question}")])
        messages = [user(question)]
        thrown_away = await client.ask(messages)
        messages += [await client.ask(messages), user("and?")]
        subtask = [user("Look up"), await client.ask([user("Look up")]), user("more")]
        await client.ask(subtask)
        messages += [await client.ask(messages), user("well?")]
        compacted = [user("So far: " + str(messages[-2]["content"]))]
        compacted += [await client.ask(compacted), user("end")]
        last = await client.ask(compacted)
    return len(str(last["content"])) / 8 + len(str(thrown_away["content"])) / 64


def test_every_token_that_an_agent_got_is_trained_once(
    hf_tokenizer: Any, tiny_model: Any, tmp_path: Path
) -> None:
    from datasets import Dataset

    rollout_func = make_rollout_func(
        manager, config=RolloutConfig(max_turn_tokens=5, retries=0), recorder=str(tmp_path / "r")
    )
    trainer = abut.trl.GRPOTrainer(
        model=(model := tiny_model()),
        args=trl.GRPOConfig(
            str(tmp_path),
            **CPU,
            max_steps=1,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=4,
            num_generations=4,
            max_completion_length=100,
            loss_type="grpo",
        ),
        processing_class=hf_tokenizer,
        reward_funcs=env_reward,
        train_dataset=Dataset.from_dict({"prompt": ["p"] * 8, "question": ["q1", "q2"] * 4}),
        rollout_func=rollout_func,
    )
    kept: dict[str, Any] = {}
    score = trainer._generate_and_score_completions

    def keep(inputs: Any) -> Any:
        output = score(inputs)
        kept.update(output)
        with torch.no_grad():
            kept["logprobs"] = trainer._get_per_token_logps_and_entropies(
                model,
                torch.cat([output["prompt_ids"], output["completion_ids"]], 1),
                torch.cat([output["prompt_mask"], output["completion_mask"]], 1),
                output["completion_ids"].size(1),
            )[0]
        return output

    trainer._generate_and_score_completions = keep
    try:
        with recorded_calls() as calls:
            trainer.train()
    finally:
        rollout_func._tasks.route.gateway.stop()
    batch = trainer.abut_rows
    assert not any(rollout.failed for rollout in batch.rollouts)
    assert {len(rows) for rows in batch.conversations} == {5}
    for rollout in batch.rollouts:
        own = [call for call in calls if call[0].rollout_id.startswith(rollout.rollout_id)]
        assert len(own) == 8
        check_tree(rollout, own)
    mask = (kept["completion_mask"] * kept["tool_mask"]).bool()
    assert int(mask.sum()) == sum(len(sample.ids) for _, sample in calls)
    sampled = torch.zeros(mask.shape)
    for row, (k, j) in enumerate(batch.places):
        logprobs = torch.from_numpy(batch.conversations[k][j].columns.logprobs)
        end = int(kept["completion_mask"][row].sum())  # a late fork begins in its prompt
        sampled[row, end - len(logprobs) : end] = logprobs
    assert (kept["logprobs"] - sampled)[mask].abs().max() < 1e-4
    assert (kept["logprobs"].roll(1, 1) - sampled)[mask].abs().max() > 0.1
    shares = np.array(batch.weights)
    assert shares.sum() == pytest.approx(batch.size)
    (log,) = [log for log in trainer.state.log_history if "rollout/rows/mean" in log]
    assert log["rollout/rows/mean"] == log["rollout/branches/mean"] == 5
    assert log["rollout/dropped_sampled_frac"] == 0
