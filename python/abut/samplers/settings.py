"""The settings under which tokens are drawn, the same for every sampler.

Invariant: each is said in one place. What `generation_kwargs` says of a named setting wins, as in
TRL, and is in its field; what is left there are other settings, and named ones that are None.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# What all samplers know by these names; `GRPOTrainer` has attributes of the same ones.
NAMED = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def _help(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class SamplingSettings:
    """How the policy's distribution is changed before a token is drawn. None changes nothing.

    In the order of the samplers' own parameters.
    """

    temperature: float = _help(1.0, "Above 0; logits are divided by it.")
    top_k: int | None = _help(0, "Keep the k most likely tokens; 0 keeps all.")
    top_p: float | None = _help(
        1.0, "Keep the most likely tokens that together have this probability; 1.0 keeps all."
    )
    min_p: float | None = _help(
        None, "Keep tokens with at least this share of the most likely one's probability."
    )
    repetition_penalty: float | None = _help(1.0, "1.0 is none.")
    generation_kwargs: Mapping[str, Any] = field(
        default_factory=dict,
        metadata={"help": "More settings, as vLLM or `transformers.GenerationConfig` names them."},
    )

    def __post_init__(self) -> None:
        """Let `generation_kwargs` win, and refuse settings from which nothing can be learned.

        Raises:
            ValueError: the temperature is not above 0.
        """
        more = dict(self.generation_kwargs)
        said = {name: more.pop(name) for name in NAMED if more.get(name) is not None}
        for name, value in {**said, "generation_kwargs": more}.items():
            object.__setattr__(self, name, value)  # the way to set a field of a frozen dataclass
        if not (self.temperature or 0) > 0:
            raise ValueError(
                f"temperature={self.temperature!r}: must be more than 0; at 0 every logprob is 0 "
                "and nothing can be learned"
            )
