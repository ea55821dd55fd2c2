"""A body that repeats the one before it is read as the whole of it would be."""

import hashlib
import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abut.gateway.dialects.chat import Chat
from abut.gateway.ledger.refusal import Refusal
from abut.gateway.server.body import Beginning, Bodies, read_body

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
        value, _, beginning = read_body(content, known)
    except Refusal as refusal:
        return str(refusal), None
    return value, beginning


def is_known(content: bytes, known: Beginning | None) -> bool:
    """Whether the messages of a beginning are those of a body, as the same objects."""
    assert known is not None
    value, _ = read(content, known)
    return value["messages"][0] is known.messages[0]


@given(
    head=objects,
    tails=st.lists(objects, min_size=4, max_size=4),
    messages=st.lists(values, min_size=1, max_size=6),
    indent=st.sampled_from([None, 0, 2]),
    separators=separators,
    ascii=st.booleans(),
    cuts=st.lists(st.integers(0, 6), min_size=4, max_size=4),
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
) -> None:
    known: Beginning | None = None
    for tail, cut in zip(tails, sorted(cuts), strict=True):
        body = {**head, "messages": messages[:cut], **tail}
        text = json.dumps(body, indent=indent, separators=separators, ensure_ascii=ascii)
        content = text.encode("utf-8", "surrogatepass")
        got, beginning = read(content, known)
        assert repr(got) == repr(json.loads(content)) or got == json.loads(content)
        if isinstance(got, dict):
            assert read_body(content, known).digest == hashlib.sha256(content).digest()
        if beginning is not None:
            assert beginning.digest == hashlib.sha256(content[: beginning.end]).digest()
            cut = content[: beginning.end - 1]
            assert read(cut, beginning)[0] == read(cut)[0]
            known = beginning


def test_what_is_repeated_is_the_same_object_and_not_read_again() -> None:
    first, known = read(json.dumps(ASKED).encode())
    assert known is not None
    assert json.dumps(ASKED).encode()[: known.end].endswith(b"}")
    longer = {**ASKED, "messages": [*ASKED["messages"], {"role": "user", "content": "b"}]}  # type: ignore[misc]
    second, _ = read(json.dumps(longer).encode(), known)
    assert second == longer
    assert second["messages"][0] is first["messages"][0]
    assert second["tools"] is first["tools"]
    second["messages"].clear()
    assert read(json.dumps(longer).encode(), known)[0] == longer


def test_equal_fields_are_read_once_and_say_the_same() -> None:
    user = {"role": "user", "content": "a"}
    tool = {"type": "function", "function": {"name": "look"}}
    asked: dict[str, Any] = {"model": "policy", "messages": [user], "tools": [tool], "stop": "x"}
    body, known = read(json.dumps(asked).encode())
    assert known is not None
    assert known.request is None
    first = known.request = CHAT.read(body)
    longer, beginning = asked, known
    for added in ({"role": "user", "content": "b"}, user | {"prompt_token_ids": [1]}, user):
        longer = {**asked, "messages": [*longer["messages"], added]}
        body, beginning = read(json.dumps(longer).encode(), beginning)
        assert beginning is not None
        assert len(beginning.request.messages) == len(longer["messages"]) - 1
        again = beginning.request = CHAT.read(body, beginning.request)
        assert again == CHAT.read(longer)
        assert again.frame == CHAT.read(longer).frame
        assert again.tools is first.tools
    _, other = read(json.dumps({**asked, "stop": "y"}).encode(), known)
    assert other is not None
    assert other.request is None


BEGUN = b'{"model": "m", "messages": [{"role": "user"}'
ENDS = [
    b"", b"]", b"]}", b", ]}", b",]}", b", {}]}", b"}]}", b"{}]}", b"1]}", b"], }", b"],}", b"] ,",
    b'], "messages": [3]}', b'], "messages": [3], "x": 1}', b'], "x": 1, "x": 2}', b"], 1}",
    b'], "x": 1} 2', b'], "x": 1}}', b']  }  ', b"] x", b', "a"], "x": NaN}', b"\xff]}",
    b', "\xff"]}', b', "\xed\xa0\x80"]}', b', "\xc3\xa4"], "y": "\xc3"}', b', "\xe2\x82', b"]]}",
    b", " + b"[" * 100_000, b'], "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
]  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
def test_what_follows_a_known_beginning(end: bytes) -> None:
    _, known = read(BEGUN + b"]}")
    assert known is not None
    assert known.end == len(BEGUN)
    assert read(BEGUN + end, known)[0] == read_whole(BEGUN + end)


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
    asked = json.dumps(ASKED).encode()
    _, known = read(asked)
    assert known is not None
    signs = [b",", b"]", b"}", b"{", b"[", b'"', b" ", b"\\", b":", b"1", b'"messages"', b"\xc3"]
    for _ in range(3000):
        end = b"".join(rng.choice(signs) for _ in range(rng.randrange(8)))
        content = asked[: known.end] + end
        assert read(content, known)[0] == read_whole(content)


def test_a_body_that_grew_often_is_known_whole() -> None:
    known: Beginning | None = None
    messages = [{"role": "user", "content": f"{number} 😀"} for number in range(100)]
    for count in range(1, 100):
        content = json.dumps({"messages": messages[:count]}, ensure_ascii=False).encode()
        assert known is None or is_known(content, known)
        got, known = read(content, known)
        assert got == {"messages": messages[:count]}
        assert known is not None
        assert content[known.end :] == b"]}"
        cut = content.index(b"0 ")
        assert not is_known(content[:cut] + b"x" + content[cut:], known)


def test_another_beginning_is_not_taken_for_the_known_one() -> None:
    content = json.dumps({"messages": ["xxxx", "y"]}).encode()
    _, known = read(content)
    assert is_known(content, known)
    assert not is_known(content.replace(b"xxxx", b"xxxz"), known)


def test_so_much_is_kept() -> None:
    bodies = Bodies(most_bytes=100)

    def asked(rollout: str, size: int) -> None:
        content = json.dumps({"messages": ["x" * size]}).encode()
        _, beginning = read(content)
        assert beginning is not None
        bodies.keep(rollout, beginning)

    asked("a", 10)
    asked("b", 20)
    assert bodies.of("a") is not None
    assert bodies.of("b") is not bodies.of("a")
    assert bodies.of(None) is None
    asked("a", 12)  # asked later than b
    asked("c", 30)
    assert bodies.of("b") is None
    assert bodies.of("c") is not None
    bodies.forget("c")
    bodies.forget("c")
    assert bodies.of("c") is None
    asked("d", 200)
    assert bodies.of("d") is None
