"""trl-env's `rollout`, `make_rollout_func` and `make_reward_func`, on abut's engine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import abut.trl
from abut._native import Tokenizer as NativeTokenizer
from abut.envs.env import Env
from abut.envs.task import RolloutTask
from abut.messages import texts_of
from abut.processor import Processor
from abut.rollout.config import RolloutConfig
from abut.rollout.engine import Engine
from abut.trl_env.decoder import (
    DecoderSampler,
    DecoderSettings,
    RolloutDecoder,
    RolloutDecoderFactory,
)
from abut.trl_env.processor import parts_processor
from abut.trl_env.tokenizer import Tokenizer

Columns: TypeAlias = dict[str, list[Any]]


@dataclass
class RolloutState:
    """The result of one rollout."""

    initial_length: int
    """The number of prompt tokens in `conversation`."""
    conversation: list[int]
    """The ids of prompt and completion; the last id was sampled."""
    env_mask: list[int]
    """One value for each token of the completion; 1 for sampled tokens."""
    logprobs: list[float]
    """One logprob for each token of the completion, nats."""
    reward: float | None
    """The reward of the rollout; None: it has no score."""


def rollout(
    processor: Processor,
    tokenizer: Tokenizer,
    decoder: RolloutDecoder,
    env: Env,
    system_prompt: str,
    max_conversation_length: int,
    seed: str,
    conversation_logger: Callable[[str, str], None] | None = None,
) -> RolloutState:
    """Play one episode without a trainer, to see what a policy does.

    Args:
        processor: one of the presets, or your own.
        tokenizer: holds the tokenizer of the decoder's model.
        decoder: samples the turns: your own decoder, or
            `TransformerDecoderFactory(…).make_decoder(…)`.
        env: the environment; it is reset first.
        system_prompt: the first message of the conversation.
        max_conversation_length: the most tokens of prompt and completion together.
        seed: for `reset`.
        conversation_logger: called with the role and text of each message, after the episode.

    Raises:
        TypeError: `tokenizer` does not hold a tokenizer.
        TemplateError: the processor's `end_answer` is not a token.
        RolloutError: the environment failed.
        SamplerError: the decoder failed.
    """
    hf_tokenizer = _held(tokenizer)
    sampler = DecoderSampler()
    sampler.decoder = decoder
    engine = Engine(
        NativeTokenizer.from_pretrained(hf_tokenizer),
        parts_processor(processor, hf_tokenizer, ()),
        sampler,
        RolloutConfig(
            max_turns=max_conversation_length,  # each takes a token, so tokens are the limit
            max_context_tokens=max_conversation_length,
            retries=0,
            on_failure="raise",
        ),
    )
    system = {"role": "system", "content": system_prompt}
    task = RolloutTask(0, "rollout", lambda: env, [system], seed, 0)
    (played,) = engine.run([task])
    for message in played.messages if conversation_logger is not None else ():
        conversation_logger(message["role"], "".join(texts_of(message)))  # type: ignore[misc]
    columns = played.columns
    prompt_ids = played.prompt_ids if columns is None else columns.prompt_ids
    prompt = [] if prompt_ids is None else [int(i) for i in prompt_ids]
    return RolloutState(
        len(prompt),
        prompt + ([] if columns is None else columns.completion_ids.tolist()),
        [] if columns is None else columns.env_mask.tolist(),
        [] if columns is None else columns.logprobs.tolist(),
        played.reward,
    )


def make_rollout_func(
    processor: Processor,
    tokenizer: Tokenizer,
    decoder_factory: DecoderSettings | RolloutDecoderFactory,
    env_factory: Callable[[], Env],
    system_prompt: str,
    max_conversation_length: int,
) -> Callable[[Sequence[Any], Any], Columns]:
    """Return a `rollout_func` for `GRPOTrainer`; all rollouts of a batch are played at once.

    Args:
        processor: one of the presets, or your own.
        tokenizer: holds the trainer's tokenizer.
        decoder_factory: defines how turns are sampled.
        env_factory: makes the environment of each rollout.
        system_prompt: the first message of each conversation.
        max_conversation_length: the most tokens of prompt and completion together; the trainer's
            `max_completion_length` applies too.

    Raises:
        TypeError: `tokenizer` does not hold a tokenizer, or `env_factory` does not make
            environments.
        TemplateError: the processor's `end_answer` is not a token.
    """
    hf_tokenizer = _held(tokenizer)
    settings = decoder_factory if isinstance(decoder_factory, DecoderSettings) else None
    own = DecoderSampler()
    play = abut.trl.make_rollout_func(
        env_factory,
        config=RolloutConfig(
            max_turns=max_conversation_length,  # each takes a token, so tokens are the limit
            max_turn_tokens=settings.max_completion_length if settings else None,
            max_context_tokens=max_conversation_length,
        ),
        processor=parts_processor(
            processor, hf_tokenizer, settings.eos_token_set if settings else ()
        ),
        sampler="auto" if settings else own,
        system_prompt=system_prompt,
    )

    def rollout_func(prompts: Sequence[Any], trainer: Any) -> Columns:
        theirs = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
        if theirs is not getattr(hf_tokenizer, "tokenizer", hf_tokenizer):
            raise ValueError(
                "make_rollout_func has a different tokenizer than the trainer\n"
                "hint: GRPOTrainer(processing_class=tokenizer.processing_class, …)"
            )
        if isinstance(decoder_factory, DecoderSettings):
            decoder_factory.check_trainer(trainer)
        else:
            own.decoder = decoder_factory.make_decoder(trainer)
        columns = play(prompts, trainer)
        return columns | {"reward": columns["env_reward"]}

    return rollout_func


def _held(tokenizer: Tokenizer) -> Any:
    held = getattr(tokenizer, "processing_class", None)
    if held is None:
        raise TypeError(
            f"tokenizer must hold the trainer's tokenizer, got {type(tokenizer).__name__}\n"
            "hint: pass TransformerTokenizer(processing_class)"
        )
    return held


def make_reward_func() -> Callable[..., list[float | None]]:
    """Return the reward function: the environment's own reward, None for a rollout that failed."""

    def reward_func(
        prompts: Sequence[Any],
        completions: Sequence[Any],
        reward: Sequence[float | None],
        **kwargs: Any,
    ) -> list[float | None]:
        return abut.trl.env_reward(completions, **{**kwargs, "env_reward": reward})

    reward_func.__abut_scored_only__ = True  # type: ignore[attr-defined]
    return reward_func
