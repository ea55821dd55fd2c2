"""A control token counts only where it was sampled: one that is spelled is text."""

import copy
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import abut
from abut._native import positions_of
from abut.parts import Sampled
from abut.rollout.sampled_text import sampled_text
from abut.template.processor import ChatTemplateProcessor

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
F = abut.ToolCall("f", {"a": 1})


@pytest.fixture
def qwen(qwen3: Any) -> tuple[Any, Any]:
    return abut.Tokenizer.from_pretrained(qwen3), ChatTemplateProcessor(qwen3)


def heard(qwen: tuple[Any, Any], *pieces: tuple[str, bool]) -> Any:
    """What is parsed of pieces, each with whether its tags are sampled."""
    tokenizer, processor = qwen
    ids = [
        int(token)
        for text, sampled in pieces
        for token in tokenizer.encode(text, added="parse" if sampled else "text")
    ]
    text = sampled_text(tokenizer, ids)
    assert text == tokenizer.decode(ids)
    action = processor.parse_agent_output(text)[1]
    parsed = processor.parse_tool_calls(action)
    for other in (copy.deepcopy(action), pickle.loads(pickle.dumps(action))):
        assert processor.parse_tool_calls(other) == parsed
    assert abut.parse_tool_calls(action, format="hermes") == parsed
    return parsed


def test_a_call_counts_where_its_tags_were_sampled(qwen: Any) -> None:
    assert heard(qwen, (CALL, True)).calls == (F,)
    assert heard(qwen, (CALL, False)) == abut.tool_calls.ParsedCalls(CALL, (), ())


def test_an_answer_about_calls_is_no_call(qwen: Any) -> None:
    parsed = heard(qwen, (f"Write {CALL} é", False), (CALL, True))
    assert (parsed.content, parsed.calls) == (f"Write {CALL} é", (F,))


def test_inner_tags_that_are_no_tokens_are_text_behind_a_spelled_outer_one() -> None:
    text = "<tool_call>\n<function=f>\n</function>\n</tool_call>"
    veiled = Sampled(text.replace("<tool", "\ufdd0tool"), {"\ufdd0": "<"})
    parsed = abut.parse_tool_calls(veiled, format="qwen3_coder")
    assert parsed == abut.tool_calls.ParsedCalls(text, (), ())


def test_a_tag_that_is_spelled_in_an_argument_stays_there(qwen: Any) -> None:
    spelled = "</tool_call> 日本 <tool_call>"
    before, behind = '<tool_call>\n{"name": "f", "arguments": {"a": "', '"}}\n</tool_call>'
    parsed = heard(qwen, (before, True), (spelled, False), (behind, True))
    assert parsed.calls == (abut.ToolCall("f", {"a": spelled}),)
    broken = heard(qwen, (before[:-6], True), (spelled, False), (behind, True))
    assert broken.calls == ()
    assert broken.malformed[0].text == before[:-6] + spelled + behind


def test_a_close_of_thinking_that_is_spelled_closes_none(qwen: Any) -> None:
    tokenizer, processor = qwen
    ids = [*tokenizer.encode("<think>a "), *tokenizer.encode("</think> b", added="text")]
    text = sampled_text(tokenizer, ids)
    assert processor.parse_agent_output(text) == ("a </think> b", "")
    assert "".join(processor.close_thinking(text)) == processor.thinking.between


def test_what_was_sampled_as_it_reads_is_plain_text(qwen: Any) -> None:
    tokenizer, _ = qwen
    for text in ("no tag", CALL):
        assert type(sampled_text(tokenizer, tokenizer.encode(text))) is str


def test_a_text_that_holds_the_characters_that_veil_is_veiled_by_others(qwen: Any) -> None:
    tokenizer, _ = qwen
    text = sampled_text(tokenizer, tokenizer.encode("\ufdd0<tool_call>", added="text"))
    assert isinstance(text, Sampled)
    assert (text, len(text.veiled)) == ("\ufdd0<tool_call>", len(text))
    assert text.veiled[0] == "\ufdd0"
    assert "<" not in text.veiled
    assert text.part(text.veiled[1:]) == "<tool_call>"


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
@pytest.mark.parametrize("tokens", [(), (7,), (2, 9), [9, 2, 9], (1, 2), (-1, 2**40)])
def test_positions_are_the_same_in_a_list_and_an_array(dtype: Any, tokens: Sequence[int]) -> None:
    ids = [9, 3, 2, 7, 2, 5]  # 3, 5 and 7 lie between tokens that are looked for
    expected = [place for place, token in enumerate(ids) if token in tokens]
    assert positions_of(ids, tokens) == expected
    assert positions_of(np.array(ids, dtype), tokens) == expected
    assert positions_of(np.array([], dtype), tokens) == []
