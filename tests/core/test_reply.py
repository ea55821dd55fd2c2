"""Replies of vLLM servers, read natively: the same as json.loads, or an error that says where."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abut._native import Choice, read_completions
from abut.errors import SamplerError

IDS, LOGPROBS = [1164, 70, 906], [-7.802013397216797, -0.0, -1e-30]


def reply(*choices: Any, **top: Any) -> bytes:
    return json.dumps({"id": "cmpl-1", "choices": choices, "usage": {"n": 3}} | top).encode()


def choice(index: int = 0, ids: Any = IDS, logprobs: Any = LOGPROBS, **more: Any) -> Any:
    tokens = [f"token_id:{id_}" for id_ in IDS]
    skipped = {"text_offset": [0, 3, 9], "tokens": tokens, "top_logprobs": [{"a,b": -1.0}, None]}
    return {
        "index": index,
        "logprobs": {"token_logprobs": logprobs} | skipped,
        "token_ids": ids,
        "finish_reason": "length",
    } | more


def read(*choices: Any) -> list[Choice]:
    return read_completions(reply(*choices))


def error_of(body: bytes) -> str:
    with pytest.raises(SamplerError) as raised:
        read_completions(body)
    return str(raised.value)


def test_a_choice_has_arrays_and_says_how_it_ended() -> None:
    (found,) = read(choice(text="a\n", stop_reason=9, prompt_token_ids=[5, 6]))
    assert (found.token_ids.dtype, found.logprobs.dtype) == (np.int64, np.float32)
    assert found.token_ids.tolist() == IDS
    assert found.logprobs.tolist() == np.asarray(LOGPROBS, np.float32).tolist()
    assert (found.index, found.finish_reason, found.stop_reason) == (0, "length", 9)
    assert found.text == "a\n"
    assert found.prompt_token_ids is not None
    assert found.prompt_token_ids.tolist() == [5, 6]
    assert repr(found) == 'Choice(0, 3 tokens, finish_reason="length")'


def test_what_is_not_there_is_none() -> None:
    (found,) = read(choice(finish_reason=None, stop_reason=None))
    assert found.finish_reason is found.stop_reason is found.text is None
    assert found.prompt_token_ids is None
    assert repr(found) == "Choice(0, 3 tokens, finish_reason=None)"


def test_a_stop_string_and_a_stop_token_are_told_apart() -> None:
    assert [c.stop_reason for c in read(choice(stop_reason="9"), choice(stop_reason=9))] == ["9", 9]


def test_the_other_endpoints_logprobs_are_read_too() -> None:
    content = [{"token": "x", "logprob": value, "bytes": None} for value in LOGPROBS]
    (found,) = read(choice(logprobs=...) | {"logprobs": {"content": content}})
    assert found.logprobs.tolist() == read(choice())[0].logprobs.tolist()


def test_an_empty_sample_is_a_sample() -> None:
    for empty in ([], "[ ]"):
        body = reply(choice(ids=[], logprobs=[])).replace(b"[]", str(empty).encode())
        (found,) = read_completions(body)
        assert (len(found.token_ids), len(found.logprobs)) == (0, 0)


HINT = "hint: pass the whole body of a 200 answer of /v1/completions or /inference/v1/generate"
NO_ID = (
    "which is not a token id\nhint: check that the server is vLLM and that nothing between it and "
)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (
            reply(choice(ids=[1, -1, 2])),
            f"choice 0 of the reply: token_ids[1] is -1, {NO_ID}abut rewrites replies",
        ),
        (
            reply(choice(), choice(1, prompt_token_ids=[2**32])),
            f"choice 1 of the reply: prompt_token_ids[0] is 4294967296, {NO_ID}abut rewrites "
            "replies",
        ),
        (
            reply(choice(logprobs=[-1.0, -1.0, None])),
            "choice 0: sampled token 2 (id 906) has logprob null, which is not a number\n"
            "hint: ask the engine for the logprob of each sampled token, after temperature and "
            "filters",
        ),
        (
            reply(choice(), choice(1, logprobs=[-1.0])),
            "choice 1 has 3 sampled ids but 1 logprobs\nhint: pass one logprob per sampled id, "
            "the stop token included",
        ),
        (
            reply(choice(7, ids=None)),
            'choice 7 of the reply has no token_ids\nhint: send "return_token_ids": true, '
            "which vLLM supports since 0.10.2",
        ),
        (
            reply(choice(logprobs=None)),
            'choice 0 of the reply has no logprobs\nhint: send "logprobs": 0',
        ),
        (
            b'{"choices": [',
            "the 13 bytes of the reply are not a completion: EOF while parsing a list at line 1 "
            f"column 13\n{HINT}",
        ),
        (
            b'{"error": {}}',
            "the 13 bytes of the reply are not a completion: missing field `choices` at line 1 "
            f"column 13\n{HINT}",
        ),
        (
            reply(choice(ids=5)),
            f"the {len(reply(choice(ids=5)))} bytes of the reply are not a completion: expected "
            f"an array, found 5 at line 1 column 249\n{HINT}",
        ),
    ],
)
def test_what_cannot_be_is_refused_where_it_stands(body: bytes, text: str) -> None:
    assert error_of(body) == text


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("0.5", "0.5, which is above 0"),
        ("-9999.0", "-9999, which is vLLM's placeholder for a missing logprob"),
        ("1e999", "inf, which is not finite"),
        ("-1e39", "-inf, which is not finite"),
        ('"-1.0"', '"-1.0", which is not a number'),
        ("[[-1]]", "[[-1]], which is not a number"),
        ('{"a": 1}', '{"a": 1}, which is not a number'),
        ("true", "true, which is not a number"),
        ('"' + "x" * 99 + '"', '"' + "x" * 23 + "…, which is not a number"),
    ],
)
def test_no_sampled_token_has_such_a_logprob(value: str, problem: str) -> None:
    body = reply(choice(logprobs=[-1.0, 4242, -1.0])).replace(b"4242", value.encode())
    assert f"choice 0: sampled token 1 (id 70) has logprob {problem}\n" in error_of(body)


@pytest.mark.parametrize(
    "value", ["1.0", "1e3", "-0", "null", '"1"', "true", "99999999999999999999"]
)
def test_no_token_has_such_an_id(value: str) -> None:
    body = reply(choice(ids=[1, 4242, 3])).replace(b"4242", value.encode())
    assert f"token_ids[1] is {value}, which is not a token id" in error_of(body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'{"choices": null}',
        b'{"choices": [null]}',
        b"\xff\xfe",
        b'{"choices": [], "choices": []}',
        b'{"choices": [{"index": -1}]}',
        b'{"choices": [{"index": 0, "token_ids": "1,2"}]}',
        reply(choice()) + b"}",
        reply(choice(logprobs=[float("nan"), -1.0, -1.0])),
        reply(choice(finish_reason=3)),
        reply(choice(text=b"\xed".decode("latin-1"))).replace(b"\\u00ed", b"\xed"),
    ],
)
def test_hostile_bytes_are_an_error(body: bytes) -> None:
    assert "are not a completion: " in error_of(body)


def test_deep_nesting_is_passed_over_or_refused() -> None:
    deep = b"[" * 200_000 + b"]" * 200_000
    body = reply(choice(), extra=4242).replace(b"4242", deep)
    assert read_completions(body)[0].token_ids.tolist() == IDS
    body = reply(choice(ids=4242)).replace(b"4242", deep)
    assert "token_ids[0] is [[[[" in error_of(body)


def test_each_truncation_is_an_error() -> None:
    body = reply(choice(text="é\n", prompt_token_ids=[1]), choice(1))
    assert read_completions(body)
    for end in range(len(body)):
        assert "are not a completion: " in error_of(body[:end])


def test_only_bytes_are_read() -> None:
    for body in ("{}", bytearray(b"{}"), memoryview(b"{}")):
        with pytest.raises(TypeError):
            read_completions(body)  # type: ignore[arg-type]


# Against json.loads.

text = st.text(st.characters(codec="utf-8"))
ids = st.lists(st.integers(0, 2**32 - 1), max_size=20)
logprob = st.one_of(
    st.floats(-9998, 0, width=32),
    st.floats(-9998, 0),
    st.integers(-9998, 0),
    # Halfway between two float32: what a second rounding could get wrong.
    st.floats(-9998, 0, width=32).map(lambda x: (x + float(np.nextafter(np.float32(x), 0))) / 2),
)
anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def choices(draw: Any) -> Any:
    token_ids = draw(ids)
    logprobs = draw(st.lists(logprob, min_size=len(token_ids), max_size=len(token_ids)))
    known = {
        "index": draw(st.integers(0, 9)),
        "token_ids": token_ids,
        "finish_reason": draw(st.sampled_from(["stop", "length", "abort", None])),
        "stop_reason": draw(st.none() | st.integers(-(2**63), 2**63 - 1) | text),
        "text": draw(st.none() | text),
        "prompt_token_ids": draw(st.none() | ids),
        "logprobs": {"token_logprobs": logprobs, "tokens": draw(anything)}
        if draw(st.booleans())
        else {"content": [{"logprob": value, "token": "x"} for value in logprobs]},
    }
    return draw(st.dictionaries(text, anything, max_size=3)) | known


@given(st.lists(choices(), max_size=3), st.sampled_from([None, 1]), st.booleans())
def test_it_reads_what_json_loads_reads(made: Any, indent: Any, ascii_only: bool) -> None:
    reply = {"choices": made, "x": [None]}
    body = json.dumps(reply, indent=indent, ensure_ascii=ascii_only).encode()
    native = read_completions(body)
    for found, expected in zip(native, json.loads(body)["choices"], strict=True):
        logprobs = expected["logprobs"].get("token_logprobs")
        if logprobs is None:
            logprobs = [entry["logprob"] for entry in expected["logprobs"]["content"]]
        assert found.token_ids.tolist() == expected["token_ids"]
        assert found.logprobs.tobytes() == np.asarray(logprobs, np.float32).tobytes()
        prompt = found.prompt_token_ids
        assert (None if prompt is None else prompt.tolist()) == expected["prompt_token_ids"]
        for name in ("index", "finish_reason", "stop_reason", "text"):
            assert getattr(found, name) == expected[name]


@given(st.binary(max_size=99))
def test_bytes_are_read_or_refused(noise: bytes) -> None:
    body = reply(choice(), choice(1))
    for hostile in (noise, body[:60] + noise + body[60:], noise + body):
        try:
            found = read_completions(hostile)
        except SamplerError:
            continue
        assert [one.token_ids.tolist() for one in found] == [IDS, IDS]


# What real servers answered.

FOLDER = Path(os.environ.get("ABUT_VLLM_REPLIES", ""))
RECORDED = sorted(FOLDER.glob("*.json")) if FOLDER.name else []


@pytest.mark.skipif(not RECORDED, reason="ABUT_VLLM_REPLIES is unset: a folder of recordings")
def test_recorded_replies_are_read_or_refused_for_what_they_lack() -> None:
    verdicts: dict[str, str] = {}
    for path in RECORDED:
        response = json.loads(path.read_text()).get("response")
        body = json.dumps(response).encode()
        try:
            native = read_completions(body)
        except SamplerError as error:
            verdicts[path.stem] = str(error)
            continue
        verdicts[path.stem] = "read"
        for found, expected in zip(native, response["choices"], strict=True):
            logprobs = expected["logprobs"]
            values = logprobs.get("token_logprobs") or [x["logprob"] for x in logprobs["content"]]
            assert found.token_ids.tolist() == expected["token_ids"]
            assert found.logprobs.tolist() == np.asarray(values, np.float32).tolist()
            assert found.stop_reason == expected.get("stop_reason")
    read = {name for name, verdict in verdicts.items() if verdict == "read"}
    assert read == {
        "chat_return_token_ids",
        "completions_cached_tokens",
        "completions_eos_bias",
        "completions_ids_logprobs",
        "completions_ids_logprobs_plain",
        "completions_ignore_eos",
        "completions_n3_batch2",
        "completions_prompt_logprobs",
        "completions_stop_str",
        "completions_stop_str_include",
        "completions_stop_token_ids",
        "completions_stop_token_ids_include",
        "generate",
        "generate_n2",
        "generate_stop",
    }
    assert "has no token_ids" in verdicts["completions_ids_logprobs2_as_ids"]
    assert "missing field `choices`" in verdicts["err_too_long"]
