"""`abut.evaluate` with a real vLLM server: by tokens, and as a hosted model."""

from pathlib import Path
from typing import Any

import pytest

import abut
from abut.cli.setup_checks import vllm_findings
from abut.samplers import ChatSampler
from abut.samplers.settings import SamplingSettings
from tests.evaluation.test_play import Guess, rows, said

SURE = SamplingSettings(top_k=1)


def test_a_server_and_its_model_in_this_process_give_the_same(
    server: Any, untied: Any, model_folder: Path, hf_tokenizer: Any
) -> None:
    """With the most likely token each time."""
    config = abut.RolloutConfig(max_turn_tokens=6)
    served = abut.evaluate(
        Guess,
        rows("a", "b"),
        k=2,
        sampler=server.url,
        tokenizer=model_folder,
        sampling=SURE,
        config=config,
    )
    own = abut.evaluate(
        Guess,
        rows("a", "b"),
        k=2,
        sampler=untied,
        tokenizer=hf_tokenizer,
        sampling=SURE,
        config=config,
    )
    ids = [r.columns.completion_ids.tolist() for r in served.rollouts if r.columns is not None]
    assert ids == [r.columns.completion_ids.tolist() for r in own.rollouts if r.columns is not None]
    assert len(ids) == 4
    assert served.to_dict() == own.to_dict()
    assert served.mean_tokens is not None
    assert served.mean_tokens >= 6


def test_a_server_is_a_hosted_model_too(server: Any) -> None:
    with pytest.raises(abut.SamplerError, match="answers 404"):
        abut.play(Guess, rows("a"), sampler=ChatSampler(f"{server.url}/v1", "no-such-model"))
    sampler = ChatSampler(f"{server.url}/v1", "tiny", max_tokens=8)
    result = abut.evaluate(Guess, rows("a", "b"), sampler=sampler)
    assert not result.failed
    assert all(len(said(rollout)) == len(rollout.turns) for rollout in result.rollouts)
    assert result.mean_tokens is not None
    assert 1 <= result.mean_tokens <= 16
    assert sampler.usage["completion_tokens"] == result.mean_tokens * 2


def test_the_doctor_reads_the_flags_of_a_server(server: Any) -> None:
    """It was started with `VLLM_SERVER_DEV_MODE=1`."""
    tried, flags = vllm_findings(server.url)
    assert (tried.level, flags.level) == ("ok", "ok"), (tried, flags)
    assert "--logprobs-mode processed_logprobs" in flags.what
    assert "--tensor-parallel-size 1" in flags.what
