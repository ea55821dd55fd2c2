"""The strategies make what they promise: Hypothesis finds an example of each claim."""

import subprocess
import sys
import unicodedata
from typing import Any

import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

import abut
from abut import strategies
from abut.demo.model import ASSETS

NO_SEARCH_LIMIT = settings(max_examples=20_000, deadline=None, derandomize=True)
TOKENIZER = abut.Tokenizer.from_file(ASSETS / "tokenizer.json")


def can_make(strategy: Any, condition: Any) -> Any:
    return find(strategy, condition, settings=NO_SEARCH_LIMIT)


@pytest.mark.parametrize(
    "condition",
    [
        lambda text: text == "",
        lambda text: text.startswith("\n\n"),
        lambda text: "\r\n" in text,
        lambda text: text.endswith(" "),
        lambda text: any(unicodedata.combining(c) for c in text),
        lambda text: "\u200d" in text,
        lambda text: any("CJK" in unicodedata.name(c, "") for c in text),
        lambda text: unicodedata.normalize("NFC", text) != text,
        lambda text: "<|im_end|>" in text,
        lambda text: text.endswith("<|im_"),
    ],
)
def test_texts_are_rich_in_what_tokenizers_treat_apart(condition: Any) -> None:
    can_make(strategies.texts(TOKENIZER), condition)


def test_texts_without_a_tokenizer_spell_no_control_tokens_of_it() -> None:
    with pytest.raises(NoSuchExample):
        find(strategies.texts(), lambda text: "<|im_end|>" in text, settings=settings())


@given(strategies.pieces(TOKENIZER))
def test_pieces_are_one_text_cut(pieces: list[str]) -> None:
    assert all(isinstance(piece, str) for piece in pieces)
    assert len(pieces) <= 6


def test_pieces_are_cut_inside_control_tokens_and_combining_sequences() -> None:
    def inside(text: str) -> Any:
        return lambda p: text in "".join(p) and not any(text in piece for piece in p)

    can_make(strategies.pieces(TOKENIZER), inside("<|im_end|>"))
    can_make(strategies.pieces(), inside("e\u0301"))


def test_bytes_are_cut_inside_characters() -> None:
    def inside(pieces: list[bytes]) -> bool:
        try:
            [piece.decode() for piece in pieces]
        except UnicodeDecodeError:
            return True
        return False

    pieces = can_make(strategies.partial_utf8(), inside)
    assert b"".join(pieces).decode()


def test_parts_cut_a_control_token_between_scaffold_and_content() -> None:
    def cut(parts: list[abut.parts.Part]) -> bool:
        kinds = {type(part) for part in parts}
        return "<|im_end|>" in "".join(parts) and kinds == {abut.Content, abut.Scaffold}

    can_make(strategies.parts(TOKENIZER), cut)


@given(strategies.conversations(TOKENIZER, roles=["user", "tool"], max_turns=4, stripped=True))
def test_a_conversation_is_a_prompt_and_turns(conversation: list[dict[str, Any]]) -> None:
    roles = [message["role"] for message in conversation]
    turns = roles[1:] if roles[0] == "user" else roles[2:]
    assert roles[: len(roles) - len(turns)] in (["user"], ["system", "user"])
    assert set(turns[::2]) == {"assistant"}
    assert set(turns[1::2]) <= {"user", "tool"}
    assert 2 <= len(turns) <= 8
    for message in conversation:
        assert message["content"] == message["content"].strip() != ""
        assert (message["role"] == "tool") == ("tool_call_id" in message)


def test_contents_keep_their_whitespace_unless_told_otherwise() -> None:
    can_make(
        strategies.messages(), lambda message: message["content"] != message["content"].strip()
    )


@given(strategies.recorded_calls(drift=False))
def test_a_recording_without_drift_is_one_clean_chain(calls: list[Any]) -> None:
    stitched = abut.stitch(calls)
    assert len(stitched.chains) == any(sampled for _, sampled, _ in calls)
    trained = [x for chain in stitched.chains for x in chain.logprobs[chain.env_mask == 1].tolist()]
    assert sorted(trained) == sorted(x for _, _, logprobs in calls for x in logprobs)


@pytest.mark.parametrize("kind", ["clean", "realigned", "forked", "quarantined"])
def test_recordings_with_drift_hold_every_verdict(kind: str) -> None:
    def has(calls: list[Any]) -> bool:
        transitions = abut.stitch(calls, on_drift="realign").transitions
        return any(transition.kind == kind for transition in transitions)

    can_make(strategies.recorded_calls(), has)


@given(strategies.recorded_calls(vocab_size=7), st.sampled_from(["truncate", "split", "realign"]))
def test_recorded_calls_are_well_formed(calls: list[Any], policy: Any) -> None:
    abut.stitch(calls, on_drift=policy)
    assert all(0 <= token < 7 for prompt, sampled, _ in calls for token in [*prompt, *sampled])


def test_strategies_without_hypothesis_name_the_extra() -> None:
    code = "import sys; sys.modules['hypothesis'] = None; import abut.strategies"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr.splitlines()[-1] == (
        "abut.errors.MissingExtraError: abut.strategies needs Hypothesis: "
        "pip install 'abut[testing]'"
    )
