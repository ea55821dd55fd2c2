"""OpenAI Responses: a conversation in all its spellings, and another one once it is edited."""

import json
from typing import Any

import pytest

from abut.gateway.dialects.responses import Responses
from abut.gateway.ledger.entry import BranchEntry
from abut.gateway.ledger.matching import keys_read, keys_returned, rewrite_of
from abut.gateway.ledger.refusal import Refusal
from abut.gateway.server.gateway import Gateway
from tests.kit.clients.dialect_clients import ResponsesClient, causes, ledger_of, send
from tests.kit.clients.dialect_talks import TEXTS, Change, ResponsesTalk, edited
from tests.kit.data.trl_templates import with_template
from tests.kit.stage.agents import a_call, ask, post, says, serving, user
from tests.kit.stage.rollouts import Recording, Stage

(TOOL,) = ResponsesTalk.fields["tools"]


def without_labels(items: list[Any]) -> None:
    """R1: as openai-agents and Codex drop or add them."""
    for item in items:
        for key in ("id", "status"):
            item.pop(key, None)
    items[2]["content"][0].pop("annotations")
    items[2] |= {"phase": None}
    items[3] |= {"async_": None, "namespace": None}


def as_easy_messages(items: list[Any]) -> None:
    items[0] = {"type": "message", "role": "user", "content": [part("What is it?")]}
    items[2] = {"role": "assistant", "content": items[2]["content"][0]["text"]}


def part(text: str, kind: str = "input_text") -> dict[str, Any]:
    return {"type": kind, "text": text}


def parts_of_outputs(items: list[Any]) -> None:
    items[4]["output"] = [part("found one")]


def other_arguments(items: list[Any]) -> None:
    items[3]["arguments"] = '{ "a":"\\u006fne" }'


def no_reasoning(items: list[Any]) -> None:
    del items[1]


def sealed_reasoning(items: list[Any]) -> None:
    items[1] |= {"summary": [], "content": None}


def open_reasoning(items: list[Any]) -> None:
    del items[1]["encrypted_content"]
    items[1]["content"] = [part("I should look.", "reasoning_text")]


@pytest.mark.parametrize(
    "change",
    [
        lambda items: None,
        without_labels,  # R1
        as_easy_messages,
        parts_of_outputs,
        other_arguments,
        no_reasoning,  # R2
        sealed_reasoning,
        open_reasoning,
    ],
)
def test_a_history_in_another_spelling_is_the_one_that_was_said(
    gateway: Gateway, change: Change
) -> None:
    talk = ResponsesTalk(gateway)
    talk.change(change)
    assert talk.goes_on()
    assert talk.client.causes == [None]
    ledger = ledger_of(gateway, "a")
    assert ledger is not None
    assert not ledger.client_rewrites


def swapped(one: int, other: int) -> Change:
    def edit(items: list[Any]) -> None:
        items[one], items[other] = items[other], items[one]

    return edit


@pytest.mark.parametrize(
    "edit",
    [
        edited([1, "summary", 0, "text"], "I should not look."),
        edited([1, "content"], [part("I should not look.", "reasoning_text")]),
        edited([1, "encrypted_content"], "gAAAA"),
        edited([1, "encrypted_content"], "abut.0"),
        edited([2, "content", 0, "text"], "Let me  see."),
        edited([2, "content"], [{"type": "refusal", "refusal": "No."}]),
        edited([2], None),
        edited([3, "arguments"], '{"a": "One"}'),
        edited([3, "arguments"], "one"),
        edited([3, "name"], "look"),
        edited([3, "namespace"], "files"),
        edited([4, "output"], "found one."),
        swapped(1, 2),  # the same items in another order
        swapped(2, 3),
        swapped(5, 6),
        edited([0, "content"], "What is it"),
    ],
)
def test_an_edited_history_is_a_conversation_of_its_own(gateway: Gateway, edit: Change) -> None:
    talk = ResponsesTalk(gateway)
    talk.change(edit)
    assert not talk.goes_on()


# ---- R3


def thinking_as(text: str) -> Change:
    def change(items: list[Any]) -> None:
        items[1] = {"role": "assistant", "content": text}

    return change


@pytest.mark.parametrize(
    ("text", "rewrites"),
    [
        ("<think>\nI should look.\n</think>", {"thinking_as_text": 1}),
        ("<think>\nI should look. \n</think>", None),
        ("<think>\n\n</think>", None),
        ("<think>I should look.</think>", None),
        ("I should look.", None),
    ],
)
def test_thinking_that_comes_back_as_text_is_a_counted_rewrite(
    gateway: Gateway, text: str, rewrites: Any
) -> None:
    talk = ResponsesTalk(gateway)
    thinking_as(text)(talk.history)
    if text.startswith("<think>I"):  # which this template does not write in an answer
        status, _ = talk.client.post(talk.history)
        assert status in (200, 400)
        return
    assert talk.goes_on() == (rewrites is not None)
    ledger = ledger_of(gateway, "a")
    assert ledger is not None
    assert dict(ledger.client_rewrites) == (rewrites or {})


THINKS_OTHERWISE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}[THINK]{{ m.reasoning_content }}[/THINK]{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_a_text_like_thinking_is_text_where_the_template_writes_thinking_otherwise(
    stage: Stage, hf_tokenizer: Any
) -> None:
    spoken = "<think>\nI should look.\n</think>"
    tokenizer = with_template(hf_tokenizer, THINKS_OTHERWISE)
    with serving(says(stage, spoken, "Yes."), tokenizer) as gateway:
        client = ResponsesClient(gateway)
        items: list[Any] = [user("What is it?")]
        (message,) = client.ask(items)["output"]
        assert (message["type"], message["content"][0]["text"]) == ("message", spoken)
        client.ask([*items, message, user("Well?")])
        assert client.causes == [None]
        ledger = ledger_of(gateway, "a")
        assert ledger is not None
        assert not ledger.client_rewrites
        message["content"][0]["text"] = spoken.replace("should", "must")
        client.ask([*items, message, user("Well?")])
        assert client.causes == [None, "rewritten"]


def test_thinking_as_text_is_thinking_in_a_new_conversation_too(
    gateway: Gateway, sampler: Recording, stage: Stage
) -> None:
    talk = ResponsesTalk(gateway)
    thinking_as("<think>\nI should look.\n</think>")(talk.history)
    other = {**TOOL, "name": "another"}
    assert not talk.goes_on(tools=[other, TOOL])  # which renders the conversation anew
    prompt = stage.tokenizer.decode(sampler.calls[-1][0].prompt_ids)
    assert prompt.count("I should look.") == 1
    assert prompt.count("Let me see.") == 1


def test_that_rewrite_can_be_switched_off(stage: Stage, hf_tokenizer: Any) -> None:
    with serving(says(stage, *TEXTS), hf_tokenizer, rewrites=()) as gateway:
        talk = ResponsesTalk(gateway)
        thinking_as("<think>\nI should look.\n</think>")(talk.history)
        assert not talk.goes_on()


# ---- R4


NAMESPACE = {"type": "namespace", "name": "files", "tools": [TOOL]}
CUSTOM = {"type": "custom", "name": "patch", "format": {"type": "grammar"}}
SEARCH = {"type": "tool_search", "execution": "client", "parameters": {"type": "object"}}


def test_each_kind_of_call_is_the_item_that_its_client_knows(
    stage: Stage, hf_tokenizer: Any
) -> None:
    says_calls = [
        a_call("files__lookup", a="one"),
        a_call("patch", input="*** Begin"),
        a_call("tool_search", query="find"),
        a_call("found__lookup", a="two"),
        "Done.",
    ]
    with serving(says(stage, *says_calls), hf_tokenizer) as gateway:
        client = ResponsesClient(gateway, tools=[NAMESPACE, CUSTOM, SEARCH, {"type": "web_search"}])
        items: list[Any] = [user("Go.")]
        known = []
        for result in ("found one", "patched", [{**NAMESPACE, "name": "found"}], "found two"):
            (call,) = client.ask(items)["output"]
            known.append({key: call[key] for key in call if key not in ("id", "call_id", "status")})
            kind = call["type"].removesuffix("_call")
            answer: dict[str, Any] = {"type": f"{kind}_output", "call_id": call["call_id"]}
            if kind != "tool_search":
                answer = {"type": f"{call['type']}_output", "call_id": call["call_id"]}
            answer |= {"tools" if kind == "tool_search" else "output": result}
            items += [call, answer]
        client.ask(items)
        assert client.causes == [None]
    assert known == [
        {
            "type": "function_call",
            "namespace": "files",
            "name": "lookup",
            "arguments": '{"a": "one"}',
        },
        {"type": "custom_tool_call", "name": "patch", "input": "*** Begin"},
        {"type": "tool_search_call", "execution": "client", "arguments": {"query": "find"}},
        {
            "type": "function_call",
            "namespace": "found",
            "name": "lookup",
            "arguments": '{"a": "two"}',
        },
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        {"patch": "*** Begin"},
        {"input": 3},
        {"input": "a", "patch": "b"},
        {"input": {"input": "a"}},
        {"input": '{"patch": "a"}'},
        {"input": '{"input": "a"}'},
        {},
    ],
)
def test_a_custom_tool_may_be_called_with_any_arguments(
    stage: Stage, hf_tokenizer: Any, arguments: dict[str, Any]
) -> None:
    texts = (a_call("patch", text="Now.\n", **arguments), "Done.")
    with serving(says(stage, *texts), hf_tokenizer) as gateway:
        client = ResponsesClient(gateway, tools=[CUSTOM, TOOL])
        text, call = client.ask([user("Go.")])["output"]
        assert call["type"] == "custom_tool_call"
        done = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "done"}
        client.ask([user("Go."), text, call, done])
        assert client.causes == [None]
        ledger = ledger_of(gateway, "a")
        assert ledger is not None
        assert not ledger.client_rewrites
        # Nothing but that item is the call.
        function = {"type": "function_call", "call_id": call["call_id"], "name": "patch"}
        edits: list[dict[str, Any]] = [
            {**call, "input": f"{call['input']} "},
            {**call, "name": "lookup"},
            {**call, "namespace": "files"},
        ]
        if arguments != {"input": call["input"]}:
            edits.append({**function, "arguments": {"input": call["input"]}})
        for number, edit in enumerate(edits):
            client.ask([user("Go."), text, edit, {**done, "type": "function_call_output"}])
            assert len(client.causes) == number + 2, edit


def test_the_call_of_a_custom_tool_is_found_where_the_rollout_is_not_named() -> None:
    own = {"id": "c", "function": {"name": "patch", "arguments": '{"input": 3}'}}
    entry = BranchEntry({"role": "assistant", "content": "", "tool_calls": [own]}, ours=True)
    entry.dialect = dialect = Responses()
    item = {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": '{"input": 3}'}
    (came,) = dialect.read({"input": [item], "tools": [CUSTOM]}).messages
    assert rewrite_of(came, entry, dialect) == ""
    assert {*keys_returned(entry)} & {*keys_read(came, dialect)}


def test_a_search_shows_what_it_found_by_its_flat_names() -> None:
    found = {"type": "tool_search_output", "call_id": "c", "tools": [NAMESPACE]}
    asked = Responses().read({"input": [user("hi"), found], "tools": [SEARCH, CUSTOM]})
    (shown,) = json.loads(asked.messages[1]["content"])
    assert shown["name"] == "files__lookup"
    assert asked.tools is not None
    assert [tool["function"]["name"] for tool in asked.tools] == ["tool_search", "patch"]
    assert asked.tools[1]["function"]["parameters"]["required"] == ["input"]
    assert asked.names["files__lookup"][:2] == ("function", "files")


# ---- R5


def test_a_previous_response_stands_for_its_conversation(gateway: Gateway) -> None:
    talk = ResponsesTalk(gateway)
    client, (first, second) = talk.client, talk.answers
    response = client.ask(talk.history[-2:], previous_response_id=second["id"])
    assert client.causes == [None]
    assert response["previous_response_id"] == second["id"]
    client.ask(talk.history[4:5], previous_response_id=first["id"])  # once more, so a sibling
    assert client.causes == [None, "repeated"]
    client.ask(talk.history[-2:], previous_response_id=second["id"], instructions="Be brief.")
    assert client.causes == [None, "repeated", "rewritten"]


def test_its_instructions_are_not_inherited(gateway: Gateway) -> None:
    client = ResponsesClient(gateway)
    first = client.ask("hi", instructions="You are a finder.")
    client.ask("well?", previous_response_id=first["id"])
    ledger = ledger_of(gateway, "a")
    assert ledger is not None
    assert [m["role"] for m in ledger.calls[1].request.messages] == ["user", "assistant", "user"]
    assert client.causes == [None, "rewritten"]


def test_it_names_the_rollout_and_none_but_that(gateway: Gateway) -> None:
    first = ResponsesClient(gateway).ask("hi")
    key = {"Authorization": f"Bearer {gateway.endpoint('a').api_key}"}
    body = {"model": "m", "input": "well?", "previous_response_id": first["id"]}
    status, answer = send(f"{gateway.base_url}/responses", "", body, **key)
    assert (status, answer["previous_response_id"]) == (200, first["id"])
    assert causes(gateway, "a") == [None]
    for id_, message in (
        (first["id"], "is not the id of an answer of this rollout"),
        ("resp_123", "is not the id of an answer of this gateway"),
    ):
        status, answer = ResponsesClient(gateway, "b").post("well?", previous_response_id=id_)
        assert (status, answer["error"]["param"]) == (400, "previous_response_id")
        assert message in answer["error"]["message"]


def test_a_response_can_be_read_again(gateway: Gateway) -> None:
    client = ResponsesClient(gateway, store=False)
    first = client.ask("hi")
    for url in (client.url, f"{gateway.base_url}/responses"):
        assert get(f"{url}/{first['id']}", gateway.key) == (200, first)
    assert get(f"{client.url}/resp_a-7", gateway.key)[0] == 404
    status, answer = get(f"{client.url}/{first['id']}", "another")
    assert (status, answer["error"]["code"]) == (400, "wrong_api_key")
    gateway.end("a")
    status, answer = get(f"{client.url}/{first['id']}", gateway.key)
    assert (status, answer["error"]["code"]) == (400, "rollout_over")


def get(url: str, key: str) -> tuple[int, Any]:
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    try:
        with urlopen(Request(url, headers={"Authorization": f"Bearer {key}"}), timeout=60) as reply:
            return reply.status, json.load(reply)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)


# ---- requests, answers and errors


def test_what_is_asked() -> None:
    body = {
        "model": "gpt",
        "input": [{"role": "developer", "content": "Be kind."}, user("hi")],
        "max_output_tokens": 7,
        "temperature": 0.5,
        "parallel_tool_calls": False,
        "tool_choice": {"type": "function", "name": "lookup"},
        "tools": [TOOL, {"type": "web_search"}],
        "reasoning": {"effort": "low"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "client_metadata": {"a": 1},
    }
    asked = Responses().read(body)
    assert (asked.max_tokens, asked.one_call, asked.unmet) == (7, True, ["tool_choice"])
    assert asked.sampling == {"temperature": 0.5}
    assert asked.ignored == ["reasoning", "tools[web_search]"]
    assert [message["role"] for message in asked.messages] == ["developer", "user"]
    assert not Responses().read({**body, "tool_choice": "none"}).calls
    assert Responses().read({**body, "client_metadata": {"b": 2}}).digest == asked.digest
    assert Responses().read({**body, "max_output_tokens": 8}).digest != asked.digest


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"background": True}, "background", "background is not supported"),
        ({"conversation": "c"}, "conversation", "previous_response_id"),
        ({"prompt": {"id": "p"}}, "prompt", "prompt is not supported"),
        ({"top_logprobs": 3}, "top_logprobs", "only the logprobs of the sampled"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format", "forced"),
        ({"tool_choice": "some"}, "tool_choice", "tool_choice='some'"),
        ({"tools": [{"type": "function"}]}, "tools", "has no name"),
        ({"input": []}, "input", "at least one item"),
        ({"input": [{"role": "tool", "content": ""}]}, "input", "must have a role"),
        ({"input": [{"type": "item_reference", "id": "i"}]}, "input", "type 'item_reference'"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input",
            "an image, but messages of this role take no images",
        ),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input", "without a call_id"),
        ({"max_output_tokens": 0}, "max_output_tokens", "max_output_tokens=0"),
    ],
)
def test_what_cannot_be_exact_is_a_400_that_names_the_field(
    fields: dict[str, Any], param: str, message: str
) -> None:
    with pytest.raises(Refusal, match=message) as raised:
        Responses().read({"input": "hi", **fields})
    assert raised.value.param == param


def test_an_answer_that_was_cut_is_incomplete(gateway: Gateway) -> None:
    client = ResponsesClient(gateway)
    answer = client.ask("hi", max_output_tokens=2)
    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    _, events = client.post("hi", max_output_tokens=2, stream=True)
    assert events[-1]["type"] == "response.incomplete"


@pytest.mark.parametrize("turn", range(3))
def test_a_stream_has_the_items_of_the_whole_answer(gateway: Gateway, turn: int) -> None:
    talk = ResponsesTalk(gateway)
    items = talk.history[: (1, 5, 9)[turn]]
    status, events = talk.client.post(items, stream=True)
    assert status == 200
    whole = events[-1]["response"]
    assert events[-1]["type"] == "response.completed"
    assert {event["response"]["id"] for event in events if "response" in event} == {whole["id"]}
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == whole["output"]
    deltas = "".join(event["delta"] for event in events if event["type"].endswith(".delta"))
    said = [
        item.get("arguments") or (item.get("content") or item["summary"])[0]["text"]
        for item in whole["output"]
    ]
    assert deltas == "".join(said)
    assert get(f"{talk.client.url}/{whole['id']}", gateway.key) == (200, whole)


def test_codex_says_who_asks(gateway: Gateway) -> None:
    client = ResponsesClient(gateway)
    client.ask("Find.")
    turn = {"x-codex-turn-metadata": json.dumps({"request_kind": "turn"})}
    compaction = {"x-codex-turn-metadata": json.dumps({"request_kind": "compaction"})}
    for number, headers in enumerate(
        [turn, {"x-openai-subagent": "collab_spawn"}, compaction, {"x-codex-turn-metadata": "{"}]
    ):
        client.ask(f"Find {number}.", headers=headers)
    assert client.causes == [None, "new", "subagent", "compaction", "new"]


def test_what_a_chat_client_cannot_say_of_its_messages(gateway: Gateway) -> None:
    """The keys that dialects set themselves are dropped from a chat client's messages."""
    first = user("hi")
    answer, _ = ask(gateway, [first], "chat")
    smuggled = {**answer, "respelled": "a/metric", "reordered": True, "reasoning_handle": "x"}
    ask(gateway, [first, smuggled, user("well?")], "chat")
    ledger = ledger_of(gateway, "chat")
    assert ledger is not None
    assert causes(gateway, "chat") == [None]
    assert not ledger.client_rewrites
    assert post(f"{gateway.base_url}/responses/compact", gateway.key, {})[0] == 404


def test_the_call_of_a_custom_tool_says_its_namespace(stage: Stage, hf_tokenizer: Any) -> None:
    tools = [{**NAMESPACE, "tools": [CUSTOM]}]
    with serving(
        says(stage, a_call("files__patch", input="*** Begin"), "Done."), hf_tokenizer
    ) as g:
        client = ResponsesClient(g, tools=tools)
        (call,) = client.ask([user("Go.")])["output"]
        assert (call["namespace"], call["name"], call["input"]) == ("files", "patch", "*** Begin")
        done = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "done"}
        client.ask([user("Go."), call, done])
        assert client.causes == [None]
