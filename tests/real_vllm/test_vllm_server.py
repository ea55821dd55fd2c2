"""A real vLLM server: its samples are what transformers says they are, and it may die of anything.

What each test shows about vLLM itself is named in docs/integrations/vllm.md.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import abut.samplers.vllm
from abut._native import read_completions
from abut.errors import SamplerError
from abut.samplers.sampler import Sample, SampleRequest
from abut.samplers.vllm import VLLMServerSampler
from tests.kit.data.requests import FILTERS, Asked, requests
from tests.kit.servers.vllm_server import VLLMServer, in_flight, metric
from tests.kit.stage.rollouts import Talk, check_exact, env
from tests.kit.training.forward_pass import worst

Between = Callable[[Sequence[asyncio.Future[Sample]]], Awaitable[None]]


def ask(
    sampler: VLLMServerSampler, asked: Sequence[SampleRequest], meanwhile: Between | None = None
) -> list[Sample]:
    async def run() -> list[Sample]:
        async with sampler:
            waiting = [asyncio.ensure_future(sampler.sample(request)) for request in asked]
            if meanwhile is not None:
                await meanwhile(waiting)
            return list(await asyncio.gather(*waiting))

    return asyncio.run(asyncio.wait_for(run(), 240))


def error_of(sampler: VLLMServerSampler, *asked: SampleRequest) -> str:
    with pytest.raises(SamplerError) as raised:
        ask(sampler, asked or requests(1))
    return str(raised.value)


@pytest.mark.parametrize("endpoint", ["completions", "generate"])
@pytest.mark.parametrize("settings", FILTERS, ids=str)
def test_logprobs_are_those_of_the_filtered_distribution(
    server: Any, untied: Any, settings: Any, endpoint: Any
) -> None:
    sampler = VLLMServerSampler(server.url, endpoint=endpoint, **settings)
    samples = ask(sampler, requests())
    assert sum(len(sample.ids) for sample in samples) > 20
    assert worst(untied.eval(), requests(), samples, **settings) < 1e-4
    if settings:
        assert worst(untied, requests(), samples) > 1e-2, "the check notices the filters"


def test_a_turn_ends_on_a_stop_token_that_is_part_of_it(server: Any) -> None:
    certain = {"logit_bias": {"100": 100.0}}
    sampler = VLLMServerSampler(server.url, generation_kwargs=certain)
    (sample,) = ask(sampler, requests(1, stop_token_ids=(100,)))
    assert (sample.ids.tolist(), sample.finish_reason, sample.stop_string) == ([100], "stop", None)
    assert sample.logprobs.tolist() == [0.0], "after the bias"


def test_a_turn_ends_on_the_models_own_eos(server: Any, hf_tokenizer: Any) -> None:
    eos = hf_tokenizer.eos_token_id
    certain = {"logit_bias": {str(eos): 100.0}}
    sampler = VLLMServerSampler(server.url, generation_kwargs=certain)
    (sample,) = ask(sampler, requests(1, stop_token_ids=()))
    assert (sample.ids.tolist(), sample.finish_reason) == ([eos], "stop")


def test_a_turn_is_cut_by_length(server: Any) -> None:
    sampler = VLLMServerSampler(server.url, generation_kwargs={"ignore_eos": True})
    (sample,) = ask(sampler, requests(1, stop_token_ids=()))
    assert (len(sample.ids), sample.finish_reason) == (12, "length")


def test_a_stop_string_keeps_its_tokens(server: Any, tokenizer: Any) -> None:
    (id_,) = tokenizer.encode("th").tolist()
    more = {"logit_bias": {str(id_): 100.0}, "stop": ["h"]}
    sampler = VLLMServerSampler(server.url, generation_kwargs=more)
    (sample,) = ask(sampler, requests(1))
    assert (sample.ids.tolist(), sample.finish_reason, sample.stop_string) == ([id_], "stop", "h")


def test_the_seed_alone_decides_the_draw(server: Any) -> None:
    first, again = (ask(VLLMServerSampler(server.url), requests(64)) for _ in range(2))
    assert [s.ids.tolist() for s in first] == [s.ids.tolist() for s in again]
    alike = [s.ids.tolist() for s in ask(VLLMServerSampler(server.url), requests(1))]
    assert alike == [first[0].ids.tolist()], "alone as among 64"
    other = [SampleRequest(**{**_fields(r), "seed": r.seed + 100}) for r in requests()]
    assert [s.ids.tolist() for s in ask(VLLMServerSampler(server.url), other)] != [
        s.ids.tolist() for s in first[:8]
    ]


def _fields(request: SampleRequest) -> dict[str, Any]:
    return {name: getattr(request, name) for name in request.__slots__}


def test_rollouts_of_64_at_once_are_exact(server: Any, stage: Any, untied: Any) -> None:
    sampler = Asked(server.url)
    played = stage.play(*[Talk] * 64, sampler=sampler, max_turn_tokens=12)
    assert all(not rollout.failed for rollout in played.rollouts)
    for rollout in played.rollouts:
        check_exact(rollout.columns, played.calls(rollout))
    asked, samples = zip(*sampler.calls[::8], strict=True)
    assert worst(untied.eval(), asked, samples) < 1e-4


def test_the_servers_context_ends_the_rollout(server: Any, stage: Any) -> None:
    long = env(Talk, turns=99, texts=["and so on " * 20])
    played = stage.play(long, sampler=Asked(server.url), completion=9999, max_turns=99)
    assert played.one.error is None
    assert played.one.stop_reason == "max_context_tokens"


class Unsaid(dict[str, int]):
    """Keeps nothing."""

    def __setitem__(self, url: str, length: int) -> None:
        pass


def test_a_prompt_that_is_too_long_is_an_error(server: Any) -> None:
    sampler = VLLMServerSampler(server.url)
    too_long = SampleRequest(np.full(1024, 7), 4, (), 0, "r0", 0)
    assert "the prompt has 1024 tokens, but the server holds only 1024" in error_of(
        sampler, too_long
    )
    sampler._lengths = Unsaid()  # as if the server did not say it
    assert error_of(sampler, too_long).endswith(
        "hint: RolloutConfig(max_context_tokens=…), or a longer --max-model-len"
    )


def test_an_id_outside_the_vocabulary_is_an_error(server: Any) -> None:
    outside = SampleRequest(np.asarray([5, 99_999]), 4, (), 0, "r0", 0)
    assert error_of(VLLMServerSampler(server.url), outside) == (
        f"rollout r0, turn 0: the server at {server.url} answers 400 to /v1/completions: Token "
        "id 99999 is out of vocabulary\nhint: use the same vocabulary for the served model and "
        "the rollouts' tokenizer"
    )


def test_another_model_is_named(server: Any) -> None:
    assert "does not serve the model 'other'; it serves 'tiny'" in error_of(
        VLLMServerSampler(server.url, model="other")
    )


def test_raw_logprobs_are_refused(model_folder: Path) -> None:
    raw = VLLMServer(model_folder, logprobs_mode="raw_logprobs").start()
    try:
        raw.ready()
        for endpoint in ("completions", "generate"):
            text = error_of(VLLMServerSampler(raw.url, endpoint=endpoint))
            assert "returns logprobs from before temperature and filters" in text
            assert text.endswith("hint: start the server with --logprobs-mode processed_logprobs")
    finally:
        raw.kill()


LONG = {"generation_kwargs": {"ignore_eos": True}}


def test_a_paused_server_is_waited_for_and_nothing_partial_is_kept(
    server: Any, untied: Any, monkeypatch: Any
) -> None:
    sampler = VLLMServerSampler(server.url, **LONG)
    asked = requests(4, max_tokens=900, stop_token_ids=())
    said: list[tuple[str, int]] = []

    def read(body: bytes) -> Any:
        choices = read_completions(body)
        said.extend((choice.finish_reason, len(choice.token_ids)) for choice in choices)
        return choices

    async def pause(waiting: Any) -> None:
        if await in_flight(server.url, waiting):
            await asyncio.to_thread(server.post, "/pause?mode=abort")
            await asyncio.sleep(1)
            await asyncio.to_thread(server.post, "/resume")

    monkeypatch.setattr(abut.samplers.vllm, "read_completions", read)
    # Who is paused after the last token, or before the first, tries again.
    while not any(reason == "abort" and tokens for reason, tokens in said):
        samples = ask(sampler, asked, pause)
        assert [len(sample.ids) for sample in samples] == [900] * 4
    assert all(tokens < 900 for reason, tokens in said if reason == "abort")
    assert worst(untied.eval(), asked, samples) < 1e-4


def test_a_cancelled_request_is_freed_on_the_server(server: Any) -> None:
    async def cancel() -> tuple[bool, int]:
        """Whether a request was cancelled before it had ended, and what the server made of it."""
        before = server.tokens()
        async with VLLMServerSampler(server.url, **LONG) as sampler:
            (request,) = requests(1, max_tokens=1000, stop_token_ids=())
            waiting = asyncio.ensure_future(sampler.sample(request))
            await in_flight(server.url, [waiting])
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            while await asyncio.to_thread(metric, server.url, "num_requests_running"):
                await asyncio.sleep(0.01)
        return waiting.cancelled(), server.tokens() - before

    while True:  # it may be done before it is cancelled, but not each time
        cancelled, tokens = asyncio.run(cancel())
        if cancelled and tokens < 1000:
            break


def test_when_one_of_two_servers_is_killed_the_other_has_its_rollouts(
    server: Any, second: Any, untied: Any
) -> None:
    asked = requests(16, max_tokens=900, stop_token_ids=())

    async def kill(waiting: Any) -> None:
        await in_flight(second.url, waiting)
        second.kill()

    samples = ask(VLLMServerSampler([server.url, second.url], **LONG), asked, kill)
    assert [len(sample.ids) for sample in samples] == [900] * 16
    assert worst(untied.eval(), asked, samples) < 1e-4


def test_a_server_that_is_killed_and_started_again_ends_the_batch(
    second: Any, untied: Any, caplog: Any
) -> None:
    asked = requests(8, max_tokens=900, stop_token_ids=())

    async def restart(waiting: Any) -> None:
        await in_flight(second.url, waiting)
        second.kill()
        await asyncio.to_thread(second.start)

    # All may be done when the kill comes, but not each time.
    while not any("has restarted and" in message for message in caplog.messages):
        samples = ask(VLLMServerSampler(second.url, give_up_s=200, **LONG), asked, restart)
        assert [len(sample.ids) for sample in samples] == [900] * 8
    assert worst(untied.eval(), asked, samples) < 1e-4
