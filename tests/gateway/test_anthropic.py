"""Anthropic Messages: a conversation in all its spellings, and another one once it is edited."""

import asyncio
import copy
import json
import threading
from typing import Any

import pytest

from abut.gateway.dialects.anthropic import Anthropic
from abut.gateway.ledger.refusal import Refusal
from abut.gateway.server.gateway import Gateway
from tests.kit.clients.dialect_clients import MessagesClient, assembled, ledger_of, send
from tests.kit.clients.dialect_talks import (
    TEXTS,
    Change,
    MessagesTalk,
    edited,
    reversed_at,
)
from tests.kit.clients.raw_http import RawClient
from tests.kit.stage.agents import a_call, says, serving, user
from tests.kit.stage.rollouts import Recording, Stage, eventually

SYSTEM = MessagesTalk.fields["system"]
(TOOL,) = MessagesTalk.fields["tools"]


def cached(history: list[Any]) -> None:
    history[0]["content"] = [{"type": "text", "text": "What is it?"}]
    history[2]["content"][0]["cache_control"] = {"type": "ephemeral"}
    history[1]["content"][1] |= {"cache_control": {"type": "ephemeral"}, "citations": None}


def swapped(history: list[Any]) -> None:
    history[4]["content"].reverse()


def result_as_blocks(history: list[Any]) -> None:
    history[4]["content"][0] |= {"content": [{"type": "text", "text": "found two"}]}
    history[4]["content"][0]["is_error"] = True


def apart(history: list[Any]) -> None:
    one, other = history[4]["content"]
    history[4:] = [{"role": "user", "content": [block]} for block in (one, other)]


def thinking_omitted(history: list[Any]) -> None:
    history[1]["content"][0]["thinking"] = ""


def thinking_unsigned(history: list[Any]) -> None:
    del history[1]["content"][0]["signature"]


def no_thinking(history: list[Any]) -> None:
    del history[1]["content"][0]


def redacted(history: list[Any]) -> None:
    history[1]["content"][0] = {"type": "redacted_thinking", "data": "b3BhcXVl"}


def text_in_parts(history: list[Any]) -> None:
    block = history[1]["content"][1]
    halves = [{**block, "text": half} for half in ("Let me", " see.\n")]
    history[1]["content"][1:2] = [*halves, {"type": "text", "text": ""}]


def other_keys(history: list[Any]) -> None:
    history[1]["content"][2] |= {"caller": None, "cache_control": {"type": "ephemeral"}}


@pytest.mark.parametrize(
    "change",
    [
        lambda history: None,
        cached,  # A1
        swapped,  # A3: as the tools finish
        result_as_blocks,  # A1
        apart,  # A3: a message for each result
        thinking_omitted,  # A5: Claude Code asks for `display: omitted`
        thinking_unsigned,
        no_thinking,
        redacted,
        text_in_parts,
        other_keys,
    ],
)
def test_a_history_in_another_spelling_is_the_one_that_was_said(
    gateway: Gateway, change: Change
) -> None:
    talk = MessagesTalk(gateway)
    talk.change(change)
    assert talk.goes_on()
    assert talk.client.causes == [None]


@pytest.mark.parametrize(
    "system",
    [
        "You are a finder.",
        SYSTEM[1:],
        [{"type": "text", "text": "x-anthropic-billing-header: cch=1f3;"}, *SYSTEM[1:]],  # A2
        [*SYSTEM[1:], SYSTEM[0]],
    ],
)
def test_the_line_for_billing_is_nothing(gateway: Gateway, system: Any) -> None:
    assert MessagesTalk(gateway).goes_on(system=system)


def exchanged_results(history: list[Any]) -> None:
    one, other = history[4]["content"]
    one["tool_use_id"], other["tool_use_id"] = other["tool_use_id"], one["tool_use_id"]


@pytest.mark.parametrize(
    "edit",
    [
        edited([1, "content", 0, "thinking"], "I should not look."),
        edited([1, "content", 0, "signature"], "abut.0"),  # no handle can be guessed
        edited([1, "content", 0, "signature"], "EqQBCg"),
        edited([1, "content", 1, "text"], "Let me  see.\n"),
        edited([1, "content", 1], None),
        edited([1, "content", 2, "input"], {"a": "One"}),
        edited([1, "content", 2, "input"], {"__unparsedToolInput": "one"}),
        edited([1, "content", 2, "name"], "look"),
        reversed_at(1, "content"),  # the same blocks in another order
        reversed_at(3, "content"),
        edited([2, "content", 0, "content"], "found one."),
        edited([0, "content"], [{"type": "text", "text": "What is it?"}] * 2),
        edited([0, "role"], "assistant"),
        edited([3], None),
    ],
)
def test_an_edited_history_is_a_conversation_of_its_own(gateway: Gateway, edit: Change) -> None:
    talk = MessagesTalk(gateway)
    talk.change(edit)
    assert not talk.goes_on()


def test_results_that_answer_each_others_calls_are_written_in_the_order_of_the_calls(
    gateway: Gateway, sampler: Recording, stage: Stage
) -> None:
    talk = MessagesTalk(gateway)
    exchanged_results(talk.history)
    assert talk.goes_on()
    prompt = stage.tokenizer.decode(sampler.calls[-1][0].prompt_ids)
    assert prompt.index("found three") < prompt.index("found two")


def test_other_tools_are_another_conversation_and_deferred_ones_are_none(gateway: Gateway) -> None:
    deferred = {**TOOL, "name": "later", "defer_loading": True}
    server = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
    talk = MessagesTalk(gateway)
    assert talk.goes_on(tools=[TOOL, deferred, server])  # A4
    assert not talk.goes_on(tools=[TOOL, {**deferred, "defer_loading": False}])
    assert talk.client.causes == [None, "tools"]


def test_a_reference_is_written_as_the_definition_of_its_tool() -> None:
    deferred = {**TOOL, "name": "later", "defer_loading": True}
    reference = [{"type": "tool_reference", "tool_name": name} for name in ("later", "unknown")]
    called = {"type": "tool_use", "id": "c", "name": "search", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": reference}
    messages = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": [called]},
        {"role": "user", "content": [result]},
    ]
    asked = Anthropic().read({"messages": messages, "tools": [TOOL, deferred]})
    shown, unknown = (block["text"] for block in asked.messages[2]["content"])
    assert json.loads(shown) == {
        "name": "later",
        "description": "Look up.",
        "parameters": TOOL["input_schema"],
    }
    assert json.loads(unknown) == {"name": "unknown"}
    assert asked.tools is not None
    assert [tool["function"]["name"] for tool in asked.tools] == ["lookup"]
    with pytest.raises(Refusal, match="'tool_reference'"):
        Anthropic().read({"messages": [{"role": "user", "content": reference}]})


def test_a_text_behind_results_is_a_message_of_its_own(stage: Stage, hf_tokenizer: Any) -> None:
    """A3: Claude Code leaves out an empty turn, and adds its reminder to the results before."""
    with serving(says(stage, a_call(a="one"), "", "yes"), hf_tokenizer) as gateway:
        client = MessagesClient(gateway, tools=[TOOL])
        history = [user("What is it?")]
        history.append(client.ask(history))
        history += MessagesTalk.answered(history[1], ["found one"])[1:]
        assert client.ask(history)["content"] == []
        history[2]["content"].append({"type": "text", "text": "Go on."})
        client.ask(history)
        assert client.causes == [None]
        # Where the results came with a text, another text behind it changes that message.
        history[2]["content"].append({"type": "text", "text": "Now."})
        client.ask(history)
        assert client.causes == [None, "rewritten"]


def test_an_omitted_text_of_thinking_is_found_by_its_handle(
    gateway: Gateway, sampler: Recording, stage: Stage
) -> None:
    """Other tools: the conversation is rendered anew, with what the policy thought."""
    talk = MessagesTalk(gateway)
    thinking_omitted(talk.history)
    talk.history[-1]["content"].append({"type": "text", "text": "Go on."})
    assert not talk.goes_on(tools=[{**TOOL, "name": "another"}, TOOL])
    prompt = stage.tokenizer.decode(sampler.calls[-1][0].prompt_ids)
    assert ("I should look." in prompt) == shows_old_thinking(stage)


def shows_old_thinking(stage: Stage) -> bool:
    """Whether the template writes the thinking of an answer behind which a user spoke."""
    answer = {"role": "assistant", "content": "x", "reasoning_content": "thought"}
    return "thought" in "".join(stage.processor.opening([user("a"), answer, user("b")]))


@pytest.mark.parametrize("turn", range(3))
def test_a_stream_has_the_events_of_the_whole_answer(
    gateway: Gateway, sampler: Recording, turn: int
) -> None:
    talk = MessagesTalk(gateway)
    history = talk.history[: 2 * turn + 1]
    status, events = talk.client.post(history, stream=True)
    assert status == 200
    streamed = assembled(events)
    whole = TEXTS[2:3] if turn == 2 else list(map(said, talk.history[2 * turn + 1]["content"]))
    assert list(map(said, streamed["content"])) == list(whole)
    request, sample = sampler.calls[-1]
    assert streamed["usage"]["input_tokens"] == len(request.prompt_ids)
    assert streamed["usage"]["output_tokens"] == len(sample.ids)
    assert streamed["stop_reason"] == ("end_turn" if turn == 2 else "tool_use")


def test_any_header_may_have_the_key(gateway: Gateway) -> None:
    client = MessagesClient(gateway)
    key, body = gateway.endpoint("a").api_key, {"messages": [user("hi")], "model": "m"}
    for headers in ({"x-api-key": key}, {"Authorization": f"Bearer {key}"}):
        status, answer = send(client.url, "", body, **headers)
        assert (status, answer["type"], answer["model"]) == (200, "message", "m")
    status, _ = send(f"{client.url}?key={key}", "", body, accept="*/*")
    assert status == 200
    status, answer = send(f"{client.url}?beta=true", "", body, **{"x-api-key": "another"})
    assert (status, answer["type"]) == (400, "error")
    assert answer["error"] == {
        "type": "invalid_request_error",
        "message": "the API key does not open this rollout",
    }


def test_a_rollout_may_be_named_by_header_and_model(gateway: Gateway) -> None:
    url = f"{gateway.base_url}/messages"
    body = {"messages": [user("hi")], "model": "policy/named"}
    key = {"x-api-key": gateway.key}
    assert send(url, "", body, **key)[0] == 200
    assert send(url, "", {**body, "model": "m"}, **key, **{"x-abut-rollout": "other"})[0] == 200
    assert [gateway.end(name).error for name in ("named", "other")] == [None, None]


def said(block: dict[str, Any]) -> Any:
    """What a block says, but for ids and signatures, which two samples do not share."""
    return block.get("input") or block.get("thinking") or block["text"]


# ---- requests


def test_what_is_asked() -> None:
    body = {
        "model": "claude",
        "messages": [user("hi")],
        "max_tokens": 7,
        "stop_sequences": ["x", "x"],
        "temperature": 0.5,
        "top_k": 3,
        "stream": True,
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        "tools": [TOOL, {"type": "bash_20250124", "name": "bash"}],
        "thinking": {"type": "adaptive"},
        "metadata": {"user_id": "me"},
    }
    asked = Anthropic().read(body)
    assert (asked.max_tokens, asked.stop, asked.stream) == (7, ("x",), True)
    assert asked.sampling == {"temperature": 0.5, "top_k": 3}
    assert (asked.calls, asked.one_call, asked.unmet) == (True, True, ["tool_choice"])
    assert asked.ignored == ["thinking", "tools[bash_20250124]"]
    assert asked.model == "claude"
    assert not Anthropic().read({**body, "tool_choice": {"type": "none"}}).calls


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"container": "c"}, "container", "container is not supported"),
        ({"mcp_servers": [{}]}, "mcp_servers", "mcp_servers is not supported"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format", "forced"),
        ({"tool_choice": {"type": "some"}}, "tool_choice", "tool_choice.type='some'"),
        ({"tools": [{}]}, "tools", "objects with a name"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens=0"),
        ({"messages": []}, "messages", "with at least one message"),
        ({"messages": [{"role": "tool", "content": ""}]}, "messages", "whose role is user"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages", "has an image"),
        (
            {"messages": [{"role": "assistant", "content": [IMAGE]}]},
            "messages",
            "an image, but messages",
        ),
        ({"messages": [{"role": "user", "content": 1}]}, "messages", "a string or a list"),
        ({"system": [IMAGE]}, "system", "has an image"),
        ({"system": 3}, "system", "must be a string or a list"),
        ({"stream": 1}, "stream", "stream=1"),
    ],
)
def test_what_cannot_be_exact_is_a_400_that_names_the_field(
    fields: dict[str, Any], param: str, message: str
) -> None:
    with pytest.raises(Refusal, match=message) as raised:
        Anthropic().read({"messages": [user("hi")], **fields})
    assert raised.value.param == param


def test_a_form_may_be_sampled_freely() -> None:
    body = {"messages": [user("hi")], "output_config": {"format": {"type": "json_schema"}}}
    assert Anthropic(unenforced="accept").read(body).unmet == ["output_config.format"]


def test_threads_are_refused_in_the_words_of_the_tool_runner(gateway: Gateway) -> None:
    status, answer = MessagesClient(gateway).post([user("hi")], thread={"type": "create"})
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
    assert answer["error"]["details"]["error_code"] == "thread_unsupported_request"


# ---- answers and errors


@pytest.mark.parametrize(
    ("text", "fields", "reason", "sequence"),
    [
        ("It is so.", {}, "end_turn", None),
        ("It is so.", {"max_tokens": 2}, "max_tokens", None),
    ],
)
def test_why_a_turn_stopped(
    stage: Stage, hf_tokenizer: Any, text: str, fields: Any, reason: str, sequence: Any
) -> None:
    with serving(says(stage, text), hf_tokenizer) as gateway:
        status, answer = MessagesClient(gateway).post([user("hi")], **fields)
    assert status == 200
    assert (answer["stop_reason"], answer["stop_sequence"]) == (reason, sequence)
    assert answer["id"].startswith("msg_a-")


def test_another_method_and_another_route_are_refused_in_its_own_words(gateway: Gateway) -> None:
    client = MessagesClient(gateway)
    status, answer = send(client.url + "/batches", "", {}, **{"x-api-key": gateway.key})
    assert (status, answer["error"]["type"]) == (404, "not_found_error")


# ---- counting


@pytest.mark.parametrize("answers", range(3))
def test_the_count_is_the_length_of_the_prompt(
    gateway: Gateway, sampler: Recording, answers: int
) -> None:
    talk = MessagesTalk(gateway)
    client, history = talk.client, talk.history[: 2 * answers + 1]
    causes = client.causes
    status, counted = client.post(history, "/count_tokens")
    assert status == 200
    assert client.causes == causes
    client.ask(history)
    assert counted == {"input_tokens": len(sampler.calls[-1][0].prompt_ids)}


def test_a_count_opens_no_rollout_and_needs_the_key(gateway: Gateway, sampler: Recording) -> None:
    client = MessagesClient(gateway, "new", system="Hello.")
    status, counted = client.post([user("hi")], "/count_tokens?beta=true")
    assert (status, client.causes) == (200, [])
    client.ask([user("hi")])
    assert counted == {"input_tokens": len(sampler.calls[-1][0].prompt_ids)}
    headers = {"x-api-key": "another"}
    assert client.post([user("hi")], "/count_tokens", headers=headers)[0] == 400
    gateway.end("new")
    status, answer = client.post([user("hi")], "/count_tokens")
    assert (status, answer["error"]["message"]) == (400, "this rollout is over")


def test_a_count_leaves_no_trace_in_the_rollout(gateway: Gateway) -> None:
    talk = MessagesTalk(gateway)
    ledger = ledger_of(gateway, "a")
    assert ledger is not None
    (branch,) = ledger.branches
    known = copy.deepcopy(branch.known.messages)
    history = copy.deepcopy(talk.history)
    for message in history:  # in another spelling, which a request that is placed would leave
        if message["role"] == "assistant":
            message["content"] = [b for b in message["content"] if b["type"] != "thinking"]
    assert talk.client.post(history, "/count_tokens")[0] == 200
    assert branch.known.messages == known
    assert ledger.branches == [branch]
    assert not ledger.client_rewrites
    talk.client.ask(history)
    assert branch.known.messages != known


# ---- who asks


def test_a_sub_agent_says_so(gateway: Gateway) -> None:
    talk = MessagesTalk(gateway)
    client = talk.client
    client.ask([user("Find.")], headers={"x-claude-code-agent-id": "00000000000000003"})
    billing = "x-anthropic-billing-header: cc_version=2; cc_is_subagent=true;"
    client.ask([user("Find it.")], system=[{"type": "text", "text": billing}])
    client.ask([user("Find more.")])
    assert client.causes == [None, "subagent", "subagent", "new"]


def test_equal_requests_have_equal_digests_whatever_is_beside_them() -> None:
    body = {"messages": [user("hi")], "metadata": {"user_id": "1"}, "max_tokens": 9}
    read = Anthropic().read
    same = [
        body,
        {**body, "metadata": {"user_id": "2"}},
        {**body, "stream": True},
        {**body, "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
    ]
    assert len({read(one).digest for one in same}) == 1
    others = [
        {**body, "max_tokens": 8},
        {**body, "messages": [user("hi!")]},
        {**body, "tools": [TOOL]},
        {**body, "stop_sequences": ["x"]},
        {**body, "temperature": 1},
        {**body, "tool_choice": {"type": "none"}},
    ]
    assert len({read(one).digest for one in (body, *others)}) == 7


def test_a_retry_gets_the_sample_that_nobody_got_though_it_does_not_say_so(
    stage: Stage, hf_tokenizer: Any
) -> None:
    """D1: Claude Code's retries say that they are none, with other metadata and headers."""
    asked, goes_on = threading.Event(), threading.Event()

    class Slow(Recording):
        async def sample(self, request: Any) -> Any:
            asked.set()
            await asyncio.to_thread(goes_on.wait)
            return await super().sample(request)

    with serving(Slow(stage.says()), hf_tokenizer) as gateway:
        client = MessagesClient(gateway)
        body = {"model": "m", "max_tokens": 50, "messages": [user("hi")], "stream": True}
        with RawClient(client.url, gateway.key) as hangs_up:
            hangs_up.send("/r/a/v1/messages", {**body, "metadata": {"user_id": "1"}})
            assert asked.wait(60)
        standalone = gateway.registry.standalone
        assert standalone is not None
        ledger = standalone.ledger("a")
        assert ledger is not None
        assert eventually(lambda: not ledger.calls[0].is_open())
        answers: list[Any] = []
        headers = {"x-api-key": gateway.key, "X-Stainless-Retry-Count": "0"}
        body |= {"metadata": {"user_id": "2"}, "stream": False}
        retry = threading.Thread(
            target=lambda: answers.append(send(client.url, "", body, **headers))
        )
        retry.start()
        goes_on.set()
        retry.join(60)
        status, answer = answers[0]
        assert (status, answer["content"]) == (200, [{"type": "text", "text": "yes"}])
        # It was delivered, so an equal request is one more sample.
        assert send(client.url, "", body, **headers)[0] == 200
        assert [branch.cause for branch in ledger.branches] == [None, "repeated"]
        row = gateway.end("a", 1.0)
        assert len(row.turns) == 1


def test_a_system_message_in_the_middle_stays_in_the_conversation(
    gateway: Gateway, sampler: Recording, stage: Stage
) -> None:
    """S1, as Claude Code sends one behind the first prompt where it does not know the model."""
    client = MessagesClient(gateway, system="You are a finder.", tools=[TOOL])
    history = [user("What is it?"), {"role": "system", "content": "Be brief."}]
    history.append(client.ask(history))
    history += MessagesTalk.answered(history[2], ["found one"])[1:]
    history.append({"role": "system", "content": "Be kind."})
    client.ask(history)
    assert client.causes == [None]
    prompt = stage.tokenizer.decode(sampler.calls[-1][0].prompt_ids)
    texts = ["You are a finder.", "What is it?", "Be brief.", "found one", "Be kind."]
    assert [prompt.count(text) for text in texts] == [1] * 5
    assert sorted(texts, key=prompt.index) == texts
