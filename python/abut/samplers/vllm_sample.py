"""What vLLM drew for one request, from wherever it runs.

Invariant: a `Sample` answers exactly the ids of its request, and is whole: nothing that was aborted
or failed becomes one.
"""

from collections.abc import Sequence

import numpy as np

from abut.errors import SamplerError
from abut.samplers.sampler import Ids, Logprobs, Sample, SampleRequest

# What vLLM says of a request that it refuses, and what helps.
_HINTS = {
    "context length": "RolloutConfig(max_context_tokens=…), or a longer --max-model-len",
    "out of vocabulary": "the served model has another vocabulary than the rollouts' tokenizer",
}


def room(
    request: SampleRequest, max_context_tokens: int | None, *, holder: str, longer: str
) -> int:
    """Return how many tokens the sample may have.

    Args:
        request: what is asked.
        max_context_tokens: prompt and sample together; None is unknown.
        holder: who holds so many, for the error.
        longer: what makes it hold more, for the error.

    Raises:
        SamplerError: none.
    """
    tokens = request.max_tokens
    if max_context_tokens is not None:
        tokens = min(tokens, max_context_tokens - len(request.prompt_ids))
    if tokens < 1:
        raise SamplerError(
            f"{request.where}: the prompt has {len(request.prompt_ids)} tokens, and {holder} "
            f"holds {max_context_tokens} with the sample\nhint: shorten the prompt, or {longer}"
        )
    return tokens


def with_stops(own: str | Sequence[str] | None, stop: Sequence[str]) -> list[str]:
    """The stop strings of a sampler's settings and those of a request, each once."""
    settings = (own,) if isinstance(own, str) else own or ()
    return list(dict.fromkeys((*settings, *stop)))


def refusal_hint(said: str) -> str:
    """Return the line that goes with what vLLM said of a request, or nothing."""
    for part, hint in _HINTS.items():
        if part in said:
            return f"\nhint: {hint}"
    return ""


def sample_of(
    request: SampleRequest,
    *,
    prompt_ids: Ids | Sequence[int] | None,
    ids: Ids,
    logprobs: Logprobs,
    finish_reason: str | None,
    stop_reason: int | str | None,
) -> Sample:
    """Return the sample that vLLM's answer holds.

    Args:
        request: what was asked.
        prompt_ids: the prompt as the engine received it; None where it does not say.
        ids: `(T,)` int64.
        logprobs: `(T,)` float32, nats, aligned with `ids`.
        finish_reason: "stop" or "length".
        stop_reason: the stop string on which it ended, or an id or None.

    Raises:
        SamplerError: it answers another prompt, or is not whole.
    """
    if prompt_ids is not None and not np.array_equal(prompt_ids, request.prompt_ids):
        raise SamplerError(
            f"the engine received {len(prompt_ids)} prompt tokens, which are not the "
            f"{len(request.prompt_ids)} of the request\n"
            "hint: something between here and the engine truncates or rewrites prompts"
        )
    if finish_reason not in ("stop", "length"):
        raise SamplerError(f"finish_reason is {finish_reason!r}, expected 'stop' or 'length'")
    return Sample(
        ids,
        logprobs,
        "stop" if finish_reason == "stop" else "length",
        stop_reason if isinstance(stop_reason, str) else None,
    )
