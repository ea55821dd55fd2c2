"""Literals in the notation of Gemma: bare keys, and strings between quotes of their own."""

import pytest

from abut.tool_calls.literals import Literals
from abut.tool_calls.parsed import Wrong
from tests.kit.growth import is_linear

GEMMA = Literals('<|"|>')


@pytest.mark.parametrize("key", ["a b", "a,b", "a{b", "a}b", "a:b", "a:1", "x: y, [z]", "1", "é"])
def test_a_bare_key_may_hold_what_separates_others(key: str) -> None:
    text = f'{{n:1,{key}:<|"|>v<|"|>,o:{{{key}:true}},{key}2:[{{{key}:2}}]}}'
    value = {"n": 1, key: "v", "o": {key: True}, f"{key}2": [{key: 2}]}
    assert GEMMA.read(text, 0) == (value, len(text))


@pytest.mark.parametrize("text", ["{a}", "{a:b}", "{:1}", "{a b}", "{a:1"])
def test_what_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(Wrong):
        GEMMA.read(text, 0)


@pytest.mark.parametrize("unit", ["{a", "a:{", "{a:", "a,", '<|"|>', "a:1 "])
def test_broken_keys_take_linear_time(unit: str) -> None:
    def read(size: int) -> None:
        with pytest.raises(Wrong):
            GEMMA.read("{" + unit * size, 0)

    assert is_linear(read, 2000)
