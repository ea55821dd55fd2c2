"""What a request to vLLM says about sampling.

Invariant: everything is said, since a server fills in what is left out from the model's own
`generation_config.json`; and nothing that it does not know, since it passes over that in silence.
"""

from collections.abc import Mapping
from typing import Any

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


def vllm_settings(
    generation_kwargs: Mapping[str, Any] | None,
    *,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
    repetition_penalty: float | None,
    says_stop_string: bool = True,
    to_endpoint: bool = False,
) -> dict[str, Any]:
    """Return all settings; those in `generation_kwargs` win, None is the neutral value.

    Args:
        generation_kwargs: more of them.
        temperature: above 0.
        top_k: 0 is all.
        top_p: 1.0 is all.
        min_p: 0.0 is all.
        repetition_penalty: 1.0 is none.
        says_stop_string: whether the answer says on which stop string a sample ended.
        to_endpoint: whether they go to an endpoint of vLLM's server, or to `SamplingParams`.

    Raises:
        ValueError: a setting that the sampler does not take.
    """
    settings: dict[str, Any] = {
        "temperature": temperature,
        "top_k": top_k or 0,
        "top_p": 1.0 if top_p is None else top_p,
        "min_p": min_p or 0.0,
        "repetition_penalty": repetition_penalty or 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    }
    known = (*settings, *_KNOWN, *(_OF_ENDPOINTS if to_endpoint else ()))
    for name, value in (generation_kwargs or {}).items():
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
        settings[name] = value
    if not settings["temperature"] > 0:
        raise ValueError(
            f"temperature={settings['temperature']!r}: must be more than 0; at 0 every logprob is "
            "0 and nothing can be learned"
        )
    return settings
