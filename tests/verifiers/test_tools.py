"""Tools by MCP: verifiers starts their servers, and the policy calls them."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")

from abut import RolloutConfig, Tokenizer
from abut.verifiers import verifiers_env
from tests.kit.stage.agents import a_call
from tests.kit.stage.rollouts import eventually
from tests.kit.training.episode_run import EpisodeRun
from tests.kit.training.models import rank_model

CONFIG = RolloutConfig(retries=0, max_failed_frac=1.0, rollout_timeout_s=400.0)


def trained(name: str, folder: Path, **args: Any) -> EpisodeRun:
    """Train on a policy that looks a fact up, and answers."""
    facts = verifiers_env(name)
    hf_tokenizer, _ = rank_model()
    tokenizer = Tokenizer.from_pretrained(hf_tokenizer)

    def says(request: Any) -> list[int]:
        prompt = hf_tokenizer.decode(request.prompt_ids.tolist())
        text = "It is iron." if "number 26" in prompt else a_call("facts_lookup", name="iron")
        return [*tokenizer.encode(text, added="parse").tolist(), hf_tokenizer.eos_token_id]

    return EpisodeRun(
        facts,
        facts.dataset(1),
        folder,
        config=CONFIG,
        says=says,
        per_device_train_batch_size=2,
        max_completion_length=4096,
        **args,
    ).train(stop=False)


def check(run: EpisodeRun, rollouts: int) -> None:
    assert run.errors() == [None] * rollouts
    assert run.worst() < 1e-5
    for rollout in run.played:
        assert rollout.branches == []
        assert len(rollout.turns) == 2
        assert [m["role"] for m in rollout.messages] == ["user", "assistant", "tool", "assistant"]
        assert rollout.messages[2]["content"] == "Fe, number 26"
        assert rollout.reward == 1.0
        assert [tool["function"]["name"] for tool in rollout.tools] == ["facts_lookup"]


def servers() -> list[str]:
    """The processes of this one that serve the tools."""
    import psutil  # accelerate's

    found = [process.cmdline() for process in psutil.Process().children(recursive=True)]
    return [" ".join(words) for words in found if any("facts" in word for word in words)]


def test_a_call_its_result_and_the_answer_are_one_row(tmp_path: Path) -> None:
    run = trained("abut_facts", tmp_path)
    run.stop()
    check(run, 2)


def test_a_server_that_rollouts_share_starts_once_and_ends_with_the_run(tmp_path: Path) -> None:
    run = trained("abut_shared", tmp_path, max_steps=2)
    check(run, 4)
    assert len(servers()) == 1
    run.stop()
    assert eventually(lambda: not servers())
