"""The arguments that `make_rollout_func` and `make_rollout_worker` share, checked.

Invariant: a wrong argument is refused where it is given, by its name and with what it may be.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from abut.gateway.server.gateway import Gateway
from abut.processor import PartsProcessor, Processor
from abut.records.recorder import BackgroundRecorder, Recorder, recorder_at
from abut.rollout.config import RolloutConfig
from abut.samplers.in_process import StreamSampler
from abut.samplers.sampler import BatchSampler, Sampler
from abut.template.processor import ChatTemplateProcessor
from abut.template.text_processor import as_parts_processor
from abut.trl.route import EnvArgument, EnvRoute


def check_sampler(sampler: Any) -> None:
    """Refuse what is neither "auto" nor a sampler.

    Raises:
        ValueError: it is another name.
        TypeError: it is no object that samples.
    """
    if isinstance(sampler, str) and sampler != "auto":
        raise ValueError(f"sampler={sampler!r}: expected 'auto' or a sampler object")
    kinds = str | Sampler | BatchSampler | StreamSampler
    if not isinstance(sampler, kinds) or isinstance(sampler, type):
        raise TypeError(
            "sampler must be 'auto' or an object with sample, sample_batch or sample_stream, got "
            f"{sampler!r}"
        )


def checked_recorder(recorder: Any) -> Recorder | None:
    """The recorder that is given, or one at the path that is.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(recorder, str | os.PathLike):
        recorder = BackgroundRecorder(recorder_at(recorder))
    if recorder is not None and not callable(getattr(recorder, "write", None)):
        raise TypeError(
            f"recorder must be a path or have write(rollout, **extra), got {recorder!r}\n"
            "hint: recorder='rollouts.jsonl', or a folder for Parquet"
        )
    return recorder  # type: ignore[no-any-return]


def checked_config(config: Any) -> RolloutConfig:
    """The config; None takes the defaults.

    Raises:
        TypeError: it is none.
    """
    if config is not None and not isinstance(config, RolloutConfig):
        raise TypeError(
            f"config must be a RolloutConfig, got {type(config).__name__}\n"
            "hint: RolloutConfig(max_turns=4, …)"
        )
    return config or RolloutConfig()


def route_of(
    env: EnvArgument, gateway: Any, *, system_prompt: str | None, processor: Any
) -> EnvRoute:
    """Return the route, which says what plays which row.

    Raises:
        TypeError: `env` or `gateway` is none of what it may be.
        ValueError: `env` is empty, or agents are given what writes conversations.
    """
    if gateway is not None and not isinstance(gateway, Gateway):
        raise TypeError(
            f"gateway must be a Gateway, got {type(gateway).__name__}\n"
            "hint: abut.gateway.Gateway(host=…, port=…)"
        )
    route = EnvRoute(env, gateway)
    if route.agents:
        _refuse_writers(system_prompt, processor)
    return route


def processor_with(
    processor: Processor | PartsProcessor | None,
    hf_tokenizer: Any,
    tools: Sequence[Mapping[str, Any]],
    *,
    chat_template: str | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> PartsProcessor:
    """The processor that is given, or one of the tokenizer's chat template that shows the tools."""
    made = processor or ChatTemplateProcessor(
        hf_tokenizer,
        tools=tools or None,
        chat_template=chat_template,
        **(chat_template_kwargs or {}),
    )
    return as_parts_processor(made, hf_tokenizer)


def text_config(model: Any) -> Any:
    """The config of a model, or of the part of it that reads text."""
    config = model.config
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _refuse_writers(system_prompt: str | None, processor: Any) -> None:
    """Refuse what would write into an agent's conversations, which are its own."""
    if system_prompt is not None:
        raise ValueError(
            "system_prompt= with an agent: an agent writes its messages itself\n"
            "hint: let the agent send its system message"
        )
    if processor is not None and not isinstance(processor, PartsProcessor):
        raise ValueError(
            f"processor={type(processor).__name__}(…) with an agent: it writes text, and the "
            "messages of an agent need scaffold and content apart\n"
            "hint: leave processor= out, or give a ChatTemplateProcessor"
        )
