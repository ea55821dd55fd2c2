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

from public_calls import FUNCTIONS, TEMPLATES, TYPES, call_templates, reading_of

REFUSED = {
    "llama_cpp/MiniMax-M3": "the key is the name of a tag, and so are those inside of its value",
}
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
calls = st.lists(st.tuples(st.sampled_from(FUNCTIONS), arguments), min_size=1, max_size=3)


quick = settings(
    max_examples=int(os.environ.get("ABUT_FUZZ_EXAMPLES", "8")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate),  # a template is slow to shrink by
)


def test_the_public_templates_that_write_calls_are_read() -> None:
    refused = []
    for name in TEMPLATES:
        try:
            reading_of(name)
        except TemplateError:
            refused.append(name)
    assert refused == [name for name in TEMPLATES if name in REFUSED]


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name not in REFUSED])
def test_what_a_template_writes_of_calls_comes_back(name: str) -> None:
    reading = reading_of(name)
    if reading is None:
        return
    faults = reading.proof.faults(reading.parse)
    assert faults == (["a hard text"] if "quotes" in AMBIGUOUS.get(name, "") else [])
    thinking = call_templates.THINKING
    if "abutReasoning" not in reading.probe.written([("abutName", {})], **thinking):
        return
    action = reading.action(**thinking)
    (call,) = reading.parse(action).calls
    assert (call.name, call.arguments) == ("abutName", {"abutKey": "abutValue"})


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name not in REFUSED])
@quick
@given(drawn=calls)
@example(drawn=[("look", {})])
def test_random_calls_come_back(name: str, drawn: list[tuple[str, dict[str, Any]]]) -> None:
    reading = reading_of(name)
    if reading is None:
        return
    if not reading.proof.writes_several:
        drawn = drawn[:1]
    written = reading.turns.said(reading.probe.written(drawn))
    parsed = reading.parse(written)
    if name in AMBIGUOUS:
        return
    assert parsed.malformed == ()
    again = [(call.name, call.arguments) for call in parsed.calls]
    assert reading.turns.said(reading.probe.written(again)) == written
    as_typed = [json.dumps(calls, sort_keys=True) for calls in (again, drawn)]  # 3 is not 3.0
    assert as_typed[0] == as_typed[1]
