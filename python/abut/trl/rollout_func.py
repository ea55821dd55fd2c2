"""The `rollout_func` of `GRPOTrainer`: the prompts of a batch in, its rows out.

Invariant: one row for each prompt, in order, each exactly what the engine saw and sampled; a row
ends on a sampled token; a failed rollout is a row that carries no weight.
"""

import dataclasses
import functools
import logging
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from abut._native import Tokenizer
from abut.envs.source import ForTask, bind_all
from abut.envs.task import RolloutTask
from abut.gateway.server.gateway import Gateway
from abut.pickling import stays
from abut.pretrained import tokenizer_of
from abut.processor import PartsProcessor, Processor
from abut.records.recorder import BackgroundRecorder, Recorder
from abut.rollout.config import RolloutConfig
from abut.rollout.engine import Engine
from abut.rollout.failures import Failures, Tally
from abut.rollout.rollout import Rollout
from abut.samplers.in_process import StreamSampler
from abut.samplers.sampler import BatchSampler, Sampler
from abut.tools.environment_factory import environments_of
from abut.trl.metrics import is_metric, note_tool_calls, tool_calls
from abut.trl.ranks import judged, mean_over_ranks, of_all_ranks, serve_ranks
from abut.trl.rewards import ModelMetrics, has_tools, warn_of_unwrapped, wrap_reward_functions
from abut.trl.route import EnvArgument
from abut.trl.rows import fill_metrics, rows_of
from abut.trl.tasks import Tasks
from abut.trl.trainer_checks import check_end_tokens, warn_of_unseen
from abut.trl.trainer_engine import (
    check_sampler,
    checked_config,
    checked_recorder,
    processor_with,
    route_of,
    text_config,
)
from abut.trl.trainer_sampler import client_settings, sampler_of
from abut.trl.trainer_scores import TrainerScores
from abut.trl.version import NONE_IS_UNSCORED, check_trl_version, trl_version, trl_version_text

logger = logging.getLogger(__name__)


def make_rollout_func(
    env: EnvArgument,
    *,
    config: RolloutConfig | None = None,
    processor: Processor | PartsProcessor | None = None,
    sampler: Sampler | BatchSampler | StreamSampler | str = "auto",
    system_prompt: str | None = None,
    recorder: Recorder | str | os.PathLike[str] | None = None,
    gateway: Gateway | None = None,
) -> "RolloutFunc":
    """Return a `rollout_func` for `GRPOTrainer`.

    Args:
        env: an Env class or a factory without arguments, of which each episode gets a fresh one;
            an environment pool, which lends it one; what `abut.tool_env` returns; a class as TRL's
            `environment_factory` takes it (`reset` and tools, no `step`; see
            `from_environment_factory`); an agent (`abut.agent`); or a dict of these, of which each
            row of the dataset names one in its column `environment`.
        config: limits and policies; None takes the defaults.
        processor: None derives one from the tokenizer's chat template.
        sampler: "auto" asks the trainer's vLLM, a server or an engine in this process, or without
            vLLM samples with the trainer's model.
        system_prompt: for prompts that have no system message.
        recorder: keeps every rollout, and what reward functions and TRL made of it. A path that
            ends in `.jsonl` is that of JSON lines, any other one a folder of Parquet files.
        gateway: where agents ask the policy; None: on the loopback, at a free port.

    Raises:
        TypeError: `env` is no class, factory, pool or dict of these, or another argument is none
            of what it may be.
        ValueError: `sampler` is an unknown name, `env` an empty dict, or agents are given what
            writes conversations.
        MissingExtraError: TRL is not installed, or older than 0.29.1.
    """
    check_trl_version(stacklevel=2)
    check_sampler(sampler)
    config = checked_config(config)
    route = route_of(env, gateway, system_prompt=system_prompt, processor=processor)
    tasks = Tasks(route, seed=config.seed, system_prompt=system_prompt)
    return RolloutFunc(tasks, config, processor, sampler, checked_recorder(recorder))


@stays(
    "it plays with the engine and the environments of this process",
    hint="call make_rollout_func in the process that trains",
)
class RolloutFunc:
    """Called by `GRPOTrainer` with the prompts of this rank, already repeated for each group."""

    def __init__(
        self,
        tasks: Tasks,
        config: RolloutConfig,
        processor: Processor | PartsProcessor | None,
        sampler: Sampler | BatchSampler | StreamSampler | str,
        recorder: Recorder | None,
    ) -> None:
        self._tasks = tasks
        self._config = config
        self._processor = processor
        self._sampler = sampler
        self._recorder = recorder
        writes_scores = getattr(recorder, "write_scores", None)
        self._scores = None if writes_scores is None else TrainerScores(writes_scores, self.flush)
        self._model_metrics = ModelMetrics()
        self._engine: Engine | None = None
        self._trainer: Any = None
        self._warned_of_unseen = False

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        """Return the columns that TRL requires and the extras for reward functions."""
        if self._engine is None or self._trainer is not trainer:
            self._engine, self._for_task = self._build_engine(trainer)
            self._trainer = trainer
        if trainer.use_vllm and trainer.vllm_mode == "server":
            # Rank 0 sends the weights while the others go on; no rank may sample before it is done.
            trainer.accelerator.wait_for_everyone()
        play = functools.partial(self._play, prompts, trainer)
        try:
            tasks, rows = judged(trainer.accelerator, self._config.max_failed_frac, play)
        except BaseException:
            self._end_batch()
            self.flush()  # training ends here, or begins anew: nothing goes on beside it
            raise
        self._end_batch()
        if self._tasks.route.agents:
            fill_metrics(rows, of_all_ranks(trainer.accelerator, filter(is_metric, rows)))
        if has_tools(self._tasks.route.kinds):
            calls = mean_over_ranks(trainer.accelerator, tool_calls(rows["rollout_stats"]))
            note_tool_calls(rows["rollout_stats"], calls)
        mode = "train" if trainer.model.training else "eval"
        self._model_metrics.add(trainer, rows, mode)
        if self._scores is not None:
            self._scores.expect(trainer, [task.rollout_id for task in tasks], self._tasks.run_id)
        return rows

    def _play(
        self, prompts: Sequence[Any], trainer: Any
    ) -> tuple[tuple[list[RolloutTask], dict[str, list[Any]]], Failures, Tally]:
        """The tasks and the rows of this rank's prompts, and what failed of them."""
        assert self._engine is not None
        mode = "train" if trainer.model.training else "eval"
        tasks = [self._for_task(task) for task in self._tasks.of_batch(prompts, trainer, mode)]
        if self._scores is not None:
            self._scores.collect()  # those of the batch before: TRL keeps no more than one
        record = self._record(trainer, mode, tasks)
        rollouts, failures = self._engine.play(tasks, on_rollout=record)
        self._warned_of_unseen = self._warned_of_unseen or warn_of_unseen(tasks, rollouts)
        route = self._tasks.route
        rows = rows_of(
            rollouts,
            tasks,
            self._engine,
            agents=bool(route.agents),
            tools=has_tools(route.kinds),
        )
        rows |= environments_of(tasks, route.kinds)
        return (tasks, rows), failures, failures.tally(rollouts)

    def _end_batch(self) -> None:
        if (flush := getattr(self._recorder, "flush", None)) is not None:
            flush()

    def flush(self) -> None:
        """Wait until what was recorded is on disk.

        Raises:
            OSError: it could not be written.
        """
        if isinstance(self._recorder, BackgroundRecorder):
            self._recorder.wait()

    def _record(
        self, trainer: Any, mode: str, tasks: Sequence[RolloutTask]
    ) -> Callable[[Rollout], None] | None:
        recorder = self._recorder
        if recorder is None:
            return None
        of_batch = {
            "run_id": self._tasks.run_id,
            "rank": trainer.accelerator.process_index,
            "step": trainer.state.global_step,
            "mode": mode,
            "tokenizer": tokenizer_of(trainer.processing_class).name_or_path,
        }

        def write(rollout: Rollout) -> None:
            task = tasks[rollout.index]
            recorder.write(
                rollout,
                **of_batch,
                group=task.group,
                place=task.place,
                seed=task.seed,
                episode_seed=task.episode_seed,
                columns=task.columns,
            )

        return write

    def _build_engine(self, trainer: Any) -> tuple[Engine, ForTask]:
        """Return the engine, and what completes a task for it."""
        _refuse_tool_loop(trainer)
        warn_of_unwrapped(trainer.reward_funcs, stacklevel=3)
        wrap_reward_functions(trainer)
        if getattr(self._sampler, "base_urls", ()) and not trainer.use_vllm:
            warnings.warn(
                "the rollouts are sampled by a server, but the trainer has use_vllm=False: TRL "
                "sends the server no weights, and does not correct for the difference",
                stacklevel=3,
            )
        config = self._config
        if config.on_failure == "unscored" and trl_version() < NONE_IS_UNSCORED:
            logger.warning(
                "TRL %s counts a reward of None as 0, so a failed rollout raises here; "
                "TRL 1.6 and later leave it out",
                trl_version_text(),
            )
            config = dataclasses.replace(config, on_failure="raise")
        hf_tokenizer = tokenizer_of(trainer.processing_class)
        if isinstance(self._sampler, str):
            for source in self._tasks.route.agents:
                source.sampling = functools.partial(client_settings, trainer)
        if self._tasks.route.agents:
            serve_ranks(self._tasks.route.gateway, self._tasks.run_id_of(trainer), trainer)
        processor, for_task = bind_all(
            self._tasks.route.kinds,
            functools.partial(
                processor_with,
                self._processor,
                hf_tokenizer,
                chat_template=getattr(trainer, "chat_template", None),
                chat_template_kwargs=getattr(trainer, "chat_template_kwargs", None),
            ),
        )
        check_end_tokens(trainer, hf_tokenizer, processor.close_token_id, stacklevel=3)
        eos = getattr(getattr(trainer.model, "generation_config", None), "eos_token_id", None)
        context = getattr(text_config(trainer.model), "max_position_embeddings", None)
        sampler = self._sampler
        if isinstance(sampler, str):
            sampler = sampler_of(trainer, hf_tokenizer, trl_version())
        engine = Engine(
            Tokenizer.from_pretrained(hf_tokenizer),
            processor,
            sampler,
            dataclasses.replace(
                config,
                max_completion_tokens=config.max_completion_tokens or trainer.max_completion_length,
                max_context_tokens=config.max_context_tokens or context,
            ),
            stop_token_ids=[eos] if isinstance(eos, int) else eos or [],
            progress=not trainer.args.disable_tqdm,
        )
        return engine, for_task


def _refuse_tool_loop(trainer: Any) -> None:
    for name in ("tools", "environment_factory", "environment_factories"):
        if getattr(trainer, name, None):
            raise ValueError(
                f"GRPOTrainer({name}=…) and rollout_func exclude each other: TRL would run its own "
                "tool loop over finished rollouts\nhint: leave one of the two out"
            )
