"""What was proved of messages is taken for others of the same layout, and for no others."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abut.messages import Message
from abut.template.mask import layout_of
from abut.template.processor import ChatTemplateProcessor
from tests.kit.data.templates import CHATML, render, text, tiny_tokenizer

pytest.importorskip("transformers")

# It writes every message as a whole, in the order of its keys.
AS_JSON = (
    "{% for m in messages %}<|im_start|>{% if m.role == 'assistant' %}assistant\n{{ m.content }}"
    "{% else %}{{ m.role }}\n{{ m | tojson }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HISTORY: list[Message] = [
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": "hi"},
]
contents = st.sampled_from(["x", " x\n", '{"a": 1}', "abut0x", "abutx0x", "<|im_end|>", "é\0", " "])
names = st.sampled_from(["f", "g", "<|im_end|>", ""])


@st.composite
def message(draw: st.DrawFn) -> Message:
    items: list[tuple[str, Any]] = [("role", draw(st.sampled_from(["user", "tool"])))]
    items.append(("content", draw(contents)))
    if draw(st.booleans()):
        items.append(("name", draw(names)))
    return dict(draw(st.permutations(items)))


@pytest.fixture(scope="module", params=[CHATML, AS_JSON], ids=["chatml", "as JSON"])
def processor(request: pytest.FixtureRequest) -> ChatTemplateProcessor:
    return ChatTemplateProcessor(tiny_tokenizer(request.param))


@given(messages=st.lists(message(), min_size=1, max_size=2))
def test_a_layout_that_was_seen_is_written_as_the_template_writes_it(
    processor: ChatTemplateProcessor, messages: list[Message]
) -> None:
    written = text(processor.increment(messages))
    whole = render(processor._tokenizer, HISTORY + messages)
    assert whole.endswith("<|im_end|>" + written)
    assert processor.closing(messages, after=processor.close_token_id) == []


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": " \n"},
        {"role": "user", "content": ""},
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "tool", "content": "x", "tool_call_id": "call-1"},
        {"role": "tool", "content": "x", "meta": {"a": 1}},
        {"content": "x", "role": type("Own", (str,), {})("user")},
    ],
)
def test_messages_that_hold_more_than_text_have_no_layout(message: Message) -> None:
    assert layout_of([message]) is None


def test_a_layout_knows_the_order_of_keys_and_their_values() -> None:
    layouts = {
        layout_of([{"role": "tool", "name": "f", "content": "one"}]),
        layout_of([{"role": "tool", "content": "one", "name": "f"}]),
        layout_of([{"role": "tool", "name": "g", "content": "one"}]),
        layout_of([{"role": "user", "content": "one"}]),
    }
    assert len(layouts) == 4
    assert layout_of([{"role": "user", "content": "two"}]) in layouts
