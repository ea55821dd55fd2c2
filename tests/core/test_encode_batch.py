"""Many texts in one call: the tokens of one call after the other, in order, on all cores."""

import subprocess
import sys
from collections import deque
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import abut
from abut.errors import AbutError
from tests.kit.data.oracle import Trio, outcome, plain
from tests.kit.data.strategies_text import modes, texts, trios
from tests.kit.data.tokenizers_made import word_level

# Enough of it that each core gets some.
LONG = "ab" * 40_000


def one_by_one(side: Any, several: list[str], added: str) -> Any:
    answers = []
    for index, text in enumerate(several):
        try:
            answers.append(plain(side.encode(text, added=added)))
        except AbutError as error:
            return type(error).__name__, index
    return "value", answers


@given(trios(), st.lists(texts, max_size=6), modes)
def test_a_batch_is_what_its_texts_are_one_by_one(
    three: Trio, several: list[str], added: str
) -> None:
    expected = one_by_one(three.reference, several, added)
    try:
        answer = "value", plain(three.native.encode_batch(several, added=added))
    except AbutError as error:
        index = int(str(error).partition(":")[0].removeprefix("text "))
        answer = type(error).__name__, index
    assert answer == expected
    if answer[0] != "value":
        alone = outcome(lambda: three.native.encode(several[expected[1]], added=added))
        whole = outcome(lambda: three.native.encode_batch(several, added=added))
        assert whole == alone


def test_long_texts_come_back_in_order() -> None:
    tokenizer = abut.Tokenizer.from_str(word_level())
    several = [LONG[: 1000 * (i % 7 + 1) + i] for i in range(60)]
    batch = tokenizer.encode_batch(several)
    assert [len(ids) for ids in batch] == [len(text) for text in several]
    assert {ids.dtype for ids in batch} == {np.dtype(np.int64)}
    for ids, text in zip(batch, several, strict=True):
        np.testing.assert_array_equal(ids, tokenizer.encode(text))
    assert tokenizer.encode_batch([]) == []
    assert plain(tokenizer.encode_batch(("a", ""))) == [[1], []]
    assert plain(tokenizer.encode_batch(deque(["a", ""]))) == [[1], []]


def test_of_several_texts_that_fail_the_first_is_named() -> None:
    tokenizer = abut.Tokenizer.from_str(word_level("<e>"))
    # The first that fails is the longest, so the other threads meet theirs before it.
    several = [LONG, LONG * 4 + "<e>", *[LONG[:100] + "<e>"] * 50]
    with pytest.raises(abut.errors.ControlTokenError) as raised:
        tokenizer.encode_batch(several, added="raise")
    with pytest.raises(abut.errors.ControlTokenError) as alone:
        tokenizer.encode(several[1], added="raise")
    assert str(raised.value) == f"text 1: {alone.value}"


@pytest.mark.parametrize(
    ("several", "error", "text"),
    [
        *[
            (
                value,
                TypeError,
                f"texts must be a list of str, got {got}\nhint: pass [text] for one text, or "
                "list(texts)",
            )
            for value, got in [
                ("abc", "str"),
                (b"abc", "bytes"),
                (iter("ab"), "str_ascii_iterator"),
            ]
        ],
        (["a", 5], TypeError, "texts must be a list of str, got int at index 1"),
        (
            ["a", abut.Content("b")],
            TypeError,
            'text 1: abut.Content never becomes control tokens, but added="parse" asks for '
            'them\nhint: pass added="text", or a plain str if you trust the text',
        ),
        (
            ["a", "\ud800"],
            abut.TokenizerError,
            "text 1: the text has a lone surrogate, which is half of a character and has no UTF-8\n"
            'hint: decode bytes with errors="replace", or text.encode("utf-8", "replace")',
        ),
    ],
)
def test_what_is_no_text_is_named(several: Any, error: type, text: str) -> None:
    tokenizer = abut.Tokenizer.from_str(word_level())
    with pytest.raises(error) as raised:
        tokenizer.encode_batch(several)
    assert str(raised.value) == text


# Prints whether the interrupt ended a batch of 8 GB in less than half of the CPU time that all of
# it takes. A process of its own, since the clock counts every thread of a process.
INTERRUPTED = """
import _thread, sys, threading, time
import abut

tokenizer = abut.Tokenizer.from_str(sys.stdin.read())
text = "ab" * 40_000
began = time.process_time()
tokenizer.encode_batch([text] * 2)
whole_s = 50_000 * (time.process_time() - began)
timer = threading.Timer(0.2, _thread.interrupt_main)
began = time.process_time()
try:
    timer.start()
    tokenizer.encode_batch([text] * 100_000)
except KeyboardInterrupt:
    print(time.process_time() - began < whole_s / 2)
timer.join()
print(tokenizer.encode_batch(["b"])[0].tolist())
"""


def test_ctrl_c_ends_a_batch_between_two_texts() -> None:
    command = [sys.executable, "-c", INTERRUPTED]
    done = subprocess.run(command, input=word_level(), capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["True", "[2]"]
