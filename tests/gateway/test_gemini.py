"""Gemini generateContent: a conversation in all its spellings, and another one once edited."""

import base64
import json
from typing import Any
from urllib.request import Request, urlopen

import pytest

from abut.gateway.dialects.gemini import Gemini
from abut.gateway.ledger.refusal import Refusal
from abut.gateway.server.gateway import Gateway
from tests.kit.clients.dialect_clients import GeminiClient
from tests.kit.clients.dialect_talks import Change, GeminiTalk, edited, reversed_at
from tests.kit.stage.rollouts import Recording

TOOLS = GeminiTalk.fields["tools"]
said = GeminiTalk.said


def content_for_each_part(contents: list[Any]) -> None:
    """G1: as `chats` of google-genai keeps a stream."""
    parts = contents[1]["parts"]
    contents[1:2] = [{"role": "model", "parts": [part]} for part in parts]


def without_ids(contents: list[Any]) -> None:
    """G2: as `chats` and LangChain."""
    for content in contents:
        for part in content["parts"]:
            for key in ("functionCall", "functionResponse"):
                part.get(key, {}).pop("id", None)


def in_snake_case(contents: list[Any]) -> None:
    """G4: as adk, strands and LiteLLM, mixed in one body."""
    parts = contents[1]["parts"]
    parts[2]["function_call"] = parts[2].pop("functionCall")
    parts[2]["thought_signature"] = parts[2].pop("thoughtSignature")
    (part,) = contents[2]["parts"]
    part["function_response"] = part.pop("functionResponse")


def other_key_of_result(contents: list[Any]) -> None:
    """G3."""
    for number, key in enumerate(("output", "error")):
        response = contents[4]["parts"][number]["functionResponse"]
        response["response"] = {key: response["response"]["result"]}


def dummy_signature(contents: list[Any]) -> None:
    """G4: as pydantic-ai and LiteLLM."""
    contents[1]["parts"][2]["thoughtSignature"] = "skip_thought_signature_validator"


def signature_in_an_empty_part(contents: list[Any]) -> None:
    """G4: as strands, behind the text."""
    parts = contents[1]["parts"]
    signature = parts[2].pop("thoughtSignature")
    parts.insert(2, {"text": "", "thought": True, "thoughtSignature": signature})


def no_thought(contents: list[Any]) -> None:
    del contents[1]["parts"][0]


def with_nothing(contents: list[Any]) -> None:
    contents[1]["parts"][1:2] = [{"text": "Let me"}, {"text": ""}, {"text": " see."}]
    contents[2]["role"] = "function"


@pytest.mark.parametrize(
    "change",
    [
        lambda contents: None,
        content_for_each_part,
        without_ids,
        in_snake_case,
        other_key_of_result,
        dummy_signature,
        signature_in_an_empty_part,
        no_thought,
        with_nothing,
    ],
)
def test_a_history_in_another_spelling_is_the_one_that_was_said(
    gateway: Gateway, change: Change
) -> None:
    talk = GeminiTalk(gateway)
    talk.change(change)
    assert talk.goes_on()
    assert talk.client.causes == [None]


OTHER = base64.urlsafe_b64encode(b"abut.0").decode()


@pytest.mark.parametrize(
    "edit",
    [
        edited([1, "parts", 0, "text"], "I should not look."),
        edited([1, "parts", 1, "text"], "Let me  see."),
        edited([1, "parts", 1], None),
        edited([1, "parts", 2, "functionCall", "args"], {"a": "One"}),
        edited([1, "parts", 2, "functionCall", "args"], "one"),
        edited([1, "parts", 2, "functionCall", "name"], "look"),
        edited([1, "parts", 2, "thoughtSignature"], OTHER),
        reversed_at(1, "parts"),
        reversed_at(3, "parts"),
        edited([2, "parts", 0, "functionResponse", "response"], {"result": "found one."}),
        edited([2, "parts", 0, "functionResponse", "response"], {"result": "found one", "x": 1}),
        edited([2, "parts", 0, "functionResponse", "name"], "look"),  # G2: the name must agree
        edited([0, "parts", 0, "text"], "What is it"),
        edited([0, "parts"], [{"text": "What is it?"}, {"text": "Now."}]),
    ],
)
def test_an_edited_history_is_a_conversation_of_its_own(gateway: Gateway, edit: Change) -> None:
    talk = GeminiTalk(gateway)
    talk.change(edit)
    assert not talk.goes_on()


def test_results_without_ids_answer_the_calls_of_their_name_in_order() -> None:
    calls = [("look", "1"), ("find", "2"), ("look", "3")]
    model = {"role": "model", "parts": [{"functionCall": {"name": name}} for name, _ in calls]}
    answers = [
        {"functionResponse": {"name": name, "response": {"output": number}}}
        for name, number in [("find", "2"), ("look", "1"), ("look", "3"), ("look", "4")]
    ]
    asked = Gemini().read({"contents": [said("a"), model, {"role": "user", "parts": answers}]})
    ids = [call["id"] for call in asked.messages[1]["tool_calls"]]
    assert len({*ids}) == 3
    results = [message.get("tool_call_id") for message in asked.messages[2:]]
    assert results == [ids[1], ids[0], ids[2], None]


def test_keys_of_users_are_never_renamed() -> None:
    args = {"snake_case": {"functionCall": 1}, "parts": []}
    schema = {"type": "object", "properties": {"max_tokens": {"type": "INTEGER"}}}
    declared = {"name": "look", "parameters_json_schema": schema}
    response = {"function_call": 1, "b": 2}
    asked = Gemini().read(
        {
            "contents": [
                said("a"),
                {"role": "model", "parts": [{"function_call": {"name": "look", "args": args}}]},
                {
                    "role": "user",
                    "parts": [{"function_response": {"name": "look", "response": response}}],
                },
            ],
            "tools": [{"function_declarations": [declared]}],
            "generation_config": {"max_output_tokens": 3, "stop_sequences": ["x"]},
            "system_instruction": "Be brief.",
        }
    )
    assert asked.messages[2]["tool_calls"][0]["function"]["arguments"] == args
    assert json.loads(asked.messages[3]["content"]) == response
    assert asked.tools is not None
    assert asked.tools[0]["function"]["parameters"] == schema
    assert (asked.max_tokens, asked.stop) == (3, ("x",))
    assert asked.messages[0] == {"role": "system", "content": "Be brief."}


def test_types_of_googles_schemas_are_json_schemas() -> None:
    odd = {"type": "ARRAY", "items": {"type": "NUMBER"}, "default": {"type": "KEPT"}}
    parameters = {"type": "OBJECT", "properties": {"type": {"type": "STRING"}, "odd": odd}}
    body = {"contents": [said("a")], "tools": [{"functionDeclarations": [{"name": "f"}]}]}
    body["tools"][0]["functionDeclarations"][0] |= {"parameters": parameters}  # type: ignore[index]
    asked = Gemini().read(body)
    assert asked.tools is not None
    assert asked.tools[0]["function"]["parameters"] == {
        "type": "object",
        "properties": {
            "type": {"type": "string"},
            "odd": {"type": "array", "items": {"type": "number"}, "default": {"type": "KEPT"}},
        },
    }


# ---- requests, answers and errors


def test_what_is_asked() -> None:
    body = {
        "contents": [said("hi")],
        "generationConfig": {
            "maxOutputTokens": 7,
            "temperature": 0.5,
            "topK": 3,
            "thinkingConfig": {"includeThoughts": True},
            "responseModalities": ["TEXT"],
        },
        "toolConfig": {"functionCallingConfig": {"mode": "any"}},
        "tools": [{"googleSearch": {}}, *TOOLS],
        "safetySettings": [],
        "labels": {"a": "b"},
    }
    asked = Gemini().read(body)
    assert (asked.max_tokens, asked.unmet) == (7, ["toolConfig.mode"])
    assert asked.sampling == {"temperature": 0.5, "top_k": 3}
    assert asked.ignored == [
        "generationConfig.thinkingConfig", "safetySettings", "tools[googleSearch]",
    ]  # fmt: skip
    none = {"functionCallingConfig": {"mode": "NONE"}}
    assert not Gemini().read({**body, "toolConfig": none}).calls


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"cachedContent": "c"}, "cachedContent", "caches no content"),
        ({"generationConfig": {"candidateCount": 2}}, "candidateCount", "candidateCount=2"),
        ({"generationConfig": {"responseMimeType": "application/json"}}, "responseMimeType", "fo"),
        (
            {"generation_config": {"response_schema": {"type": "OBJECT"}}},
            "responseSchema",
            "forced",
        ),
        ({"generationConfig": {"responseModalities": ["IMAGE"]}}, "responseModalities", "text"),
        ({"toolConfig": {"functionCallingConfig": {"mode": "X"}}}, "toolConfig", "mode='X'"),
        ({"tools": [{"functionDeclarations": [{}]}]}, "tools", "has no name"),
        ({"generateContentRequest": {}}, "generateContentRequest", "field of countTokens"),
        ({"generate_content_request": {}}, "generateContentRequest", "field of countTokens"),
        ({"contents": []}, "contents", "at least one content"),
        ({"contents": [{"role": "tool", "parts": []}]}, "contents", "must have a role"),
        ({"contents": [{"parts": [{"inlineData": {}}]}]}, "contents", "inlineData"),
        ({"contents": [{"parts": "a"}]}, "contents", "must have parts"),
        ({"systemInstruction": {"parts": [{"fileData": {}}]}}, "systemInstruction", "a file"),
    ],
)
def test_what_cannot_be_exact_is_a_400_that_names_the_field(
    fields: dict[str, Any], param: str, message: str
) -> None:
    with pytest.raises(Refusal, match=message) as raised:
        Gemini().read({"contents": [said("hi")], **fields})
    assert raised.value.param == param


def test_each_version_and_key_opens_it(gateway: Gateway) -> None:
    client = GeminiClient(gateway)
    for version in ("/v1beta", "/v1", ""):
        assert client.post([said("hi")], version=version)[0] == 200
    assert client.post([said("hi")], f"generateContent?key={gateway.key}", key=" ")[0] == 200
    status, answer = client.post([said("hi")], key="another")
    assert (status, answer["error"]["status"]) == (400, "INVALID_ARGUMENT")
    status, answer = client.post([said("hi")], "embedContent")
    assert (status, answer["error"]["status"]) == (404, "NOT_FOUND")


def test_thinking_is_a_thought_and_its_handle_is_on_the_call(gateway: Gateway) -> None:
    thought, text, call = GeminiTalk(gateway).history[1]["parts"]
    assert (thought["thought"], text["text"]) == (True, "Let me see.")
    assert base64.urlsafe_b64decode(call["thoughtSignature"]).startswith(b"abut.0.")


@pytest.mark.parametrize("turn", range(3))
def test_the_chunks_of_a_stream_are_the_whole_answer(gateway: Gateway, turn: int) -> None:
    talk = GeminiTalk(gateway)
    contents = talk.history[: 2 * turn + 1]
    status, chunks = talk.client.post(contents, "streamGenerateContent?alt=sse")
    assert status == 200
    parts = [part for c in chunks for part in c["candidates"][0]["content"]["parts"]]
    texts = [part.get("text") or part["functionCall"]["args"] for part in parts]
    assert (
        texts
        == [
            ["I should look.", "Let me see.", {"a": "one"}],
            [{"a": "two"}, {"a": "three"}],
            ["It is one."],
        ][turn]
    )
    finished = ["finishReason" in chunk["candidates"][0] for chunk in chunks]
    assert finished == [False] * (len(chunks) - 1) + [True]
    assert ["usageMetadata" in chunk for chunk in chunks] == finished
    assert talk.client.post(contents, "streamGenerateContent")[0] == 400


def test_the_count_is_the_length_of_the_prompt(gateway: Gateway, sampler: Recording) -> None:
    talk = GeminiTalk(gateway)
    client, contents = talk.client, talk.history
    before = client.causes
    counts = [client.post(contents, "countTokens")]
    request = {"model": "models/policy", "contents": contents, **client.fields}
    counts.append(GeminiClient(gateway).post(None, "countTokens", generateContentRequest=request))
    assert client.causes == before
    client.ask(contents)
    length = len(sampler.calls[-1][0].prompt_ids)
    assert counts == [(200, {"totalTokens": length})] * 2


@pytest.mark.parametrize("path", ["/v1beta/models/google%2Fx", "/v1beta/models/models%2Fx"])
def test_a_model_with_a_slash_in_its_name_is_asked_in_the_dialect_of_the_route(
    gateway: Gateway, path: str
) -> None:
    model = path.rpartition("/")[2].replace("%2F", "/")
    base = gateway.endpoint("a").base_url.removesuffix("/v1")
    answers = {}
    for verb in ("countTokens", "generateContent", "streamGenerateContent"):
        request = Request(
            f"{base}{path}:{verb}?alt=sse",
            json.dumps({"contents": [said("hi")]}).encode(),
            {"content-type": "application/json", "x-goog-api-key": gateway.key},
        )
        with urlopen(request, timeout=60) as reply:
            answers[verb] = reply.headers.get_content_type(), reply.read().decode()
    assert [kind for kind, _ in answers.values()] == [
        *["application/json"] * 2,
        "text/event-stream",
    ]
    assert json.loads(answers["countTokens"][1])["totalTokens"] > 0
    assert json.loads(answers["generateContent"][1])["modelVersion"] == model
