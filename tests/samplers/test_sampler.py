"""Samplers: what is a sample, and the scripted one."""

import asyncio
from typing import Any

import numpy as np
import pytest

from abut.errors import SamplerError
from abut.samplers.in_process import StreamSampler
from abut.samplers.sampler import BatchSampler, Sample, Sampler, SampleRequest, check_sample
from abut.samplers.scripted import ScriptedSampler


def request(max_tokens: int = 4) -> SampleRequest:
    return SampleRequest(np.arange(3), max_tokens, (9,), seed=1, rollout_id="r7", turn=2)


def say(ids: list[int], max_tokens: int = 4, **kwargs: Any) -> Sample:
    return asyncio.run(ScriptedSampler(lambda r: ids, **kwargs).sample(request(max_tokens)))


def test_a_scripted_sample_says_how_it_ended() -> None:
    for ids, reason in ([1, 9], "stop"), ([1, 2], "length"), ([], "length"):
        sample = say(ids)
        assert (sample.ids.tolist(), sample.finish_reason) == (ids, reason)
        assert (sample.ids.dtype, sample.logprobs.dtype) == (np.int64, np.float32)


def test_a_scripted_sample_is_cut_at_max_tokens() -> None:
    assert say([1, 2, 3, 9], max_tokens=2).ids.tolist() == [1, 2]
    assert say([1, 2, 3, 9], max_tokens=3).finish_reason == "length"


def test_scripted_logprobs_differ_from_token_to_token() -> None:
    assert len(set(say([1] * 4).logprobs.tolist())) == 4
    assert say([1, 2], logprob=lambda index: -index).logprobs.tolist() == [0.0, -1.0]


def test_the_scripted_sampler_keeps_its_requests() -> None:
    sampler = ScriptedSampler(lambda r: [r.turn], delay_s=lambda r: 0.0)
    asked = request()
    assert asyncio.run(sampler.sample(asked)).ids.tolist() == [2]
    assert sampler.requests == [asked]


def test_which_protocol_a_sampler_has() -> None:
    class InProcess:
        def sample_batch(self, requests: Any) -> Any: ...

    class Stream:
        def sample_stream(self, turns: Any) -> None: ...

    def protocols(sampler: Any) -> list[bool]:
        return [isinstance(sampler, kind) for kind in (Sampler, BatchSampler, StreamSampler)]

    assert protocols(ScriptedSampler(lambda r: [])) == [True, False, False]
    assert protocols(InProcess()) == [False, True, False]
    assert protocols(Stream()) == [False, False, True]


def test_a_good_sample_passes_and_a_bad_one_is_named() -> None:
    good = say([1, 2])
    assert check_sample(good, request()) is good
    for bad, text in (
        ([1, 2], "rollout r7, turn 2: the sampler returned list, not a Sample"),
        (
            say([1] * 4),
            "rollout r7, turn 2: the sampler returned 4 tokens, but the request allows 3",
        ),
    ):
        with pytest.raises(SamplerError) as raised:
            check_sample(bad, request(max_tokens=3))
        assert str(raised.value) == text
