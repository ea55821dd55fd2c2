"""Keys: no byte of a body is read before one opens something, and an agent's own rewards nobody."""

import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from abut.gateway.server import app, body, connections
from abut.gateway.server.gateway import Gateway
from abut.records import read_records
from tests.kit.clients.raw_http import RawClient
from tests.kit.stage.agents import LOOKUP, a_call, ask, post, says, serving, user
from tests.kit.stage.rollouts import Stage, eventually

CHAT = "/v1/chat/completions"
BODY = {"model": "policy", "messages": [user("hi")]}
LONG = b'{"messages": [' + b"[]," * 3_000_000 + b"[]]}"


@pytest.fixture
def gateway(stage: Stage, hf_tokenizer: Any) -> Iterator[Gateway]:
    with serving(says(stage), hf_tokenizer) as gateway:
        ask(gateway, [user("a")], "a")
        yield gateway


def refused(client: RawClient) -> str:
    """The message of a 400 behind which the connection is closed."""
    answer = client.answer()
    assert answer is not None, "the connection was closed before the 400"
    assert (answer[0], answer[1]["connection"]) == (400, "close")
    return str(answer[2]["error"]["message"])


@pytest.mark.parametrize(
    ("path", "key", "headers"),
    [
        ("/end", None, {}),
        ("/r/a/end", None, {}),
        ("/r/a/end", "a wrong one", {}),
        (CHAT, "a wrong one", {}),
        (f"/r/a{CHAT}", "a wrong one", {}),
        (CHAT, "a wrong one", {"x-abut-rollout": "a"}),
        (f"/r/a{CHAT}", "a wrong one", {"x-abut-rollout": "b"}),
        (CHAT, None, {"x-abut-rollout": "a"}),
        ("/r/a/key", None, {}),
        ("/v1/responses", None, {}),
        ("/r/a/v1/responses", "a wrong one", {}),
        ("/v1/messages", "a wrong one", {}),
        ("/r/a/v1/messages", "a wrong one", {"x-api-key": "another wrong one"}),
        ("/r/a/v1/messages/count_tokens", None, {"x-api-key": "a wrong one"}),
    ],
)
def test_no_byte_of_a_body_is_read_before_the_key(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, path: str, key: Any, headers: Any
) -> None:
    def read_body(content: Any) -> Any:
        raise AssertionError("a body was parsed")

    monkeypatch.setattr(app, "read_body", read_body)
    monkeypatch.setattr(app, "json_object", read_body)
    with RawClient(gateway.base_url, key) as client:
        client.socket.sendall(client.head(path, 9_000_000, **headers))  # and not one byte more
        answer = client.answer()
        assert answer is not None
        assert (answer[0], answer[1]["connection"]) == (400, "close")


def test_who_sends_a_long_body_still_reads_why_it_is_refused(gateway: Gateway) -> None:
    """Closing at once would reset the connection, and the client would read nothing."""
    with RawClient(gateway.base_url, "a wrong key") as client:
        client.send(f"/r/a{CHAT}", LONG)
        assert "does not open this rollout" in refused(client)


def test_a_client_that_never_stops_sending_is_cut_off(
    stage: Stage, hf_tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_LINGER_S", 0.05)
    with (
        serving(says(stage), hf_tokenizer) as gateway,
        RawClient(gateway.base_url, "a wrong key") as client,
    ):
        client.socket.sendall(client.head(CHAT, 10**9))
        assert "does not open" in refused(client)
        assert client.is_closed()  # after its lingering time, with the body still to come


@pytest.mark.parametrize("key", ["run", "own"])
def test_a_key_that_opens_something_is_admitted(gateway: Gateway, key: str) -> None:
    """The run's, that of the id in path or header, and that of a live rollout named in the body."""
    own = gateway.endpoint("a").api_key
    bearer, url = (gateway.key if key == "run" else own), gateway.base_url.removesuffix("/v1")
    for path, fields, headers in (
        (f"/r/a{CHAT}", {}, {}),
        (CHAT, {}, {"x-abut-rollout": "a"}),
        (CHAT, {"rollout_id": "a"}, {}),
        (CHAT, {"model": "policy/a"}, {}),
    ):
        status, answer, _ = post(f"{url}{path}", bearer, {**BODY, **fields}, **headers)
        assert status == 200, answer
    status, answer, _ = post(f"{url}{CHAT}", own, {**BODY, "rollout_id": "b"})
    assert (status, answer["error"]["code"]) == (400, "wrong_api_key")


def test_headers_that_do_not_come_end_the_connection(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "TICK_S", 0.001)
    with RawClient(gateway.base_url) as silent, RawClient(gateway.base_url) as slow:
        slow.socket.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost:")
        assert silent.is_closed()
        assert slow.is_closed()


def test_an_idle_connection_waits_for_its_next_request(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RawClient(gateway.base_url, gateway.key) as client:
        client.send(f"/r/a{CHAT}", BODY)
        assert client.answer() is not None
        for connection in tuple(gateway.registry.connections._open):
            for _ in range(1000):
                connection.tick()
        client.send(f"/r/a{CHAT}", BODY)
        answer = client.answer()
        assert answer is not None
        assert answer[0] == 200


def test_a_body_that_stops_is_refused(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "_BYTE_S", 0.05)
    with RawClient(gateway.base_url, gateway.key) as client:
        client.socket.sendall(client.head(f"/r/a{CHAT}", 1000) + b'{"messages": [')
        assert refused(client) == "the body is incomplete: nothing arrived for 0.05 s"


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, gzip"])
def test_a_compressed_body_is_refused_and_not_decompressed(gateway: Gateway, encoding: str) -> None:
    compressor = zlib.compressobj(wbits=31)
    bomb = b"".join(compressor.compress(b" " * 2**24) for _ in range(16)) + compressor.flush()
    with RawClient(gateway.base_url, gateway.endpoint("a").api_key) as client:
        client.send(f"/r/a{CHAT}", bomb, **{"Content-Encoding": encoding})
        assert refused(client).startswith(f"the request body has the Content-Encoding '{encoding}'")
    with RawClient(gateway.base_url, gateway.endpoint("a").api_key) as client:
        client.send(f"/r/a{CHAT}", BODY, **{"Content-Encoding": "identity"})
        answer = client.answer()
    assert answer is not None
    assert answer[0] == 200


def test_a_rollout_s_bodies_are_limited_together_until_they_are_read(
    stage: Stage, hf_tokenizer: Any
) -> None:
    most = 100_000
    with serving(says(stage), hf_tokenizer, max_body_bytes=most) as gateway, ExitStack() as stack:
        path = f"/r/a{CHAT}"

        def begun(key: str) -> RawClient:
            client = stack.enter_context(RawClient(gateway.base_url, key))
            client.socket.sendall(client.head(path, most) + b" " * (most - 1))
            return client

        key, taken = gateway.endpoint("a").api_key, gateway.registry.bodies.taken
        waiting = [begun(key) for _ in range(4)]
        assert eventually(lambda: taken[key] == 4 * most - 4)
        last = begun(key)
        assert refused(last).startswith("the requests that this rollout sends now have more than")
        assert eventually(lambda: taken[key] == 4 * most - 4)
        for _ in range(6):  # the run's own key is not limited
            begun(gateway.key)
        assert ask(gateway, [user("hi")], "b")  # nor are other rollouts
        for client in waiting:
            client.socket.close()
        assert eventually(lambda: taken[key] == 0)
        with RawClient(gateway.base_url, key) as client:
            client.send(path, BODY)
            answer = client.answer()
        assert answer is not None
        assert answer[0] == 200


def test_only_the_run_s_key_ends_a_rollout(gateway: Gateway) -> None:
    endpoint = gateway.endpoint("a")
    url = endpoint.base_url.removesuffix("/v1")
    status, answer, _ = post(f"{url}/end", endpoint.api_key, {"reward": 1.0})
    assert status == 400
    assert answer["error"]["message"] == (
        "an agent's key cannot end or reward a rollout: only the run's key can\n"
        "hint: use Gateway(agents_may_end=True) or `abut gateway --agents-may-end` to allow it"
    )
    status, answer, _ = post(f"{url}/key", endpoint.api_key, {})
    assert (status, answer["error"]["code"]) == (400, "wrong_api_key")
    assert post(f"{url}/end", gateway.key, {"reward": 0.5})[1]["reward"] == 0.5


def test_agents_end_their_own_rollout_where_they_may(stage: Stage, hf_tokenizer: Any) -> None:
    with serving(says(stage), hf_tokenizer, agents_may_end=True) as gateway:
        for rollout in ("a", "b"):
            ask(gateway, [user("a")], rollout)
        endpoint = gateway.endpoint("a")
        url = endpoint.base_url.removesuffix("/v1")
        other = gateway.endpoint("b").base_url.removesuffix("/v1")
        status, answer, _ = post(f"{other}/end", endpoint.api_key, {"reward": 1.0})
        assert (status, answer["error"]["code"]) == (400, "wrong_api_key")
        status, answer, _ = post(f"{url}/end", endpoint.api_key, {"reward": 1.0})
        assert (status, answer["reward"]) == (200, 1.0)


def test_the_run_s_key_gets_the_key_that_opens_one_rollout_alone(gateway: Gateway) -> None:
    root = gateway.base_url.removesuffix("/v1")
    status, answer, _ = post(f"{root}/r/new/key", gateway.key, {})
    assert (status, answer) == (200, {"rollout_id": "new", "key": gateway.endpoint("new").api_key})
    assert post(f"{root}/r/new{CHAT}", answer["key"], BODY)[0] == 200
    assert post(f"{root}/r/a{CHAT}", answer["key"], BODY)[0] == 400
    status, answer, _ = post(f"{root}/r/{'x' * 201}/key", gateway.key, {})
    assert (status, answer["error"]["code"]) == (400, "unknown_rollout")


def nested(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = [value]
    return value


DEEP = nested(300)


def test_what_is_odd_gets_a_400_and_never_a_500(gateway: Gateway) -> None:
    """Bytes that are no UTF-8, numbers that are too long, and fields that are too deep."""
    url = gateway.endpoint("a").base_url
    for key, headers, status in (
        ("\udcff\udcfe", {}, 400),
        (gateway.key, {"x-abut-rollout": "\udcff"}, 400),
        (gateway.endpoint("a").api_key, {"x-abut-rollout": "\udcff"}, 400),
        (gateway.key, {"x-stainless-retry-count": "9" * 5000}, 200),
        (gateway.key, {"x-stainless-retry-count": "0" * 5000}, 200),
    ):
        with RawClient(gateway.base_url, key) as client:
            client.send(f"/r/a{CHAT}", BODY, **headers)
            answer = client.answer()
            assert answer is not None
            assert answer[0] == status, (key, headers, answer)
    assert post(f"{url}/chat/completions", gateway.key, {**BODY, "rollout_id": "\ud800"})[0] == 400
    function = {"name": "f", "parameters": {"a": DEEP}}
    for fields, most in (
        ({"messages": [{**user("hi"), "note": DEEP}]}, 400),
        ({"tools": [{"type": "function", "function": function}]}, 200),
        ({"chat_template_kwargs": {"a": DEEP}}, 200),
    ):
        for _ in range(2):  # and when it comes back
            status, answer, _ = post(f"{url}/chat/completions", gateway.key, {**BODY, **fields})
            assert status == most, (fields, answer)


def test_calls_that_are_nested_deeply_come_back_as_the_policy_wrote_them(
    stage: Stage, hf_tokenizer: Any
) -> None:
    with serving(says(stage, a_call(a=nested(198)), "done"), hf_tokenizer) as gateway:
        said = [user("go")]
        message, _ = ask(gateway, said, "a", tools=[LOOKUP])
        said += [
            message,
            {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "x"},
        ]
        ask(gateway, said, "a", tools=[LOOKUP])
        assert gateway.end("a").branches == []


def test_tools_that_are_nested_deeply_are_recorded_in_part(
    stage: Stage, hf_tokenizer: Any, tmp_path: Path
) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"a": nested(310)}}}
    with serving(says(stage), hf_tokenizer, recorder=tmp_path / "r.jsonl") as gateway:
        ask(gateway, [user("go")], "a", tools=[tool])
        gateway.end("a")
    (record,) = read_records(tmp_path / "r.jsonl")
    assert record["tools"][0]["function"]["name"] == "f"
    assert "nested this deeply" in str(record["tools"])
