"""The `rollout_func` of `GRPOTrainer`: the prompts of a batch in, its rows out.

Invariant: there is one row for each prompt, in order, with exactly the tokens that the engine saw
and sampled; a row ends with a sampled token; a failed rollout is a row without weight.
"""

import dataclasses
import functools
import logging
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from abut.envs.source import ForTask
from abut.envs.task import RolloutTask
from abut.gateway.server.gateway import Gateway
from abut.pickling import stays
from abut.pretrained import tokenizer_of
from abut.processor import PartsProcessor, Processor
from abut.records.recorder import BackgroundRecorder, FlushingRecorder, ScoreRecorder
from abut.rollout.config import RolloutConfig
from abut.rollout.engine import Engine
from abut.rollout.failures import Failures, Tally
from abut.rollout.player import player_of
from abut.rollout.rollout import Rollout
from abut.rollout.stream import Finishing
from abut.template.image_processor import ImageProcessor
from abut.tools.environment_factory import environments_of
from abut.trl.credit import Credit, ReverseKL, checked_credit, turn_credit
from abut.trl.dataset_images import check_images, check_rollout_images
from abut.trl.metrics import (
    any_images,
    note_images,
    note_rewards_by_name,
    note_tool_calls,
    rewards_by_name,
    tool_calls,
)
from abut.trl.ranks import gathered, judged, of_all_ranks, serve_ranks
from abut.trl.rewards import (
    ModelMetrics,
    are_of_envs,
    tool_names,
    warn_of_unwrapped,
    wrap_reward_functions,
)
from abut.trl.route import EnvArgument
from abut.trl.rows.all_rows import AllRows
from abut.trl.rows.columns import COLUMNS, extra_names, fill_extras, rows_of
from abut.trl.rows.main_rows import MainRows
from abut.trl.rows.row_batch import RowScoring, rows_of_batch
from abut.trl.run_records import RolloutRecorder, TrainerScores
from abut.trl.teachers.rollout_scores import scoring
from abut.trl.teachers.teacher import Student
from abut.trl.trainer_checks import (
    check_end_tokens,
    check_main_rows,
    check_rows,
    check_teacher,
    check_tool_loop,
    refuse_server_distillation,
    warn_of_unseen,
    warn_of_unused_rewards,
)
from abut.trl.trainer_engine import (
    Arguments,
    ModelLimits,
    RecorderArgument,
    SamplerArgument,
    TrainerSide,
    checked_arguments,
    engine_for,
    image_processor_of,
)
from abut.trl.trainer_sampler import client_settings, sampler_of
from abut.trl.version import NONE_IS_UNSCORED, check_trl_version, trl_version, trl_version_text

logger = logging.getLogger(__name__)


def make_rollout_func(
    env: EnvArgument,
    *,
    config: RolloutConfig | None = None,
    processor: Processor | PartsProcessor | None = None,
    sampler: SamplerArgument = "auto",
    system_prompt: str | None = None,
    recorder: RecorderArgument = None,
    record_images: str | os.PathLike[str] | None = None,
    gateway: Gateway | None = None,
    credit: Credit = None,
) -> "RolloutFunc":
    """Return a `rollout_func` for `GRPOTrainer`.

    Args:
        env: what plays the rollouts. An Env class or a factory without arguments, which makes a
            fresh environment for each episode; an environment pool, which lends one; the result of
            `abut.tool_env`; a class for TRL's `environment_factory` (`reset` and tools, no `step`;
            see `from_environment_factory`); an agent (`abut.agent`); or a dict of these, from which
            each row of the dataset chooses by its column `environment`.
        config: limits and policies; None takes the defaults.
        processor: writes the conversations; None derives one from the tokenizer's chat template.
        sampler: draws the turns. "auto" uses the trainer's vLLM (a server, or an engine in this
            process) or, without vLLM, the trainer's model.
        system_prompt: put before each prompt; the prompts must not have system messages.
        recorder: records every rollout with its rewards and advantage: a path or a recorder object.
            A path that ends in `.jsonl` is a file of JSON lines, any other path a folder of Parquet
            files.
        record_images: a folder in which each image of a recorded rollout is stored as `HASH.png`
            (or another suffix); the records have the hashes.
        gateway: the server through which agents call the policy; None serves on the loopback, on a
            free port.
        credit: how rewards of turns become advantages of their tokens, with `abut.trl.GRPOTrainer`:
            `Returns(discount=…)`, or a function that gets a group of `ScoredRollout` (only
            conversations with turns) and returns `[rollout][conversation, main first][own turn]`,
            each a number or one number per sampled token. `ReverseKL(teacher)` subtracts each
            token's distance from a teacher. None: all tokens have the rollout's advantage.

    Raises:
        TypeError: `env` is not a class, factory, pool, agent or dict of these, or another argument
            has a wrong type.
        ValueError: `sampler` is an unknown name, `env` is an empty dict, or agents get a
            `system_prompt` or a processor of plain text.
        MissingExtraError: TRL is not installed, or older than 0.29.1.
    """
    check_trl_version(stacklevel=2)
    return RolloutFunc(
        checked_arguments(
            env,
            config=config,
            processor=processor,
            sampler=sampler,
            system_prompt=system_prompt,
            recorder=recorder,
            record_images=record_images,
            gateway=gateway,
        ),
        checked_credit(credit),
    )


@stays(
    "it uses the engine and the environments of this process",
    hint="call make_rollout_func in the process that trains",
)
class RolloutFunc:
    """The function that `GRPOTrainer` calls with this rank's prompts, repeated for each group."""

    images_in_prompts = True
    """True: it expects the images of the dataset in the prompts, so the trainer puts them there."""

    def __init__(self, arguments: Arguments, credit: Credit = None) -> None:
        self._arguments, self._credit = arguments, credit
        self._tasks, self._recorder = arguments.tasks, arguments.recorder
        self._scores: TrainerScores | None = None
        if isinstance(self._recorder, ScoreRecorder):
            self._scores = TrainerScores(self._recorder.write_scores, self.flush)
        self._model_metrics = ModelMetrics()
        self._engine: Engine | None = None
        self._built_for: tuple[Any, type] | None = None
        self._images: ImageProcessor | None = None
        self._finishing: Finishing | None = None
        self._warned_of_unseen = False
        self._extras: dict[str, None] = {}
        """The names of extras that any rollout has had, in the same order on all ranks."""

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        """Return the columns that TRL requires, and the extras for reward functions."""
        # `extend` changes the class of a trainer, and with it which conversations are rows.
        built_for = self._built_for
        if built_for is None or built_for[0] is not trainer or built_for[1] is not type(trainer):
            self._engine, self._for_task = self._build_engine(trainer)
            self._built_for = (trainer, type(trainer))
        if trainer.use_vllm and trainer.vllm_mode == "server":
            # Rank 0 sends the weights while the others continue; no rank may sample before it is
            # done.
            trainer.accelerator.wait_for_everyone()
        play = functools.partial(self._play, prompts, trainer)
        try:
            tasks, rollouts, rows = judged(
                trainer.accelerator, self._arguments.config.max_failed_frac, play
            )
        except BaseException:
            self._end_batch()
            self.flush()  # training ends or starts over here, so no later batch would write it
            raise
        self._end_batch()
        names = of_all_ranks(trainer.accelerator, extra_names(rollouts))
        self._extras.update(dict.fromkeys(names))
        fill_extras(rows, self._extras)
        if self._tasks.route.agents or self._tasks.route.is_by_name:
            stats = rows["rollout_stats"]
            by_name = gathered(trainer.accelerator, rewards_by_name(stats))
            note_rewards_by_name(stats, by_name)
        if tool_names(self._tasks.route.kinds):
            calls = gathered(trainer.accelerator, tool_calls(rows["rollout_stats"]))
            note_tool_calls(rows["rollout_stats"], calls)
        if hasattr(trainer.processing_class, "image_processor"):
            pictured = any_images(rows["rollout_stats"])
            note_images(rows["rollout_stats"], any(gathered(trainer.accelerator, pictured)))
        mode = "train" if trainer.model.training else "eval"
        self._model_metrics.add(trainer, rows, mode)
        if isinstance(trainer, AllRows):
            trainer.take_rows(self._scoring(trainer, tasks, rollouts, rows))
        elif not isinstance(trainer, MainRows):
            warn_of_unused_rewards(rollouts)
        if self._scores is not None and trainer.reward_funcs:
            self._scores.expect(trainer, rollouts, self._tasks.run_id)
        return rows

    def _scoring(
        self,
        trainer: Any,
        tasks: Sequence[RolloutTask],
        rollouts: Sequence[Rollout],
        rows: Mapping[str, list[Any]],
    ) -> RowScoring:
        """Return all rows of a batch; `rows` has the main ones."""
        assert self._engine is not None
        only_envs = are_of_envs(trainer.reward_funcs)
        batch = rows_of_batch(
            rollouts,
            takes_all=self._trains_all and trainer.model.training,
            can_score=lambda rollout: rollout.reward is not None or not only_envs,
            images=self._images,
        )
        return RowScoring(
            batch,
            {name: rows[name] for name in COLUMNS},
            padding_id=self._engine.processor.close_token_id,
            by_agents=bool(self._tasks.route.agents),
            credit=self._credit,
            scores_run=[self._has_running_score(task) for task in tasks],
        )

    def _play(
        self, prompts: Sequence[Any], trainer: Any
    ) -> tuple[tuple[list[RolloutTask], list[Rollout], dict[str, list[Any]]], Failures, Tally]:
        """Return the tasks, rollouts and rows of this rank's prompts, and the failures."""
        assert self._engine is not None
        mode = "train" if trainer.model.training else "eval"
        tasks = [self._for_task(task) for task in self._tasks.of_batch(prompts, trainer, mode)]
        if self._scores is not None:
            self._scores.collect()  # of the batch before: TRL keeps only one
        check_images(trainer, tasks, self._engine.processor)
        record = self._record(trainer, mode, tasks)
        finishing = self._finishing if mode == "train" else None
        rollouts, failures = self._engine.play(tasks, on_rollout=record, finishing=finishing)
        check_rollout_images(trainer, rollouts, self._images)
        self._warned_of_unseen = self._warned_of_unseen or warn_of_unseen(tasks, rollouts)
        route = self._tasks.route
        rows = rows_of(
            rollouts,
            tasks,
            self._engine,
            agents=bool(route.agents),
            environments=route.names,
            tools=tool_names(route.kinds),
            trains_all=self._trains_all if mode == "train" else None,
            teacher=finishing is not None,
        )
        rows |= environments_of(tasks, route.kinds)
        return (tasks, rollouts, rows), failures, failures.tally(rollouts)

    def _has_running_score(self, task: RolloutTask) -> bool:
        """Return whether each turn's reward is a running score, not the reward of that turn."""
        return self._arguments.config.reward == "last" and player_of(task) is None

    @property
    def _trains_all(self) -> bool:
        assert self._engine is not None
        return self._engine.config.branch == "all"

    def _end_batch(self) -> None:
        if isinstance(self._recorder, FlushingRecorder):
            self._recorder.flush()

    def flush(self) -> None:
        """Wait until all records are on disk.

        Raises:
            OSError: a record could not be written.
        """
        if isinstance(self._recorder, BackgroundRecorder):
            self._recorder.wait()

    def _record(
        self, trainer: Any, mode: str, tasks: Sequence[RolloutTask]
    ) -> Callable[[Rollout], None] | None:
        if self._recorder is None:
            return None
        keep = RolloutRecorder(
            self._recorder,
            run_id=self._tasks.run_id,
            rank=trainer.accelerator.process_index,
            mode=mode,
            tokenizer=tokenizer_of(trainer.processing_class).name_or_path,
            images=self._arguments.record_images,
        )
        step = trainer.state.global_step
        return lambda rollout: keep.write(tasks[rollout.index], rollout, step=step)

    def _build_engine(self, trainer: Any) -> tuple[Engine, ForTask]:
        """Return the engine, and the function that completes a task for it."""
        refuse_server_distillation(trainer)
        check_tool_loop(trainer)
        if not isinstance(trainer, AllRows):
            check_main_rows(trainer, self._arguments.config.branch, self._credit)
        warn_of_unwrapped(trainer.reward_funcs, stacklevel=3)
        wrap_reward_functions(trainer)
        sampler = self._arguments.sampler
        if getattr(sampler, "base_urls", ()) and not trainer.use_vllm:
            warnings.warn(
                "a server samples the rollouts, but the trainer has use_vllm=False, so TRL does "
                "not send weights to the server and does not correct for the difference",
                stacklevel=3,
            )
        config = self._arguments.config
        branch = config.branch or ("all" if isinstance(trainer, AllRows) else "longest")
        config = dataclasses.replace(config, branch=branch)
        has_others = branch == "all" and bool(self._tasks.route.agents)
        has_credit = self._credit is not None
        if has_others or has_credit:
            check_rows(trainer, has_others=has_others, has_credit=has_credit, stacklevel=3)
        if isinstance(self._credit, ReverseKL):
            check_teacher(trainer, self._credit.teacher)
        if config.on_failure == "unscored" and trl_version() < NONE_IS_UNSCORED:
            logger.warning(
                "TRL %s counts a reward of None as 0, so a failed rollout will stop training; "
                "TRL 1.6 and later leave failed rollouts out",
                trl_version_text(),
            )
            config = dataclasses.replace(config, on_failure="raise")
        hf_tokenizer = tokenizer_of(trainer.processing_class)
        self._images = images = image_processor_of(
            trainer.processing_class, self._arguments.processor
        )
        for source in self._tasks.route.agents:
            source.rewards_turns = turn_credit(self._credit) is not None
            source.draws_by_tokens = _takes_means_of_rows(trainer)
            if isinstance(sampler, str):
                source.sampling = functools.partial(client_settings, trainer)
        if self._tasks.route.agents:
            serve_ranks(self._tasks.route.gateway, self._tasks.run_id_of(trainer), trainer)
        side = TrainerSide(
            hf_tokenizer=hf_tokenizer,
            model_limits=ModelLimits.of(trainer.model),
            max_completion_tokens=trainer.max_completion_length,
            sampler=lambda: sampler_of(trainer, hf_tokenizer, trl_version(), images),
            images=images,
            chat_template=getattr(trainer, "chat_template", None),
            chat_template_kwargs=getattr(trainer, "chat_template_kwargs", None),
            progress=not trainer.args.disable_tqdm,
        )
        arguments = dataclasses.replace(self._arguments, config=config)
        engine, for_task = engine_for(side, arguments)
        check_end_tokens(trainer, hf_tokenizer, engine.processor.close_token_id, stacklevel=3)
        if isinstance(self._credit, ReverseKL):
            student = Student(hf_tokenizer, 0, engine.budget.max_context_tokens)
            self._finishing = scoring(self._credit.teacher, student)
        return engine, for_task


def _takes_means_of_rows(trainer: Any) -> bool:
    """Return whether the loss takes the mean over the tokens of each row, not a sum over tokens."""
    from abut.trl.rows.row_weights import ROLLOUTS_VOTE  # torch, which a trainer has

    return getattr(trainer, "loss_type", "") in ROLLOUTS_VOTE  # distillation has none
