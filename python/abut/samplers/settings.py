"""The sampling settings, the same for every sampler.

Invariant: each setting has one place. If `generation_kwargs` has a named setting, its value wins,
as in TRL, and moves to the field. Only other settings, and named ones that are None, stay in
`generation_kwargs`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypedDict


class SamplingKeywords(TypedDict, total=False):
    """The fields of `SamplingSettings`, as the samplers' constructors take them."""

    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    generation_kwargs: Mapping[str, Any] | None


def _help(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class SamplingSettings:
    """Changes of the policy's distribution before a token is drawn; None changes nothing."""

    temperature: float = _help(1.0, "Above 0; the logits are divided by it.")
    top_k: int | None = _help(0, "Keep the k most likely tokens; 0 keeps all.")
    top_p: float | None = _help(
        1.0, "Keep the most likely tokens that together have this probability; 1.0 keeps all."
    )
    min_p: float | None = _help(
        None, "Keep tokens with at least this share of the most likely token's probability."
    )
    repetition_penalty: float | None = _help(1.0, "1.0 means no penalty.")
    generation_kwargs: Mapping[str, Any] = field(
        default_factory=dict,
        metadata={"help": "More settings, as vLLM or `transformers.GenerationConfig` names them."},
    )

    def __post_init__(self) -> None:
        """Move named settings out of `generation_kwargs`, and refuse settings that cannot train.

        Raises:
            ValueError: the temperature is not above 0.
        """
        more = dict(self.generation_kwargs)
        said = {name: more.pop(name) for name in NAMED if more.get(name) is not None}
        for name, value in {**said, "generation_kwargs": more}.items():
            object.__setattr__(self, name, value)  # the way to set a field of a frozen dataclass
        if not (self.temperature or 0) > 0:
            raise ValueError(
                f"temperature={self.temperature!r}: must be more than 0, because at 0 every "
                "logprob is 0 and the policy cannot learn"
            )


def settings_of(sampling: SamplingKeywords) -> SamplingSettings:
    """Return the settings for a sampler's keywords; `generation_kwargs` may be None.

    Raises:
        TypeError: a keyword has another name.
        ValueError: the temperature is not above 0.
    """
    keywords: dict[str, Any] = {**sampling}
    more = keywords.pop("generation_kwargs", None) or {}
    return SamplingSettings(**keywords, generation_kwargs=more)


def settings_for_clients(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings, neutral ones included, under the names that chat clients use.

    Args:
        settings: by the names of `SamplingSettings`; None is neutral, and values in
            `generation_kwargs` win.
    """
    neutral = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
    named: dict[str, Any] = {
        name: neutral.get(name) if v is None else v for name, v in settings.items()
    }
    more = named.pop("generation_kwargs", None) or {}
    return {"presence_penalty": 0.0, "frequency_penalty": 0.0, **named, **more}


NAMED = tuple(one.name for one in fields(SamplingSettings) if one.name != "generation_kwargs")
"""The settings that all samplers and `GRPOTrainer` know by the same name."""
