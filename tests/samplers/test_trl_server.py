"""Sampling from TRL's own server, as it was up to 1.10."""

import asyncio
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest

from abut.errors import SamplerError
from abut.samplers.sampler import Sample, SampleRequest
from abut.samplers.trl_server import TRLServerSampler
from tests.kit.data.requests import request
from tests.kit.servers.fake_server import FakeServer, half, hang, status
from tests.kit.stage.rollouts import Talk, check_exact, eventually


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server


def ask(sampler: TRLServerSampler, *requests: SampleRequest) -> list[Sample]:
    async def run() -> list[Sample]:
        async with sampler:
            return list(await asyncio.gather(*map(sampler.sample, requests)))

    return asyncio.run(asyncio.wait_for(run(), 30))


def test_requests_go_together_and_each_keeps_its_own_budget(server: FakeServer) -> None:
    samples = ask(
        TRLServerSampler(
            server.url, temperature=0.7, top_k=5, top_p=0.9, min_p=0.1, repetition_penalty=1.2
        ),
        request("a"),
        request("b", max_tokens=2),
        request("c", prompt_ids=np.asarray([1, 2]), max_tokens=4),
    )
    assert [sample.ids.tolist() for sample in samples] == [[26, 27, 28, 29], [26, 27], [3, 4, 5, 6]]
    assert [sample.finish_reason for sample in samples] == ["stop", "length", "length"]
    assert samples[1].logprobs.tolist() == [-0.125, -0.25]
    assert (samples[0].ids.dtype, samples[0].logprobs.dtype) == (np.int64, np.float32)
    assert server.requests == [
        {
            "prompts": [[5, 6, 7, 8], [5, 6, 7, 8], [1, 2]],
            "n": 1,
            "max_tokens": 8,
            "logprobs": 0,
            "temperature": 0.7,
            "top_k": 5,
            "top_p": 0.9,
            "min_p": 0.1,
            "repetition_penalty": 1.2,
            "generation_kwargs": {
                "stop_token_ids": [29],
                "presence_penalty": 0.0,
                "frequency_penalty": 0.0,
            },
        }
    ]


def test_a_sample_that_is_shorter_than_it_may_be_has_stopped(server: FakeServer) -> None:
    (sample,) = ask(TRLServerSampler(server.url), request(stop_token_ids=()))
    assert (len(sample.ids), sample.finish_reason) == (4, "stop")


def test_the_server_is_asked_for_one_thing_after_the_other(stage: Any) -> None:
    with FakeServer(delay_s=0.02) as server:

        class Asked(TRLServerSampler):
            calls: ClassVar[list[Any]] = []

            async def sample(self, request: SampleRequest) -> Sample:
                sample = await super().sample(request)
                self.calls.append((request, sample))
                return sample

        played = stage.play(*[Talk] * 16, sampler=Asked(server.url))
    assert server.most_at_once == 1
    assert len(server.requests) < 16 * 3 / 2
    for rollout in played.rollouts:
        assert rollout.error is None
        check_exact(rollout.columns, played.calls(rollout))


def test_a_call_that_got_no_answer_is_made_again() -> None:
    with FakeServer([half, status(503)]) as server:
        assert len(ask(TRLServerSampler(server.url), request("a"), request("b"))) == 2
        assert len(server.requests) == 3


def test_a_request_that_was_given_up_leaves_the_others_alone(server: FakeServer) -> None:
    async def run() -> list[Sample]:
        async with TRLServerSampler(server.url) as sampler:
            waiting = [asyncio.ensure_future(sampler.sample(request(name))) for name in "ab"]
            await asyncio.sleep(0)
            waiting[0].cancel()
            return [await waiting[1], await sampler.sample(request("c"))]

    assert len(asyncio.run(run())) == 2
    assert [len(body["prompts"]) for body in server.requests] == [1, 1]


def test_leaving_ends_a_call_that_hangs() -> None:
    async def run() -> None:
        async with TRLServerSampler(server.url) as sampler:
            waiting = asyncio.ensure_future(sampler.sample(request()))
            assert await asyncio.to_thread(eventually, lambda: server.hanging == 1)
            waiting.cancel()

    with FakeServer([hang]) as server:
        asyncio.run(asyncio.wait_for(run(), 60))


def wrong(**changes: Any) -> Any:
    async def fault(server: Any, writer: Any, body: Any) -> None:
        server.write(writer, 200, server.trl_generate(body) | changes)

    return fault


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (
            wrong(prompt_ids=[[5]]),
            "the engine received 1 prompt tokens, which differ from the 4 of ",
        ),
        (wrong(logprobs=[[[-0.5]]]), "4 ids came with 1 logprobs"),
        (wrong(completion_ids=[]), "zip() argument 3 is shorter than arguments 1-2"),
        (wrong(logprobs=None), "'NoneType' object is not iterable"),
    ],
)
def test_a_wrong_answer_stops_training(fault: Any, text: str) -> None:
    with FakeServer([fault]) as server, pytest.raises(SamplerError) as raised:
        ask(TRLServerSampler(server.url), request())
    assert str(raised.value).startswith(
        f"rollout r0, turn 0 and 0 more: the server at {server.url} gave a wrong answer: {text}"
    )
    assert str(raised.value).endswith(
        "\nhint: TRLServerSampler is for `trl vllm-serve` up to TRL 1.10"
    )


def test_a_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="does not name the string that ended a sample"):
        TRLServerSampler("http://a", generation_kwargs={"stop": ["x"]})


def test_stop_strings_of_a_request_are_refused(server: FakeServer) -> None:
    with pytest.raises(SamplerError, match=r"rollout r0, turn 0 has stop strings") as raised:
        ask(TRLServerSampler(server.url), request(stop=("x",)))
    assert "hint: pip install 'trl>=1.11'" in str(raised.value)
    assert server.requests == []
