"""The settings that all samplers share."""

from typing import Any

import pytest

from abut.samplers.settings import SamplingSettings
from abut.samplers.vllm_request import vllm_settings


def test_what_generation_kwargs_say_is_in_the_fields_and_wins() -> None:
    given = {"temperature": 0.7, "top_p": None, "min_tokens": 2}
    settings = SamplingSettings(temperature=0.0, top_k=5, top_p=0.9, generation_kwargs=given)
    assert (settings.temperature, settings.top_k, settings.top_p) == (0.7, 5, 0.9)
    assert settings.generation_kwargs == {"top_p": None, "min_tokens": 2}
    assert given == {"temperature": 0.7, "top_p": None, "min_tokens": 2}, "the caller's own"


def test_none_is_what_changes_nothing_and_in_generation_kwargs_says_nothing() -> None:
    given = {"top_k": None}
    settings = SamplingSettings(
        top_k=5, top_p=None, repetition_penalty=None, generation_kwargs=given
    )
    assert vllm_settings(settings) == {
        "temperature": 1.0,
        "top_k": 5,
        "top_p": 1.0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    }


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), None])
def test_a_temperature_at_which_nothing_is_learned_is_refused(temperature: Any) -> None:
    with pytest.raises(ValueError, match="temperature=") as raised:
        SamplingSettings(temperature=temperature)
    assert str(raised.value) == (
        f"temperature={temperature!r}: must be more than 0, because at 0 every logprob is 0 "
        "and the policy cannot learn"
    )
