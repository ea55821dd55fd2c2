"""Official types accept every body and event that the gateway writes.

Each kind of answer in each protocol, whole and in a stream; counts, kept answers and refusals.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from abut.demo.model import load_demo_tokenizer
from abut.gateway.server.gateway import Gateway
from tests.kit.clients.conversation import InOrder
from tests.kit.clients.dialect_clients import events_in, send
from tests.kit.clients.template_stage import stage_of
from tests.kit.stage.agents import serving

ENVIRONMENTS = ("dialects",)

official = pytest.importorskip("tests.kit.clients.official_dialects")
types = pytest.importorskip("tests.kit.clients.official_types")

DIALECTS = pytest.mark.parametrize("name", ["chat", "responses", "messages", "gemini"])
EACH = [(name, kind) for name, one in official.OFFICIAL.items() for kind in one.kinds]
MARKS = {kind: f"<{kind}>" for one in official.OFFICIAL.values() for kind in one.kinds}


class Says(InOrder):
    """Answers a question by its kind, and fails at any other."""

    def __init__(self) -> None:
        kinds = {k: v for one in official.OFFICIAL.values() for k, v in one.kinds.items()}
        super().__init__(
            stage_of("demo"), {MARKS[name]: [kind.written] for name, kind in kinds.items()}
        )

    async def sample(self, request: Any) -> Any:
        if "<fails>" in self._stage.tokenizer.decode(request.prompt_ids):
            raise RuntimeError("the server is gone")
        return await super().sample(request)


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with serving(Says(), load_demo_tokenizer()) as gateway:
        yield gateway


class Case:
    """One kind of answer in one protocol."""

    def __init__(self, gateway: Gateway, name: str, kind: str) -> None:
        self.dialect = official.OFFICIAL[name]
        self.kind = self.dialect.kinds[kind]
        self.gateway, self.rollout = gateway, f"{name}-{[*MARKS].index(kind)}"
        self.body = self.dialect.body(MARKS[kind], self.kind)

    def endpoint(self, rollout: str) -> Any:
        return self.gateway.endpoint(f"{self.rollout}-{rollout}")

    def ask(self, *, stream: bool, **fields: Any) -> Any:
        endpoint = self.endpoint("stream" if stream else "whole")
        body = {**self.body, "stream": stream, "stream_options": {"include_usage": True}}
        url = self.dialect.url(endpoint, stream=stream)
        status, value = send(url, "", {**body, **fields}, **{"x-api-key": self.gateway.key})
        assert status == 200, value
        return value


@pytest.mark.parametrize(("name", "kind"), EACH)
def test_each_answer_is_of_an_official_type(gateway: Gateway, name: str, kind: str) -> None:
    case = Case(gateway, name, kind)
    dialect = case.dialect
    typed = dialect.whole(case.ask(stream=False))
    assert dialect.said(typed) == dialect.expected(case.kind)
    dialect.events(case.ask(stream=True))
    streamed = dialect.streamed(case.endpoint("sdk"), case.body)
    assert dialect.said(streamed) == dialect.expected(case.kind)


@pytest.mark.parametrize("kind", official.ResponsesTypes.kinds)
def test_a_kept_response_is_the_one_that_was_given(gateway: Gateway, kind: str) -> None:
    case = Case(gateway, "responses", kind)
    for stream in (False, True):
        given = case.ask(stream=stream)
        given = given[-1]["response"] if stream else given
        url = f"{case.endpoint('stream' if stream else 'whole').base_url}/responses/{given['id']}"
        status, kept = asked(url, None, {"x-api-key": gateway.key})
        assert (status, json.loads(kept)) == (200, given)


def test_counts_are_of_the_official_types(gateway: Gateway) -> None:
    from anthropic.types import MessageTokensCount
    from anthropic.types.beta import BetaMessageTokensCount
    from google.genai.types import CountTokensResponse

    for name, tail, kinds, key in (
        ("messages", "/count_tokens", (MessageTokensCount, BetaMessageTokensCount), "input_tokens"),
        ("gemini", "", (CountTokensResponse,), "totalTokens"),
    ):
        case = Case(gateway, name, "text")
        url = case.dialect.url(case.endpoint("count")) + tail
        url = url.replace(":generateContent", ":countTokens")
        status, value = send(url, "", case.body, **{"x-api-key": gateway.key})
        assert status == 200, value
        for kind in kinds:
            types.accepted(kind, value)
        assert value[key] > 0


# ---- refusals


class Wrong(NamedTuple):
    """How a request that is refused differs from one that is answered.

    Attributes:
        status: of the refusal.
        data: its whole body.
        fields: of its body.
        headers: of it.
        tail: behind its path.
        method: of it.
    """

    status: int = 400
    data: bytes | None = None
    fields: Mapping[str, Any] = {}
    headers: Mapping[str, str] = {}
    tail: str = ""
    method: str = "POST"


WRONG = {
    "no key": Wrong(headers={"x-api-key": ""}),
    "another key": Wrong(headers={"x-api-key": "another"}),
    "no JSON": Wrong(data=b"{"),
    "no UTF-8": Wrong(data=b'{"model": "\xff"}'),
    "no object": Wrong(data=b"[]"),
    "deep": Wrong(data=b'{"a":' + b"[" * 100_000),
    "no messages": Wrong(data=b"{}"),
    "too large": Wrong(headers={"content-length": str(2**30)}),
    "a wrong field": Wrong(fields={"tools": "lookup"}),
    "a wrong rollout": Wrong(fields={"rollout_id": 7}),
    "a wrong name": Wrong(headers={"x-abut-name": "no name"}),
    "no such route": Wrong(404, tail="/nope"),
    "another method": Wrong(405, method="DELETE"),
}


def asked(
    url: str, data: bytes | None, headers: Mapping[str, str], method: str | None = None
) -> tuple[int, bytes]:
    """Send bytes; returns the status and what came back."""
    headers = {"content-type": "application/json", **headers}
    try:
        with urlopen(Request(url, data, headers, method=method), timeout=60) as reply:
            return reply.status, reply.read()
    except HTTPError as error:
        with error:
            return error.code, error.read()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("wrong", WRONG)
@DIALECTS
def test_each_refusal_is_of_the_official_type(
    gateway: Gateway, name: str, wrong: str, stream: bool
) -> None:
    case, how = Case(gateway, name, "text"), WRONG[wrong]
    url, _, query = case.dialect.url(case.endpoint("wrong"), stream=stream).partition("?")
    body = {**case.body, "stream": stream, **how.fields}
    data = json.dumps(body).encode() if how.data is None else how.data
    headers = {"x-api-key": gateway.key, **how.headers}
    status, said = asked(f"{url}{how.tail}?{query}", data, headers, how.method)
    assert status == how.status, said
    case.dialect.refused(status, json.loads(said))


def check_refused(gateway: Gateway, name: str, text: str, rollout: str, status: int = 400) -> Any:
    """Ask whole and in a stream; returns the body of the refusals, which are the same."""
    case = Case(gateway, name, "text")
    bodies = []
    for stream in (False, True):
        body = {**case.dialect.body(text, case.kind), "stream": stream}
        url = case.dialect.url(gateway.endpoint(rollout), stream=stream)
        found, said = asked(url, json.dumps(body).encode(), {"x-api-key": gateway.key})
        assert found == status, said
        bodies.append(json.loads(said))
        case.dialect.refused(status, bodies[-1])
    assert bodies[0] == bodies[1]
    return bodies[0]


@DIALECTS
def test_the_refusals_at_limits_are_of_the_official_type(name: str) -> None:
    config = {"max_context_tokens": 1500}
    with serving(Says(), load_demo_tokenizer(), config=config) as gateway:
        full = check_refused(gateway, name, "long " * 1700, "a")
        limited = check_refused(gateway, name, "<fails>", "a")
        gateway.end("a", 1.0)
        over = check_refused(gateway, name, MARKS["text"], "a")
    assert "sampling from the policy failed" in limited["error"]["message"]
    assert "this rollout is over" in over["error"]["message"]
    assert re.search("too long|maximum", full["error"]["message"])


@DIALECTS
def test_a_failure_of_the_gateway_is_of_the_official_type(
    gateway: Gateway, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("no one thought of this")

    for dialect in gateway.registry.dialects:
        monkeypatch.setattr(dialect, "read", fails)
    check_refused(gateway, name, "hi", "failing", status=500)


@DIALECTS
def test_a_turn_that_fails_in_a_stream_ends_it_with_an_official_error(
    gateway: Gateway, name: str
) -> None:
    case = Case(gateway, name, "text")
    body = {**case.dialect.body("<fails>", case.kind), "stream": True}
    url = case.dialect.url(case.endpoint("fails"), stream=True)
    status, said = asked(url, json.dumps(body).encode(), {"x-api-key": gateway.key})
    assert status == 200
    case.dialect.broken(events_in(said.decode()))
    with pytest.raises(Exception, match="sampling from the policy failed"):
        case.dialect.streamed(case.endpoint("sdk-fails"), case.dialect.body("<fails>", case.kind))


# ---- the check itself


NOTICED = (ValueError, AssertionError, UserWarning, AttributeError)
"""What the check raises: the last one is google-genai's, at an enumeration that is not a text."""
FREE = ("input", "args", "arguments", "metadata")
"""Objects that may have any field."""


def changes(value: Any) -> Iterator[Any]:
    """Yield a JSON value with a field that its type does not know, or with a value of another
    type, in each place where there may be one."""
    if isinstance(value, dict):
        yield {**value, "no_field": 1}
        for key, inner in value.items():
            for other in () if key in FREE else changes(inner):
                yield {**value, key: other}
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            for other in changes(inner):
                yield [*value[:place], other, *value[place + 1 :]]
    else:
        yield {"no": "value"}


@DIALECTS
def test_one_wrong_field_anywhere_is_noticed(gateway: Gateway, name: str) -> None:
    case = Case(gateway, name, "calls")
    given = case.ask(stream=False)
    tried = 0
    for changed in changes(given):
        tried += 1
        with pytest.raises(NOTICED):
            case.dialect.whole(changed)
    assert tried > 20
    case.dialect.whole(given)


@DIALECTS
def test_an_unknown_reason_to_stop_is_noticed(gateway: Gateway, name: str) -> None:
    """Of two protocols the types would take any text, as a member that they did not know."""
    case = Case(gateway, name, "text")
    for ends in case.dialect.ends.values():
        end = ends if isinstance(ends, str) else ends[0]
        said = json.dumps(case.ask(stream=False))
        if f'"{end}"' not in said:
            continue
        with pytest.raises(NOTICED):
            case.dialect.whole(json.loads(said.replace(f'"{end}"', '"no_reason"')))
        return
    pytest.fail("an answer says why it ended")
