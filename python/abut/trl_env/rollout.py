"""trl-env's `make_rollout_func` and `make_reward_func`, over abut's engine."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import abut.trl
from abut.envs.env import Env
from abut.processor import Processor
from abut.rollout.config import RolloutConfig
from abut.trl_env.decoder import DecoderSampler, DecoderSettings, RolloutDecoderFactory
from abut.trl_env.processor import parts_processor
from abut.trl_env.tokenizer import Tokenizer

Columns: TypeAlias = dict[str, list[Any]]


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
        decoder_factory: how turns are sampled.
        env_factory: makes the environment of each rollout.
        system_prompt: begins each conversation.
        max_conversation_length: tokens of prompt and completion; also the trainer's
            `max_completion_length` holds.

    Raises:
        TypeError: `tokenizer` holds no tokenizer, or `env_factory` makes no environments.
        TemplateError: the processor's end of a turn is no token.
    """
    hf_tokenizer = getattr(tokenizer, "processing_class", None)
    if hf_tokenizer is None:
        raise TypeError(
            f"tokenizer must hold the trainer's tokenizer, got {type(tokenizer).__name__}\n"
            "hint: TransformerTokenizer(processing_class)"
        )
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
                "make_rollout_func has another tokenizer than the trainer\n"
                "hint: GRPOTrainer(processing_class=tokenizer.processing_class, …)"
            )
        if isinstance(decoder_factory, DecoderSettings):
            decoder_factory.check_trainer(trainer)
        else:
            own.decoder = decoder_factory.make_decoder(trainer)
        columns = play(prompts, trainer)
        return columns | {"reward": columns["env_reward"]}

    return rollout_func


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
