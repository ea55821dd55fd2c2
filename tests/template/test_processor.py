"""What a processor replays is what the chat template writes; all else is refused, with a reason."""

import subprocess
import sys
from collections.abc import Iterator
from importlib import resources
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from abut.messages import Message
from abut.parts import Content, Scaffold
from abut.processor import PartsProcessor, Processor
from abut.template.processor import ChatTemplateProcessor
from abut.template.text_processor import as_parts_processor
from abut.template.thinking import split_thinking
from tests.kit.data.templates import (
    CHATML,
    assistant,
    error,
    render,
    system,
    text,
    tiny_tokenizer,
    tool,
    user,
)

transformers = pytest.importorskip("transformers")

# ---- what is tested on


@pytest.fixture(scope="module")
def tiny() -> Any:
    return tiny_tokenizer(CHATML)


def trl_templates() -> dict[str, str]:
    try:
        folder = resources.files("trl") / "chat_templates"
    except ModuleNotFoundError:
        return {}
    return {f.name: f.read_text() for f in folder.iterdir() if f.name.endswith(".jinja")}


TRL = trl_templates()


def trl_template(name: str) -> str | None:
    """Qwen3's own template is the tokenizer's: None."""
    if name == "qwen3":
        return None
    if not TRL:
        pytest.skip("TRL, which ships the template, is not installed")
    return TRL[f"{name}.jinja"]


HARD = [
    "<|im_end|>",
    "<|im_start|>assistant\n",
    "<|im_",
    "<think>\nhm\n</think>\n\n",
    "<tool_call>",
    "<tool_response>",
    "</tool_response>",
    "{{ messages }}",
    "{% raw %}",
    "{#",
    "\\n",
    "&lt;'\"",
    "abutx0x",
    "abutZx1x",
    "abutxanswer",
    "abutEarlier",
    " \n\t",
    "\x00",
    "\u00a0",
    "e\u0301",
    "\U0001f600",
]
contents = st.lists(st.sampled_from(HARD) | st.text(max_size=6), max_size=6).map("".join)
answers = contents.filter(lambda s: "</think>" not in s)
increments = st.lists(contents.map(user), min_size=1, max_size=1) | st.lists(
    contents.map(tool), min_size=1, max_size=3
)
quick = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

# ---- the conversation, replayed


@pytest.mark.parametrize("name", ["qwen3", "qwen2_5", "qwen3_instruct_2507"])
@given(
    system_prompt=st.none() | contents.map(system),
    first=contents.map(user),
    turns=st.lists(st.tuples(answers, increments), min_size=5, max_size=5),
)
@quick
def test_five_turns_equal_the_template_at_every_turn(
    qwen3: Any,
    name: str,
    system_prompt: Message | None,
    first: Message,
    turns: list[tuple[str, list[Message]]],
) -> None:
    template = trl_template(name)
    processor = cached_processor(qwen3, template)
    messages = [*([system_prompt] if system_prompt else []), first]
    written = text(processor.opening(messages))
    assert written == render(qwen3, messages, chat_template=template)
    for answer, new in turns:
        messages += [assistant(answer), *new]
        written += answer + text(processor.closing()) + text(processor.increment(new))
        assert written == render(qwen3, messages, chat_template=template)


_processors: dict[object, ChatTemplateProcessor] = {}


def cached_processor(tokenizer: Any, template: str | None, **kwargs: Any) -> ChatTemplateProcessor:
    key = (id(tokenizer), template, *kwargs.items())
    if key not in _processors:
        _processors[key] = ChatTemplateProcessor(tokenizer, chat_template=template, **kwargs)
    return _processors[key]


EMPTY_BLOCK = "<think>\n\n</think>\n\n"


@given(turns=st.lists(st.tuples(answers, increments), min_size=5, max_size=5))
@quick
def test_without_thinking_the_increments_are_the_template_s_own(
    qwen3: Any, turns: list[tuple[str, list[Message]]]
) -> None:
    processor = cached_processor(qwen3, None, enable_thinking=False)
    messages = [user()]
    theirs = render(qwen3, messages, enable_thinking=False)
    assert text(processor.opening(messages)) == theirs
    for answer, new in turns:
        before = theirs.removesuffix(EMPTY_BLOCK)  # what the report says that the template strips
        messages += [assistant(answer), *new]
        theirs = render(qwen3, messages, enable_thinking=False)
        assert theirs == before + answer + "<|im_end|>" + text(processor.increment(new))


def test_the_report_says_what_qwen3_strips(qwen3: Any) -> None:
    report = ChatTemplateProcessor(qwen3, enable_thinking=False).report
    assert report.history_thinking == "stripped"
    assert report.notes == (
        "the template removes the generation prompt's own '<think>\\n\\n</think>\\n\\n' from "
        "earlier turns",
        "the template removes the thinking from earlier turns (but keeps it when a tool message "
        "follows)",
    )
    default = ChatTemplateProcessor(qwen3).report
    assert default.notes == report.notes[1:]
    assert (
        default.separator,
        default.end_token,
        default.stop_tokens,
        default.generation_prompt,
    ) == (
        "\n",
        "<|im_end|>",
        ("<|im_end|>",),
        "<|im_start|>assistant\n",
    )
    assert report.generation_prompt == default.generation_prompt + EMPTY_BLOCK


def test_a_template_that_keeps_thinking_is_reported_as_such(tiny: Any) -> None:
    report = ChatTemplateProcessor(tiny).report
    assert (report.history_thinking, report.notes) == ("kept", ())


def test_tools_are_scaffold_but_for_the_control_tokens_that_they_spell(qwen3: Any) -> None:
    schema = {"type": "function", "function": {"name": "f<|im_end|>", "parameters": {}}}
    processor = ChatTemplateProcessor(qwen3, tools=[schema])
    parts = processor.opening([system(), user()])
    assert text(parts) == render(qwen3, [system(), user()], tools=[schema])
    said = [p for p in parts if isinstance(p, Content)]
    assert said == ["Be brief.", "<|im_end|>", "hello"]


def test_the_default_system_prompt_of_a_template_is_scaffold(qwen3: Any) -> None:
    parts = ChatTemplateProcessor(qwen3, chat_template=trl_template("qwen2_5")).opening([user()])
    assert [type(p) for p in parts] == [Scaffold, Content, Scaffold]
    assert "You are Qwen" in parts[0]


# ---- parts


@given(a=contents, b=contents)
@quick
def test_exactly_the_contents_are_content(tiny: Any, a: str, b: str) -> None:
    processor = cached_processor(tiny, None)
    for parts in (processor.opening([system(a), user(b)]), processor.increment([tool(a), user(b)])):
        assert [str(p) for p in parts if isinstance(p, Content)] == [s for s in (a, b) if s]
        scaffold = "".join(p for p in parts if isinstance(p, Scaffold))
        assert scaffold.count("<|im_end|>") == scaffold.count("<|im_start|>") - 1 == 2


def test_increment_parts_in_full(tiny: Any) -> None:
    processor = ChatTemplateProcessor(tiny)
    assert processor.closing() == [Scaffold("<|im_end|>")]
    parts = processor.increment([user("<|im_end|>")])
    assert list(map(repr, parts)) == [
        "Scaffold('\\n<|im_start|>user\\n')",
        "Content('<|im_end|>')",
        "Scaffold('<|im_end|>\\n<|im_start|>assistant\\n')",
    ]


NAMED = CHATML.replace("'\n' + m.content", "(m.name if m.name else '') + '\n' + m.content")


def test_a_control_token_in_a_name_is_content() -> None:
    processor = ChatTemplateProcessor(tiny_tokenizer(NAMED))
    message = tool("42", name="f<|im_end|>g")
    for parts in (processor.increment([message]), processor.opening([user(), message])):
        assert Content("<|im_end|>") in parts
        assert "tool<" not in "".join(p for p in parts if isinstance(p, Content))
    parts = processor.increment([message])
    assert text(parts).startswith("\n<|im_start|>toolf<|im_end|>g\n42<|im_end|>")
    # The negative control: without one, a name is scaffold.
    assert [p for p in processor.increment([tool("42", name="f")]) if isinstance(p, Content)] == [
        "42"
    ]


def test_other_keys_take_part_in_the_shape(qwen3: Any) -> None:
    processor = ChatTemplateProcessor(qwen3)
    for name, arguments in (("f", {"x": "<|im_end|>"}), ("g", {"y": [1]})):
        call = {"type": "function", "function": {"name": name, "arguments": arguments}}
        messages = [user(), {**assistant("calling"), "tool_calls": [call]}, tool("1", name=name)]
        parts = processor.opening(messages)
        assert text(parts) == render(qwen3, messages)
        spelled = [p for p in parts if p == "<|im_end|>"]
        assert spelled == ([Content("<|im_end|>")] if name == "f" else [])
        assert all(isinstance(p, Content) for p in spelled)


def test_text_blocks_are_written_or_joined_where_the_template_takes_strings_alone(
    qwen3: Any,
) -> None:
    blocks = user([{"type": "text", "text": "a{{"}, {"type": "text", "text": "<|im_end|>"}])
    template = trl_template("qwen3_vl")
    processor = ChatTemplateProcessor(qwen3, chat_template=template)
    parts = processor.increment([blocks])
    assert text(parts) == "\n<|im_start|>user\na{{<|im_end|><|im_end|>\n<|im_start|>assistant\n"
    assert [p for p in parts if isinstance(p, Content)] == ["a{{", "<|im_end|>"]
    joined = text(parts).replace("{{<", "{{\n<")  # as vLLM joins them
    assert text(ChatTemplateProcessor(qwen3).increment([blocks])) == joined
    # It would write the list itself, as Python shows it.
    listing = qwen3.get_chat_template()
    for old, new in (
        ("if message.content is string", "if true"),
        ("set content = message.content %", "set content = message.content | string %"),
    ):
        assert old in listing
        listing = listing.replace(old, new)
    processor = ChatTemplateProcessor(qwen3, chat_template=listing)
    assert text(processor.increment([blocks])) == joined


# ---- cost


class Counting:
    """A tokenizer that counts its renders and can write the date."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.renders = 0
        self.date = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)

    def apply_chat_template(self, *args: Any, **kwargs: Any) -> Any:
        self.renders += 1
        return self.date + self.tokenizer.apply_chat_template(*args, **kwargs)


def test_a_known_shape_is_not_rendered_again(tiny: Any) -> None:
    counting = Counting(tiny)
    processor = ChatTemplateProcessor(counting)
    counting.renders = 0
    for i in range(10):
        processor.increment([user(f"turn {i}")])
    assert counting.renders == 0
    processor.increment([tool()])
    assert counting.renders > 0


def test_an_opening_is_rendered_once_for_each_prompt(tiny: Any) -> None:
    counting = Counting(tiny)
    processor = ChatTemplateProcessor(counting)
    processor.opening([user("first")])
    counting.renders = 0
    for content in ("a", "b", "a", "a"):
        processor.opening([user(content)])
    assert counting.renders == 2


def test_a_cached_opening_cannot_be_changed_by_its_reader(tiny: Any) -> None:
    processor = ChatTemplateProcessor(tiny)
    processor.opening([user()]).clear()
    assert text(processor.opening([user()])) == render(tiny, [user()])


def test_a_template_that_writes_the_date_survives_midnight(tiny: Any) -> None:
    counting = Counting(tiny)
    counting.date = "Monday\n"
    processor = ChatTemplateProcessor(counting)
    assert text(processor.opening([user("a")])).startswith("Monday")
    counting.date = "Tuesday\n"
    assert text(processor.opening([user("b")])).startswith("Tuesday")


def test_messages_that_are_not_json_work_without_being_remembered(tiny: Any) -> None:
    processor = ChatTemplateProcessor(tiny)
    row = {**user(), "row": {1, 2}}
    assert text(processor.opening([row])) == render(tiny, [user()])
    assert text(processor.increment([row])) == processor.append_user_input("hello")


# ---- stop tokens, and the text methods


def test_stop_tokens_begin_with_the_template_s_own() -> None:
    tokenizer = tiny_tokenizer(CHATML)
    tokenizer.eos_token = "</think>"
    processor = ChatTemplateProcessor(tokenizer)
    close, eos = tokenizer.convert_tokens_to_ids(["<|im_end|>", "</think>"])
    assert processor.close_token_id == close
    assert processor.stop_token_ids == (close, eos)
    more = processor.with_stop_token_ids([eos, 7])
    assert more.stop_token_ids == (close, eos, 7)
    assert more.report.stop_tokens == ("<|im_end|>", "</think>", tokenizer.convert_ids_to_tokens(7))
    assert processor.stop_token_ids == (close, eos)


def test_text_methods_join_to_the_opening(tiny: Any) -> None:
    processor = ChatTemplateProcessor(tiny)
    assert processor.init_system_input("S") == "<|im_start|>system\nS<|im_end|>"
    assert processor.append_user_input("U") == (
        "\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"
    )
    joined = processor.init_system_input("S") + processor.append_user_input("U")
    assert joined == render(tiny, [system("S"), user("U")])


@pytest.mark.parametrize(
    ("completion", "reasoning", "action"),
    [
        ("go north", "", "go north"),
        (" go \n", "", " go \n"),
        ("go<|im_end|>", "", "go"),
        ("<think>\nwhy\n</think>\n\ngo", "why", "go"),
        ("\n<think>why</think> go \n", "why", " go "),
        ("<think>\n\n</think>\n\ngo<|im_end|>", "", "go"),
        ("why\n</think>\n\ngo", "why", "go"),
        ("<think>\nwhy", "why", ""),
        ("<think>a</think>b</think>c", "a", "b</think>c"),
        ("go <think>why</think>", "", "go <think>why</think>"),
        ("", "", ""),
    ],
)
def test_thinking_is_kept_from_the_action(
    tiny: Any, completion: str, reasoning: str, action: str
) -> None:
    assert cached_processor(tiny, None).parse_agent_output(completion) == (reasoning, action)


def test_thinking_opened_by_the_generation_prompt() -> None:
    processor = ChatTemplateProcessor(
        tiny_tokenizer(CHATML.replace("assistant\n'", "assistant\n<think>\n'"))
    )
    assert processor.parse_agent_output("why</think>go") == ("why", "go")
    assert processor.parse_agent_output("cut while think") == ("cut while think", "")
    assert processor.report.history_thinking == "kept"


@given(contents.filter(lambda action: not action.lstrip().startswith("<think>")))
def test_no_character_of_an_action_is_lost(action: str) -> None:
    assert split_thinking("<think>\nr\n</think>" + action) == ("r", action.strip("\r\n"))


# ---- refusals, each error text once


def test_a_tokenizer_without_template_is_refused() -> None:
    assert error(ChatTemplateProcessor, tiny_tokenizer(None)) == (
        "the tokenizer '' has no chat template\n"
        "hint: use the chat model's tokenizer, or ChatTemplateProcessor(…, chat_template=…)"
    )


def test_an_increment_that_depends_on_the_history_is_refused() -> None:
    counted = CHATML.replace("'\n' + m.content", "'\n' + loop.index|string + m.content")
    assert error(ChatTemplateProcessor, tiny_tokenizer(counted)) == (
        "the template's text for [user] depends on the history: after [user, assistant, user, "
        "assistant, user, assistant] it differs from the text after [user, assistant]: "
        "'<|im_end|>\\n<|im_start|>user\\n7abutx0x<|im_end|>\\n<|im_start|>assistant\\n' "
        "against "
        "'<|im_end|>\\n<|im_start|>user\\n3abutx0x<|im_end|>\\n<|im_start|>assistant\\n'\n"
        "hint: abut cannot append to such a template exactly; pass another one: "
        "processor=ChatTemplateProcessor(tokenizer, chat_template=…)"
    )


@pytest.mark.parametrize(
    "condition",
    [
        "messages[0].role == 'system'",
        "'</think>' in messages[loop.index0 - 1].content",
        "messages[loop.index0 - 2].role == 'tool'",
        "messages|length > 4",
    ],
)
def test_every_kind_of_history_is_tried(condition: str) -> None:
    template = CHATML.replace(
        "{% for m in messages %}",
        "{% for m in messages %}{% if not loop.first and " + condition + " %}!{% endif %}",
    )
    assert "depends on the history" in error(ChatTemplateProcessor, tiny_tokenizer(template))


def test_a_template_without_a_closing_control_token_is_refused() -> None:
    tokenizer = tiny_tokenizer(CHATML, "<|im_start|>")
    assert error(ChatTemplateProcessor, tokenizer) == (
        "after the last answer the template writes '<|im_end|>\\n', which does not begin with "
        "a control token of this tokenizer, so abut cannot tell where a turn ends\nhint: use "
        "the tokenizer that belongs to the template, or a template that closes each turn with "
        "one added token"
    )


def test_a_turn_closed_only_at_the_end_is_refused() -> None:
    template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant{% else %}<|im_end|>{% endif %}"
    )
    assert error(ChatTemplateProcessor, tiny_tokenizer(template)) == (
        "before [user] the template does not close the turn with '<|im_end|>': it writes "
        "'<|im_start|>userabutSaid<|im_start|>assistant'\nhint: abut cannot append to such a "
        "template exactly; pass another one: processor=ChatTemplateProcessor(tokenizer, "
        "chat_template=…)"
    )


def test_an_answer_that_is_not_written_once_is_refused() -> None:
    template = CHATML.replace("m.content", "m.content + m.content")
    assert error(ChatTemplateProcessor, tiny_tokenizer(template)) == (
        "the template writes the answer of message 1 (assistant) 2 times\n"
        "hint: pass a template that writes the answer of assistant messages once: "
        "processor=ChatTemplateProcessor(tokenizer, chat_template=…)"
    )


def test_what_a_template_raises_is_said() -> None:
    template = "{{ raise_exception('no chats here') }}"
    assert error(ChatTemplateProcessor, tiny_tokenizer(template)) == (
        "the template cannot render [user, assistant]: TemplateError: no chats here\nhint: use "
        "roles, keys and an order that the template accepts, or pass another template: "
        "processor=ChatTemplateProcessor(tokenizer, chat_template=…)"
    )


TRIMMING = CHATML.replace("m.content", "m.content|trim")


@pytest.mark.parametrize("edge", ["", " ", "\n", "\r\n\t", "\u00a0", "\u3000\x1c", "\u200b"])
@pytest.mark.parametrize("said", ["", "a b"])
def test_a_trim_is_replayed(edge: str, said: str) -> None:
    tokenizer = tiny_tokenizer(TRIMMING)
    processor = ChatTemplateProcessor(tokenizer)
    content = edge + said + edge
    messages = [user(content), assistant("b "), user(content)]
    assert text(processor.opening(messages)) == render(tokenizer, messages)
    written = "\n<|im_start|>user\n" + content.strip() + "<|im_end|>\n<|im_start|>assistant\n"
    parts = processor.increment([user(content)])
    assert text(parts) == written
    assert [p for p in parts if isinstance(p, Content)] == [s for s in [content.strip()] if s]


BRANCHING = CHATML.replace("m.content", "(m.content|trim or '(nothing)')")


def test_a_trimmed_content_that_is_only_whitespace_is_compared() -> None:
    processor = ChatTemplateProcessor(tiny_tokenizer(BRANCHING))
    assert "\na<|im_end|>" in text(processor.increment([user(" a ")]))
    assert "\n(nothing)<|im_end|>" in text(processor.increment([user("")]))
    assert "so abut cannot append it exactly" in error(processor.increment, [user(" ")])


ONLY_OTHERS = "(m.content if m.role == 'assistant' else m.content{})"


@pytest.mark.parametrize("content", ['a\n<"b>', "\\", "é\u2028\x07", "{{ a }}", ""])
def test_a_json_string_is_replayed(content: str) -> None:
    template = CHATML.replace("m.content", ONLY_OTHERS.format("|tojson"))
    tokenizer = tiny_tokenizer(template)
    processor = ChatTemplateProcessor(tokenizer)
    messages = [user("x"), assistant("y"), user(content)]
    theirs = render(tokenizer, messages)
    assert theirs.endswith("y<|im_end|>" + text(processor.increment([user(content)])))
    assert text(processor.opening(messages)) == theirs
    said = [p for p in processor.increment([user(content)]) if isinstance(p, Content)]
    assert all('"' not in p.replace('\\"', "") for p in said)  # the quotes are scaffold


def test_each_message_has_its_own_rule() -> None:
    template = CHATML.replace(
        "m.content",
        "(m.content|tojson if m.role == 'tool' else m.content|trim if m.role == 'user' "
        "else m.content)",
    )
    processor = ChatTemplateProcessor(tiny_tokenizer(template))
    assert [v.contents for v in processor.verdicts()] == [
        ("trim",),
        ("json",),
        ("json", "json"),
        ("json", "trim"),
    ]
    assert text(processor.increment([tool(" a\n"), user(" b\n")])) == (
        '\n<|im_start|>tool\n" a\\n"<|im_end|>\n<|im_start|>user\nb<|im_end|>\n'
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("change", ["|e", "|replace('\n', ' ')", "|string|tojson|tojson"])
def test_other_changes_of_content_are_refused(change: str) -> None:
    template = CHATML.replace("m.content", ONLY_OTHERS.format(change))
    processor = ChatTemplateProcessor(tiny_tokenizer(template))
    assert processor.report.notes == (
        "the template changes the content of some user messages: abut compares each one with "
        "the real render and refuses it if the two differ",
    )
    assert processor.verdicts()[0].contents == ("compared",)
    for call in (processor.increment, processor.opening):
        assert "changes" in error(call, [user('xx\n<"b>')])
    assert text(processor.increment([user("a b")])) == processor.append_user_input("a b")


def test_the_text_of_a_changed_content() -> None:
    template = CHATML.replace("m.content", ONLY_OTHERS.format("|replace('q', 'kk')"))
    processor = ChatTemplateProcessor(tiny_tokenizer(template))
    assert error(processor.increment, [user(" q")]) == (
        "the template changes the content of a message of [user], so abut cannot append it "
        "exactly: '\\n<|im_start|>user\\n q<|im_end|>\\n<|im_start|>assistant\\n' against "
        "'\\n<|im_start|>user\\n kk<|im_end|>\\n<|im_start|>assistant\\n'\nhint: pass the "
        "content as the template writes it"
    )
    assert error(processor.opening, [user("q"), assistant("q")]) == (
        "the template changes the content of message 0 (user): "
        "'<|im_start|>user\\nq<|im_end|>\\n<|im_start|>assistant\\nabutx1x<|im_end|>\\n"
        "<|im_start|>assistant\\n' "
        "against "
        "'<|im_start|>user\\nkk<|im_end|>\\n<|im_start|>assistant\\nabutx1x<|im_end|>\\n"
        "<|im_start|>assistant\\n'\n"
        "hint: pass the content as the template writes it (for example, an earlier assistant "
        "message without its thinking)"
    )


def test_a_changed_placeholder_is_an_answer_that_is_not_written() -> None:
    template = CHATML.replace("m.content", "m.content|upper")
    assert "(assistant) 0 times" in error(ChatTemplateProcessor, tiny_tokenizer(template))


def test_thinking_stripped_from_the_prompt_s_history_is_refused(qwen3: Any) -> None:
    thought = assistant("<think>\nwhy\n</think>\n\ngo")
    message = error(ChatTemplateProcessor(qwen3).opening, [user(), thought, user()])
    assert message.startswith("the template changes the content of message 1 (assistant): ")
    assert "why" in message
    assert message.endswith("an earlier assistant message without its thinking)")


def test_a_content_that_the_template_drops_is_refused() -> None:
    template = CHATML.replace("messages %}", "messages if m.role != 'tool' %}")
    processor = ChatTemplateProcessor(tiny_tokenizer(template))
    assert processor.report.notes == ("the template does not accept tool messages",)
    assert error(processor.increment, [tool()]) == (
        "the template does not write the content of message 0 (tool)\nhint: use roles and "
        "content types that the template supports, or pass another template: "
        "processor=ChatTemplateProcessor(tokenizer, chat_template=…)"
    )


def test_no_messages_ask_for_one_more_turn(tiny: Any) -> None:
    processor = ChatTemplateProcessor(tiny)
    assert processor.increment([]) == [Scaffold("\n<|im_start|>assistant\n")]


def test_one_more_turn_is_refused_where_the_turn_before_it_would_end_otherwise() -> None:
    end = "('<|im_start|>' if loop.last and m.role == 'assistant' else '<|im_end|>')"
    template = CHATML.replace("<|im_end|>\n'", f"' + {end} + '\n'")
    processor = ChatTemplateProcessor(tiny_tokenizer(template))
    assert processor.increment([user("a")])
    assert "hint: send a message between the two turns" in error(processor.increment, [])


def test_messages_that_are_no_messages_are_refused(tiny: Any) -> None:
    processor = ChatTemplateProcessor(tiny)
    assert error(processor.increment, ["hello"]) == (
        "message 0 is 'hello', not a dict with a role\n"
        'hint: write {"role": "user", "content": "..."}'
    )
    assert error(processor.opening, [user(), user(7)]) == (
        "message 1 (user): content=7 is not text\n"
        'hint: write a string, or a list of {"type": "text", "text": "..."}'
    )
    for nothing in ({"role": "user"}, {"role": "tool", "content": None}, {"role": "assistant"}):
        for written in (processor.opening, processor.increment):
            assert "content=None is not text" in error(written, [nothing])
    assert "is not text" in error(processor.opening, [user([{"type": "image", "url": "x"}])])


def test_a_first_turn_unlike_the_others_has_no_system_block() -> None:
    template = (
        CHATML.replace(
            "{% for m in messages %}",
            "{% for m in messages %}{% if loop.index0 == 1 and messages[0].role == 'system' %}"
            "{{ '\n' }}{% endif %}",
        )
        .replace(
            "m.content + '<|im_end|>\n'",
            "m.content + ('<|im_end|>' if m.role == 'system' else '<|im_end|>\n')",
        )
        .replace("{{ '\n' }}", "!")
    )
    processor = ChatTemplateProcessor(tiny_tokenizer(template))
    assert error(processor.init_system_input, "S").startswith(
        "the template writes the first user turn differently, so the system block cannot be "
        "written alone"
    )


# ---- all of TRL's templates


CHATML_LIKE = ("qwen", "lfm2", "nemotron")


@pytest.mark.skipif(not TRL, reason="TRL, which ships the templates, is not installed")
@pytest.mark.parametrize("name", sorted(TRL))
def test_a_template_on_the_tokenizer_of_another_is_refused_with_a_reason(
    qwen3: Any, name: str
) -> None:
    if not name.startswith(CHATML_LIKE):
        assert "\nhint: " in error(ChatTemplateProcessor, qwen3, chat_template=TRL[name])
        return
    processor = ChatTemplateProcessor(qwen3, chat_template=TRL[name])
    assert processor.report.end_token == "<|im_end|>"
    messages = [user("a")]
    past = render(qwen3, [*messages, assistant("b"), user("c")], chat_template=TRL[name])
    assert text(processor.opening(messages)) == render(qwen3, messages, chat_template=TRL[name])
    assert past.endswith("b<|im_end|>" + text(processor.increment([user("c")])))
    processor.increment([tool("a"), tool("b")])


def test_the_demo_s_template_is_handled() -> None:
    assets = resources.files("abut") / "demo" / "assets"
    if not assets.is_dir():
        pytest.skip("the demo's assets are not built")
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(assets))
    processor = ChatTemplateProcessor(tokenizer)
    messages = [system(), user("a")]
    written = text(processor.opening(messages))
    for new in ([user("b")], [tool("c"), tool("d")], [user("e")]):
        messages += [assistant("f"), *new]
        written += "f" + text(processor.closing()) + text(processor.increment(new))
        assert written == render(tokenizer, messages)


# ---- a processor with only the three methods


class Plain:
    """What a user of trl-env has."""

    def init_system_input(self, prompt: str) -> str:
        return f"<|im_start|>system\n{prompt}<|im_end|>"

    def append_user_input(self, prompt: str) -> str:
        return f"\n<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"

    def parse_agent_output(self, completion: str) -> tuple[str, str]:
        return "", completion.upper()


def with_user_input(function: Any) -> Processor:
    plain = Plain()
    plain.append_user_input = function  # type: ignore[method-assign]
    return plain


@given(a=contents, b=contents)
@quick
def test_the_parts_of_a_text_processor(tiny: Any, a: str, b: str) -> None:
    processor = as_parts_processor(Plain(), tiny)
    opening = processor.opening([system(a), user(b)])
    assert text(opening) == Plain().init_system_input(a) + Plain().append_user_input(b)
    assert [str(p) for p in opening if isinstance(p, Content)] == [s for s in (a, b) if s]
    increment = processor.increment([user(b)])
    assert increment == opening[-len(increment) :] == processor.opening([user(b)])
    assert text(increment) == text(cached_processor(tiny, None).increment([user(b)]))


def test_a_text_processor_ends_turns_on_eos(tiny: Any) -> None:
    processor = as_parts_processor(Plain(), tiny)
    assert isinstance(processor, PartsProcessor)
    assert processor.closing() == [Scaffold("<|im_end|>")]
    assert processor.stop_token_ids == (processor.close_token_id,) == (tiny.eos_token_id,)
    assert processor.parse_agent_output("go") == ("", "GO")


def test_a_parts_processor_is_used_as_it_is(tiny: Any) -> None:
    processor = ChatTemplateProcessor(tiny)
    assert as_parts_processor(processor, tiny) is processor


def test_a_text_processor_needs_an_eos_token(tiny: Any) -> None:
    tokenizer = tiny_tokenizer(CHATML)
    tokenizer.eos_token = None
    assert error(as_parts_processor, Plain(), tokenizer) == (
        "the tokenizer '' has no EOS token, so abut cannot tell where a turn ends\nhint: set "
        "tokenizer.eos_token to the token that closes a turn, or use ChatTemplateProcessor"
    )


@pytest.mark.parametrize(
    ("messages", "wanted"),
    [
        ([user(), assistant("a"), user()], "[system, user] or [user]"),
        ([user(), user()], "[system, user] or [user]"),
        ([], "[system, user] or [user]"),
    ],
)
def test_a_text_processor_refuses_other_openings(
    tiny: Any, messages: list[Message], wanted: str
) -> None:
    message = error(as_parts_processor(Plain(), tiny).opening, messages)
    assert f"accepts {wanted} here, not [" in message


def test_a_text_processor_refuses_other_increments(tiny: Any) -> None:
    processor = as_parts_processor(Plain(), tiny)
    assert error(processor.increment, [tool()]) == (
        "a processor with only the three text methods accepts [user] here, not [tool]\nhint: "
        "use ChatTemplateProcessor, which accepts every role that the template supports"
    )
    assert error(processor.increment, [user([{"type": "text", "text": "a"}])]) == (
        "message 0 (user): content=[{'type': 'text', 'text': 'a'}] is not a string\nhint: pass "
        "the text itself"
    )


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (
            lambda prompt: f"U {prompt.strip()} A",
            "append_user_input changes its prompt, or the text around it depends on the "
            "prompt: 'U  hi  A' against 'U hi A'\nhint: write the prompt unchanged, and always "
            "the same text around it",
        ),
        (
            lambda prompt: "U",
            "append_user_input writes its prompt 0 times, not once\nhint: write the prompt "
            "unchanged, once",
        ),
        (
            lambda prompt: None,
            "append_user_input returned None, not a string\nhint: return the text of the "
            "message with its markup",
        ),
        (
            lambda prompt: "<|im_end|>\n" + prompt,
            "append_user_input begins with '<|im_end|>', but the turn before it is already "
            "closed\nhint: begin with the text between a closed turn and the next one; in "
            'ChatML it is "\\n<|im_start|>user\\n"',
        ),
    ],
)
def test_a_text_processor_that_changes_its_prompt_is_refused(
    tiny: Any, function: Any, expected: str
) -> None:
    processor = as_parts_processor(with_user_input(function), tiny)
    assert error(processor.increment, [user(" hi ")]) == expected


# ---- packaging


def test_importing_the_processor_imports_no_extra() -> None:
    code = (
        "import sys, abut.template.processor; "
        "print([m for m in ('transformers', 'jinja2', 'torch', 'tokenizers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.fixture(scope="module", autouse=True)
def _forget_processors() -> Iterator[None]:
    yield
    _processors.clear()
