"""Samplers that ask vLLM servers, against a server that fails in all the ways there are."""

import asyncio
import email.utils
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from abut.errors import SamplerError
from abut.samplers import fleet, fleet_server
from abut.samplers.sampler import Sample, Sampler, SampleRequest
from abut.samplers.vllm import VLLMServerSampler
from tests.kit.data.requests import Asked, request
from tests.kit.servers.fake_server import FakeServer, drop, half, hang, reply, sampled, status
from tests.kit.servers.vllm_server import in_flight
from tests.kit.stage.rollouts import LIMIT_S, Recording, Talk, check_exact, env, eventually


def ask(sampler: VLLMServerSampler, *requests: SampleRequest) -> list[Sample]:
    async def run() -> list[Sample]:
        async with sampler:
            return list(await asyncio.gather(*map(sampler.sample, requests)))

    return asyncio.run(asyncio.wait_for(run(), 60))


def error_of(sampler: VLLMServerSampler, *requests: SampleRequest) -> str:
    with pytest.raises(SamplerError) as raised:
        ask(sampler, *requests or [request()])
    return str(raised.value)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server


@pytest.fixture
def two() -> Iterator[tuple[FakeServer, FakeServer]]:
    with FakeServer() as a, FakeServer() as b:
        yield a, b


def test_a_sample_is_what_the_server_drew(server: FakeServer) -> None:
    sampler = VLLMServerSampler(server.url)
    assert isinstance(sampler, Sampler)
    stopped, cut = ask(sampler, request(), request(max_tokens=2))
    assert stopped.ids.tolist() == [26, 27, 28, 29]
    assert stopped.logprobs.tolist() == [-0.125, -0.25, -0.375, -0.5]
    assert (stopped.finish_reason, stopped.stop_string) == ("stop", None)
    assert (cut.ids.tolist(), cut.finish_reason) == ([26, 27], "length")
    assert (cut.ids.dtype, cut.logprobs.dtype) == (np.int64, np.float32)


SETTINGS = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "logprobs": 0,
    "skip_special_tokens": False,
    "max_tokens": 8,
    "seed": 7,
    "stop_token_ids": [29],
}


def test_a_request_leaves_nothing_to_the_defaults_of_the_server(server: FakeServer) -> None:
    ask(VLLMServerSampler(server.url), request())
    assert server.requests == [
        {
            "model": "tiny",
            "prompt": [5, 6, 7, 8],
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            **SETTINGS,
        }
    ]


def test_each_setting_is_sent(server: FakeServer) -> None:
    settings = {"top_k": 3, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.1}
    more = {"frequency_penalty": 0.5, "stop": ["."], "temperature": 0.6, "min_tokens": None}
    sampler = VLLMServerSampler(
        server.url, temperature=0.5, generation_kwargs=more, api_key="secret", **settings
    )
    ask(sampler, request())
    sent = {**settings, "frequency_penalty": 0.5, "stop": ["."], "temperature": 0.6}
    assert {name: server.requests[0][name] for name in sent} == sent
    assert "min_tokens" not in server.requests[0]
    assert all(b"authorization: bearer secret" in head.lower() for head in server.headers)


def test_the_other_endpoint_takes_the_same(server: FakeServer) -> None:
    samples = ask(VLLMServerSampler(server.url, endpoint="generate"), request())
    assert samples[0].ids.tolist() == [26, 27, 28, 29]
    assert server.requests == [
        {"model": "tiny", "token_ids": [5, 6, 7, 8], "sampling_params": SETTINGS}
    ]


def test_a_stop_string_is_named_and_its_tokens_stay() -> None:
    with FakeServer([reply(finish_reason="stop", stop_reason="ab")]) as server:
        (sample,) = ask(VLLMServerSampler(server.url), request(stop_token_ids=()))
    assert (sample.finish_reason, sample.stop_string) == ("stop", "ab")
    assert len(sample.ids) == 4


# What passes: the same sample comes out, after as many requests as it took.


@pytest.mark.parametrize("fault", [status(429), status(503), status(502), half, drop])
def test_a_request_that_got_no_answer_is_sent_again(fault: Any) -> None:
    with FakeServer([fault]) as server:
        (sample,) = ask(VLLMServerSampler(server.url), request())
        assert sample.ids.tolist() == [26, 27, 28, 29]
        assert len(server.requests) == 2
        assert server.requests[0] == server.requests[1]


def test_an_aborted_sample_is_drawn_again_whole() -> None:
    aborted = reply(finish_reason="abort", token_ids=[26], token_logprobs=[-0.1])
    with FakeServer([aborted, aborted]) as server:
        (sample,) = ask(VLLMServerSampler(server.url), request())
    assert sample.ids.tolist() == [26, 27, 28, 29]
    assert len(server.requests) == 3


@pytest.mark.parametrize("form", ["seconds", "date"])
@pytest.mark.parametrize("code", [429, 503])
def test_retry_after_is_honoured(code: int, form: str) -> None:
    asked: list[float] = []

    async def fault(server: Any, writer: Any, body: Any) -> None:
        asked.append(time.time())
        date = email.utils.formatdate(asked[0] + 2, usegmt=True)  # which has no fractions
        await status(code, Retry_After="1" if form == "seconds" else date)(server, writer, body)

    async def answer(server: Any, writer: Any, body: Any) -> None:
        asked.append(time.time())
        server.write(writer, 200, server.completion(body))

    with FakeServer([fault, answer]) as server:
        ask(VLLMServerSampler(server.url), request())
    assert asked[1] - asked[0] > 0.9


def test_a_retry_after_that_is_no_time_is_no_error() -> None:
    with FakeServer([status(429, Retry_After="soon")]) as server:
        assert ask(VLLMServerSampler(server.url), request())


def test_an_idle_connection_that_the_server_closed_costs_nothing() -> None:
    async def run(server: FakeServer) -> None:
        async with VLLMServerSampler(server.url) as sampler:
            await sampler.sample(request())
            server.faults = [drop]  # the server closes while the next request is on its way
            await sampler.sample(request())
            assert sampler._fleet._servers[0].rests_until == 0.0, "it never rested"

    with FakeServer() as server:
        asyncio.run(run(server))
        assert server.probes == 2, "it was well all the time"


def test_connections_are_kept_and_are_as_many_as_requests(
    server: FakeServer, monkeypatch: Any
) -> None:
    monkeypatch.setattr(fleet_server, "_KEEPALIVE_S", 600.0)

    async def run() -> None:
        async with VLLMServerSampler(server.url) as sampler:
            for _ in range(5):
                await asyncio.gather(*[sampler.sample(request(f"r{i}")) for i in range(8)])

    asyncio.run(run())
    assert len(server.requests) == 40
    assert server.connections <= 9


def test_a_server_that_hangs_is_left_for_another(monkeypatch: Any) -> None:
    monkeypatch.setattr(fleet, "_WATCH_S", 0.5)
    with FakeServer() as a, FakeServer() as b:

        async def run() -> list[Sample]:
            async with VLLMServerSampler([a.url, b.url]) as sampler:
                a.deaf = True
                return await asyncio.gather(*[sampler.sample(request(f"r{i}")) for i in range(4)])

        samples = asyncio.run(asyncio.wait_for(run(), 60))
    assert [sample.ids.tolist() for sample in samples] == [[26, 27, 28, 29]] * 4
    assert len(b.requests) == 4


def test_a_server_that_hangs_before_the_first_request_is_left_too(monkeypatch: Any) -> None:
    monkeypatch.setattr(fleet, "_WATCH_S", 0.5)
    with FakeServer() as a, FakeServer() as b:
        a.deaf = True
        assert ask(VLLMServerSampler([a.url, b.url]), request())
    assert len(b.requests) == 1


def test_a_server_that_is_only_slow_is_waited_for(monkeypatch: Any) -> None:
    monkeypatch.setattr(fleet, "_WATCH_S", 0.3)
    with FakeServer(delay_s=3.0) as server:
        ask(VLLMServerSampler(server.url), request())
        assert len(server.requests) == 1


# Many servers.


def test_rollouts_are_spread_and_each_stays_where_it_is(two: Any) -> None:
    async def run() -> None:
        async with VLLMServerSampler([s.url for s in two]) as sampler:
            for turn in range(3):
                await asyncio.gather(
                    *[
                        sampler.sample(request(f"r{i}", turn=turn, prompt_ids=np.asarray([i])))
                        for i in range(10)
                    ]
                )

    asyncio.run(run())
    rollouts = [{body["prompt"][0] for body in server.requests} for server in two]
    assert [len(own) for own in rollouts] == [5, 5]
    assert not rollouts[0] & rollouts[1]
    assert [len(server.requests) for server in two] == [15, 15]


def test_when_one_server_dies_the_others_have_its_rollouts() -> None:
    with FakeServer() as stays:
        dies = FakeServer(delay_s=600)
        dies.__enter__()

        async def run() -> list[Sample]:
            async with VLLMServerSampler([stays.url, dies.url]) as sampler:
                waiting = [
                    asyncio.ensure_future(sampler.sample(request(f"r{i}"))) for i in range(6)
                ]
                assert await asyncio.to_thread(eventually, lambda: len(dies.requests) == 3)
                await asyncio.to_thread(dies.__exit__)
                return await asyncio.gather(*waiting)

        samples = asyncio.run(asyncio.wait_for(run(), 60))
    assert len(dies.requests) == 3
    assert len(stays.requests) == 6
    assert [sample.ids.tolist() for sample in samples] == [[26, 27, 28, 29]] * 6


def restart(on_restart: Any) -> Any:
    """Stops a server that works on a request, and starts it again on its port when it is missed."""
    first = FakeServer(delay_s=600)
    first.__enter__()
    second = FakeServer(port=first.port)

    async def run() -> Sample:
        async with VLLMServerSampler(first.url, on_restart=on_restart) as sampler:
            waiting = asyncio.ensure_future(sampler.sample(request()))
            assert await in_flight(first.url, [waiting])
            await asyncio.to_thread(first.__exit__)
            while not (sampler._fleet._servers[0].gone or waiting.done()):
                await asyncio.sleep(0.01)
            await asyncio.to_thread(second.__enter__)
            return await waiting

    try:
        return first.url, asyncio.run(asyncio.wait_for(run(), 60))
    except SamplerError as error:
        return first.url, error
    finally:
        if second._thread.is_alive():
            second.__exit__()


def test_who_waits_for_requests_in_flight_notices_that_all_are_answered(server: FakeServer) -> None:
    async def run() -> bool:
        async with VLLMServerSampler(server.url) as sampler:
            waiting = asyncio.ensure_future(sampler.sample(request()))
            await waiting
            return await in_flight(server.url, [waiting])

    assert asyncio.run(run()) is False


def test_a_server_that_is_started_again_goes_on_with_a_warning(caplog: Any) -> None:
    url, sample = restart("resume")
    assert sample.ids.tolist() == [26, 27, 28, 29]
    assert (
        f"the server at {url} has restarted and has the weights it was started with, not the "
        "trainer's" in caplog.messages
    )


def test_a_server_with_a_trainers_weights_must_not_be_started_again() -> None:
    url, error = restart("raise")
    assert str(error) == (
        f"the server at {url} is down: it refuses connections\nhint: after a restart, a server "
        "has the weights it was started with, not the trainer's; restart both the server and "
        "training from the last checkpoint"
    )


@pytest.mark.parametrize("on_restart", ["resume", "raise"])
def test_each_batch_begins_with_a_check(on_restart: Any) -> None:
    with FakeServer() as first:
        sampler = VLLMServerSampler(first.url, on_restart=on_restart)
        ask(sampler, request())
    with FakeServer(port=first.port) as second:
        ask(sampler, request())
        ask(sampler, request())
        assert second.probes == 4
    with FakeServer(port=first.port, probe_logprob=-3.0) as third:
        assert "returns logprobs from before temperature" in error_of(sampler)
        assert not third.requests
    with FakeServer(port=first.port, models=[{"id": "other"}]):
        assert "does not serve the model 'tiny'; it serves 'other'" in error_of(sampler)


def test_a_server_that_went_between_two_batches_is_told_of(server: FakeServer, caplog: Any) -> None:
    with FakeServer() as goes:
        sampler = VLLMServerSampler([server.url, goes.url])
        ask(sampler, request())
    assert len(ask(sampler, request(), request("r1"))) == 2
    assert caplog.messages == [f"the server at {goes.url} refuses connections"]
    with FakeServer(port=goes.port):
        ask(sampler, request())
    assert caplog.messages[1:] == [
        f"the server at {goes.url} has restarted and has the weights it was started with, not the "
        "trainer's"
    ]


def test_a_trainers_server_that_went_between_two_batches_is_an_error() -> None:
    with FakeServer() as server:
        sampler = VLLMServerSampler(server.url, on_restart="raise")
        ask(sampler, request())
    assert error_of(sampler).startswith(f"the server at {server.url} is down: ")


def test_a_server_that_is_paused_when_a_batch_begins_is_waited_for(server: FakeServer) -> None:
    aborted = reply(finish_reason="abort", token_ids=[], token_logprobs=[])
    server.probe_faults = [aborted] * 4
    ask(VLLMServerSampler(server.url), request())
    assert server.probes == 6
    server.probe_faults = [aborted] * 99
    text = error_of(VLLMServerSampler(server.url, give_up_s=0.3))
    assert text.startswith(f"no server has answered for give_up_s=0.3:\n  {server.url} ")
    assert "is paused and aborts requests" in text


# What is wrong for good: each is an error that says what to do.


def test_a_server_that_is_down_is_an_error_after_a_while() -> None:
    with FakeServer() as gone:
        pass
    head, troubles, hint = error_of(VLLMServerSampler(gone.url, give_up_s=0.3)).splitlines()
    assert head == "no server has answered for give_up_s=0.3:"
    # Where the machine is slow, "does not answer within 0.3 s" as well.
    assert troubles.startswith(f"  {gone.url} ")
    assert "refuses connections" in troubles
    assert hint == (
        "hint: check that the server is running and that this is its address; a server that is "
        "ready answers GET /health with 200"
    )


@pytest.mark.parametrize("code", [429, 503])
def test_a_server_that_is_never_ready_is_an_error_too(server: FakeServer, code: int) -> None:
    server.models_status = code
    text = error_of(VLLMServerSampler(server.url, give_up_s=0.3))
    assert text.startswith(f"no server has answered for give_up_s=0.3:\n  {server.url} ")
    assert f"answers {code} to /v1/models: " in text


def test_a_server_without_the_endpoint_is_named(server: FakeServer) -> None:
    server.models_status = 404
    assert error_of(VLLMServerSampler(server.url)).endswith(
        "\nhint: this sampler is for `vllm serve`; for TRL's own server up to 1.10, use "
        "TRLServerSampler"
    )


def test_one_server_of_two_is_enough(server: FakeServer) -> None:
    with FakeServer() as gone:
        pass
    assert len(ask(VLLMServerSampler([gone.url, server.url]), request(), request("r1"))) == 2


def test_another_model_is_named() -> None:
    with FakeServer(models=[{"id": "a"}, {"id": "b"}]) as server:
        assert ask(VLLMServerSampler(server.url, model="b"), request())
        assert server.requests[0]["model"] == "b"
        assert error_of(VLLMServerSampler(server.url, model="tiny")) == (
            f"the server at {server.url} does not serve the model 'tiny'; it serves 'a', 'b'\n"
            "hint: model=None uses the server's first model; `vllm serve --served-model-name` "
            "renames a model"
        )


def test_servers_of_different_models_are_refused() -> None:
    with FakeServer(models=[{"id": "a"}]) as a, FakeServer(models=[{"id": "b"}]) as b:
        assert "does not serve the model" in error_of(VLLMServerSampler([a.url, b.url]))


def test_logprobs_of_another_distribution_are_refused() -> None:
    with FakeServer(probe_logprob=-6.25) as server:
        assert error_of(VLLMServerSampler(server.url)) == (
            f"the server at {server.url} returns logprobs from before temperature and filters: "
            "token 0, the only one allowed, has -6.25 instead of 0\nhint: start the server "
            "with --logprobs-mode processed_logprobs"
        )
        assert not server.requests


@pytest.mark.parametrize(
    ("models", "text"),
    [
        (
            [{"name": "x"}],
            "does not list its models as vLLM does\nhint: base_urls are the addresses of ",
        ),
        ([], "does not serve the model None; it serves none\nhint: "),
    ],
)
def test_what_is_no_vllm_server_is_refused(models: Any, text: str) -> None:
    with FakeServer() as server:
        server.models = models
        assert text in error_of(VLLMServerSampler(server.url))


TOO_LONG = "This model's maximum context length is 64 tokens. However, you requested 99"


@pytest.mark.parametrize(
    ("code", "said", "hint"),
    [
        (400, TOO_LONG, "RolloutConfig(max_context_tokens=…), or a longer --max-model-len"),
        (
            400,
            "Token id 9 is out of vocabulary",
            "use the same vocabulary for the served model and the rollouts' tokenizer",
        ),
        (401, "Unauthorized", "pass api_key=…"),
        (422, "top_p must be in (0, 1]", None),
    ],
)
def test_a_refused_request_says_why_and_is_not_repeated(code: int, said: str, hint: Any) -> None:
    with FakeServer([status(code, said)]) as server:
        assert error_of(VLLMServerSampler(server.url)) == (
            f"rollout r0, turn 0: the server at {server.url} answers {code} to /v1/completions: "
            f"{said}" + (f"\nhint: {hint}" if hint else "")
        )
        assert len(server.requests) == 1


def test_a_prompt_that_fills_the_context_is_refused_before_it_is_sent(server: FakeServer) -> None:
    sampler = VLLMServerSampler(server.url)
    assert error_of(sampler, request(prompt_ids=np.zeros(64, np.int64))) == (
        "rollout r0, turn 0: the prompt has 64 tokens, but the server holds only 64, sample "
        "included\nhint: shorten the prompt, or start the server with a longer --max-model-len"
    )
    (sample,) = ask(sampler, request(prompt_ids=np.zeros(62, np.int64)))
    assert (len(sample.ids), sample.finish_reason) == (2, "length")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"token_logprobs": [-1.0]},
            "choice 0 has 4 sampled ids but 1 logprobs\nhint: pass one logprob per sampled id, "
            "the stop token included",
        ),
        (
            {"token_logprobs": [-1.0, None, -1.0, -1.0]},
            "choice 0: sampled token 1 (id 27) has logprob null, which is not a number\n"
            "hint: ask the engine for the logprob of each sampled token, after temperature and "
            "filters",
        ),
        (
            {"token_ids": None},
            'choice 0 of the reply has no token_ids\nhint: send "return_token_ids": true, '
            "which vLLM supports since 0.10.2",
        ),
        (
            {"prompt_token_ids": [5, 6]},
            "the engine received 2 prompt tokens, which differ from the 4 of the request\n"
            "hint: look for something between abut and the engine that truncates or rewrites "
            "prompts",
        ),
        (
            {"prompt_token_ids": ...},
            "the engine received 0 prompt tokens, which differ from the 4 of the request\n"
            "hint: look for something between abut and the engine that truncates or rewrites "
            "prompts",
        ),
        (
            {"finish_reason": "repetition"},
            "finish_reason is 'repetition', expected 'stop' or 'length'",
        ),
    ],
)
def test_a_wrong_answer_stops_training_and_is_named(changes: Any, text: str) -> None:
    with FakeServer([reply(**changes)]) as server:
        assert error_of(VLLMServerSampler(server.url)) == (
            f"rollout r0, turn 0: the server at {server.url}: {text}"
        )


def test_two_choices_are_one_too_many() -> None:
    async def fault(server: Any, writer: Any, body: Any) -> None:
        answer = server.completion(body)
        answer["choices"] *= 2
        server.write(writer, 200, answer)

    with FakeServer([fault]) as server:
        assert error_of(VLLMServerSampler(server.url)) == (
            f"rollout r0, turn 0: the server at {server.url}: the answer has 2 choices, but 1 "
            "was requested"
        )


def test_an_error_inside_the_server_is_not_provoked_for_ever() -> None:
    with FakeServer([status(500, "bug")] * 9) as server:
        assert error_of(VLLMServerSampler(server.url)) == (
            f"the server at {server.url} answers 500 to /v1/completions: "
            '{"error": {"message": "bug", "code": 500}}'
        )
        assert len(server.requests) == 3


def test_a_sampler_that_is_not_open_says_so(server: FakeServer) -> None:
    with pytest.raises(SamplerError) as raised:
        asyncio.run(VLLMServerSampler(server.url).sample(request()))
    assert str(raised.value) == (
        "the sampler is not open\nhint: use `async with sampler:`; the engine opens the "
        "sampler for each batch itself"
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"base_urls": "localhost:8000"},
            "base_urls: 'localhost:8000': an address starts with http:// or https:// and has "
            "no ? and no #\nhint: write it like 'http://localhost:8000'; percent-encode such "
            "characters in user:password@",
        ),
        (
            {"base_urls": ["http://a", "http://a/v1"]},
            "base_urls=('http://a', 'http://a'): expected one or more different URLs\nhint: "
            "'http://localhost:8000'",
        ),
        ({"endpoint": "chat"}, "endpoint='chat': expected 'completions' or 'generate'"),
        ({"on_restart": "ignore"}, "on_restart='ignore': expected 'resume' or 'raise'"),
        (
            {"temperature": 0.0},
            "temperature=0.0: must be more than 0, because at 0 every logprob is 0 and the "
            "policy cannot learn",
        ),
        (
            {"generation_kwargs": {"temprature": 0.5}},
            "generation_kwargs['temprature']=0.5: this sampler does not know this setting, and "
            "vLLM would ignore it silently\nhint: remove it; RolloutConfig sets the limits, "
            "and the processor the stop tokens",
        ),
    ],
)
def test_a_setting_that_cannot_be_right_is_refused(options: Any, text: str) -> None:
    with pytest.raises(ValueError, match=":") as raised:
        VLLMServerSampler(**{"base_urls": "http://a"} | options)
    assert str(raised.value) == text


# In the engine.


@pytest.fixture
def roomy() -> Iterator[FakeServer]:
    with FakeServer(models=[{"id": "tiny", "max_model_len": 4096}]) as server:
        yield server


def test_rollouts_over_http_are_exact(stage: Any, roomy: FakeServer) -> None:
    roomy.faults = [half, status(503), drop, reply(finish_reason="abort"), status(429)]
    played = stage.play(*[Talk] * 12, sampler=Asked(roomy.url), max_requests=4)
    assert all(not rollout.failed for rollout in played.rollouts)
    for rollout in played.rollouts:
        check_exact(rollout.columns, played.calls(rollout))
    assert roomy.most_at_once <= 4


def test_the_servers_context_bounds_the_rollout(stage: Any) -> None:
    probe = stage.play(Talk, sampler=Recording(stage.says())).one
    room = probe.turns[1].start + 2
    with FakeServer(models=[{"id": "tiny", "max_model_len": room}]) as server:
        played = stage.play(env(Talk, turns=9), sampler=Asked(server.url))
    assert played.one.error is None
    assert played.one.stop_reason == "max_context_tokens"
    assert len(played.one.columns.prompt_ids) + len(played.one.columns.completion_ids) <= room


def test_a_turn_that_hangs_costs_its_rollout_and_frees_the_server(
    stage: Any, roomy: FakeServer, no_thread_stays: None
) -> None:
    roomy.faults = [hang]
    played = stage.play(*[Talk] * 3, sampler=Asked(roomy.url), turn_timeout_s=LIMIT_S, retries=0)
    assert [rollout.failed for rollout in played.rollouts].count(True) == 1
    assert eventually(lambda: roomy.hanging == 0)


def test_a_cancelled_request_is_closed(server: FakeServer) -> None:
    server.faults = [hang]

    async def run() -> None:
        async with VLLMServerSampler(server.url) as sampler:
            waiting = asyncio.ensure_future(sampler.sample(request()))
            await asyncio.to_thread(eventually, lambda: server.hanging == 1)
            waiting.cancel()
            assert await asyncio.to_thread(eventually, lambda: server.hanging == 0)

    asyncio.run(run())


def test_the_fake_server_draws_what_follows_from_the_prompt() -> None:
    assert sampled([5, 6, 7, 8], {"max_tokens": 2}) == [26, 27]
    assert sampled([5, 6, 7, 9], {"max_tokens": 9}) == [27, 28, 29, 30]


def test_stop_strings_of_a_request_join_those_of_the_settings() -> None:
    with FakeServer([reply()]) as server:
        sampler = VLLMServerSampler(server.url, generation_kwargs={"stop": ["x"]})
        ask(sampler, request(stop=("y", "x")))
    assert server.requests[-1]["stop"] == ["x", "y"]


@pytest.mark.parametrize(
    ("stop", "stop_token_ids", "finish_reason", "named"),
    [
        ((" 7 ", " 28 ", " 27 28"), (), "stop", " 28 "),
        (("28", " 27 28 "), (29,), "stop", "28"),
        ((" 29 ",), (29,), "stop", None),
        ((" 28 ",), (), "length", None),
        ((), (), "stop", None),
    ],
)
def test_the_text_of_a_sample_says_its_stop_string_where_the_answer_does_not(
    stop: Any, stop_token_ids: Any, finish_reason: str, named: str | None
) -> None:
    with FakeServer([reply(finish_reason=finish_reason)]) as server:
        sampler = VLLMServerSampler(server.url, endpoint="generate")
        (sample,) = ask(sampler, request(stop=stop, stop_token_ids=stop_token_ids))
    assert sample.ids.tolist() == [26, 27, 28, 29], "whole"
    assert (sample.finish_reason, sample.stop_string) == (finish_reason, named)
    assert server.requests[-1]["sampling_params"].get("stop", []) == [*stop]


@pytest.mark.parametrize("answer", [(404, {}), (200, {"text": "x"}), (200, [])])
def test_a_server_that_does_not_say_the_text_is_an_error(answer: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(FakeServer, "detokenized", lambda *_: answer)
    with FakeServer([reply(finish_reason="stop")]) as server:
        sampler = VLLMServerSampler(server.url, endpoint="generate")
        with pytest.raises(SamplerError, match="/detokenize did not return the text of a sample"):
            ask(sampler, request(stop=("y",)))
