"""A body that repeats the one before it is read as the whole of it would be."""

import asyncio
import json
import random
from collections import Counter
from operator import is_
from typing import Any
from unittest import mock

import pytest
from aiohttp import StreamReader
from aiohttp.test_utils import make_mocked_request
from aiohttp.web import Request
from hypothesis import given, settings
from hypothesis import strategies as st

from abut.gateway.dialects.anthropic import Anthropic
from abut.gateway.dialects.chat import Chat
from abut.gateway.ledger.refusal import Refusal
from abut.gateway.server.body import Beginning, Bodies, Body, Room, chunks_of
from abut.gateway.server.body_json import read_body

ASKED = {"model": "policy", "messages": [{"role": "user", "content": "Ä 😀"}], "tools": [{"a": 1}]}

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
objects = st.dictionaries(st.text(max_size=3), values, max_size=3)
separators = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " :\t")])

CHAT = Chat()


def read(content: bytes, known: Beginning | None = None) -> tuple[Any, Beginning | None]:
    """As what reads the whole; what is refused is its text."""
    try:
        return read_body(Body.of([content], [known] if known else ()), CHAT)
    except Refusal as refusal:
        return str(refusal), None


@given(
    head=objects,
    tails=st.lists(objects, min_size=4, max_size=4),
    messages=st.lists(values, min_size=1, max_size=6),
    indent=st.sampled_from([None, 0, 2]),
    separators=separators,
    ascii=st.booleans(),
    cuts=st.lists(st.integers(0, 6), min_size=4, max_size=4),
    lasts=st.lists(st.none() | values.map(lambda value: [value]), min_size=4, max_size=4),
)
@settings(max_examples=300, derandomize=True)
def test_a_growing_body(
    head: Any,
    tails: Any,
    messages: Any,
    indent: Any,
    separators: Any,
    ascii: bool,
    cuts: list[int],
    lasts: list[Any],
) -> None:
    """Some bodies have a last message that the next one has not."""
    known: Beginning | None = None
    for tail, cut, last in zip(tails, sorted(cuts), lasts, strict=True):
        body = {**head, "messages": messages[:cut] + (last or []), **tail}
        text = json.dumps(body, indent=indent, separators=separators, ensure_ascii=ascii)
        content = text.encode("utf-8", "surrogatepass")
        got, beginning = read(content, known)
        assert repr(got) == repr(json.loads(content)) or got == json.loads(content)
        for chunks in ([content], [content[:9], content[9:]], [*map(bytes, zip(content))]):
            body = Body.of(chunks, [known] if known else ())
            assert body.whole == content
            assert body.digest(beginning) == Body.of([content]).digest(None)
        if beginning is not None:
            assert content.startswith(joined(beginning))
            assert beginning.behind([content]) == (beginning, content[beginning.end :])
            cut = beginning.behind([content[: beginning.end - 1]])
            assert cut is None or cut[0].end + len(cut[1]) == beginning.end - 1
            known = beginning


def test_what_is_repeated_is_the_same_object_and_not_read_again() -> None:
    first, known = read(json.dumps(ASKED).encode())
    assert known is not None
    assert joined(known).endswith(b"}")
    longer = {**ASKED, "messages": [*ASKED["messages"], {"role": "user", "content": "b"}]}  # type: ignore[misc]
    second, _ = read(json.dumps(longer).encode(), known)
    assert second == longer
    assert second["messages"][0] is first["messages"][0]
    assert second["tools"] is first["tools"]
    second["messages"].clear()
    assert read(json.dumps(longer).encode(), known)[0] == longer


def test_a_last_message_that_changes_is_read_again_and_no_other() -> None:
    known: Beginning | None = None
    messages: list[Any] = [{"role": "user", "content": "Ä 😀"}]
    for number in range(1, 40):
        marked = {"role": "user", "content": f"{number} ä", "mark": True}
        _, beginning = read(json.dumps({"messages": [*messages, marked]}).encode(), known)
        assert beginning is not None
        if known is not None:
            kept = map(is_, beginning.elements, known.elements)
            assert [*kept] == [True] * (len(known.elements) - 1) + [False]
        known, messages = beginning, [*messages, {**marked, "mark": False}]


def test_a_field_that_changes_is_read_again_and_no_other() -> None:
    asked: dict[str, Any] = {**ASKED, "stop": ["a"], "n": 1, "user": {}}
    first, known = read(json.dumps(asked).encode())
    assert known is not None
    for n, same in ((12, False), (1.0, False), (True, False), (1, True)):
        body, beginning = read(json.dumps({**asked, "n": n}).encode(), known)
        assert repr(body["n"]) == repr(n)
        assert body["tools"] is first["tools"]
        assert body["user"] is first["user"]
        assert beginning is not None
        assert (beginning.fields is known.fields) == same
    added, _ = read(json.dumps({**asked, "more": 1}).encode(), known)
    assert added == {**asked, "more": 1}


def test_equal_fields_are_read_once_and_say_the_same() -> None:
    user = {"role": "user", "content": "a"}
    tool = {"type": "function", "function": {"name": "look"}}
    asked: dict[str, Any] = {"model": "policy", "messages": [user], "tools": [tool], "stop": "x"}
    body, known = read(json.dumps(asked).encode())
    assert known is not None
    assert known.like is None
    first = known.request = CHAT.read(body)
    longer, beginning = asked, known
    for added in ({"role": "user", "content": "b"}, user | {"prompt_token_ids": [1]}, user):
        longer = {**asked, "messages": [*longer["messages"], added]}
        body, beginning = read(json.dumps(longer).encode(), beginning)
        assert beginning is not None
        assert beginning.like is not None
        assert beginning.like.same_fields
        assert beginning.like.elements == len(longer["messages"]) - 1
        again = beginning.request = CHAT.read(body, beginning.like)
        assert again == CHAT.read(longer)
        assert again.frame == CHAT.read(longer).frame
        assert again.tools is first.tools
    _, other = read(json.dumps({**asked, "stop": "y"}).encode(), known)
    assert other is not None
    assert other.like is not None
    assert not other.like.same_fields


BEGUN = b'{"model": "m", "messages": [{"role": "user"}'
ENDS = [
    b"", b"]", b"]}", b", ]}", b",]}", b", {}]}", b"}]}", b"{}]}", b"1]}", b"], }", b"],}", b"] ,",
    b'], "messages": [3]}', b'], "messages": [3], "x": 1}', b'], "x": 1, "x": 2}', b"], 1}",
    b'], "x": 1} 2', b'], "x": 1}}', b']  }  ', b"] x", b', "a"], "x": NaN}', b"\xff]}",
    b', "\xff"]}', b', "\xed\xa0\x80"]}', b', "\xc3\xa4"], "y": "\xc3"}', b', "\xe2\x82', b"]]}",
    b'], "x": [1]}', b', {}], "x": [[1]]}', b', {}], "x": ["]}', b', "]}', b', {"x": [1]}',
    b", " + b"[" * 100_000, b'], "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
]  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
def test_what_follows_a_known_beginning(end: bytes) -> None:
    _, known = read(BEGUN + b"]}")
    assert known is not None
    assert joined(known) == BEGUN
    assert read(BEGUN + end, known)[0] == read_whole(BEGUN + end)


def joined(beginning: Beginning) -> bytes:
    return b"".join(piece.content for piece in beginning.pieces)


def read_whole(content: bytes) -> Any:
    """As without anything known, and with one parser."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return read(content)[0]  # the reason
    assert read(content)[0] == value or value != value
    return value


WHOLES = [
    b"", b" ", b"{", b"{}", b"[]", b"1", b'"messages"', b'{"messages"', b'{"messages":', b"{,}",
    b'{"messages": 1}', b'{"messages": []}', b'{"messages": [', b'{"a" "messages": [1]}',
    b'{1: 2, "messages": [1]}', b'{"a": 1 "messages": [1]}', b'\xef\xbb\xbf{"messages": [1]}',
    b' {"messages": [1], "messages": [2]}', b'{"messages": [1]', b'{"messages": [1] "a": 1}',
    '{"messages": [1]}'.encode("utf-16"), '{"messages": [1]}'.encode("utf-16-le"),
    '{"messages": [1]}'.encode("utf-32"), b'{"a": {"messages": [1]}}', b"\xff\xfe",
]  # fmt: skip


@pytest.mark.parametrize("content", WHOLES)
def test_what_is_no_object_with_messages(content: bytes) -> None:
    got, beginning = read(content)
    try:
        value = json.loads(content)
    except ValueError:
        assert isinstance(got, str)
        assert beginning is None
    else:
        assert got == value or (isinstance(got, str) and not isinstance(value, dict))


def test_random_bytes_in_a_known_beginning() -> None:
    rng = random.Random(0)
    _, known = read(json.dumps(ASKED).encode())
    assert known is not None
    signs = [b",", b"]", b"}", b"{", b"[", b'"', b" ", b"\\", b":", b"1", b'"messages"', b"\xc3"]
    for _ in range(3000):
        end = b"".join(rng.choice(signs) for _ in range(rng.randrange(8)))
        content = joined(known) + end
        assert read(content, known)[0] == read_whole(content)


def test_a_body_of_many_pieces_is_known_whole() -> None:
    known: Beginning | None = None
    messages = [{"role": "user", "content": f"{number} 😀"} for number in range(100)]
    for count in range(1, 100):
        content = json.dumps({"messages": messages[:count]}, ensure_ascii=False).encode()
        if known is not None:
            assert Body.of([content], [known]).known is known
        got, known = read(content, known)
        assert got == {"messages": messages[:count]}
        assert known is not None
        assert len(known.pieces) <= 16
        cut = len(content) // 2
        assert known.behind([content[:cut], content[cut:]]) == (known, b"]}")
        other = known.behind([content[:cut], b"x", content[cut:]])
        assert other is None or len(other[0].elements) == count - 1


def test_conversations_side_by_side_are_known() -> None:
    bodies = Bodies()
    said: dict[str, list[Any]] = {name: [{"role": "user", "content": name}] for name in "abcd"}
    said["b"] = [*said["a"], *said["b"]]  # begins as another one does
    for count in range(1, 6):
        for messages in said.values():
            messages += [{"role": "user", "content": f"{number} ä"} for number in range(count)]
            asked = {"messages": messages}
            body = bodies.body("a", [json.dumps(asked).encode()], CHAT)
            got, beginning = read_body(body, CHAT)
            assert got == asked
            assert beginning is not None
            bodies.keep("a", beginning, body.earlier)
            if count > 2:  # a short one may be taken for another with the same first message
                assert body.known is not None
                assert len(body.known.elements) == len(messages) - count
    assert len(bodies._kept["a"]) == len(said)
    assert bodies._bytes == sum(known.end for known in bodies._kept["a"])
    assert bodies.body("a", [json.dumps(asked).encode()], Anthropic()).known is None
    bodies.forget("a")
    assert bodies._bytes == 0


def test_so_much_is_kept() -> None:
    bodies = Bodies(most_bytes=100)

    def asked(rollout: str, size: int) -> bytes:
        content = json.dumps({"messages": ["x" * size]}).encode()
        _, beginning = read(content)
        assert beginning is not None
        bodies.keep(rollout, beginning)
        return content

    first, second = asked("a", 10), asked("b", 20)
    assert bodies.body("a", [first], CHAT).known is not None
    assert bodies.body("b", [first], CHAT).known is None
    assert bodies.body(None, [first], CHAT).known is None
    asked("a", 12)  # asked later than b
    third = asked("c", 30)
    assert bodies.body("b", [second], CHAT).known is None
    assert bodies.body("c", [third], CHAT).known is not None
    bodies.forget("c")
    bodies.forget("c")
    assert bodies.body("c", [third], CHAT).known is None
    huge = asked("d", 200)
    assert bodies.body("d", [huge], CHAT).known is None


def arrived(packets: list[bytes], **headers: str) -> Request:
    """A request whose body has arrived in these packets."""
    payload = StreamReader(mock.Mock(_reading_paused=False), 2**16, loop=asyncio.get_running_loop())
    for packet in packets:
        payload.feed_data(packet)
    payload.feed_eof()
    return make_mocked_request("POST", "/", headers=headers, payload=payload)


def test_a_body_with_a_length_is_not_copied() -> None:
    packets = [b"x" * 70_000, b"y" * 70_000, b"z"]

    async def case() -> None:
        with Room(Counter(), "key", 2**20, None) as room:
            chunks = await chunks_of(arrived(packets, **{"Content-Length": "140001"}), room)
            assert all(map(is_, chunks, packets))
            assert len(chunks) == len(packets)

    asyncio.run(case())


def test_the_pieces_of_a_chunked_body_are_joined() -> None:
    packets = [bytes([at % 256, 0]) for at in range(1000)]

    async def case() -> None:
        with Room(Counter(), "key", 2**20, None) as room:
            chunks = await chunks_of(arrived(packets, **{"Transfer-Encoding": "chunked"}), room)
            assert chunks == [b"".join(packets)]

    asyncio.run(case())
