"""Tool calls: what a template writes parses back, and nothing that a model writes raises."""

import json
import re
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from abut.errors import TemplateError
from abut.template.calls.parser import tool_call_parser, transformers_parser
from abut.template.processor import ChatTemplateProcessor
from abut.tool_calls.parse import ToolCallFormat, parse_tool_calls
from abut.tool_calls.parsed import MalformedCall, ParsedCalls, ToolCall
from tests.kit.data.templates import CHATML, tiny_tokenizer
from tests.kit.data.trl_templates import TRL, completion, renderer, with_template
from tests.kit.growth import is_linear

FORMATS = get_args(ToolCallFormat)
needs_trl = pytest.mark.skipif(not TRL, reason="TRL, which ships the templates, is not installed")

# ---- round trips

FAMILIES = {
    "qwen2_5": "hermes",
    "qwen3": "hermes",
    "qwen3_instruct_2507": "hermes",
    "qwen3_vl": "hermes",
    "qwen3_5_think": "qwen3_coder",
    "qwen3_5_nothink": "qwen3_coder",
    "qwen3_6": "qwen3_coder",
    "qwen3_8": "qwen3_coder",
    "nemotron_3_nano": "qwen3_coder",
    "nemotron_3_super": "qwen3_coder",
    "nemotron_3_ultra": "qwen3_coder",
    "nemotron_3_5_lightning": "qwen3_coder",
    "glm4moe": "glm",
    "gptoss": "harmony",
    "llama3_1": "llama3",
    "llama3_2": "llama3",
}
TWINS = [name for name in TRL if name.removesuffix("_training") in FAMILIES]
ONE_CALL = ("llama3", "gptoss")  # these templates write one call in a message

characters = st.characters(exclude_categories=["Cs"])
texts = st.text(characters, max_size=12) | st.sampled_from(
    ["</tool_call>", '"}}', "\n", " x ", "\\", "None", "true", "3", "<|im_end|>", "[TOOL_CALLS]"]
)
names = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_.-]{0,12}", fullmatch=True)
scalars: dict[str, st.SearchStrategy[Any]] = {
    "string": texts,
    "integer": st.integers(-(10**12), 10**12),
    "number": st.floats(allow_nan=False, allow_infinity=False).filter(lambda x: x != int(x)),
    "boolean": st.booleans(),
    "null": st.none(),
}
nested = st.recursive(
    st.one_of(*scalars.values()),
    lambda x: st.lists(x, max_size=3) | st.dictionaries(texts, x, max_size=3),
    max_leaves=4,
)
typed_values = {
    **scalars,
    "array": st.lists(nested, max_size=3),
    "object": st.dictionaries(texts, nested, max_size=3),
}
quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def calls_with_tools(draw: st.DrawFn) -> tuple[list[ToolCall], list[dict[str, Any]]]:
    """Random calls, and tools whose schemas say of which type each argument is."""
    calls: list[ToolCall] = []
    tools: list[dict[str, Any]] = []
    for name in draw(st.lists(names, min_size=1, max_size=3, unique=True)):
        types = draw(st.dictionaries(names, st.sampled_from(sorted(typed_values)), max_size=3))
        calls.append(ToolCall(name, {key: draw(typed_values[t]) for key, t in types.items()}))
        properties = {key: {"type": t} for key, t in types.items()}
        parameters = {"type": "object", "properties": properties}
        function = {"name": name, "description": "", "parameters": parameters}
        tools.append({"type": "function", "function": function})
    return calls, tools


@needs_trl
@pytest.mark.parametrize("name", sorted(TWINS))
@quick
@given(drawn=calls_with_tools())
def test_calls_that_a_template_writes_parse_back(
    hf_tokenizer: Any, name: str, drawn: tuple[list[ToolCall], list[dict[str, Any]]]
) -> None:
    calls, tools = drawn
    calls = calls[:1] if name.startswith(ONE_CALL) else calls
    render = renderer(with_template(hf_tokenizer, TRL[name]))
    written = completion(render, as_message(calls))
    parsed = parse_tool_calls(written, format=FAMILIES[name.removesuffix("_training")], tools=tools)
    assert parsed.malformed == ()
    assert parsed.calls == tuple(calls)
    assert repr(parsed.calls) == repr(tuple(calls)), "3 is not 3.0 and not True"


def as_message(calls: list[ToolCall]) -> dict[str, Any]:
    functions = [{"name": call.name, "arguments": call.arguments} for call in calls]
    return {"content": "", "tool_calls": [{"type": "function", "function": f} for f in functions]}


@needs_trl
@pytest.mark.parametrize("name", sorted(TWINS))
def test_the_parser_is_found_by_what_the_template_writes(hf_tokenizer: Any, name: str) -> None:
    tokenizer = with_template(hf_tokenizer, TRL[name])
    render = renderer(tokenizer)
    calls = [ToolCall("f", {"a": "x"})]
    parse = tool_call_parser(tokenizer, render)
    assert parse(completion(render, as_message(calls))).calls == tuple(calls)
    assert parse("It is 3.") == ParsedCalls("It is 3.", (), ())


def test_an_id_of_name_and_number_is_kept() -> None:
    template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + (m.content or '') }}"
        "{% for c in m.tool_calls or [] %}{{ '[CALL]functions.' + c.function.name + ':' }}"
        "{{ loop.index0 | string + '[ARGS]' + c.function.arguments | tojson + '[/CALL]' }}"
        "{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    tokenizer = tiny_tokenizer(template)
    parse = tool_call_parser(tokenizer, renderer(tokenizer))
    text = '[CALL]functions.add:0[ARGS]{"a": 1}[/CALL][CALL]functions.sub:12[ARGS]{}[/CALL]'
    assert parse(text).calls == (
        ToolCall("add", {"a": 1}, "functions.add:0"),
        ToolCall("sub", {}, "functions.sub:12"),
    )


MISTRAL = (
    "{{% for m in messages %}}{{% if m.role == 'user' %}}[INST] {{{{ m.content }}}}[/INST]"
    "{{% elif m.tool_calls %}}{calls}</s>{{% else %}} {{{{ m.content }}}}</s>{{% endif %}}"
    "{{% endfor %}}"
)
MISTRAL_CALLS = {
    "a list": "[TOOL_CALLS] [{% for c in m.tool_calls %}{{ ', ' if not loop.first else '' }}"
    '{{ (c.function | tojson)[:-1] }}, "id": "{{ c.id }}"}{% endfor %}]',
    "named": "{% for c in m.tool_calls %}[TOOL_CALLS]{{ c.function.name }}[CALL_ID]{{ c.id }}[ARGS]"
    "{{ c.function.arguments | tojson }}{% endfor %}",
}


@pytest.mark.parametrize("form", MISTRAL_CALLS)
@quick
@given(drawn=calls_with_tools())
def test_calls_in_both_forms_of_mistral_parse_back(
    form: str, drawn: tuple[list[ToolCall], list[dict[str, Any]]]
) -> None:
    tokenizer = tiny_tokenizer(MISTRAL.format(calls=MISTRAL_CALLS[form]))
    render = renderer(tokenizer)
    calls = [ToolCall(c.name, c.arguments, f"abcdefg{k:02}") for k, c in enumerate(drawn[0])]
    message = as_message(calls)
    for call, written in zip(calls, message["tool_calls"], strict=True):
        written["id"] = call.id
    assert tool_call_parser(tokenizer, render)(completion(render, message)).calls == tuple(calls)


@needs_trl
@pytest.mark.parametrize("name", ["llama3", "gemma", "deepseek_r1_distill", "qwen2_5_vl"])
def test_a_template_without_tool_calls_is_refused(hf_tokenizer: Any, name: str) -> None:
    tokenizer = with_template(hf_tokenizer, TRL[name])
    with pytest.raises(TemplateError) as caught:
        tool_call_parser(tokenizer, renderer(tokenizer))
    assert str(caught.value) == (
        "the template does not write tool calls, or writes them in a form that abut does not "
        "know\nhint: use the template of a model that calls tools, or set the tokenizer's "
        "response_template, so that transformers can parse its answers"
    )


@needs_trl
@pytest.mark.parametrize("name", ["gemma4_v5", "lfm2_2_5_v2", "llama3_1"])
def test_a_response_template_reads_calls(hf_tokenizer: Any, name: str) -> None:
    trl = pytest.importorskip("trl")
    tokenizer = trl.add_response_schema(with_template(hf_tokenizer, TRL[name]))
    arguments = {"a": "x </tool_call>"}
    written = completion(renderer(tokenizer), as_message([ToolCall("f", arguments)]))
    parsed = transformers_parser(tokenizer, [], "<|eot_id|>")(written)
    assert parsed.calls == (ToolCall("f", arguments),)


@needs_trl
def test_what_parse_response_cannot_read_is_malformed(hf_tokenizer: Any) -> None:
    trl = pytest.importorskip("trl")
    tokenizer = trl.add_response_schema(with_template(hf_tokenizer, TRL["gemma4_v5"]))
    text = "<|tool_call>call:f{a:}<tool_call|>"
    parsed = transformers_parser(tokenizer, [], "")(text)
    assert (parsed.content, parsed.calls) == ("", ())
    (malformed,) = parsed.malformed
    assert (malformed.start, malformed.end) == (0, len(text))
    assert malformed.error.startswith("parse_response: ValueError: ")


def test_the_processor_parses_in_the_format_of_its_template(qwen3: Any) -> None:
    def add(a: int) -> int:
        """Add.

        Args:
            a: one.
        """
        return a

    processor = ChatTemplateProcessor(qwen3, tools=[add])
    completion = '<think>\nhm\n</think>\n\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n'
    action = processor.parse_agent_output(completion + "</tool_call><|im_end|>")[1]
    assert processor.parse_tool_calls(action).calls == (ToolCall("add", {"a": 1}),)


def test_a_processor_without_tool_calls_refuses_to_parse_them() -> None:
    with pytest.raises(TemplateError):
        ChatTemplateProcessor(tiny_tokenizer(CHATML)).parse_tool_calls("x")


# ---- what models write

F = ToolCall("f", {"a": 1})
GOOD: list[tuple[str, str, list[ToolCall], str]] = [
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>', [F], ""),
    ("hermes", 'I add.\n<tool_call>{"name":"f","arguments":"{\\"a\\": 1}"}</tool_call> ok', [F],
     "I add.\n ok"),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>', [ToolCall("f", {})], ""),
    ("hermes", '<tool_call>{"name": "f", "arguments": null}</tool_call>', [ToolCall("f", {})], ""),
    ("hermes", '<tool_call>{"name": "f", "parameters": {"a": 1}}</tool_call>', [F], ""),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}}</tool_call>',
     [ToolCall("f", {"a": "</tool_call>"})], ""),
    ("hermes", "plain </tool_call> text ", [], "plain </tool_call> text "),
    ("qwen3_coder", "<tool_call><function=f><parameter=a>1</parameter></function></tool_call>",
     [ToolCall("f", {"a": "1"})], ""),
    ("qwen3_coder",
     "<tool_call>\n<function=f>\n<parameter=a>\n</parameter> </tool_call>\n</parameter>\n"
     "</function>\n</tool_call>", [ToolCall("f", {"a": "</parameter> </tool_call>"})], ""),
    ("glm", "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value> x\n</arg_value>\n</tool_call>",
     [ToolCall("f", {"a": " x\n"})], ""),
    ("glm", "<tool_call>f</tool_call>", [ToolCall("f", {})], ""),
    ("llama3", '{"name": "f", "parameters": {"a": 1}}', [F], ""),
    ("llama3", 'ok<|python_tag|>{"name": "f", "parameters": {"a": 1}}; '
     '{"name": "f", "parameters": {"a": 1}}', [F, F], "ok"),
    ("llama3", '{"answer": 3}', [], '{"answer": 3}'),
    ("llama3", '{"name": "Bob", "age": 3}', [], '{"name": "Bob", "age": 3}'),
    ("llama3", '{"name": "Bob"}', [], '{"name": "Bob"}'),
    ("llama3", '{"name": "Bob", "ag', [], '{"name": "Bob", "ag'),
    ("llama3", '{"parameters": {"a": 1}, "name": "f"}', [F], ""),
    ("llama3", '<|python_tag|>{"name": "f"}', [ToolCall("f", {})], ""),
    ("llama3", '[{"a"', [], '[{"a"'),
    ("llama3", 'See {"name": "f", "parameters": {}}', [], 'See {"name": "f", "parameters": {}}'),
    ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}, "id": "abcdefghi"}]',
     [ToolCall("f", {"a": 1}, "abcdefghi")], ""),
    ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "g"}] ok',
     [F, ToolCall("g", {})], "ok"),
    ("mistral", 'ok[TOOL_CALLS]f[ARGS]{"a": "[TOOL_CALLS]"}[TOOL_CALLS]g[CALL_ID]x1[ARGS]{}',
     [ToolCall("f", {"a": "[TOOL_CALLS]"}), ToolCall("g", {}, "x1")], "ok"),
    ("harmony", ' to=functions.f<|channel|>commentary json<|message|>{"a": 1}', [F], ""),
    ("harmony", '<|channel|>commentary<|message|>I add.<|end|><|start|>assistant<|channel|>'
     'commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>', [F], "I add."),
    ("harmony", "It is 3.", [], "It is 3."),
    ("harmony", 'hello to=you <|message|>{"a": 1}', [], '{"a": 1}'),
    ("harmony", '<|channel|>final goto=x<|message|>{"a": 1}', [], '{"a": 1}'),
    ("harmony", '<|channel|>analysis to=f code<|message|>{"a": 1}', [F], ""),
]  # fmt: skip


@pytest.mark.parametrize(("format", "text", "calls", "content"), GOOD)
def test_calls_as_models_write_them(
    format: Any, text: str, calls: list[ToolCall], content: str
) -> None:
    assert parse_tool_calls(text, format=format) == ParsedCalls(content, tuple(calls), ())


HERMES = [
    ("{bad}", "character 12: not JSON: Expecting property name enclosed in double quotes"),
    ("", "character 11: expected a JSON object"),
    ("[1]", "character 11: a call is a JSON object, not list"),
    ('{"name": "f"', "character 23: not JSON: Expecting ',' delimiter"),
    ('{"name": "f}', "character 11: the JSON value is not closed"),
    ('{"arguments": {}}', "character 11: the call has no name"),
    ('{"name": ""}', "character 11: the call has no name"),
    ('{"name": "f", "arguments": [1]}',
     "character 11: the arguments are not a JSON object but list"),
    ('{"name": "f", "arguments": "x"}',
     "character 11: the arguments are a string that is not JSON: Expecting value: line 1 "
     "column 1 (char 0)"),
    ('{"name": "f", "arguments": {}, "parameters": {}}',
     "character 11: the call has both arguments and parameters"),
    ('{"name": "f", "arguments": {"a": NaN}}', "character 11: not JSON: NaN is not a JSON number"),
    ('{"name": "f", "arguments": {"a": -Infinity}}',
     "character 11: not JSON: -Infinity is not a JSON number"),
    ('{"name": "f", "arguments": {"a": 1e999}}',
     "character 11: not JSON: the number 1e999 is out of range"),
    ('{"name": "f", "arguments": {"a": 1, "a": 2}}',
     "character 11: not JSON: the key 'a' appears twice in one object"),
    ('{"name": "f", "arguments": {"a": "\\ud83d"}}',
     "character 11: not JSON: it holds half of a surrogate pair"),
    ("{" * 2000 + "}" * 2000,
     "character 12: not JSON: Expecting property name enclosed in double quotes"),
    ('{"name": "f", "arguments": {"a": ' + "[" * 100_000 + "]" * 100_000 + "}}",
     "character 11: not JSON: it is nested too deeply"),
    ('{"name": "f", "arguments": {"a": ' + "[" * 200 + "]" * 200 + "}}",
     "character 0: the arguments are nested too deeply"),
    ('{"name": "f"} then', "character 25: expected </tool_call>"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "reason"), HERMES)
def test_a_malformed_call_is_data_with_place_and_reason(body: str, reason: str) -> None:
    text = f"<tool_call>{body}</tool_call>"
    good = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    parsed = parse_tool_calls(text, format="hermes")
    assert parsed == ParsedCalls("", (), (MalformedCall(0, len(text), reason, text),))
    around = parse_tool_calls(f"{good}{text}{good}", format="hermes")
    assert around.calls == (F, F), "the calls before and after it are kept"
    assert len(around.malformed) == 1


MALFORMED = [
    ("hermes", '<tool_call>{"name": "f"}', "character 24: expected </tool_call>"),
    ("hermes", "<tool_call>", "character 11: expected a JSON object"),
    ("qwen3_coder", "<tool_call>f</tool_call>", "character 11: expected <function="),
    ("qwen3_coder", "<tool_call><function=f>x</function></tool_call>",
     "character 23: expected <parameter= or </function>"),
    ("qwen3_coder", "<tool_call><function=f><parameter=a>1", "character 36: expected </parameter>"),
    ("qwen3_coder", "<tool_call><function=f></function>", "character 34: expected </tool_call>"),
    ("qwen3_coder", "<tool_call><function=></function></tool_call>",
     "character 21: the call has no name"),
    ("qwen3_coder", "<tool_call><function=f><parameter=a>1</parameter><parameter=a>2</parameter>"
     "</function></tool_call>", "character 49: the parameter 'a' appears twice in one call"),
    ("qwen3_coder", "<tool_call><function= ></function></tool_call>",
     "character 22: the call has no name"),
    ("qwen3_coder", "<tool_call><function=f><parameter=>1</parameter></function></tool_call>",
     "character 23: a parameter has no name"),
    ("glm", "<tool_call>f<arg_key> </arg_key><arg_value>1</arg_value></tool_call>",
     "character 12: a parameter has no name"),
    ("glm", "<tool_call>f<arg_key>a</arg_key>1</tool_call>",
     "character 32: expected <arg_value>"),
    ("glm", "<tool_call>f", "character 12: expected <arg_key> or </tool_call>"),
    ("glm", "<tool_call></tool_call>", "character 11: the call has no name"),
    ("llama3", "<|python_tag|>search.call(q='x')", "character 14: expected a JSON object"),
    ("llama3", '{"name": "f", "parameters": ', "character 0: the JSON value is not closed"),
    ("llama3", '{"name": 3, "parameters": {}}', "character 0: the call has no name"),
    ("mistral", "[TOOL_CALLS]f{}", "character 13: expected [ARGS]"),
    (
        "mistral",
        "[TOOL_CALLS]f[ARGS][]",
        "character 19: the arguments are not a JSON object but list",
    ),
    ("mistral", "[TOOL_CALLS][1]", "character 13: a call is a JSON object, not int"),
    ("mistral", "[TOOL_CALLS]a[ARGS]oops", "character 19: expected a JSON object"),
    ("mistral", '[TOOL_CALLS] {"name": " "}', "character 13: expected ["),
    ("harmony", "to=functions.f<|message|>x", "character 25: expected a JSON object"),
    ("harmony", "to=functions.<|message|>{}", "character 13: the call has no name"),
    ("harmony", "to=functions.f<|message|>[]",
     "character 25: the arguments are not a JSON object but list"),
]  # fmt: skip


@pytest.mark.parametrize(("format", "text", "reason"), MALFORMED)
def test_each_format_says_where_and_what(format: Any, text: str, reason: str) -> None:
    parsed = parse_tool_calls(text, format=format)
    assert (parsed.calls, [m.error for m in parsed.malformed]) == ((), [reason])
    (malformed,) = parsed.malformed
    assert 0 <= malformed.start < malformed.end <= len(text)


SAID = [
    (
        "qwen3_coder",
        "<function=f>\n<parameter=a>1</parameter>\n</function>",
        "character 0: expected <tool_call> before <function=",
    ),
    (
        "qwen3_coder",
        "<tool_call><function=f><parameter=a>1\n<parameter=b>2</parameter></function></tool_call>",
        "character 38: expected </parameter> before <parameter=b>",
    ),
    (
        "glm",
        '<tool_call>{"name": "f", "arguments": {}}</tool_call>',
        "character 11: the call has no name",
    ),
    ("hermes", '<tool_call>{"name": "f", "argum', "character 11: the JSON value is not closed"),
    (
        "qwen3_coder",
        "<tool_call><function=f><parameter=a>1</parameter><param",
        "character 36: expected </parameter>",
    ),
    ("glm", "<tool_call>f<arg_key>a</arg_key><arg", "character 32: expected <arg_value>"),
]


@pytest.mark.parametrize(("format", "text", "reason"), SAID)
def test_a_broken_call_is_said_with_its_text(format: Any, text: str, reason: str) -> None:
    parsed = parse_tool_calls(f"I look. {text}", format=format)
    assert (parsed.content, parsed.calls) == ("I look.", ())
    (malformed,) = parsed.malformed
    assert (malformed.text, malformed.start, malformed.end) == (text, 8, 8 + len(text))
    assert re.sub(r"\d+", lambda m: str(int(m[0]) - 8), malformed.error, count=1) == reason


def test_a_parameter_that_no_schema_knows_is_text() -> None:
    value = "1\n<parameter=b>2"
    text = f"<tool_call><function=f><parameter=a>{value}</parameter></function></tool_call>"
    tool = {"name": "f", "parameters": {"properties": {"a": {"type": "string"}}}}
    assert parse_tool_calls(text, format="qwen3_coder", tools=[tool]).calls == (
        ToolCall("f", {"a": value}),
    )


def test_each_broken_call_of_a_list_has_its_own_place() -> None:
    text = 'ok[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": 3} , [7,[]],"x"] so'
    parsed = parse_tool_calls(text, format="mistral")
    assert (parsed.content, parsed.calls) == ("ok so", (F,))
    assert [text[m.start : m.end] for m in parsed.malformed] == ['{"name": 3}', "[7,[]]", '"x"']
    assert [m.error for m in parsed.malformed] == [
        "character 54: the call has no name",
        "character 68: a call is a JSON object, not list",
        "character 75: a call is a JSON object, not str",
    ]


def test_a_tag_in_prose_takes_no_prose_with_it() -> None:
    good = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    text = f"I write <tool_call> and then: {good} After <tool_call> nothing."
    parsed = parse_tool_calls(text, format="hermes")
    assert parsed.content == "I write  and then:  After  nothing."
    assert parsed.calls == (F,)
    assert [text[m.start : m.end] for m in parsed.malformed] == ["<tool_call>"] * 2


def test_a_call_that_was_cut_hides_no_other() -> None:
    good = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    for cut in range(len("<tool_call>"), len(good)):
        parsed = parse_tool_calls(good[:cut] + good, format="hermes")
        assert parsed.calls == (F,), good[:cut]
        assert len(parsed.malformed) == 1


QWEN_A, QWEN_G = "<tool_call><function=f><parameter=a>", "<tool_call><function=g>"
QWEN_B = f"{QWEN_G}<parameter=b>4</parameter></function></tool_call>"
GLM_A = "<tool_call>f<arg_key>a</arg_key><arg_value>"
GLM_B = "<tool_call>g<arg_key>b</arg_key><arg_value>4</arg_value></tool_call>"


@pytest.mark.parametrize(
    ("format", "broken", "good", "arguments"),
    [
        ("qwen3_coder", f"{QWEN_A}3</function></tool_call>", QWEN_B, {"b": "4"}),
        ("qwen3_coder", f"{QWEN_A}3</parameter></tool_call>", f"\n{QWEN_B}", {"b": "4"}),
        ("qwen3_coder", f"{QWEN_A}3</tool_call>", f"ok{QWEN_G}</function></tool_call>", {}),
        ("glm", f"{GLM_A}3</tool_call>", GLM_B, {"b": "4"}),
        ("glm", f"{GLM_A}3</tool_call>", f" \n{GLM_B}", {"b": "4"}),
        ("glm", f"{GLM_A}3</tool_call>", "ok<tool_call>g</tool_call>", {}),
    ],
)
def test_a_value_that_is_not_closed_does_not_swallow_the_next_call(
    format: Any, broken: str, good: str, arguments: dict[str, Any]
) -> None:
    parsed = parse_tool_calls(broken + good, format=format)
    assert parsed.calls == (ToolCall("g", arguments),)
    close = {"qwen3_coder": "</parameter>", "glm": "</arg_value>"}[format]
    reason = f"character {broken.index('3')}: expected {close}"
    assert parsed.malformed == (MalformedCall(0, len(broken), reason, broken),)
    assert parsed.content == ("ok" if "ok" in good else "")


@pytest.mark.parametrize(
    ("format", "opened", "close"),
    [
        ("qwen3_coder", QWEN_A, "</parameter></function></tool_call>"),
        ("glm", GLM_A, "</arg_value></tool_call>"),
    ],
)
@pytest.mark.parametrize("value", ["</tool_call>", "<tool_call>x</tool_call> is", "<tool_call>"])
def test_a_value_may_spell_the_tags_of_a_call(
    format: Any, opened: str, close: str, value: str
) -> None:
    parsed = parse_tool_calls(f"{opened}{value}{close}", format=format)
    assert parsed == ParsedCalls("", (ToolCall("f", {"a": value}),), ())


# ---- types of text arguments


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "integer"}, "3", 3),
        ({"type": "integer"}, "3.0", 3),
        ({"type": "integer"}, "1e30", 10**30),
        ({"type": "integer"}, "3.00000000000000000001", "3.00000000000000000001"),
        ({"type": "integer"}, "1e-99999999999999999999", "1e-99999999999999999999"),
        ({"type": "integer"}, "0." + "0" * 5000, 0),
        ({"type": "number"}, "1e30", 1e30),
        ({"type": "integer"}, "x", "x"),
        ({"type": "integer"}, "true", "true"),
        ({"type": "number"}, "3", 3),
        ({"type": "float"}, "3.5", 3.5),
        ({"type": "int"}, "3", 3),
        ({"type": "number"}, "1e-7", 1e-7),
        ({"type": "number"}, "NaN", "NaN"),
        ({"type": "boolean"}, "True", True),
        ({"type": "boolean"}, "1", "1"),
        ({"type": "array"}, "[1]", [1]),
        ({"type": "array"}, '{"a": 1}', '{"a": 1}'),
        ({"type": "object"}, '{"a": 1}', {"a": 1}),
        ({"type": "string"}, "3", "3"),
        ({"type": ["integer", "null"]}, "None", None),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "null", None),
        ({"type": "string", "nullable": True}, "null", None),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "3", "3"),
        ({}, "3", "3"),
        (None, "3", "3"),
    ],
)
def test_text_is_read_as_its_schema_says_and_never_guessed(
    schema: Any, text: str, value: Any
) -> None:
    tool = {"name": "f", "parameters": {"properties": {"a": schema}}}
    call = f"<tool_call><function=f><parameter=a>{text}</parameter></function></tool_call>"
    for tools in ([tool], [{"type": "function", "function": tool}]):
        (parsed,) = parse_tool_calls(call, format="qwen3_coder", tools=tools).calls
        assert repr(parsed.arguments["a"]) == repr(value)


DEFINITIONS = {
    "Count": {"type": "integer"},
    "Size": {"enum": [1, 2, "all"]},
    "Point": {"type": "object", "properties": {"x": {"type": "number"}}},
    "a/b": {"allOf": [{"$ref": "#/$defs/Count"}, {"minimum": 1}]},
    "Named": {"$anchor": "named", "type": "boolean"},
}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"$ref": "#/$defs/Count"}, "3", 3),
        ({"$ref": "#/$defs/Point"}, '{"x": 1}', {"x": 1}),
        ({"$ref": "#/$defs/a~1b"}, "3", 3),
        ({"$ref": "#/$defs/a~1b", "description": "."}, "x", "x"),
        ({"$ref": "#named"}, "true", True),
        ({"$ref": "#/$defs/Nothing"}, "3", "3"),
        ({"$ref": "https://example.org/other.json"}, "3", "3"),
        ({"anyOf": [{"$ref": "#/$defs/Count"}, {"type": "null"}]}, "3", 3),
        ({"anyOf": [{"$ref": "#/$defs/Count"}, {"type": "null"}]}, "null", None),
        ({"anyOf": [{"$ref": "#/$defs/Count"}, {}]}, "3", "3"),
        ({"allOf": [{"type": "integer"}, {"minimum": 1}]}, "3", 3),
        ({"allOf": [{"type": ["integer", "string"]}, {"type": ["integer", "null"]}]}, "3", 3),
        ({"enum": [1, 2]}, "2", 2),
        ({"enum": [1, 2]}, "3", 3),
        ({"enum": ["1", "2"]}, "2", "2"),
        ({"enum": [1, "2"]}, "1", 1),
        ({"enum": [1, "2"]}, "2", "2"),
        ({"enum": [1, "2"]}, "3", "3"),
        ({"$ref": "#/$defs/Size"}, "2", 2),
        ({"enum": [True, None]}, "true", True),
        ({"enum": ["a", None]}, "None", None),
        ({"enum": [[1], {"a": 1}]}, "[1]", [1]),
        ({"const": 7}, "7", 7),
        ({"const": False}, "False", False),
        ({"const": "7"}, "7", "7"),
        ({"oneOf": [{"const": 1}, {"const": 2}]}, "2", 2),
        ({"not": {"type": "string"}}, "3", 3),
        ({"if": {}, "then": {"type": "integer"}, "else": {"type": "boolean"}}, "3", 3),
        ({"if": {}, "then": {"type": "integer"}}, "3", "3"),
        ({"properties": {"x": {}}}, '{"x": 1}', '{"x": 1}'),
    ],
)
@pytest.mark.parametrize("format", ["qwen3_coder", "glm"])
def test_all_of_json_schema_that_says_a_type_counts(
    schema: Any, text: str, value: Any, format: Any
) -> None:
    tool = {"name": "f", "parameters": {"properties": {"a": schema}, "$defs": DEFINITIONS}}
    assert repr(_argument(format, [tool], text)) == repr(value)


@pytest.mark.parametrize(
    "parameters",
    [
        {"$ref": "#/$defs/Args", "$defs": {"Args": {"properties": {"a": {"type": "integer"}}}}},
        {"allOf": [{"properties": {"a": {}}}, {"properties": {"a": {"const": 3}}}]},
        {"anyOf": [{"properties": {"a": {"enum": [3]}}}, {"properties": {"b": {}}}]},
        {"patternProperties": {"^a": {"type": "integer"}}},
        {"additionalProperties": {"type": "integer"}},
    ],
)
def test_the_schema_of_a_parameter_is_found_where_json_schema_puts_it(parameters: Any) -> None:
    tool = {"name": "f", "parameters": parameters}
    assert _argument("qwen3_coder", [tool], "3") == 3


def _argument(format: Any, tools: Any, text: str) -> Any:
    call = {
        "qwen3_coder": f"<tool_call><function=f><parameter=a>{text}</parameter></function>",
        "glm": f"<tool_call>f<arg_key>a</arg_key><arg_value>{text}</arg_value>",
    }[format]
    (parsed,) = parse_tool_calls(call + "</tool_call>", format=format, tools=tools).calls
    return parsed.arguments["a"]


def test_a_schema_that_holds_itself_is_read_once() -> None:
    schema: dict[str, Any] = {"oneOf": [{"type": "integer"}]}
    schema["anyOf"] = [schema]
    nested: dict[str, Any] = {"type": "integer"}
    for _ in range(5000):
        nested = {"anyOf": [nested]}
    call = "<tool_call><function=f><parameter=a>3</parameter></function></tool_call>"
    for a in (schema, nested):
        tool = {"name": "f", "parameters": {"properties": {"a": a}}}
        (parsed,) = parse_tool_calls(call, format="qwen3_coder", tools=[tool]).calls
        assert parsed.arguments == {"a": 3}


def test_a_function_is_no_schema() -> None:
    with pytest.raises(TypeError) as caught:
        parse_tool_calls("", format="glm", tools=[{"name": "f"}, len])
    assert str(caught.value) == (
        "tools[1] is not a JSON schema but builtin_function_or_method\nhint: "
        "transformers.utils.get_json_schema returns the schema of a function"
    )


# ---- hostile text

PIECES = [
    "<tool_call>", "</tool_call>", "<function=f>", "</function>", "<parameter=a>", "</parameter>",
    "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
    "[TOOL_CALLS]", "f[ARGS]", "[CALL_ID]",
    "<|python_tag|>", "<|start|>assistant", "<|channel|>", " to=functions.f", "<|message|>",
    "<|call|>",
    '{"name": "f", "arguments": ', '{"name": "f"}', "{", "}", "[", "]", '"', "\\", ":", ",", ";",
    "\n", " ", "x", "é", "\ud83d", "NaN", "1e999", "\x00",
]  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join), st.sampled_from(FORMATS))
def test_nothing_that_a_model_writes_raises(text: str, format: Any) -> None:
    parsed = parse_tool_calls(text, format=format)
    edges = [edge for m in parsed.malformed for edge in (m.start, m.end)]
    assert edges == sorted(edges)
    assert all(isinstance(call.arguments, dict) for call in parsed.calls)
    json.dumps([call.arguments for call in parsed.calls], allow_nan=False)
    if not parsed.calls and not parsed.malformed and format != "harmony":
        assert parsed.content == text


UNITS = [
    *PIECES, '<tool_call>{"', "<tool_call>{ ", "<tool_call>f<arg_key>a</arg_key><arg_value>",
    "<tool_call><function=f><parameter=a>", '[TOOL_CALLS]f[ARGS]{"', "to=functions.f<|message|>{",
    '{"name": "f", "parameters": {}};', '<tool_call>{"a": "x", "b',
]  # fmt: skip
COUNT = 500


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("unit", UNITS)
def test_hostile_text_takes_linear_time(format: Any, unit: str) -> None:
    for head, tail in ("", ""), ("", "</tool_call>"), ('<tool_call>{"a": "', ""):

        def parse(count: int, head: str = head, tail: str = tail) -> ParsedCalls:
            return parse_tool_calls(head + unit * count + tail, format=format)

        assert is_linear(parse, COUNT), (head, tail)


def test_a_parser_that_is_not_linear_would_be_caught() -> None:
    """The negative control: it looks for the close of each of the unclosed tags."""
    naive = re.compile(r"<tool_call>(.|\n)*?</tool_call>").findall
    assert not is_linear(lambda count: naive("<tool_call>" * count), 100)


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ValueError, match="format='json': must be one of hermes, qwen3_coder, glm"):
        parse_tool_calls("", format="json")  # type: ignore[arg-type]


def test_a_schema_tells_keys_that_spell_a_mark() -> None:
    keys = {"b": "string", "a>b": "array", "a=c>": "string", 'd"e': "integer"}
    properties = {key: {"type": kind} for key, kind in keys.items()}
    function = {"name": "f", "parameters": {"type": "object", "properties": properties}}
    tools = [{"type": "function", "function": function}]

    def read(key: str, value: str) -> dict[str, Any]:
        text = f"<tool_call>\n<function=f>\n<parameter={key}>\n{value}\n</parameter>\n"
        text += "</function>\n</tool_call>"
        (call,) = parse_tool_calls(text, format="qwen3_coder", tools=tools).calls
        return call.arguments

    assert read("a>b", "[1]") == {"a>b": [1]}
    assert read("a=c>", "1") == {"a=c>": "1"}
    assert read("b", "b>\n[1]") == {"b": "b>\n[1]"}
    assert read("d&quot;e", "1") == {'d"e': 1}
    assert read("other>", "1") == {"other": ">\n1"}, "a key that no schema knows"


def test_a_key_that_begins_another_is_told_by_the_mark_or_malformed() -> None:
    properties = {key: {"type": "string"} for key in ("a", "a>b")}
    function = {"name": "f", "parameters": {"type": "object", "properties": properties}}
    tools = [{"type": "function", "function": function}]

    def read(parameter: str) -> Any:
        text = f"<tool_call>\n<function=f>\n<parameter={parameter}</parameter>\n"
        text += "</function>\n</tool_call>"
        found = parse_tool_calls(text, format="qwen3_coder", tools=tools)
        return [m.error for m in found.malformed] or found.calls[0].arguments

    assert read("a>b>\nx\n") == {"a>b": "x"}
    assert read("a>\nb>\nx\n") == {"a": "b>\nx"}
    assert read("a>x") == {"a": "x"}
    # Written without the mark's newline, both fit.
    assert read("a>b>x") == ["character 36: the parameter may be 'a' or 'a>b'"]
