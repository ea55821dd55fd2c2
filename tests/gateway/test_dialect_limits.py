"""Limits of a request: what is refused before a prompt is written or a sampler asked."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from abut.gateway.dialects.anthropic import Anthropic
from abut.gateway.dialects.chat import Chat
from abut.gateway.dialects.dialect import HttpDialect
from abut.gateway.dialects.gemini import Gemini
from abut.gateway.dialects.responses import Responses
from abut.gateway.ledger.refusal import Refusal
from abut.gateway.server.gateway import Gateway
from tests.kit.clients.dialect_clients import MessagesClient, causes, ledger_of, send
from tests.kit.data.trl_templates import with_template
from tests.kit.stage.agents import says, serving, user
from tests.kit.stage.rollouts import Recording, Stage


@pytest.fixture
def sampler(stage: Stage) -> Recording:
    return says(stage, "<think>\nI should look.\n</think>\n\nYes.", "Yes.")


@pytest.fixture
def gateway(sampler: Recording, hf_tokenizer: Any) -> Iterator[Gateway]:
    with serving(sampler, hf_tokenizer) as gateway:
        yield gateway


# ---- settings of sampling

HI = {"parts": [{"text": "hi"}]}
WRONG: tuple[Any, ...] = ("7", True, 1.5, 2**63, -(2**63) - 1, [1], {}, float("nan"), 10**400)
NOT_NUMBERS = ("0.7", True, float("nan"), float("inf"), 10**400, [], {})


@pytest.mark.parametrize("seed", WRONG, ids=lambda seed: str(seed)[:20])
def test_a_seed_that_is_no_integer_is_a_400(gateway: Gateway, seed: Any) -> None:
    base, key = gateway.endpoint("a").base_url, {"x-api-key": gateway.key}
    gemini = f"{base.removesuffix('/v1')}/v1beta/models/m:generateContent"
    bodies: dict[str, dict[str, Any]] = {
        f"{base}/chat/completions": {"messages": [user("hi")], "seed": seed},
        gemini: {"contents": [HI], "generationConfig": {"seed": seed}},
    }
    for url, body in bodies.items():
        status, answer = send(url, "", body, **key)
        assert (status, answer["error"]["message"][:5]) == (400, "seed=")
    # Messages and Responses have no seed, so theirs is ignored as any other field.
    for url in (f"{base}/messages", f"{base}/responses"):
        body = {"seed": seed, "input": "hi", "messages": [user("hi")], "max_tokens": 5}
        assert send(url, "", body, **key)[0] == 200
    ledger = ledger_of(gateway, "a")
    assert ledger is not None
    assert ledger.refused is None


@pytest.mark.parametrize("value", NOT_NUMBERS, ids=lambda value: str(value)[:20])
@pytest.mark.parametrize("dialect", [Chat(), Anthropic(), Responses()])
def test_a_setting_of_sampling_is_a_number(dialect: HttpDialect, value: Any) -> None:
    body = {"messages": [user("hi")], "input": "hi", "top_p": value}
    with pytest.raises(Refusal, match="must be a number") as refused:
        dialect.read(body)
    assert refused.value.param == "top_p"


def test_a_setting_of_sampling_of_gemini_is_refused_by_its_own_name() -> None:
    with pytest.raises(Refusal, match="topP='x'"):
        Gemini().read({"contents": [HI], "generation_config": {"top_p": "x"}})
    with pytest.raises(Refusal, match=r"topK=1\.5: must be an integer"):
        Gemini().read({"contents": [HI], "generation_config": {"top_k": 1.5}})
    asked = Gemini().read({"contents": [HI], "generationConfig": {"seed": 1 - 2**63, "topK": 40.0}})
    assert asked.sampling == {"seed": 1 - 2**63, "top_k": 40}
    assert isinstance(asked.sampling["top_k"], int)


# ---- tools


def named(name: str, kind: str = "function") -> dict[str, Any]:
    return {"type": kind, "name": name}


def space(name: str, *tools: dict[str, Any]) -> dict[str, Any]:
    return {"type": "namespace", "name": name, "tools": list(tools)}


def read(tools: list[Any], *items: Any) -> Any:
    return Responses().read({"input": [user("hi"), *items], "tools": tools})


SEARCH = {"type": "tool_search", "execution": "client"}
COLLIDING = [
    ([named("a__b"), space("a", named("b"))], "tool 'a__b' and .* tool 'b' of namespace 'a'"),
    ([space("a", named("b__c")), space("a__b", named("c"))], "'a' and .* of namespace 'a__b'"),
    ([named("a"), named("a", "custom")], "the function tool 'a' and the custom tool 'a'"),
    ([SEARCH, named("tool_search")], "the tool_search tool 'tool_search' and the function"),
]


@pytest.mark.parametrize(("tools", "message"), COLLIDING, ids=range(len(COLLIDING)))
def test_two_tools_of_one_name_in_the_prompt_are_a_400(tools: list[Any], message: str) -> None:
    for order in (tools, tools[::-1]):
        with pytest.raises(Refusal, match=r"would both be called") as refused:
            read(order)
        assert refused.value.param == "tools"
    with pytest.raises(Refusal, match=message):
        read(tools)
    (one, other) = tools
    found = {"type": "tool_search_output", "call_id": "c", "tools": [other]}
    with pytest.raises(Refusal, match=message):
        read([one], found)


def test_a_tool_may_be_found_again() -> None:
    found = {"type": "tool_search_output", "call_id": "c", "tools": [space("a", named("b"))]}
    asked = read([space("a", named("b")), SEARCH], found, found)
    assert [tool["function"]["name"] for tool in asked.tools] == ["a__b", "tool_search"]
    assert [json.loads(m["content"])[0]["name"] for m in asked.messages[1:]] == ["a__b"] * 2


def test_the_number_of_tools_is_that_of_the_whole_request() -> None:
    spaces = [space(f"s{n}", *(named(f"t{k}") for k in range(300))) for n in range(2)]
    assert len(read(spaces[:1]).tools) == 300
    with pytest.raises(
        Refusal, match="the request has 600 tools, but the gateway takes at most 512"
    ):
        read(spaces)
    declared = [{"functionDeclarations": [{"name": f"t{k}"} for k in range(300)]}] * 2
    with pytest.raises(
        Refusal, match="the request has 600 tools, but the gateway takes at most 512"
    ):
        Gemini().read({"contents": [HI], "tools": declared})


def test_a_namespace_in_a_namespace_is_a_400() -> None:
    with pytest.raises(Refusal, match="the namespace 'b' is inside the namespace 'a'"):
        read([space("a", space("b", named("c")))])


SCHEMA = {"a schema": "goes here"}


def deep(depth: int) -> str:
    """A schema of two levels for each; as JSON, because Python's encoder has its own limit."""
    opened = '{"type": "object", "properties": {"a": ' * depth
    return opened + '{"type": "string"}' + "}}" * depth


def test_a_tool_of_any_depth_is_shown_or_refused_and_never_a_failure(gateway: Gateway) -> None:
    base, key = gateway.endpoint("a").base_url, {"x-api-key": gateway.key}
    gemini = f"{base.removesuffix('/v1')}/v1beta/models/m:generateContent"
    function = {"name": "f", "parameters": SCHEMA}
    tools: dict[str, dict[str, Any]] = {
        f"{base}/chat/completions": {"tools": [{"type": "function", "function": function}]},
        f"{base}/messages": {"max_tokens": 5, "tools": [{"name": "f", "input_schema": SCHEMA}]},
        f"{base}/responses": {"input": "hi", "tools": [{"type": "function", **function}]},
        gemini: {"contents": [HI], "tools": [{"functionDeclarations": [function]}]},
    }
    statuses: list[tuple[int, ...]] = []
    # Python 3.11 reads about 500 of them, and later versions read more; no version reads all.
    for depth in (10, 100, 200, 400, 1_000, 100_000):
        answers = []
        for url, body in tools.items():
            text = json.dumps({"messages": [user("hi")], **body})
            text = text.replace(json.dumps(SCHEMA), deep(depth))
            answers.append(send(url, "", text.encode(), **key))
        statuses.append(tuple(status for status, _ in answers))
        said = [answer["error"]["message"] for status, answer in answers if status != 200]
        assert all("too deep" in message or "recursion" in message for message in said), said
    assert statuses[0] == (200,) * 4
    assert statuses[-1] == (400,) * 4
    assert {status for each in statuses for status in each} == {200, 400}


# ---- handles of reasoning


def asked_twice(gateway: Gateway, rollout: str) -> tuple[MessagesClient, list[Any]]:
    client = MessagesClient(gateway, rollout)
    question = user("What is it?")
    return client, [question, client.ask([question]), user("Well?")]


def sealed(history: list[Any], handle: str) -> list[Any]:
    """The history as a client has it that keeps the handle of the reasoning alone."""
    history = copy.deepcopy(history)
    history[1]["content"][0] |= {"thinking": "", "signature": handle}
    return history


def test_a_handle_opens_the_reasoning_of_its_own_rollout_alone(
    gateway: Gateway, sampler: Recording, stage: Stage
) -> None:
    client, history = asked_twice(gateway, "a")
    _, others = asked_twice(gateway, "b")
    own, foreign = (said[1]["content"][0]["signature"] for said in (history, others))
    assert own != foreign
    for handle in (foreign, "abut.0", own[:-1], f"{own}x", own.replace("abut.0", "abut.1")):
        before = len(client.causes)
        client.ask(sealed(history, handle))
        assert len(client.causes) == before + 1, handle
        prompt = stage.tokenizer.decode(sampler.calls[-1][0].prompt_ids)
        assert "I should look." not in prompt
    before = len(client.causes)
    client.ask(sealed(history, own))
    assert len(client.causes) == before
    prompt = stage.tokenizer.decode(sampler.calls[-1][0].prompt_ids)
    assert prompt.count("I should look.") == 1
    assert causes(gateway, "b") == [None]


# ---- messages that a template refuses

ALTERNATES = (
    "{% set ns = namespace(last='assistant') %}{% for m in messages if m.role != 'system' %}"
    "{% if (m.role == 'user') == (ns.last == 'user') %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "{% set ns.last = m.role %}{% endfor %}"
)
"""As the templates of Gemma and Mistral have it."""


def bodies_of(*said: tuple[str, str]) -> dict[str, dict[str, Any]]:
    """A body of each dialect with these roles and texts, by its path."""
    messages = [{"role": role, "content": text} for role, text in said]
    contents = [
        {"role": {"assistant": "model"}.get(role, role), "parts": [{"text": text}]}
        for role, text in said
    ]
    return {
        "/v1/chat/completions": {"messages": messages},
        "/v1/messages": {"messages": messages, "max_tokens": 9},
        "/v1/responses": {"input": messages},
        "/v1beta/models/m:generateContent": {"contents": contents},
    }


@pytest.mark.parametrize("path", bodies_of())
def test_two_user_messages_are_a_400_where_roles_must_alternate(
    stage: Stage, hf_tokenizer: Any, path: str
) -> None:
    """Joined, they would be a prompt that no server makes of these messages."""
    tokenizer = with_template(hf_tokenizer, ALTERNATES + hf_tokenizer.chat_template)
    with serving(says(stage, "One.", "Two."), tokenizer) as gateway:
        url = f"{gateway.endpoint('a').base_url.removesuffix('/v1')}{path}"

        def asked(*said: tuple[str, str]) -> tuple[int, Any]:
            return send(url, "", bodies_of(*said)[path], **{"x-api-key": gateway.key})

        turn = (("user", "What is it?"), ("assistant", "One."))
        for said in (
            (turn[0], ("user", "Now?")),
            (turn[0],),
            (*turn, ("user", "Now?"), ("user", "Well?")),
        ):
            status, answer = asked(*said)
            if len(said) == 1:
                assert status == 200, answer
                continue
            assert status == 400, answer
            assert "Conversation roles must alternate" in answer["error"]["message"]
            assert "hint: use roles, keys and an order" in answer["error"]["message"]
        assert asked(*turn, ("user", "Well?"))[0] == 200
        assert causes(gateway, "a") == [None]
        assert gateway.end("a", 1.0).error is None
