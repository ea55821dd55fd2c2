"""Rollouts without a trainer: `play` returns them, `evaluate` computes statistics from them.

Invariant: rollouts use the same engine and the same processor as in training, so an environment
that works here also works in training. The random seed of a rollout depends only on the number of
its row and its place among the rollouts of that row, as in `trainer.evaluate()`.
"""

import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

from abut._native import Tokenizer
from abut.envs.task import RolloutTask
from abut.evaluation.summary import Evaluation, FailedRollouts
from abut.evaluation.text_policy import TextPolicy
from abut.gateway.server.gateway import Gateway
from abut.pretrained import generation_stop_ids, load_hf_tokenizer, tokenizer_of
from abut.processor import PartsProcessor, Processor
from abut.records.recorder import BackgroundRecorder, FlushingRecorder, Recorder
from abut.rollout.config import RolloutConfig
from abut.rollout.rollout import Rollout
from abut.samplers.hosted import TextSampler
from abut.samplers.in_process import AnySampler
from abut.samplers.sampler import SampleRequest
from abut.samplers.settings import SamplingSettings, settings_for_clients
from abut.template.image_processor import ImageProcessor
from abut.tools.tool_env import ToolEnv
from abut.trl.route import EnvArgument
from abut.trl.run_records import RolloutRecorder
from abut.trl.tasks import Tasks
from abut.trl.trainer_engine import (
    Arguments,
    ModelLimits,
    RecorderArgument,
    TrainerSide,
    checked_arguments,
    engine_for,
    image_processor_of,
)

Rows: TypeAlias = Iterable[Mapping[str, Any]] | str | os.PathLike[str]
"""Rows of a dataset: dicts with a `prompt`, a `datasets.Dataset`, or the path of a JSONL file."""


class PlayInterrupted(KeyboardInterrupt):
    """Raised by Ctrl-C while rollouts are played.

    Attributes:
        rollouts: the rollouts that had ended, in the order of their tasks.
    """

    def __init__(self, message: str, rollouts: Sequence[Rollout]) -> None:
        super().__init__(message)
        self.rollouts = rollouts


def play(
    env: EnvArgument,
    rows: Rows,
    *,
    sampler: Any,
    tokenizer: Any = None,
    sampling: SamplingSettings | None = None,
    k: int = 1,
    config: RolloutConfig | None = None,
    processor: Processor | PartsProcessor | None = None,
    system_prompt: str | None = None,
    gateway: Gateway | None = None,
    recorder: RecorderArgument = None,
) -> list[Rollout]:
    """Play rollouts without a trainer; blocks until all have ended. Works in a notebook too.

    Args:
        env: any environment or agent that `make_rollout_func` accepts.
        rows: the rows of a dataset, each with a column `prompt`, or the path of a JSONL file.
        sampler: the URL of a vLLM server, or a list of URLs; a transformers model; a sampler; or a
            `TextSampler`, such as a `ChatSampler`, which needs no tokenizer.
        tokenizer: a name, a folder, a tokenizer, or the processor of a model with images. With
            None, the tokenizer of the transformers model is loaded.
        sampling: how tokens are drawn; None means temperature 1 without filters. Only for a URL
            or a transformers model, because a sampler object has settings of its own.
        k: how often each row is played. The rollouts of a row are a group, as in training.
        config: limits and policies; None means the defaults. With `max_rollouts=None`, up to
            `max_requests` rollouts are played at once.
        processor: renders and parses messages; None derives one from the tokenizer's chat template.
        system_prompt: added to prompts that have no system message.
        gateway: serves the policy to agents; None starts one on the loopback interface, which
            stops when the call returns.
        recorder: saves every rollout, as in `make_rollout_func`.

    Returns:
        `k` rollouts for each row, row by row, including those that failed.

    Raises:
        TypeError: an argument has a wrong type, or a URL comes without a tokenizer.
        ValueError: a row cannot be played, or `k` is not positive.
        RolloutError: more rollouts failed than `config.max_failed_frac` allows.
        SamplerError: the sampler failed.
        PlayInterrupted: Ctrl-C was pressed; the exception has the rollouts that had ended.
    """
    return Plan(
        env,
        rows,
        sampler=sampler,
        tokenizer=tokenizer,
        sampling=sampling,
        k=k,
        config=config,
        processor=processor,
        system_prompt=system_prompt,
        gateway=gateway,
        recorder=recorder,
    ).run()


def evaluate(
    env: EnvArgument,
    rows: Rows,
    *,
    success: float = 1.0,
    failed: FailedRollouts = "leave_out",
    k: int = 1,
    **arguments: Any,
) -> Evaluation:
    """Play rollouts as `play` does, and return them with their statistics.

    Args:
        env: as in `play`.
        rows: as in `play`.
        success: the least reward of a success, for `pass_at`.
        failed: "leave_out" leaves failed rollouts out of the mean, because the environment failed
            and not the policy; "zero" gives them a reward of 0. Both count them in `failed`.
        k: as in `play`.
        **arguments: the other arguments of `play`.

    Raises:
        ValueError: `failed` is neither of the two. Also raises every error that `play` raises.
    """
    if failed not in ("leave_out", "zero"):
        raise ValueError(f"failed={failed!r}: must be 'leave_out' or 'zero'")
    plan = Plan(env, rows, k=k, **arguments)
    return Evaluation.of(plan.run(), plan.rows, k, success=success, failed=failed)


class Plan:
    """The tasks of a call of `play`, ready to run. Takes the arguments of `play`, and one more.

    Args:
        watch: called with each request before it is sampled, on the batch's event loop; no progress
            bar is shown then.

    Attributes:
        rows: all rows.
        tasks: `k` for each row, row by row.
    """

    def __init__(
        self,
        env: EnvArgument,
        rows: Rows,
        *,
        sampler: Any,
        tokenizer: Any = None,
        sampling: SamplingSettings | None = None,
        k: int = 1,
        config: RolloutConfig | None = None,
        processor: Processor | PartsProcessor | None = None,
        system_prompt: str | None = None,
        gateway: Gateway | None = None,
        recorder: RecorderArgument = None,
        watch: Callable[[SampleRequest], None] | None = None,
    ) -> None:
        if not isinstance(k, int) or k < 1:
            raise ValueError(f"k={k!r}: must be 1 or more; each row is played k times")
        policy = replace(
            _policy_of(sampler, tokenizer, sampling, processor),
            progress=watch is None and find_spec("tqdm") is not None,
            watch=watch,
        )
        config = config or RolloutConfig()
        arguments = self._arguments = checked_arguments(
            env,
            # More rollouts than requests would only wait, each with an environment.
            config=replace(
                config,
                max_rollouts=config.max_rollouts or config.max_requests,
                branch=config.branch or "all",
            ),
            processor=processor,
            sampler=policy.sampler(),
            system_prompt=system_prompt,
            recorder=recorder,
            gateway=gateway,
        )
        for source in arguments.route.agents:
            source.sampling = partial(settings_for_clients, vars(sampling or SamplingSettings()))
            source.rewards_turns = True
        arguments.tasks.run_id = uuid.uuid4().hex[:8]
        self._ends_gateway = gateway is None
        self._tokenizer_name = policy.hf_tokenizer.name_or_path
        self._engine, for_task = engine_for(policy, arguments)
        self.rows = list(read_rows(rows))
        self.tasks = list(map(for_task, _tasks_of(arguments.tasks, self.rows, k)))

    def run(self, tasks: Sequence[RolloutTask] | None = None) -> list[Rollout]:
        """Play these tasks, or all of them, and return their rollouts; raises what `play` raises.

        The `index` of a rollout is the index of its task in `self.tasks`.
        """
        arguments, keep = self._arguments, self._recorder()
        tasks = self.tasks if tasks is None else tasks
        ended: list[Rollout] = []

        def note(rollout: Rollout) -> None:
            if isinstance(arguments.sampler, TextPolicy):
                arguments.sampler.finish(rollout)
            ended.append(rollout)
            if keep is not None:
                keep.write(self.tasks[rollout.index], rollout, step=None)

        with ExitStack() as stack:
            stack.callback(_flush, arguments.recorder)
            for kind in arguments.route.kinds:
                if isinstance(kind, ToolEnv):  # its servers are those of this run
                    stack.callback(kind.close)
            if arguments.route.agents:
                stack.enter_context(_serving(arguments, ends=self._ends_gateway))
            try:
                return self._engine.run(tasks, on_rollout=note)
            except KeyboardInterrupt as interrupt:
                raise PlayInterrupted(
                    f"{len(ended)} of {len(tasks)} rollouts had ended", ended
                ) from interrupt

    def _recorder(self) -> RolloutRecorder | None:
        if self._arguments.recorder is None:
            return None
        return RolloutRecorder(
            self._arguments.recorder,
            run_id=self._arguments.tasks.run_id,
            rank=0,
            mode="eval",
            tokenizer=self._tokenizer_name,
            images=self._arguments.record_images,
        )


def read_rows(rows: Rows) -> Iterable[Mapping[str, Any]]:
    """Return the rows; a path is read as a JSONL file.

    Raises:
        TypeError: `rows` is neither a path nor an iterable of rows.
        ValueError: a line is not a JSON object.
    """
    if isinstance(rows, str | os.PathLike):
        return list(_rows_of_file(Path(rows)))
    if isinstance(rows, Mapping) or not isinstance(rows, Iterable):
        raise TypeError(
            "rows must be dicts with a prompt, a Dataset or the path of a JSONL file, got "
            f"{type(rows).__name__}\n"
            'hint: [{"prompt": "…"}]'
        )
    return rows


def _rows_of_file(path: Path) -> Iterator[Mapping[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}, line {number} is not JSON: {error}") from error
            if not isinstance(row, dict):
                raise ValueError(f"{path}, line {number} is not a JSON object: {line[:80]!r}")
            yield row


def _policy_of(
    sampler: Any,
    tokenizer: Any,
    sampling: SamplingSettings | None,
    processor: Processor | PartsProcessor | None,
) -> TrainerSide:
    """Return the sampler, with what a trainer would otherwise say about the model.

    Raises:
        TypeError: there is no tokenizer, or `sampling` comes with a sampler that has settings.
    """
    urls = [sampler] if isinstance(sampler, str) else sampler
    if isinstance(sampler, TextSampler):
        from abut.demo.model import ASSETS

        sampler = TextPolicy(sampler)
        tokenizer = tokenizer or ASSETS
    is_url = isinstance(urls, list | tuple) and all(isinstance(url, str) for url in urls)
    is_model = hasattr(sampler, "generate") and hasattr(sampler, "config")
    if sampling is not None and not (is_url or is_model):
        raise TypeError(
            f"sampling= cannot be used with a {type(sampler).__name__}, which has its own "
            "settings\n"
            "hint: pass the settings to the sampler"
        )
    name = tokenizer
    if name is None and is_model:
        name = sampler.config.name_or_path
    if not name:
        raise TypeError(
            "tokenizer= is missing, and abut cannot get it from this sampler\n"
            "hint: pass tokenizer='Qwen/Qwen3-8B', a folder, or a tokenizer object"
        )
    processing_class = load_hf_tokenizer(name) if isinstance(name, str | os.PathLike) else name
    hf_tokenizer = tokenizer_of(processing_class)
    images = image_processor_of(processing_class, processor)
    settings = vars(sampling or SamplingSettings())
    limits = ModelLimits()
    if is_url:
        stops = generation_stop_ids(name, vocab_size=len(hf_tokenizer))
        limits = ModelLimits(stop_token_ids=stops)
    elif is_model:
        limits = ModelLimits.of(sampler)

    def make() -> AnySampler:
        if is_url:
            from abut.samplers.vllm import VLLMServerSampler

            return VLLMServerSampler(urls, **settings)
        if is_model:
            return _model_sampler(sampler, hf_tokenizer, images, settings)
        return sampler  # type: ignore[no-any-return]

    return TrainerSide(
        hf_tokenizer=hf_tokenizer,
        model_limits=limits,
        max_completion_tokens=None,
        sampler=make,
        images=images,
    )


def _model_sampler(
    model: Any, hf_tokenizer: Any, images: ImageProcessor | None, settings: Mapping[str, Any]
) -> AnySampler:
    from abut.samplers.transformers import TransformersSampler

    pad = hf_tokenizer.pad_token_id

    @contextmanager
    def without_dropout() -> Iterator[Any]:
        trains = model.training
        model.eval()
        try:
            yield model
        finally:
            model.train(trains)

    return TransformersSampler(
        model,
        pad_token_id=hf_tokenizer.eos_token_id if pad is None else pad,
        tokenizer=Tokenizer.from_pretrained(hf_tokenizer),
        images=images,
        unwrap=without_dropout,
        **settings,
    )


def _tasks_of(tasks: Tasks, rows: Iterable[Mapping[str, Any]], k: int) -> Iterator[RolloutTask]:
    for number, row in enumerate(rows):
        for task in tasks.of_group(row, number, k, mode="eval"):
            yield replace(task, index=number * k + task.member)


def _flush(recorder: Recorder | None) -> None:
    if isinstance(recorder, FlushingRecorder):
        recorder.flush()
    if isinstance(recorder, BackgroundRecorder):
        recorder.wait()


@contextmanager
def _serving(arguments: Arguments, *, ends: bool) -> Iterator[None]:
    """Start the gateway; afterwards stop it, if `ends`."""
    gateway = arguments.route.gateway
    gateway.registry.join_run(arguments.tasks.run_id)
    gateway.start()
    try:
        yield
    finally:
        if ends:
            gateway.stop()
