"""The calls that public templates write come back: what is read and rendered again is the text."""

import json
import os
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from abut.errors import TemplateError

pytest.importorskip("tokenizers")
pytest.importorskip("transformers")
pytest.importorskip("trl", reason="TRL, which ships the templates, is not installed")

from tests.kit.data.public_calls import (
    FUNCTIONS,
    MODES,
    ODD_KEYS,
    TYPES,
    call_templates,
    processor_of,
    reading_of,
)

REFUSED = {
    "llama_cpp/MiniMax-M3": "or writes them in a form that abut does not know",
    "llama_cpp/GigaChat3-10B-A1.8B": "inside a turn, before a tool call",
    "llama_cpp/upstage-Solar-Open-100B": "inside a turn, after the thinking",
}
WRITES_NONE = "the template does not write tool calls"
RENDERS_NONE = "the template cannot render"
"""What is said where no call can be probed: the template writes none, or raises (llama.cpp's Kimi
K2 changes a list, which the sandbox of transformers forbids)."""
AMBIGUOUS = {
    "vllm/tool_chat_template_gemma3_pythonic": "no comma stands between arguments",
    "vllm/tool_chat_template_llama3.2_pythonic": "texts stand there without quotes",
    "vllm/tool_chat_template_toolace": "texts stand there without quotes",
}
"""What is written does not say where a value ends, nor whether it is a text."""

characters = st.characters(exclude_categories=["Cs"])
# Probes find the words that begin so, and Hypothesis finds those words in the sources.
texts = st.text(characters, max_size=8).filter(lambda t: "abut" not in t) | st.sampled_from(
    [
        *("", " x ", "\n", "3", "true", "None", "it's", 'a "b"', "\\", "\\n", "a\\'b", "é 日本 😀"),
        *("</tool_call>", '"}}', "[TOOL_CALLS]", "{x}, y=1)", "<think>", "')]"),
        *("</parameter>", "</arg_value>", "<tool_call>", "]</tool_calls>", "```", "<escape>"),
    ]
)
keys = st.from_regex(r"[a-z][a-zA-Z0-9_]{0,6}", fullmatch=True)  # some write them without quotes
numbers = st.floats(allow_nan=False, allow_infinity=False).filter(lambda x: x != int(x))
scalars = st.one_of(texts, st.integers(-(10**12), 10**12), numbers, st.booleans(), st.none())
odd_keys = st.sampled_from(["a b", "a,b", "a:b", "a{b", "a}b", "é", "a-b", "$x", "a.b", "1"])
nested = st.recursive(
    scalars,
    lambda x: st.lists(x, max_size=3) | st.dictionaries(keys | odd_keys, x, max_size=3),
    max_leaves=4,
)
values: dict[str, st.SearchStrategy[Any]] = {
    "string": texts,
    "integer": st.integers(-(10**12), 10**12),
    "number": numbers,
    "boolean": st.booleans(),
    "null": st.none(),
    "array": st.lists(nested, max_size=3),
    "object": st.dictionaries(keys | odd_keys, nested, max_size=3),
}
arguments = st.fixed_dictionaries({}, optional={key: values[t] for key, t in TYPES.items()})
odd_arguments = st.fixed_dictionaries(
    {}, optional={key: values[t] for key, t in (TYPES | ODD_KEYS).items()}
)
calls = st.lists(st.tuples(st.sampled_from(FUNCTIONS), arguments), min_size=1, max_size=3)
odd_calls = st.lists(st.tuples(st.sampled_from(FUNCTIONS), odd_arguments), min_size=1, max_size=2)
ODD_TEXTS = [key for key, kind in ODD_KEYS.items() if kind == "string"]
thoughts = st.sampled_from([None, "so be it"])

quick = settings(
    max_examples=int(os.environ.get("ABUT_FUZZ_EXAMPLES", "8")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate),  # a template is slow to shrink by
)


READ = [(name, mode) for name, mode in MODES if name not in REFUSED]


@pytest.mark.parametrize(("name", "mode"), MODES)
def test_a_public_template_is_read_or_refused_with_the_reason(name: str, mode: str) -> None:
    if name in REFUSED:
        with pytest.raises(TemplateError, match=REFUSED[name]):
            reading_of(name, mode)
    elif reading_of(name, mode) is None:
        with pytest.raises(TemplateError, match=f"{WRITES_NONE}|{RENDERS_NONE}"):
            processor_of(name, mode).parse_tool_calls("")


@pytest.mark.parametrize(("name", "mode"), READ)
def test_what_a_template_writes_of_calls_comes_back(name: str, mode: str) -> None:
    reading = reading_of(name, mode)
    if reading is None:
        return
    faults = reading.proof.faults(reading.parse)
    assert faults == (["a hard text"] if "quotes" in AMBIGUOUS.get(name, "") else [])
    call = ("abutName", {"abutKey": "abutValue"})
    action = reading.action([call], **call_templates.THINKING)
    assert [(found.name, found.arguments) for found in reading.parse(action).calls] == [call]


def check(reading: Any, drawn: list[Any], thought: str | None) -> tuple[Any, list[Any]]:
    """What is parsed of the turn with these calls, and the calls that it can hold."""
    if not reading.proof.writes_several:
        drawn = drawn[:1]
    thinking = {} if thought is None else dict.fromkeys(call_templates.THINKING, thought)
    return reading.parse(reading.action(drawn, **thinking)), drawn


@pytest.mark.parametrize(("name", "mode"), READ)
@quick
@given(drawn=calls, thought=thoughts)
@example(drawn=[("look", {})], thought=None)
@example(drawn=[("look", {})], thought="so be it")
def test_random_calls_come_back(
    name: str, mode: str, drawn: list[tuple[str, dict[str, Any]]], thought: str | None
) -> None:
    reading = reading_of(name, mode)
    if reading is None:
        return
    parsed, drawn = check(reading, drawn, thought)
    if name in AMBIGUOUS:
        return
    assert parsed.malformed == ()
    again = [(call.name, call.arguments) for call in parsed.calls]
    assert reading.completion(again) == reading.completion(drawn)
    as_typed = [json.dumps(calls, sort_keys=True) for calls in (again, drawn)]  # 3 is not 3.0
    assert as_typed[0] == as_typed[1]


@pytest.mark.parametrize(("name", "mode"), READ)
@quick
@given(drawn=odd_calls, thought=thoughts)
@example(drawn=[("look", dict.fromkeys(ODD_TEXTS, "x"))], thought=None)
@example(drawn=[("look", {"text": "x", "a b": "y"})], thought=None)
def test_calls_with_odd_keys_come_back_or_are_malformed(
    name: str, mode: str, drawn: list[tuple[str, dict[str, Any]]], thought: str | None
) -> None:
    reading = reading_of(name, mode)
    if reading is None or name in AMBIGUOUS:
        return
    parsed, drawn = check(reading, drawn, thought)
    again = [(call.name, call.arguments) for call in parsed.calls]
    equal = json.dumps(again, sort_keys=True) == json.dumps(drawn, sort_keys=True)
    assert equal or parsed.malformed
