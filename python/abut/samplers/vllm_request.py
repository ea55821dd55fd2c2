"""One request to vLLM and its answer, wherever vLLM runs.

Invariant: a request contains every setting, because a server fills in missing ones from the model's
`generation_config.json`, but no setting that vLLM does not know, because vLLM would ignore it.
A `Sample` answers exactly the ids of its request and is complete, never aborted or failed.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from abut.errors import SamplerError
from abut.samplers.sampler import Ids, Logprobs, Sample, SampleRequest
from abut.samplers.settings import SamplingSettings

# What vLLM says of a request that it refuses, and what helps.
_HINTS = {
    "context length": "RolloutConfig(max_context_tokens=…), or a longer --max-model-len",
    "out of vocabulary": "use the same vocabulary for the served model and the rollouts' tokenizer",
    "may be provided in one prompt": "start vLLM with a larger --limit-mm-per-prompt",
}


def room(
    request: SampleRequest, max_context_tokens: int | None, *, holder: str, longer: str
) -> int:
    """Return the most tokens that the sample may have.

    Args:
        request: the request.
        max_context_tokens: limit for prompt and sample together; None if unknown.
        holder: what has this limit, for the error.
        longer: how to raise the limit, for the error.

    Raises:
        SamplerError: there is no room for a token.
    """
    tokens = request.max_tokens
    if max_context_tokens is not None:
        tokens = min(tokens, max_context_tokens - len(request.prompt_ids))
    if tokens < 1:
        raise SamplerError(
            f"{request.where}: the prompt has {len(request.prompt_ids)} tokens, but {holder} "
            f"holds only {max_context_tokens}, sample included\nhint: shorten the prompt, or "
            f"{longer}"
        )
    return tokens


def with_stops(own: str | Sequence[str] | None, stop: Sequence[str]) -> list[str]:
    """Return the stop strings of a sampler's settings and of a request, each once."""
    settings = (own,) if isinstance(own, str) else own or ()
    return list(dict.fromkeys((*settings, *stop)))


def refusal_hint(said: str) -> str:
    """Return the hint for vLLM's reason to refuse a request, or an empty string."""
    for part, hint in _HINTS.items():
        if part in said:
            return f"\nhint: {hint}"
    return ""


def check_prompt(request: SampleRequest, prompt_ids: Ids | Sequence[int]) -> None:
    """Check that the engine received the prompt of the request.

    Raises:
        SamplerError: the engine received another prompt.
    """
    if np.array_equal(prompt_ids, request.prompt_ids):
        return
    hint = "look for something between abut and the engine that truncates or rewrites prompts"
    if request.images:
        hint = (
            f"the request has {len(request.images)} images: the served model and the rollouts' "
            "processor must be of the same model, with the same settings for images "
            "(--mm-processor-kwargs)"
        )
    raise SamplerError(
        f"the engine received {len(prompt_ids)} prompt tokens, which differ from the "
        f"{len(request.prompt_ids)} of the request\nhint: {hint}"
    )


def sample_of(
    request: SampleRequest,
    *,
    prompt_ids: Ids | Sequence[int] | None,
    ids: Ids,
    logprobs: Logprobs,
    finish_reason: str | None,
    stop_reason: int | str | None,
) -> Sample:
    """Return the sample in vLLM's answer.

    Args:
        request: the request.
        prompt_ids: the prompt that the engine received; None if the answer does not have it.
        ids: `(T,)` int64.
        logprobs: `(T,)` float32, nats, aligned with `ids`.
        finish_reason: "stop" or "length".
        stop_reason: the stop string that ended the sample, or an id or None.

    Raises:
        SamplerError: the answer is for another prompt, has a token that must not be drawn, or is
            not complete.
    """
    if prompt_ids is not None:
        check_prompt(request, prompt_ids)
    if request.never_token_ids and np.isin(ids, request.never_token_ids).any():
        raise SamplerError(
            f"the engine drew a token that stands for an image: one of {request.never_token_ids}\n"
            "hint: abut sends these tokens with a logit_bias of -100; remove whatever raises their "
            "logits again"
        )
    if finish_reason not in ("stop", "length"):
        raise SamplerError(f"finish_reason is {finish_reason!r}, expected 'stop' or 'length'")
    return Sample(
        ids,
        logprobs,
        "stop" if finish_reason == "stop" else "length",
        stop_reason if isinstance(stop_reason, str) else None,
    )


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
    """Check settings that a client has chosen; return them in vLLM's form.

    Raises:
        ValueError: vLLM does not accept a setting; names it and the values that are possible.
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
    """Return the settings by vLLM's names, with neutral values for None.

    Args:
        settings: the sampler's settings.
        says_stop_string: whether the answer names the stop string that ended a sample.
        to_endpoint: True for an endpoint of vLLM's server, False for `SamplingParams`.

    Raises:
        ValueError: the sampler does not support a setting.
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
                f"generation_kwargs[{name!r}]={value!r}: this sampler does not know this setting, "
                "and vLLM would ignore it silently\n"
                "hint: remove it; RolloutConfig sets the limits, and the processor the stop tokens"
            )
        if name == "stop" and not says_stop_string:
            raise ValueError(
                f"generation_kwargs['stop']={value!r}: the server's answer does not name the "
                "string that ended a sample\n"
                "hint: use `vllm serve` with VLLMServerSampler(url), whose answers name it"
            )
        said[name] = value
    return said
