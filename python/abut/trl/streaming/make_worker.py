"""The workers of TRL's asynchronous trainers, from their arguments.

Invariant: settings that could not be trained are refused here, before a model is loaded, as far as
the arguments show them.
"""

import math
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from abut.errors import MissingExtraError
from abut.gateway.server.gateway import Gateway
from abut.pretrained import tokenizer_of
from abut.processor import PartsProcessor, Processor
from abut.rollout.config import RolloutConfig
from abut.trl.dataset_images import refuse_image_processor
from abut.trl.rewards import env_reward
from abut.trl.route import EnvArgument
from abut.trl.rows.main_rows import SERVER_DISTILLATION
from abut.trl.streaming.distillation import Distillation
from abut.trl.streaming.group_scores import reward_functions
from abut.trl.streaming.worker import RolloutWorker
from abut.trl.teachers.teacher import Teacher
from abut.trl.teachers.vllm_teacher import VllmTeacher
from abut.trl.trainer_engine import (
    Arguments,
    RecorderArgument,
    SamplerArgument,
    checked_arguments,
)
from abut.trl.version import ASYNC_WORKER, check_trl_version, trl_version, trl_version_text

RewardFuncs = Callable[..., Any] | Sequence[Callable[..., Any]]


def make_rollout_worker(
    env: EnvArgument,
    *,
    args: Any,
    train_dataset: Any,
    processing_class: Any,
    config: RolloutConfig | None = None,
    reward_funcs: RewardFuncs = env_reward,
    processor: Processor | PartsProcessor | None = None,
    sampler: SamplerArgument = "auto",
    base_urls: str | Sequence[str] | None = None,
    system_prompt: str | None = None,
    recorder: RecorderArgument = None,
    gateway: Gateway | None = None,
    credit: object = None,
) -> RolloutWorker:
    """Return a `rollout_worker` for `AsyncGRPOTrainer`, which also needs its callback.

    ```python
    worker = make_rollout_worker(Env, args=args, train_dataset=rows, processing_class=tokenizer)
    AsyncGRPOTrainer(…, rollout_worker=worker, callbacks=[worker.callback]).train()
    ```

    Args:
        env: as for `make_rollout_func`.
        args: the trainer's `AsyncGRPOConfig`, the same object.
        train_dataset: the dataset, with a column `prompt`; its rows are played in order, epoch
            after epoch.
        processing_class: the trainer's tokenizer, or a processor that holds one.
        config: limits and policies; None takes the defaults, and `args.request_timeout` for a turn.
        reward_funcs: one or several, called with each group as `GRPOTrainer` calls them with a
            batch; their rewards are added.
        processor: writes the conversations; None derives one from the tokenizer's chat template.
        sampler: draws the turns; "auto" uses the vLLM servers that get the trainer's weights.
        base_urls: the addresses of these servers, with "auto"; None takes
            `args.vllm_server_base_url`.
        system_prompt: put before each prompt; the prompts must not have system messages.
        recorder: as for `make_rollout_func`.
        gateway: as for `make_rollout_func`.
        credit: must be None, because an asynchronous row has only one advantage.

    Raises:
        TypeError: an argument has a wrong type, or works only with `make_rollout_func`: `credit`, a
            `config.branch` that leaves conversations out, and a `processor` with images.
        ValueError: `sampler` is an unknown name, `env` or `reward_funcs` is empty, or agents get a
            `system_prompt` or a processor of plain text.
        MissingExtraError: TRL is not installed, or older than 1.11.
    """
    _check_version("make_rollout_worker", stacklevel=3)
    if not hasattr(args, "max_staleness") or not hasattr(args, "num_generations"):
        raise TypeError(
            f"args must be the AsyncGRPOConfig of the trainer, got {type(args).__name__}\n"
            "hint: from trl.experimental.async_grpo import AsyncGRPOConfig; for "
            "AsyncDistillationTrainer, call make_distillation_worker"
        )
    if credit is not None:
        raise TypeError(
            "credit= does not work with the asynchronous worker, because AsyncGRPOTrainer takes "
            "one advantage per row, not per token\n"
            "hint: leave credit out, or train with abut.trl.GRPOTrainer; rewards of whole "
            "conversations (AgentResult.rewards) work with both"
        )
    return RolloutWorker(
        _checked(
            env,
            args,
            train_dataset,
            base_urls=base_urls,
            config=config,
            processor=processor,
            sampler=sampler,
            system_prompt=system_prompt,
            recorder=recorder,
            gateway=gateway,
        ),
        args,
        train_dataset,
        tokenizer_of(processing_class),
        reward_functions(reward_funcs),
        base_urls,
        generations=args.num_generations,
        owns_gateway=gateway is None,
    )


def make_distillation_worker(
    env: EnvArgument,
    *,
    args: Any,
    train_dataset: Any,
    processing_class: Any,
    teacher: Teacher | None = None,
    rollouts_per_prompt: int = 1,
    config: RolloutConfig | None = None,
    reward_funcs: RewardFuncs | None = None,
    processor: Processor | PartsProcessor | None = None,
    sampler: SamplerArgument = "auto",
    base_urls: str | Sequence[str] | None = None,
    system_prompt: str | None = None,
    recorder: RecorderArgument = None,
    gateway: Gateway | None = None,
    credit: object = None,
) -> RolloutWorker:
    """Return a `rollout_worker` for `AsyncDistillationTrainer`, which also needs its callback.

    ```python
    worker = make_distillation_worker(Env, args=args, train_dataset=rows, processing_class=tok)
    AsyncDistillationTrainer(…, rollout_worker=worker, callbacks=[worker.callback]).train()
    ```

    Args:
        env: as for `make_rollout_func`.
        args: the trainer's `AsyncDistillationConfig`, the same object.
        train_dataset: as for `make_rollout_worker`; with several teachers, its column `teacher_id`
            names the teacher of a row.
        processing_class: the student's tokenizer; the teacher must have the same.
        teacher: scores each row after its rollout has ended; None uses the servers in
            `args.teacher_server_urls`.
        rollouts_per_prompt: how often each row of the dataset is played.
        config: as for `make_rollout_worker`.
        reward_funcs: for metrics only; None logs the environment's own reward.
        processor: as for `make_rollout_worker`.
        sampler: as for `make_rollout_worker`.
        base_urls: the student's servers, as for `make_rollout_worker`.
        system_prompt: as for `make_rollout_worker`.
        recorder: as for `make_rollout_func`.
        gateway: as for `make_rollout_func`.
        credit: must be None, because distillation trains only on the teacher's scores.

    Raises:
        TypeError: an argument has a wrong type, or works only with `make_rollout_func`.
        ValueError: as for `make_rollout_worker`; or the trainer would compute another loss than
            `args` say: `beta=1` without a tail bucket, a temperature that is not the teacher's, or
            names that the teacher does not have.
        MissingExtraError: TRL is not installed, or older than 1.11.
    """
    _check_version("make_distillation_worker", stacklevel=3)
    if hasattr(args, "teacher_model_server_url"):
        raise TypeError(f"args must not be a ServerDistillationConfig: {SERVER_DISTILLATION}")
    if not hasattr(args, "max_staleness") or not hasattr(args, "teacher_top_k"):
        raise TypeError(
            f"args must be the AsyncDistillationConfig of the trainer, got {type(args).__name__}\n"
            "hint: from trl.experimental.async_distillation import AsyncDistillationConfig"
        )
    if credit is not None:
        raise TypeError(
            "credit= does not work with distillation, which trains only on the teacher's scores\n"
            "hint: to use rewards and a teacher together, train with abut.trl.GRPOTrainer and "
            "make_rollout_func(…, credit=ReverseKL(teacher))"
        )
    if rollouts_per_prompt < 1:
        raise ValueError(f"rollouts_per_prompt={rollouts_per_prompt}: must be at least 1")
    arguments = _checked(
        env,
        args,
        train_dataset,
        base_urls=base_urls,
        config=config,
        processor=processor,
        sampler=sampler,
        system_prompt=system_prompt,
        recorder=recorder,
        gateway=gateway,
    )
    if teacher is None:
        teacher = VllmTeacher(args.teacher_server_urls)
    tokenizer = tokenizer_of(processing_class)
    worker = RolloutWorker(
        arguments,
        args,
        train_dataset,
        tokenizer,
        reward_functions(env_reward if reward_funcs is None else reward_funcs),
        base_urls,
        generations=rollouts_per_prompt,
        owns_gateway=gateway is None,
        distillation=Distillation(teacher, args, train_dataset, tokenizer),
    )
    _count_rows(args, train_dataset, rollouts_per_prompt, has_agents=bool(arguments.route.agents))
    # Otherwise a resumed run would take as many rows as were trained before and discard them. TRL
    # 1.14 and later set it themselves.
    args.ignore_data_skip = True
    return worker


def _check_version(name: str, *, stacklevel: int) -> None:
    check_trl_version(stacklevel=stacklevel)
    if trl_version() < ASYNC_WORKER:
        raise MissingExtraError(
            f"{name} needs TRL 1.11 or later, found {trl_version_text()}\n"
            "hint: pip install 'trl>=1.11'"
        )


def _checked(
    env: EnvArgument,
    args: Any,
    train_dataset: Any,
    *,
    base_urls: str | Sequence[str] | None,
    config: RolloutConfig | None,
    processor: Processor | PartsProcessor | None,
    sampler: SamplerArgument,
    **shared: Any,
) -> Arguments:
    """Check the arguments that all workers share."""
    if base_urls is not None and sampler != "auto":
        raise TypeError(
            "base_urls= works only with sampler='auto', because a sampler object has its own URLs"
        )
    refuse_image_processor(processor)
    if config is None:
        config = RolloutConfig(turn_timeout_s=args.request_timeout)
    arguments = checked_arguments(
        env, config=config, processor=processor, sampler=sampler, **shared
    )
    if arguments.config.branch not in (None, "all"):
        raise TypeError(
            f"RolloutConfig(branch={arguments.config.branch!r}) does not work with the "
            "asynchronous worker, which trains every conversation\n"
            "hint: leave branch out"
        )
    arguments.tasks.check_datasets(train_dataset)
    arguments.tasks.run_id = uuid.uuid4().hex[:8]
    return arguments


def _count_rows(args: Any, dataset: Any, rollouts_per_prompt: int, *, has_agents: bool) -> None:
    """Set `args.max_steps` if TRL would end too early, because it counts one row per prompt.

    The callback ends training when each prompt was trained, so this is an upper bound, and the
    length of the learning rate schedule.

    Raises:
        ValueError: the schedule of the learning rate needs a number of steps that is unknown.
    """
    if args.max_steps > 0 or not hasattr(dataset, "__len__"):
        return
    if has_agents:
        schedule = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
        if schedule != "constant":
            raise ValueError(
                "num_train_epochs does not work with an agent and "
                f"lr_scheduler_type={schedule!r}: a rollout of an agent may become several rows, "
                "so the number of steps of the schedule is unknown\n"
                "hint: set lr_scheduler_type='constant' or max_steps=…"
            )
        args.max_steps = 10**9
    elif rollouts_per_prompt > 1:
        per_step = args.per_device_train_batch_size * args.gradient_accumulation_steps
        rows = args.num_train_epochs * len(dataset) * rollouts_per_prompt
        args.max_steps = math.ceil(rows / (per_step * args.world_size))
