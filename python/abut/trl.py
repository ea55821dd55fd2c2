"""TRL: a `rollout_func` for `GRPOTrainer`, and the reward function that goes with it.

Invariant: one row for each prompt, in order, each exactly what the engine saw and sampled; a row
ends on a sampled token; a failed rollout is a row that carries no weight.
"""

import dataclasses
import functools
import inspect
import logging
import os
import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from abut._native import Tokenizer
from abut.engine import Engine, Limits
from abut.env import EnvFactory, EnvPool, Message, check_env_factory
from abut.env_source import EnvSource, ForTask
from abut.errors import MissingExtraError, TemplateError, TokenizerError
from abut.metrics import log_rollout_metrics, rollout_stats
from abut.processor import ChatTemplateProcessor, PartsProcessor, Processor, as_parts_processor
from abut.record import JsonlRecorder, Recorder
from abut.rollout import Rollout, RolloutConfig, RolloutTask
from abut.sampler import BatchSampler, Sampler
from abut.trl_environment import (
    MakeEnvironment,
    from_environment_factory,
    is_environment_class,
)
from abut.trl_sampler import sampler_of

__all__ = ["env_reward", "from_environment_factory", "make_rollout_func", "scored_only"]

logger = logging.getLogger(__name__)

_OLDEST = (0, 29, 1)
_NEWEST = (1, 16)
_NONE_IS_UNSCORED = (1, 6)


def make_rollout_func(
    env: Any,
    *,
    config: RolloutConfig | None = None,
    processor: Processor | PartsProcessor | None = None,
    sampler: Sampler | BatchSampler | str = "auto",
    system_prompt: str | None = None,
    recorder: Recorder | str | os.PathLike[str] | None = None,
) -> "RolloutFunc":
    """Return a `rollout_func` for `GRPOTrainer`.

    Args:
        env: an Env class or a factory without arguments, of which each episode gets a fresh one;
            or an environment pool, which lends it one; or what `abut.tool_env` returns; or a class
            as TRL's `environment_factory` takes it (`reset` and tools, no `step`), see
            `from_environment_factory`.
        config: limits and policies; None takes the defaults.
        processor: None derives one from the tokenizer's chat template.
        sampler: "auto" asks the trainer's vLLM server, or without vLLM samples with the trainer's
            model in this process.
        system_prompt: for prompts that have no system message.
        recorder: keeps every rollout; a path is that of a JSONL file.

    Raises:
        TypeError: `env` is no class, factory or pool.
        ValueError: `sampler` is an unknown name.
        MissingExtraError: TRL is not installed, or older than 0.29.1.
    """
    _check_trl_version()
    if isinstance(sampler, str) and sampler != "auto":
        raise ValueError(f"sampler={sampler!r}: expected 'auto' or a sampler object")
    if isinstance(recorder, str | os.PathLike):
        recorder = JsonlRecorder(recorder)
    if config is not None and not isinstance(config, RolloutConfig):
        raise TypeError(
            f"config must be a RolloutConfig, got {type(config).__name__}\n"
            "hint: RolloutConfig(max_turns=4, …)"
        )
    if not isinstance(sampler, str | Sampler | BatchSampler) or isinstance(sampler, type):
        raise TypeError(
            f"sampler must be 'auto' or an object with sample or sample_batch, got {sampler!r}"
        )
    if is_environment_class(env):
        env = from_environment_factory(env)
    return RolloutFunc(
        env if isinstance(env, EnvSource) else check_env_factory(env),
        config or RolloutConfig(),
        processor,
        sampler,
        system_prompt,
        recorder,
    )


class RolloutFunc:
    """Called by `GRPOTrainer` with the prompts of this rank, already repeated for each group."""

    def __init__(
        self,
        env: EnvFactory | EnvPool | EnvSource,
        config: RolloutConfig,
        processor: Processor | PartsProcessor | None,
        sampler: Sampler | BatchSampler | str,
        system_prompt: str | None,
        recorder: Recorder | None,
    ) -> None:
        self._env = env
        self._config = config
        self._processor = processor
        self._sampler = sampler
        self._system_prompt = system_prompt
        self._recorder = recorder
        self._engine: Engine | None = None
        self._for_task: ForTask | None = None
        self._trainer: Any = None
        self._batches: dict[str, tuple[int, int]] = {}
        self._next_group: dict[str, int] = {}

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        """Return the columns that TRL requires and the extras for reward functions."""
        if self._engine is None or self._trainer is not trainer:
            self._engine = self._build_engine(trainer)
            self._trainer = trainer
        if trainer.use_vllm and trainer.vllm_mode == "server":
            # Rank 0 sends the weights while the others go on; no rank may sample before it is done.
            trainer.accelerator.wait_for_everyone()
        mode = "train" if trainer.model.training else "eval"
        tasks = self._tasks(prompts, trainer, mode)
        rollouts = self._engine.run(tasks, on_rollout=self._record(trainer, mode))
        rows = [
            self._row(rollout, task, self._engine)
            for rollout, task in zip(rollouts, tasks, strict=True)
        ]
        columns: dict[str, list[Any]] = {}
        if any(isinstance(task.make_env, MakeEnvironment) for task in tasks):
            # As TRL gives them to reward functions.
            columns["environments"] = [task.make_env.environment for task in tasks]  # type: ignore[union-attr]
        return columns | {
            **{key: [row[key] for row in rows] for key in rows[0]},
            "env_reward": [rollout.reward for rollout in rollouts],
            "env_step_rewards": [rollout.step_rewards for rollout in rollouts],
            "num_turns": [len(rollout.turns) for rollout in rollouts],
            "stop_reason": [rollout.stop_reason.value for rollout in rollouts],
            "error": [rollout.error for rollout in rollouts],
            "rollout_id": [rollout.rollout_id for rollout in rollouts],
            "messages": [rollout.messages for rollout in rollouts],
            "rollout_stats": [rollout_stats(rollout) for rollout in rollouts],
        }

    def _record(self, trainer: Any, mode: str) -> Callable[[Rollout], None] | None:
        if self._recorder is None:
            return None
        hf_tokenizer = _tokenizer_of(trainer)
        return functools.partial(
            self._recorder.write,
            step=trainer.state.global_step,
            mode=mode,
            tokenizer=hf_tokenizer.name_or_path,
        )

    def _build_engine(self, trainer: Any) -> Engine:
        _check_trainer(trainer)
        if getattr(self._sampler, "base_urls", ()) and not trainer.use_vllm:
            warnings.warn(
                "the rollouts are sampled by a server, but the trainer has use_vllm=False: TRL "
                "sends the server no weights, and does not correct for the difference",
                stacklevel=3,
            )
        config = self._config
        if config.on_failure == "unscored" and _trl_version() < _NONE_IS_UNSCORED:
            logger.warning(
                "TRL %s counts a reward of None as 0, so a failed rollout raises here; "
                "TRL 1.6 and later leave it out",
                version("trl"),
            )
            config = dataclasses.replace(config, on_failure="raise")
        hf_tokenizer = _tokenizer_of(trainer)
        source = self._env if isinstance(self._env, EnvSource) else None
        processor = self._processor or ChatTemplateProcessor(
            hf_tokenizer,
            tools=source.tools if source else None,
            chat_template=getattr(trainer, "chat_template", None),
            **(getattr(trainer, "chat_template_kwargs", None) or {}),
        )
        parts_processor = as_parts_processor(processor, hf_tokenizer)
        self._for_task = source.bind(parts_processor) if source else None
        eos = getattr(getattr(trainer.model, "generation_config", None), "eos_token_id", None)
        context = getattr(_text_config(trainer.model), "max_position_embeddings", None)
        sampler = self._sampler
        if isinstance(sampler, str):
            sampler = sampler_of(trainer, hf_tokenizer, _trl_version())
        return Engine(
            Tokenizer.from_pretrained(hf_tokenizer),
            parts_processor,
            sampler,
            config,
            Limits(
                config.max_completion_tokens or trainer.max_completion_length,
                config.max_context_tokens or context,
            ),
            stop_token_ids=[eos] if isinstance(eos, int) else eos or [],
            progress=not trainer.args.disable_tqdm,
        )

    def _tasks(self, prompts: Sequence[Any], trainer: Any, mode: str) -> list[RolloutTask]:
        generations = trainer.num_generations
        if mode == "eval":
            generations = getattr(trainer, "num_generations_eval", generations)
        # A rank's slice may cut a group, so groups are counted over all ranks.
        offset = trainer.accelerator.process_index * len(prompts)
        batch = self._name_batch(mode, trainer.state.global_step)
        groups = -(-trainer.accelerator.num_processes * len(prompts) // generations)
        first_group = self._first_group(mode, trainer.state.global_step, groups)
        tasks = []
        for index, prompt in enumerate(prompts):
            messages, seed, columns = self._start(prompt, index)
            group = (offset + index) // generations
            task = RolloutTask(
                index=index,
                rollout_id=f"{batch}-{offset + index}",
                make_env=self._env,  # type: ignore[arg-type]  # a source: see below
                messages=messages,
                # Arrow fills a key that a row does not have with None.
                seed=seed if columns.get("seed") is None else str(columns["seed"]),
                episode_seed=_episode_seed(self._config.seed, batch, group),
                columns=columns,
                group=first_group + group,
            )
            tasks.append(self._for_task(task) if self._for_task else task)
        return tasks

    def _first_group(self, mode: str, step: int, groups: int) -> int:
        """The number of a batch's first group, on all ranks the same.

        In training the numbers go on from batch to batch, in a resumed run from about where they
        were. Each evaluation begins at 0: it is compared with the others.
        """
        _, nth = self._batches[mode]
        first = self._next_group.get(mode, step * groups)
        if mode == "eval" and nth == 0:
            first = 0
        self._next_group[mode] = first + groups
        return first

    def _name_batch(self, mode: str, step: int) -> str:
        """Name the batch by the trainer's step, so that a resumed run repeats no earlier name.

        All ranks get their batches in the same order, so they agree on the name.
        """
        last_step, nth = self._batches.get(mode, (step, -1))
        nth = nth + 1 if last_step == step else 0
        self._batches[mode] = (step, nth)
        return f"{mode}-{step}-{nth}"

    def _start(self, prompt: Any, index: int) -> tuple[list[Message], str, dict[str, Any]]:
        """Return the history, the seed, and the columns that a prompt stands for."""
        system = []
        if self._system_prompt is not None:
            system = [{"role": "system", "content": self._system_prompt}]
        if isinstance(prompt, str):
            return system, prompt, {}
        if not isinstance(prompt, Sequence) or not all(map(_is_message, prompt)):
            raise ValueError(
                f"prompt {index} is {str(prompt)[:120]!r}: expected a string or a list of "
                'messages, {"role": …, "content": …}\n'
                "hint: see the dataset's column `prompt`"
            )
        messages = [dict(message) for message in prompt]
        columns: dict[str, Any] = {}
        if messages and isinstance(messages[-1].get("row"), Mapping):
            columns = dict(messages[-1].pop("row"))
        if system and any(message.get("role") == "system" for message in messages):
            raise ValueError(
                f"prompt {index} has a system message and make_rollout_func has a system_prompt\n"
                "hint: give one of the two"
            )
        users = [m for m in messages if m.get("role") == "user"]
        seed = users[-1].get("content") if users else ""
        return [*system, *messages], str(seed), columns

    def _row(self, rollout: Rollout, task: RolloutTask, engine: Engine) -> dict[str, Any]:
        # Lists: TRL walks through them in Python, and promises them to reward functions.
        columns = rollout.columns
        if columns is not None and not rollout.failed:
            return {
                "prompt_ids": columns.prompt_ids.tolist(),
                "completion_ids": columns.completion_ids.tolist(),
                "logprobs": columns.logprobs.tolist(),
                "env_mask": columns.env_mask.tolist(),
            }
        prompt_ids = rollout.prompt_ids
        if prompt_ids is None:
            prompt_ids = _canonical_prompt(task, engine)
        return {
            "prompt_ids": np.asarray(prompt_ids).tolist(),
            "completion_ids": [engine.processor.close_token_id],
            "logprobs": [0.0],
            "env_mask": [0],
        }


def env_reward(
    completions: Sequence[Any],
    *,
    env_reward: Sequence[float | None],
    rollout_stats: Sequence[Mapping[str, Any]] = (),
    log_metric: Callable[[str, float], None] | None = None,
    **_: Any,
) -> list[float | None]:
    """Reward function for `GRPOTrainer`: the environment's own reward; None where it has none.

    Logs the `rollout/…` metrics of the batch.
    """
    if log_metric is not None:
        log_rollout_metrics(rollout_stats, log_metric)
    return list(env_reward)


def scored_only(reward_func: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a reward function: None where the environment's own reward is None.

    That is where a rollout failed, sampled nothing, or got no score.

    TRL leaves a row out only where *every* reward function returns None.
    """

    def unscore(
        rewards: Sequence[float | None], env_reward: Sequence[float | None]
    ) -> list[float | None]:
        return [None if env is None else r for r, env in zip(rewards, env_reward, strict=True)]

    if inspect.iscoroutinefunction(reward_func):

        @functools.wraps(reward_func)
        async def wrapped_async(*args: Any, **kwargs: Any) -> list[float | None]:
            return unscore(await reward_func(*args, **kwargs), kwargs["env_reward"])

        wrapped_async.__abut_scored_only__ = True  # type: ignore[attr-defined]
        return wrapped_async

    @functools.wraps(reward_func)
    def wrapped(*args: Any, **kwargs: Any) -> list[float | None]:
        return unscore(reward_func(*args, **kwargs), kwargs["env_reward"])

    wrapped.__abut_scored_only__ = True  # type: ignore[attr-defined]
    return wrapped


env_reward.__abut_scored_only__ = True  # type: ignore[attr-defined]


def _check_trainer(trainer: Any) -> None:
    for name in ("tools", "environment_factory", "environment_factories"):
        if getattr(trainer, name, None):
            raise ValueError(
                f"GRPOTrainer({name}=…) and rollout_func exclude each other: TRL would run its own "
                "tool loop over finished rollouts\nhint: leave one of the two out"
            )
    for reward_func in trainer.reward_funcs:
        if not getattr(reward_func, "__abut_scored_only__", False):
            name = getattr(reward_func, "__name__", type(reward_func).__name__)
            warnings.warn(
                f"the reward function {name} also scores rollouts that failed, which pollutes "
                f"their group's baseline; wrap it: abut.trl.scored_only({name})",
                stacklevel=4,
            )


def _tokenizer_of(trainer: Any) -> Any:
    """The trainer's tokenizer; a multimodal processor holds one."""
    return getattr(trainer.processing_class, "tokenizer", trainer.processing_class)


def _text_config(model: Any) -> Any:
    config = model.config
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _canonical_prompt(task: RolloutTask, engine: Engine) -> list[int]:
    """A prompt for a rollout that failed before it had one.

    It trains nothing (mask 0). What made the rollout fail may be the prompt itself, so the next
    best is an empty user turn, then the stop token alone: TRL needs a row in any case.
    """
    messages = list(task.messages)
    if not any(message["role"] == "user" for message in messages):
        messages.append({"role": "user", "content": task.seed})
    for attempt in (messages, [{"role": "user", "content": ""}]):
        with suppress(TemplateError, TokenizerError):
            parts = engine.processor.opening(attempt)
            return engine.tokenizer.encode_parts(parts).tolist()  # type: ignore[no-any-return]
    return [engine.processor.close_token_id]


def _is_message(message: Any) -> bool:
    return isinstance(message, Mapping) and isinstance(message.get("role"), str)


def _episode_seed(seed: int, batch: str, group: int) -> int:
    return random.Random(f"{seed}/{batch}/{group}").getrandbits(31)


def _trl_version() -> tuple[int, ...]:
    try:
        text = version("trl")
    except PackageNotFoundError:
        raise MissingExtraError("abut.trl needs TRL: pip install 'abut[trl]'") from None
    numbers = []
    for piece in text.split("."):
        if not piece.isdigit():
            break
        numbers.append(int(piece))
    return tuple(numbers)


def _check_trl_version() -> None:
    found = _trl_version()
    if found < _OLDEST:
        raise MissingExtraError(
            f"abut.trl needs TRL 0.29.1 or later, found {version('trl')}\n"
            "hint: pip install 'trl>=0.29.1'"
        )
    if found[:2] > _NEWEST:
        warnings.warn(
            f"abut.trl was tested up to TRL 1.16 and found {version('trl')}", stacklevel=3
        )
