"""Thinking apart from action, in the format that a template writes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abut.errors import TemplateError
from abut.template.processor import ChatTemplateProcessor
from abut.template.thinking import ThinkingFormat, find_thinking, split_thinking
from tests.kit.data.templates import CALLS_BEHIND_THINKING, CHATML, TAGS_ALIKE, tiny_tokenizer
from tests.kit.data.trl_templates import TRL, completion, generation_prompt, renderer, with_template
from tests.kit.growth import is_linear

needs_trl = pytest.mark.skipif(not TRL, reason="TRL, which ships the templates, is not installed")

THINK = ("<think>", "</think>")
GEMMA = ("<|channel>thought", "<channel|>")
HARMONY = ("<|channel|>analysis<|message|>", "<|end|>")
ATEM = (" to=self<|message|>", "<|eom|>")


def expected(name: str) -> tuple[str, str]:
    families = {"gemma4": GEMMA, "diffusion_gemma": GEMMA, "gptoss": HARMONY, "muse": ATEM}
    return next((tags for start, tags in families.items() if name.startswith(start)), THINK)


@needs_trl
@pytest.mark.parametrize("name", sorted(TRL))
def test_every_template_of_trl_shows_its_thinking_format(hf_tokenizer: Any, name: str) -> None:
    render = renderer(with_template(hf_tokenizer, TRL[name]))
    prompt = generation_prompt(render)
    found = find_thinking(render, prompt)
    assert (found.open, found.close) == expected(name)
    assert found.opened == prompt.rstrip().endswith("<think>")
    assert bool(found.restart) == name.startswith(("gptoss", "muse"))


WRITES_THINKING = [
    name
    for name in sorted(TRL)
    if name.startswith(("gptoss", "muse", "glm", "nemotron", "lfm2_2_5", "qwen3", "gemma4_v5"))
    and not name.startswith(("qwen3_instruct", "qwen3_vl"))
]


@needs_trl
@pytest.mark.parametrize("name", WRITES_THINKING)
def test_what_a_template_writes_is_taken_apart_again(hf_tokenizer: Any, name: str) -> None:
    render = renderer(with_template(hf_tokenizer, TRL[name]), enable_thinking=True)
    found = find_thinking(render, generation_prompt(render))
    fields = dict.fromkeys(("reasoning_content", "thinking"), "Is it?\nIt is.")
    written = completion(render, {"content": "Yes\n\nit is.", **fields})
    reasoning, action = found.split(written)
    assert reasoning == "Is it?\nIt is."
    assert action.startswith("Yes\n\nit is.")
    assert "Is it?" not in action
    cut = written[: written.index("It is.")]
    assert found.split(cut) == ("Is it?", "")
    thought = written.partition("It is.")[0] + "It is."
    assert written.startswith(thought + found.closing(thought) + "Yes")
    assert found.closing(written) == ""


@pytest.mark.parametrize("opened", [False, True])
def test_where_the_generation_prompt_has_closed_its_thinking_there_is_none(opened: bool) -> None:
    tail = "<think>\n" + "" if opened else "<think>\n\n</think>\n\n"
    template = CHATML.replace("assistant\n'", f"assistant\n{tail}'".replace("\n", "\\n"))
    processor = ChatTemplateProcessor(tiny_tokenizer(template))
    answered = ("", "go") if not opened else ("go", "")
    assert processor.parse_agent_output("go") == answered


@pytest.mark.parametrize("opened", [True, False], ids=["on", "off"])
def test_no_tag_is_cut_where_another_one_begins_alike(opened: bool) -> None:
    processor = ChatTemplateProcessor(tiny_tokenizer(TAGS_ALIKE), enable_thinking=opened)
    found = processor.thinking
    assert (found.open, found.close, found.opened) == ("<think>", "</think>", opened)
    assert found.between == "</think>"
    if opened:
        assert processor.parse_agent_output("1 < 2, <b> too</think>Paris.") == (
            "1 < 2, <b> too",
            "Paris.",
        )
        assert processor.parse_agent_output("1 < 2, <b> t") == ("1 < 2, <b> t", "")
        assert processor.close_thinking("1 < 2, <b> t") == ["</think>"]
    else:
        assert processor.parse_agent_output("Paris.") == ("", "Paris.")
        assert processor.parse_agent_output("1 < 2") == ("", "1 < 2")
        assert processor.close_thinking("Par") == []


def test_calls_are_found_where_the_generation_prompt_has_opened_thinking() -> None:
    """`<think>` and `<tool_call>` begin alike."""
    processor = ChatTemplateProcessor(tiny_tokenizer(CALLS_BEHIND_THINKING))
    call = '<tool_call>\n{"name": "look", "arguments": {"where": "here"}}\n</tool_call>'
    assert processor.parse_agent_output(f"why</think>\n\n{call}") == ("why", call)
    (found,) = processor.parse_tool_calls(call).calls
    assert (found.name, found.arguments) == ("look", {"where": "here"})


FAMILIES = {
    "Command A Reasoning": (
        "{% if m.reasoning_content %}<|START_THINKING|>{{ m.reasoning_content }}<|END_THINKING|>"
        "{% endif %}<|START_RESPONSE|>{{ m.content }}<|END_RESPONSE|>",
        "<|START_THINKING|>why<|END_THINKING|><|START_RESPONSE|>go",
    ),
    "Magistral": (
        "{% if m.content is string %}{{ m.content }}{% else %}{% for b in m.content %}"
        "{{ '[THINK]' + b.thinking + '[/THINK]' if b.type == 'thinking' else b.text }}"
        "{% endfor %}{% endif %}",
        "[THINK]why[/THINK]go",
    ),
    "Seed-OSS": (
        "{% if m.reasoning_content %}<seed:think>{{ m.reasoning_content }}</seed:think>{% endif %}"
        "{{ m.content }}",
        "<seed:think>why</seed:think>go",
    ),
    "SmolLM3": ("{{ m.content }}", "<think>\nwhy\n</think>\ngo"),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_other_families_show_theirs_too(family: str) -> None:
    answer, sampled = FAMILIES[family]
    template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
        f"{{% if m.role == 'assistant' %}}{answer}{{% else %}}{{{{ m.content }}}}{{% endif %}}"
        "{{ '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    found = find_thinking(renderer(tiny_tokenizer(template)), "<|im_start|>assistant\n")
    assert found.split(sampled) == ("why", "go")
    assert found.split(sampled.partition("why")[0] + "why") == ("why", "")


HARMONY_FORMAT = ThinkingFormat(
    *HARMONY,
    "<|end|><|start|>assistant<|channel|>final<|message|>",
    "<|channel|>final<|message|>",
    "<|start|>assistant",
)
CALL = " to=functions.f<|channel|>commentary json<|message|>{}"


@pytest.mark.parametrize(
    ("completion", "reasoning", "action"),
    [
        ("<|channel|>final<|message|>go", "", "go"),
        ("<|channel|>analysis<|message|>why", "why", ""),
        ("<|channel|>analysis", "", ""),
        (f"<|channel|>analysis<|message|>why<|end|><|start|>assistant{CALL}", "why",
         f"<|start|>assistant{CALL}"),
        ("<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b"
         "<|end|><|start|>assistant<|channel|>final<|message|>go", "a\n\nb", "go"),
        ("<|channel|>analysis to=python code<|message|>1+1", "",
         "<|channel|>analysis to=python code<|message|>1+1"),
        ("<|channel|>commentary<|message|>I look.<|end|>", "",
         "<|channel|>commentary<|message|>I look.<|end|>"),
        ("no header", "", "no header"),
        ("", "", ""),
    ],
)  # fmt: skip
def test_messages_of_gpt_oss(completion: str, reasoning: str, action: str) -> None:
    assert HARMONY_FORMAT.split(completion) == (reasoning, action)


def test_thinking_that_the_prompt_opened_in_a_message_is_thinking() -> None:
    opened = ThinkingFormat(*HARMONY, "", "<|channel|>final<|message|>", "<|start|>assistant", True)
    assert opened.split("why") == ("why", "")
    rest = "<|end|><|start|>assistant<|channel|>final<|message|>go"
    assert opened.split("why" + rest) == ("why", "go")


@given(st.lists(st.sampled_from(["<think>", "</think>", "secret", "\n", " "]), max_size=8))
def test_no_thinking_reaches_the_env(pieces: list[str]) -> None:
    """Nothing of a thought that comes first, closed or cut, is in the action."""
    thought = "".join(pieces).partition("</think>")[0]
    assert split_thinking("<think>" + thought)[1] == ""
    assert split_thinking("<think>" + thought + "</think>go")[1] == "go"
    assert split_thinking("go" + "".join(pieces).replace("</think>", ""))[0] == ""  # the control


@pytest.mark.parametrize(
    ("completion", "reasoning", "action"),
    [
        ("<think>a</think><think>b</think>c", "a\n\nb", "c"),
        ("<think>a</think>\n\n <think>\nb\n</think>\n\n c", "a\n\nb", " c"),
        ("<think>a</think><think>b", "a\n\nb", ""),
        ("a</think><think></think>c", "a", "c"),
        ("<think>a<think>b</think>c</think>d", "a<think>b", "c</think>d"),
        ("<think>a</think>c<think>b</think>", "a", "c<think>b</think>"),
    ],
)
def test_all_thinking_that_comes_first_is_reasoning(
    completion: str, reasoning: str, action: str
) -> None:
    assert split_thinking(completion) == (reasoning, action)
    assert split_thinking(completion, opened=True) == (reasoning, action)


@pytest.mark.parametrize(
    ("completion", "closing"),
    [
        ("<think>why</think><think>\nwhy", "\n</think>\n\n"),
        ("<think>\nwhy", "\n</think>\n\n"),
        ("<think>\nwhy\n</think>\n\ngo", ""),
        ("go", ""),
        ("", ""),
    ],
)
def test_closing_is_for_thinking_that_was_cut(completion: str, closing: str) -> None:
    assert ThinkingFormat().closing(completion) == closing
    inside = ThinkingFormat(opened=True).closing(completion)
    assert inside == (closing if "</think>" in completion else "\n</think>\n\n")


def test_the_processor_splits_and_closes_in_the_format_of_its_template() -> None:
    processor = ChatTemplateProcessor(tiny_tokenizer(CHATML))
    assert processor.close_thinking("<think>\nwh") == ["\n</think>\n\n"]
    assert processor.close_thinking("go") == []


def test_a_template_that_refuses_the_probes_has_the_common_format() -> None:
    def refuse(*args: Any, **options: Any) -> str:
        raise TemplateError("no")

    assert find_thinking(refuse, "") == ThinkingFormat()


@pytest.mark.parametrize(
    "unit",
    ["<think>", "</think>", "<think> </think> ", "<|start|>assistant", "<|message|>", "\n"],
)
@pytest.mark.parametrize("format", [ThinkingFormat(), ThinkingFormat(opened=True), HARMONY_FORMAT])
def test_hostile_completions_take_linear_time(format: ThinkingFormat, unit: str) -> None:
    def read(count: int) -> None:
        format.split(unit * count)
        format.closing(unit * count)

    assert is_linear(read, 5_000)


def test_where_thinking_shows_only_before_a_call_its_close_is_one_tag() -> None:
    """What begins the call is no close of thinking, though it stands between the two."""
    template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
        "{% if m.tool_calls %}{{ '[THINK]' + (m.reasoning_content or '') + '[/THINK]' }}"
        '{% for c in m.tool_calls %}{{ \'[ACT]{"id": "0", "name": "\' + c.function.name }}'
        "{{ '\"}' }}{% endfor %}{% elif m.role == 'assistant' %}{{ '[SAY]' + m.content }}"
        "{% else %}{{ m.content }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    processor = ChatTemplateProcessor(tiny_tokenizer(template))
    assert (processor.thinking.open, processor.thinking.close) == ("[THINK]", "[/THINK]")
    assert processor.parse_agent_output("[THINK]why[/THINK][SAY]go") == ("why", "go")
    assert processor.parse_agent_output("[SAY]go") == ("", "go")


def test_a_header_that_stands_before_every_answer_is_no_action() -> None:
    template = CHATML.replace("m.content", "('all\n' if m.role == 'assistant' else '') + m.content")
    processor = ChatTemplateProcessor(tiny_tokenizer(template))
    assert processor.parse_agent_output("all\ngo") == ("", "go")
    assert processor.parse_agent_output("go all\n") == ("", "go all\n")


def test_a_system_prompt_that_changes_with_the_answer_is_no_thinking() -> None:
    """As Muse's, which names those whom the conversation speaks to."""
    template = (
        "{% for m in messages %}{% if m.reasoning_content %}{{ 'Recipients: self' }}{% endif %}"
        "{% endfor %}{{ 'Recipients: user' }}"
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
        "{% if m.reasoning_content %}{{ '<think>' + m.reasoning_content + '</think>' }}{% endif %}"
        "{{ m.content + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    found = find_thinking(renderer(tiny_tokenizer(template)), "<|im_start|>assistant\n")
    assert (found.open, found.close) == ("<think>", "</think>")


OTHER_CLOSE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.reasoning_content %}{{ '<think>' + m.reasoning_content }}"
    "{{ '<|act|>' if m.tool_calls else '<|out|>' }}{% endif %}{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}{{ '<tool_call>' + (c.function | tojson) + '</tool_call>' }}"
    "{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def test_thinking_may_end_otherwise_before_calls_than_before_answers() -> None:
    tags = ("<|im_start|>", "<|im_end|>", "<think>", "<|act|>", "<|out|>", "<tool_call>")
    processor = ChatTemplateProcessor(tiny_tokenizer(OTHER_CLOSE, *tags))
    assert processor.parse_agent_output("<think>hm<|out|>yes") == ("hm", "yes")
    said = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    reasoning, action = processor.parse_agent_output(f"<think>hm<|act|>{said}")
    parsed = processor.parse_tool_calls(action)
    assert (reasoning, parsed.content, parsed.malformed) == ("hm", "", ())
    assert [(call.name, call.arguments) for call in parsed.calls] == [("f", {"a": 1})]
    assert processor.parse_agent_output("<think>hm<|out|>a <|act|>") == ("hm", "a <|act|>")


def test_a_header_that_does_not_end_loses_no_text() -> None:
    messages = ThinkingFormat(
        "<|channel|>analysis<|message|>",
        "<|end|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
        "<|channel|>final<|message|>",
        "<|start|>assistant",
    )
    thought = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
    assert messages.split(f"{thought}<|channel|>final Sorry, no.") == ("hm", "Sorry, no.")
    assert messages.split("<|channel|>final Sorry.") == ("", "Sorry.")
    assert messages.split("<|channel|>analysis We need") == ("We need", "")
    assert messages.split(f"{thought}<|channel|>final") == ("hm", "")


# As Command R7B: thinking stands before calls alone, empty or not, and the prompt opens none.
THINKS_BEFORE_CALLS = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.tool_calls %}"
    "{{ '<think>' + (m.reasoning_content or '') + '</think><tool_call>' }}"
    "{{ m.tool_calls[0].function | tojson }}"
    "{% else %}{{ m.content }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{{ '' if enable_thinking else '<think></think>' }}{% endif %}"
)


@pytest.mark.parametrize("enable_thinking", [True, False])
@pytest.mark.parametrize("thought", ["", "Look it up."])
def test_calls_behind_thinking_are_read(enable_thinking: bool, thought: str) -> None:
    tokenizer = tiny_tokenizer(THINKS_BEFORE_CALLS)
    processor = ChatTemplateProcessor(tokenizer, enable_thinking=enable_thinking)
    call = '<tool_call>{"name": "look", "arguments": {"key": "value"}}'
    for written in (f"<think>{thought}</think>{call}", call):
        reasoning, action = processor.parse_agent_output(written)
        parsed = processor.parse_tool_calls(action)
        assert parsed.malformed == ()
        assert [(c.name, c.arguments) for c in parsed.calls] == [("look", {"key": "value"})]
        assert reasoning == (thought if "<think>" in written else "")
