"""The arguments that `make_rollout_func` and `make_rollout_worker` share, and the engine of both.

Invariant: a wrong argument is refused immediately, by an error that names it and the valid values.
"""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from abut._native import Tokenizer
from abut.envs.source import ForTask, bind_all
from abut.errors import TemplateError
from abut.gateway.server.gateway import Gateway
from abut.processor import PartsProcessor, Processor
from abut.records.image_folder import ImageFolder
from abut.records.recorder import BackgroundRecorder, Recorder, recorder_at
from abut.rollout.config import RolloutConfig
from abut.rollout.engine import Engine
from abut.samplers.hosted import TextSampler
from abut.samplers.in_process import AnySampler, StreamSampler
from abut.samplers.sampler import BatchSampler, Sampler, SampleRequest
from abut.template.image_processor import ImageProcessor
from abut.template.processor import ChatTemplateProcessor
from abut.template.text_processor import as_parts_processor
from abut.trl.route import EnvArgument, EnvRoute
from abut.trl.tasks import Tasks

SamplerArgument: TypeAlias = AnySampler | str
"""The argument `sampler`: a sampler of any kind, or "auto"."""

RecorderArgument: TypeAlias = Recorder | str | os.PathLike[str] | None


@dataclass(frozen=True)
class Arguments:
    """The arguments that both functions share, checked.

    Attributes:
        tasks: makes the tasks, and has the route of `env` and `gateway`.
        config: limits and policies.
        processor: writes the conversations; None derives one from the tokenizer's chat template.
        sampler: a sampler, or "auto".
        recorder: records the rollouts.
        record_images: stores their images.
    """

    tasks: Tasks
    config: RolloutConfig
    processor: Processor | PartsProcessor | None
    sampler: SamplerArgument
    recorder: Recorder | None
    record_images: ImageFolder | None = None

    @property
    def route(self) -> EnvRoute:
        """The environments."""
        return self.tasks.route


def checked_arguments(
    env: EnvArgument,
    *,
    config: RolloutConfig | None,
    processor: Processor | PartsProcessor | None,
    sampler: SamplerArgument,
    system_prompt: str | None,
    recorder: RecorderArgument,
    gateway: Gateway | None,
    record_images: str | os.PathLike[str] | None = None,
) -> Arguments:
    """Check the arguments of `make_rollout_func`, which documents them.

    Raises:
        TypeError: an argument has a wrong type.
        ValueError: `sampler` is an unknown name, `env` is empty, agents get a `system_prompt` or a
            processor of plain text, environments get a limit of agents, or only images are
            recorded.
    """
    _check_sampler(sampler)
    config = _checked_config(config)
    route = _route_of(env, gateway, system_prompt=system_prompt, processor=processor)
    for name in ("max_calls", "max_rollout_tokens"):
        if getattr(config, name) is not None and not route.agents:
            raise ValueError(
                f"RolloutConfig({name}=…) limits the conversations of an agent, but env has no "
                "agent\n"
                "hint: to limit the conversation of an environment, use max_turns and "
                "max_completion_tokens"
            )
    tasks = Tasks(route, seed=config.seed, system_prompt=system_prompt)
    if record_images is not None and recorder is None:
        raise ValueError(
            "record_images= needs recorder=, because only the records say where each image "
            "belongs\n"
            "hint: set recorder='rollouts.jsonl', or a folder for Parquet"
        )
    images = None if record_images is None else ImageFolder(record_images)
    return Arguments(tasks, config, processor, sampler, _checked_recorder(recorder), images)


@dataclass(frozen=True, kw_only=True)
class TrainerSide:
    """The part of an engine's settings that a trainer decides.

    Attributes:
        hf_tokenizer: the trainer's tokenizer.
        model_limits: of the trained model.
        max_completion_tokens: used if the config has none.
        sampler: makes the sampler for "auto".
        chat_template: the trainer's own template, if it has one.
        chat_template_kwargs: variables for the chat template.
        progress: whether to show a progress bar.
        watch: see `Engine`.
        images: the image processor of the trainer; None: there is none, or abut refused it.
    """

    hf_tokenizer: Any
    model_limits: "ModelLimits"
    max_completion_tokens: int | None
    sampler: Callable[[], AnySampler]
    chat_template: str | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None
    progress: bool = False
    watch: Callable[[SampleRequest], None] | None = None
    images: ImageProcessor | None = None


@dataclass(frozen=True)
class ModelLimits:
    """The stop tokens, the context length and the vocabulary size of a model."""

    stop_token_ids: Sequence[int] = ()
    max_context_tokens: int | None = None
    vocab_size: int | None = None

    @classmethod
    def of(cls, model: Any) -> "ModelLimits":
        """Read the limits from the configs of a Hugging Face model."""
        eos = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
        config = model.config
        if hasattr(config, "get_text_config"):  # the config of the part that reads text
            config = config.get_text_config()
        return cls(
            [eos] if isinstance(eos, int) else eos or [],
            getattr(config, "max_position_embeddings", None),
            getattr(config, "vocab_size", None),
        )


def engine_for(trainer: TrainerSide, arguments: Arguments) -> tuple[Engine, ForTask]:
    """Return the engine that plays for a trainer, and the function that completes a task for it.

    Raises:
        TypeError, TemplateError: as for `bind_all`.
        ValueError: as for `ChatTemplateProcessor`, or `trainer.sampler`.
    """

    def processor_with(tools: Sequence[Mapping[str, Any]]) -> PartsProcessor:
        made = arguments.processor or _derived(trainer, tools)
        return as_parts_processor(made, trainer.hf_tokenizer)

    processor, for_task = bind_all(arguments.route.kinds, processor_with)
    config, sampler = arguments.config, arguments.sampler
    if isinstance(sampler, str):
        sampler = trainer.sampler()
    engine = Engine(
        Tokenizer.from_pretrained(trainer.hf_tokenizer),
        processor,
        sampler,
        dataclasses.replace(
            config,
            max_completion_tokens=config.max_completion_tokens or trainer.max_completion_tokens,
            max_context_tokens=config.max_context_tokens or trainer.model_limits.max_context_tokens,
        ),
        stop_token_ids=trainer.model_limits.stop_token_ids,
        progress=trainer.progress,
        watch=trainer.watch,
    )
    return engine, for_task


def _derived(trainer: TrainerSide, tools: Sequence[Mapping[str, Any]]) -> ChatTemplateProcessor:
    """Return the processor of the trainer's template, with images if the template writes them.

    If only the images cannot be proved exact, the template still writes text; `check_images` raises
    the reason if a prompt has images.
    """

    def make(images: ImageProcessor | None) -> ChatTemplateProcessor:
        return ChatTemplateProcessor(
            trainer.hf_tokenizer,
            tools=tools or None,
            chat_template=trainer.chat_template,
            images=images,
            **(trainer.chat_template_kwargs or {}),
        )

    if trainer.images is None:
        return make(None)
    try:
        return make(trainer.images)
    except TemplateError:
        return make(None)


def image_processor_of(
    processing_class: Any, processor: Processor | PartsProcessor | None
) -> ImageProcessor | None:
    """Return the image processor for a trainer; None if images are refused.

    Args:
        processing_class: the trainer's `processing_class`.
        processor: the argument of `make_rollout_func`; if given, it decides.
    """
    if processor is not None:
        images = getattr(processor, "images", None)
        return images if isinstance(images, ImageProcessor) else None
    if getattr(processing_class, "image_processor", None) is None:
        return None
    try:
        return ImageProcessor(processing_class)
    except TemplateError:  # text still works, and `check_images` raises the error for images
        return None


def _check_sampler(sampler: Any) -> None:
    """Refuse an argument that is neither "auto" nor a sampler.

    Raises:
        ValueError: it is an unknown name.
        TypeError: it cannot sample.
    """
    if isinstance(sampler, str) and sampler != "auto":
        raise ValueError(f"sampler={sampler!r}: expected 'auto' or a sampler object")
    if isinstance(sampler, TextSampler):
        raise TypeError(
            f"sampler={type(sampler).__name__}(…) answers with messages, but training needs "
            "tokens and their logprobs\n"
            "hint: use it with abut.play and abut.evaluate; for training leave sampler out"
        )
    kinds = str | Sampler | BatchSampler | StreamSampler
    if not isinstance(sampler, kinds) or isinstance(sampler, type):
        raise TypeError(
            "sampler must be 'auto' or an object with sample, sample_batch or sample_stream, got "
            f"{sampler!r}"
        )


def _checked_recorder(recorder: Any) -> Recorder | None:
    """Return the recorder, or one at the path.

    Raises:
        TypeError: it is neither a recorder nor a path.
    """
    if isinstance(recorder, str | os.PathLike):
        recorder = BackgroundRecorder(recorder_at(recorder))
    if recorder is not None and not callable(getattr(recorder, "write", None)):
        raise TypeError(
            "recorder must be a path or have a method write(rollout, **extra), got "
            f"{recorder!r}\n"
            "hint: set recorder='rollouts.jsonl', or a folder for Parquet"
        )
    return recorder  # type: ignore[no-any-return]


def _checked_config(config: Any) -> RolloutConfig:
    """Return the config; None takes the defaults.

    Raises:
        TypeError: it is not a `RolloutConfig`.
    """
    if config is not None and not isinstance(config, RolloutConfig):
        raise TypeError(
            f"config must be a RolloutConfig, got {type(config).__name__}\n"
            "hint: set config=RolloutConfig(max_turns=4, …)"
        )
    return config or RolloutConfig()


def _route_of(
    env: EnvArgument, gateway: Any, *, system_prompt: str | None, processor: Any
) -> EnvRoute:
    """Return the route, which chooses the environment of a row.

    Raises:
        TypeError: `env` or `gateway` has a wrong type.
        ValueError: `env` is empty, or agents get a `system_prompt` or a processor of plain text.
    """
    if gateway is not None and not isinstance(gateway, Gateway):
        raise TypeError(
            f"gateway must be a Gateway, got {type(gateway).__name__}\n"
            "hint: set gateway=abut.gateway.Gateway(host=…, port=…)"
        )
    route = EnvRoute(env, gateway)
    if route.agents:
        _refuse_writers(system_prompt, processor)
    return route


def _refuse_writers(system_prompt: str | None, processor: Any) -> None:
    """Refuse arguments that would write into conversations that an agent writes itself."""
    if system_prompt is not None:
        raise ValueError(
            "system_prompt= does not work with an agent, which writes its messages itself\n"
            "hint: let the agent send its system message"
        )
    if processor is not None and not isinstance(processor, PartsProcessor):
        raise ValueError(
            f"processor={type(processor).__name__}(…) does not work with an agent: it writes "
            "plain text, but the messages of an agent need scaffold and content as separate "
            "parts\n"
            "hint: leave processor= out, or pass a ChatTemplateProcessor"
        )
