"""Inference servers: a key stays where it was meant for, and no answer is read without end."""

import asyncio
from typing import Any

import numpy as np
import pytest

from abut.errors import SamplerError
from abut.samplers.sampler import Sample, SampleRequest
from abut.samplers.trl_server import TRLServerSampler
from abut.samplers.vllm import VLLMServerSampler
from tests.kit.servers.fake_server import FakeServer, status

SECRET = "s3cr3t-k3y"
BASIC = b"Basic bWU6czNjcjN0LWszeQ=="


def ask(sampler: Any) -> Sample:
    async def run() -> Sample:
        async with sampler:
            return await sampler.sample(SampleRequest(np.arange(3), 4, (), 0, "r0", 0))

    return asyncio.run(run())


def error_of(sampler: Any) -> str:
    with pytest.raises(SamplerError) as raised:
        ask(sampler)
    assert SECRET not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize("path", ["/v1/models", "/v1/completions"])
def test_a_key_does_not_follow_a_redirect_to_another_origin(path: str) -> None:
    with FakeServer() as other, FakeServer() as server:
        server.moved[path] = other.url + path
        error = error_of(VLLMServerSampler(server.url, api_key=SECRET))
    assert other.headers == [], "neither a key nor a prompt"
    assert error.removeprefix("rollout r0, turn 0: ") == (
        f"{server.url} redirects to another origin, {other.url}; abut does not follow, so that "
        f"your headers stay with {server.url}\nhint: if the server has moved, use {other.url} "
        "as its address"
    )


def test_a_redirect_within_an_origin_is_followed_with_the_key() -> None:
    with FakeServer() as server:
        server.moved["/v1/models"] = "/v1/v1/models"
        server.moved["/v1/completions"] = "/completions"
        assert len(ask(VLLMServerSampler(server.url, api_key=SECRET)).ids) == 4
    assert all(f"Bearer {SECRET}".encode() in head for head in server.headers)


@pytest.mark.parametrize(
    "fault", [status(302, Location="/x"), status(307, Location="/v1/completions")]
)
def test_redirects_that_change_the_request_or_never_end_are_refused(fault: Any) -> None:
    with FakeServer([fault] * 6) as server:
        assert error_of(VLLMServerSampler(server.url)).endswith(
            f"{server.url} answers /v1/completions with a redirect that abut cannot follow"
        )


def test_user_and_password_are_sent_and_never_printed(caplog: pytest.LogCaptureFixture) -> None:
    with FakeServer() as server:
        url = server.url.replace("://", f"://me:{SECRET}@")
        for sampler in (VLLMServerSampler(url), TRLServerSampler(url)):
            assert len(ask(sampler).ids) == 4
            assert sampler.base_urls == (server.url,)
    assert all(BASIC in head for head in server.headers)
    for sampler in (VLLMServerSampler(url, give_up_s=0), TRLServerSampler(url, give_up_s=0)):
        assert server.url in error_of(sampler)
        assert SECRET not in repr([sampler, sampler._fleet._servers])
    assert SECRET not in caplog.text


@pytest.mark.parametrize("url", [f"ftp://me:{SECRET}@a", f"http://me:{SECRET}@a:b"])
@pytest.mark.parametrize("sampler", [VLLMServerSampler, TRLServerSampler])
def test_a_wrong_address_is_named_without_its_password(sampler: Any, url: str) -> None:
    with pytest.raises(ValueError, match="an address starts with http") as raised:
        sampler(url)
    assert SECRET not in str(raised.value)


def test_a_key_that_cannot_be_sent_is_not_printed() -> None:
    with pytest.raises(ValueError, match="api_key") as raised:
        VLLMServerSampler("http://a", api_key=f"{SECRET}\n")
    assert SECRET not in str(raised.value)


def test_an_address_with_a_password_takes_no_key() -> None:
    with pytest.raises(ValueError, match="pass one of the two"):
        VLLMServerSampler("http://me:x@a", api_key=SECRET)


@pytest.mark.parametrize("path", ["/v1/models", "/v1/completions"])
def test_an_answer_is_read_up_to_a_limit(path: str) -> None:
    big = [{"id": "tiny", "max_model_len": 64, "more": "x" * 2**21}]
    faults = [status(200, "x" * 2**21)]
    settings: Any = {"models": big} if path == "/v1/models" else {"faults": faults}
    most = 2**20 + (0 if path == "/v1/models" else 2**10 * 7)
    with FakeServer(**settings) as server:
        assert error_of(VLLMServerSampler(server.url)).removeprefix("rollout r0, turn 0: ") == (
            f"the server at {server.url} answers {path} with more than {most} bytes, which is "
            "the limit: 1 MiB, and 1 KiB for each token\nhint: check that the address belongs "
            "to an inference server"
        )
