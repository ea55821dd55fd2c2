"""What a request to vLLM says about sampling.

Invariant: everything is said, since a server fills in what is left out from the model's own
`generation_config.json`; and nothing that it does not know, since it passes over that in silence.
"""

import math
from collections.abc import Mapping
from typing import Any

from abut.samplers.settings import SamplingSettings

# What a request may have besides: what changes the distribution before the draw, or when it ends.
_KNOWN = (
    "allowed_token_ids",
    "bad_words",
    "ignore_eos",
    "include_stop_str_in_output",
    "logit_bias",
    "min_tokens",
    "stop",
    "structured_outputs",
    "thinking_token_budget",
)
# What only a server's endpoint knows; `SamplingParams` has no field of that name.
_OF_ENDPOINTS = ("cache_salt", "priority", "response_format", "vllm_xargs")


_RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (0.0, math.inf),
    "top_k": (-1, math.inf),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.0, math.inf),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
}
_ABOVE = ("top_p", "repetition_penalty")


def checked_settings(settings: Mapping[str, Any]) -> dict[str, float]:
    """Settings that somebody else has chosen, as vLLM takes them.

    Raises:
        ValueError: it does not; names the setting and what it may be.
    """
    for name, value in settings.items():
        if name not in _RANGES:
            raise ValueError(f"{name}={value!r}: expected one of {', '.join(_RANGES)}")
        least, most = _RANGES[name]
        number = isinstance(value, int | float) and not isinstance(value, bool)
        whole = name != "top_k" or isinstance(value, int)
        if not (number and whole and least <= value <= most and value != math.inf) or (
            value == least and name in _ABOVE
        ):
            above = "more than" if name in _ABOVE else "at least"
            below = "" if most == math.inf else f" and at most {most:g}"
            raise ValueError(f"{name}={value!r}: must be {above} {least:g}{below}")
    return dict(settings)


def vllm_settings(
    settings: SamplingSettings, *, says_stop_string: bool = True, to_endpoint: bool = False
) -> dict[str, Any]:
    """Return what vLLM calls them; None is the neutral value, in `generation_kwargs` nothing.

    Args:
        settings: those of the sampler.
        says_stop_string: whether the answer says on which stop string a sample ended.
        to_endpoint: whether they go to an endpoint of vLLM's server, or to `SamplingParams`.

    Raises:
        ValueError: a setting that the sampler does not take.
    """
    penalty = settings.repetition_penalty
    said: dict[str, Any] = {
        "temperature": settings.temperature,
        "top_k": settings.top_k or 0,
        "top_p": 1.0 if settings.top_p is None else settings.top_p,
        "min_p": settings.min_p or 0.0,
        "repetition_penalty": 1.0 if penalty is None else penalty,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    }
    known = (*said, *_KNOWN, *(_OF_ENDPOINTS if to_endpoint else ()))
    for name, value in settings.generation_kwargs.items():
        if value is None:
            continue
        if name not in known:
            raise ValueError(
                f"generation_kwargs[{name!r}]={value!r}: not a sampling setting that this sampler "
                "takes, and vLLM would pass over it in silence\n"
                "hint: RolloutConfig has the limits, the processor the stop tokens"
            )
        if name == "stop" and not says_stop_string:
            raise ValueError(
                f"generation_kwargs['stop']={value!r}: the server's answer does not say on which "
                "string a sample ended\n"
                "hint: /v1/completions of vLLM does: VLLMServerSampler(endpoint='completions')"
            )
        said[name] = value
    return said
