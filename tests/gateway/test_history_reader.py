"""Of a history that repeats an earlier one only the end is read, with the result of the whole."""

import json
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from abut.gateway.dialects.anthropic import Anthropic
from abut.gateway.dialects.chat import Chat
from abut.gateway.dialects.dialect import HttpDialect, Like
from abut.gateway.dialects.gemini import Gemini
from abut.gateway.dialects.history_reader import HistoryReader, Reading
from abut.gateway.dialects.responses import Responses
from abut.gateway.ledger.agent_call import AgentRequest
from abut.gateway.ledger.refusal import Refusal
from abut.gateway.server.body import Beginning, Body
from abut.gateway.server.body_json import read_body
from tests.kit.clients.dialect_edits import edited
from tests.kit.clients.dialect_recordings import recorded, verdicts

DIALECTS: dict[str, HttpDialect] = {
    "messages": Anthropic(unenforced="accept"),
    "input": Responses(unenforced="accept"),
    "contents": Gemini(unenforced="accept"),
}


class Client:
    """Reads one body after the other, as a gateway reads those of a rollout."""

    def __init__(self, dialect: HttpDialect) -> None:
        self.dialect = dialect
        self.known: Beginning | None = None
        self.went_on = 0

    def read(self, body: dict[str, Any]) -> AgentRequest | None:
        """Read a body, which has to be read as the whole of it is."""
        content = Body.of([json.dumps(body).encode()], [self.known] if self.known else ())
        found, beginning = read_body(content, self.dialect)
        assert json.dumps(found) == json.dumps(json.loads(content.whole))
        like = None if beginning is None else beginning.like
        whole, asked = self._read(body), self._read(found, like)
        if isinstance(whole, Refusal) or isinstance(asked, Refusal):
            assert str(asked) == str(whole)
            return None
        assert_same(asked, whole)
        if like is not None and asked.reading is not None:  # a chat's messages are as they came
            self.went_on += reader_of(asked) is reader_of(like.request)
        if beginning is not None:
            beginning.request, beginning.like = asked, None
            self.known = beginning
        return asked

    def _read(self, body: dict[str, Any], like: Like | None = None) -> AgentRequest | Refusal:
        try:
            return self.dialect.read(body, like)
        except Refusal as refusal:
            return refusal


def reader_of(asked: AgentRequest) -> HistoryReader:
    assert isinstance(asked.reading, Reading)
    return asked.reading.reader


def assert_same(asked: AgentRequest, whole: AgentRequest) -> None:
    assert asked == whole
    assert json.dumps(asked.messages) == json.dumps(whole.messages)  # to Python, True equals 1
    assert asked.frame == whole.frame
    assert asked.digest == whole.digest


def conversations() -> Iterator[tuple[HttpDialect, list[dict[str, Any]]]]:
    for name in verdicts():
        requests = recorded(name)
        for key, dialect in DIALECTS.items():
            bodies = [r.body for r in requests if isinstance(r.body.get(key), list)]
            if any(map(dialect.owns, (request.path for request in requests))) and bodies:
                yield dialect, bodies


def test_recorded_histories_are_read_on() -> None:
    bodies: Counter[str] = Counter()
    went_on: Counter[str] = Counter()
    for dialect, asked in conversations():
        client = Client(dialect)
        for body in asked:
            client.read(body)
        bodies[dialect.list_key] += len(asked) - 1
        went_on[dialect.list_key] += client.went_on
    assert {*bodies} == {*DIALECTS}
    # The others begin a conversation of their own, or change what was said.
    assert all(went_on[key] > 0.8 * bodies[key] for key in bodies), (went_on, bodies)


def test_an_edited_history_is_read_as_what_it_is() -> None:
    random, edits = Random(0), 0
    for dialect, asked in conversations():
        client = Client(dialect)
        for body in asked[:8]:
            client.read(body)
            for _, items in edited(body[dialect.list_key], 2, random):
                edits += client.read({**body, dialect.list_key: items}) is not None
            client.read(body)
    assert edits > 1000


def asked(dialect: HttpDialect, elements: list[Any], like: Like | None = None) -> AgentRequest:
    return dialect.read({dialect.list_key: elements, "max_tokens": 9}, like)


USER = {"role": "user", "content": "hi"}


def test_only_new_elements_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(Anthropic())
    marked = {"role": "user", "content": [{"type": "text", "text": "on"}]}
    block = marked["content"][0]  # type: ignore[index]
    history: list[Any] = [USER]
    first = client.read({"messages": history, "max_tokens": 9})
    assert first is not None
    read: list[int] = []
    add = type(reader_of(first)).add

    def noted(self: HistoryReader, element: Any, place: int) -> None:
        read.append(place)
        add(self, element, place)

    monkeypatch.setattr(type(reader_of(first)), "add", noted)
    for place in range(1, 9, 2):
        history = [*history, {"role": "assistant", "content": "yes"}, marked]
        moved = [*history[:-1], {**marked, "content": [{**block, "cache_control": {}}]}]
        read.clear()
        client.read({"messages": moved, "max_tokens": 9})
        whole = [*range(place + 2)]  # as `Client` reads it, to compare
        # The last element of the body before is read again, because its mark has moved.
        assert read == [*whole, *range(max(place - 1, 1), place + 2)]


def test_a_message_that_is_read_again_is_the_same_object() -> None:
    client = Client(Anthropic())
    first = client.read({"messages": [USER, {**USER, "x": 1}], "max_tokens": 9})
    again = client.read({"messages": [USER, {**USER, "x": 2}, USER], "max_tokens": 9})
    assert first is not None
    assert again is not None
    assert again.messages[1] is first.messages[1]
    assert client.went_on == 1


def test_a_reader_that_has_read_on_is_not_taken_back() -> None:
    dialect = Anthropic()
    other = {"role": "user", "content": "other"}
    first = asked(dialect, [USER, USER])
    second = asked(dialect, [USER, other], Like(first, 1, True))
    assert reader_of(second) is reader_of(first)
    third = asked(dialect, [USER, USER, USER], Like(first, 2, True))
    assert [message["content"] for message in third.messages] == ["hi", "hi", "hi"]
    assert reader_of(third) is not reader_of(first)


def test_other_tools_are_read_anew() -> None:
    dialect = Anthropic()
    referring = [{"type": "tool_reference", "tool_name": "f"}]
    result = {"type": "tool_result", "tool_use_id": "a", "content": referring}
    body = {"messages": [{"role": "user", "content": [result]}], "max_tokens": 9}
    tool = {"name": "f", "input_schema": {}, "defer_loading": True}
    client = Client(dialect)
    for description in ("one", "two"):
        client.read({**body, "tools": [{**tool, "description": description}]})
    assert client.went_on == 0


def test_an_id_that_a_call_without_one_has_got_is_not_given_twice() -> None:
    call = {"functionCall": {"name": "f", "args": {}}}
    answer = {"functionResponse": {"name": "f", "response": {"output": "x"}}}
    turn = [{"role": "model", "parts": [call]}, {"role": "user", "parts": [answer]}]
    taken = {"functionCall": {"name": "f", "args": {}, "id": "call00000"}}
    client = Client(Gemini())
    client.read({"contents": [{"parts": [{"text": "hi"}]}, *turn]})
    for _ in range(2):  # a reader that has refused to go on goes on with what it takes
        client.read(
            {"contents": [{"parts": [{"text": "hi"}]}, *turn, {"role": "model", "parts": [taken]}]}
        )
    client.read({"contents": [{"parts": [{"text": "hi"}]}, *turn, *turn]})
    assert client.went_on == 0


def test_tools_that_a_later_search_finds_are_not_those_of_earlier_requests() -> None:
    search = {"type": "tool_search_output", "call_id": "s"}
    tool = {"type": "function", "name": "f", "parameters": {}}
    items: list[Any] = [{"role": "user", "content": "hi"}]
    client = Client(Responses())
    first = client.read({"input": items})
    second = client.read({"input": [*items, {**search, "tools": [tool]}]})
    assert first is not None
    assert second is not None
    assert [*first.names] == []
    assert [*second.names] == ["f"]
    assert client.went_on == 1


def test_tools_are_written_as_json_once_in_a_conversation() -> None:
    tool = {"name": "f", "parameters": {"default": True}}
    bodies: list[tuple[HttpDialect, dict[str, Any]]] = [
        (Chat(), {"messages": [USER], "tools": [{"type": "function", "function": tool}]}),
        (Anthropic(), {"messages": [USER], "tools": [{"name": "f", "input_schema": {}}]}),
        (Responses(), {"input": [USER], "tools": [{"type": "function", **tool}]}),
        (Gemini(), {"contents": [{"parts": []}], "tools": [{"functionDeclarations": [tool]}]}),
    ]
    for dialect, body in bodies:
        client = Client(dialect)
        first = client.read({**body, "model": "a"})
        again = client.read({**body, "model": "b"})
        assert first is not None
        assert again is not None
        assert again.frame is first.frame
        other = client.read(json.loads(json.dumps({**body, "model": "b"}).replace('"f"', '"g"')))
        assert other is not None
        assert other.frame != first.frame
