"""The assertions for users' tests: they hold where they should, and each can fail."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import abut
from abut import strategies
from abut.demo.model import ASSETS
from abut.testing import (
    assert_additive,
    assert_appendable,
    assert_exact_append,
    native_tokenizer,
)
from tests.kit.data.tokenizers_made import Broken, with_close

NATIVE = abut.Tokenizer.from_file(ASSETS / "tokenizer.json")
USER = {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": "Hello"}


@pytest.fixture(params=["native", "transformers"])
def either(request: pytest.FixtureRequest, hf_tokenizer: Any) -> Any:
    return NATIVE if request.param == "native" else hf_tokenizer


# --- assert_additive


def test_texts_at_a_control_token_are_additive(either: Any) -> None:
    assert_additive(either, "Hello<|im_end|>", "\n<|im_start|>user\n")


def test_a_merge_is_shown_with_tokens_and_texts_of_both_sides(either: Any) -> None:
    with pytest.raises(AssertionError) as raised:
        assert_additive(either, "assistant\n", "\nHi")
    assert str(raised.value) == (
        "'assistant\\n' and '\\nHi' are not additive: token 1 differs\n  together  297      "
        "'assistant' »'\\n\\n'« 'H' 'i'\n  apart     198      'assistant' »'\\n'« '\\n' 'H' "
        "'i'\nhint: do not join the ids of texts that were encoded separately; append the "
        "texts to one abut.Trajectory, or end the first text with a control token"
    )


# --- assert_exact_append


@given(pieces=strategies.pieces(NATIVE), added=st.sampled_from(["parse", "text"]))
def test_pieces_append_as_one_text(hf_tokenizer: Any, pieces: list[str], added: Any) -> None:
    assert_exact_append(hf_tokenizer, pieces, added=added)
    assert_exact_append(NATIVE, pieces, added=added)


def test_real_tokenizers_append_exactly(qwen3: Any) -> None:
    assert_exact_append(qwen3, ["assistant\n", "\nHel", "lo", "<|im_", "end|>", "cafe", "\u0301"])


def test_an_encoder_that_changes_its_mind_is_caught(hf_tokenizer: Any) -> None:
    broken = Broken(hf_tokenizer, lambda text, ids: ids[:-1] if text.endswith("lo") else ids)
    assert_exact_append(broken, ["Hel", "l"])
    with pytest.raises(AssertionError) as raised:
        assert_exact_append(broken, ["Hel", "lo"])
    assert str(raised.value) == (
        "after piece 1 ('lo') of ['Hel', 'lo'] token 2 differs\n  appended  323      'H' 'el' "
        "»'lo'«\n  whole     ends     'H' 'el' »the end«\nhint: abut cannot append to this "
        "tokenizer's texts exactly; please report this bug with the tokenizer.json"
    )


def test_a_seam_that_does_not_say_what_it_did_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        def __init__(self, tokenizer: Any) -> None:
            self._trajectory = abut.Trajectory(tokenizer)

        @property
        def ids(self) -> Any:
            return self._trajectory.ids

        def append_text(self, text: str, **options: Any) -> Any:
            self._trajectory.append_text(text, **options)
            # As if nothing on the left had changed.
            return SimpleNamespace(drop=0, ids=NATIVE.encode(text))

    monkeypatch.setattr("abut.testing.Trajectory", Silent)
    assert_exact_append(NATIVE, ["Hi<|im_end|>", "\n"])
    with pytest.raises(
        AssertionError,
        match=r"^the seam before piece 1 .*, but token 1 of the trajectory differs\n",
    ):
        assert_exact_append(NATIVE, ["assistant\n", "\nHi"])


# --- assert_appendable


@given(data=st.data())
def test_conversations_append_as_the_template_writes_them(hf_tokenizer: Any, data: Any) -> None:
    roles = ["user", "tool"]
    conversation = data.draw(strategies.conversations(NATIVE, roles=roles, stripped=True))
    turns = sum(message["role"] == "assistant" for message in conversation)
    cut = data.draw(st.sets(st.integers(0, turns - 1)))
    assert_appendable(hf_tokenizer, conversation, cut=cut)


def test_thinking_that_the_template_strips_stays_as_it_was_sent(qwen3: Any) -> None:
    thought = {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nHello"}
    for thinking in (True, False):
        assert_appendable(qwen3, [USER, thought, USER, ANSWER, USER], enable_thinking=thinking)


def test_a_merge_with_the_generation_prompt_is_no_failure(qwen3: Any) -> None:
    merging = {"role": "assistant", "content": "\nHello"}
    assert_appendable(qwen3, [USER, merging, USER, ANSWER, USER], cut=[0])


def test_a_turn_cut_inside_thinking_is_compared_with_its_thinking_closed(qwen3: Any) -> None:
    thought = {"role": "assistant", "content": "<think>\nHm"}
    conversation = [USER, thought, USER, ANSWER, USER]
    assert_appendable(qwen3, conversation, cut=[0])
    spoiled = Broken(qwen3, lambda text, ids: ids[:-1] if "</think>" in text else ids)
    with pytest.raises(AssertionError, match=r"^turn 0: token"):
        assert_appendable(spoiled, conversation, cut=[0])
    assert_appendable(spoiled, conversation)  # its stop token ended the turn as it is


def test_a_render_that_differs_is_shown_with_both_sides(hf_tokenizer: Any) -> None:
    # As a tokenizer would that swallows the newline between two turns.
    newline = hf_tokenizer.encode("\n")[0]
    close = hf_tokenizer.eos_token_id

    def swallow(text: str, ids: list[int]) -> list[int]:
        pairs = zip([None, *ids], ids, strict=False)
        return [i for before, i in pairs if (before, i) != (close, newline)]

    with pytest.raises(AssertionError) as raised:
        assert_appendable(Broken(hf_tokenizer, swallow), [USER, ANSWER, USER])
    assert str(raised.value) == (
        "the first request: token 6 differs\n  turn by turn  198      … 'H' 'i' '<|im_end|>' "
        "»'\\n'« '<|im_start|>' 'assistant' '\\n'\n  one encode    504      … 'H' 'i' "
        "'<|im_end|>' »'<|im_start|>'« 'assistant' '\\n'\nhint: run `abut check` on this "
        "tokenizer and template to see which seam is not exact"
    )


def test_a_template_that_cannot_be_appended_to_fails_with_its_reason(hf_tokenizer: Any) -> None:
    counting = "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}"
    with pytest.raises(AssertionError, match=r"^the conversation cannot be appended to: before"):
        assert_appendable(hf_tokenizer, [USER, ANSWER, USER], chat_template=counting)


@pytest.mark.parametrize(
    ("conversation", "message"),
    [
        ([ANSWER], "the conversation has no prompt\nhint: start with a user message"),
        (
            [USER, ANSWER, ANSWER],
            "messages 1 and 2 are both from the assistant\nhint: put a user or tool message "
            "between them",
        ),
        (
            [USER, {"role": "assistant", "content": None}],
            "message 1 (assistant): content=None is not the text that was sampled\nhint: write "
            "the text of the sample, tool calls included",
        ),
        *[
            (
                [USER, {"role": "assistant", "content": content, **{key: value}}, USER],
                f"message 1 (assistant): {key}={value!r} is not the text that was sampled\n"
                "hint: write the text of the sample, tool calls included, as the content",
            )
            for content in ("", "Hello")
            for key, value in (("tool_calls", [{"function": {}}]), ("reasoning_content", "Hm."))
        ],
    ],
)
def test_a_conversation_that_nobody_sampled_is_an_error(
    hf_tokenizer: Any, conversation: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(ValueError, match="hint:") as raised:
        assert_appendable(hf_tokenizer, conversation)
    assert str(raised.value) == message


def test_a_cut_turn_that_is_not_there_is_an_error(hf_tokenizer: Any) -> None:
    with pytest.raises(ValueError, match="hint:") as raised:
        assert_appendable(hf_tokenizer, [USER, ANSWER, USER], cut={0, 99})
    assert str(raised.value) == (
        "cut=99: the conversation has 1 turns, counted from 0\nhint: pass the positions of the "
        "assistant's messages that were cut"
    )


# --- what they share


def test_a_tokenizer_is_loaded_again_when_tokens_are_added() -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(ASSETS)
    before = native_tokenizer(tokenizer)
    assert native_tokenizer(tokenizer) is before
    tokenizer.add_tokens(["<|new|>"])
    assert native_tokenizer(tokenizer).token_to_id("<|new|>") is not None
    assert before.token_to_id("<|new|>") is None


def test_made_tokenizers_are_what_they_say() -> None:
    assert "<|im_end|>" in abut.Tokenizer.from_str(with_close()).profile()["hard_tokens"]
    soft = abut.Tokenizer.from_str(with_close(normalized=True)).profile()
    assert "<|im_end|>" in soft["control_tokens"]
    assert "<|im_end|>" not in soft["hard_tokens"]
