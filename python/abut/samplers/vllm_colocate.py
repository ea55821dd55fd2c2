"""Sampling from a vLLM engine in this process, turn by turn: continuous batching.

Invariant: a sample is complete, was drawn for exactly the ids of its request, and has the logprobs
of the distribution it was drawn from. Turns join between two steps, so no turn waits for a batch.
When `sample_stream` returns, the engine has none of abut's requests.

If vLLM is tensor-parallel, the ranks run one model together, each for its own rollouts. Between two
steps of the model, all ranks exchange reports, in the order of ranks. So all ranks do the same
things in the same order, and stop in the same round.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any, Self, Unpack

import numpy as np

from abut.errors import SamplerError
from abut.pickling import stays
from abut.samplers.in_process import PendingTurn, PendingTurns
from abut.samplers.sampler import Sample, SampleRequest
from abut.samplers.settings import SamplingKeywords, settings_of
from abut.samplers.vllm_images import PictureNames, never_drawn, with_placeholders
from abut.samplers.vllm_request import (
    check_prompt,
    refusal_hint,
    room,
    sample_of,
    vllm_settings,
    with_stops,
)

logger = logging.getLogger(__name__)


# How long a rank whose last report does not get through keeps its error to itself.
_LAST_REPORT_S = 10.0


@dataclass(frozen=True)
class RankReport:
    """A rank's report to the others, between two steps."""

    requests: dict[str, SampleRequest] = field(default_factory=dict)
    """The turns that join, by name, in their order."""
    given_up: list[str] = field(default_factory=list)
    """The turns that no rollout waits for any more."""
    is_done: bool = False
    """True if no more turns will come from that rank."""
    error: str | None = None
    """The error that ended the rank's batch."""


class Alone:
    """A rank that has the whole model; used instead of `Ranks` without tensor parallelism."""

    rank = 0
    wait_s = None
    """How many seconds an idle rank waits for turns; None: until one comes."""

    def exchange(self, report: RankReport) -> list[RankReport]:
        """Return the reports of all ranks, in their order."""
        return [report]

    def leave(self, error: BaseException) -> None:
        """Tell the others that this rank failed between two exchanges."""


class Ranks:
    """The ranks of a tensor-parallel group; each calls `exchange` equally often.

    Args:
        group: a process group of `torch.distributed` for objects on the CPU.
    """

    wait_s = 0.005
    """Short, because other ranks cannot step before all ranks have exchanged reports."""

    def __init__(self, group: Any) -> None:
        import torch.distributed

        self._distributed = torch.distributed
        self._group = group
        self._is_whole = True
        self.rank = torch.distributed.get_rank(group)

    def exchange(self, report: RankReport) -> list[RankReport]:
        """Return the reports of all ranks, in their order.

        Raises:
            SamplerError: a rank cannot be reached, or the batch of another rank failed.
        """
        reports: list[Any] = [None] * self._distributed.get_world_size(self._group)
        try:
            self._distributed.all_gather_object(reports, report, group=self._group)
        except RuntimeError as error:
            self._is_whole = False
            raise SamplerError(
                f"rank {self.rank} of the tensor-parallel group cannot reach the other ranks: "
                f"{error}\nhint: look for the first error that another rank logged"
            ) from error
        failed = [rank for rank, one in enumerate(reports) if one.error is not None]
        self._is_whole = not failed
        if failed and self.rank not in failed:
            raise SamplerError(
                f"rank {failed[0]} of the tensor-parallel group failed, so the other ranks stop: "
                f"{reports[failed[0]].error}"
            )
        return reports

    def leave(self, error: BaseException) -> None:
        """Tell the others that this rank failed between two exchanges; wait for them briefly."""
        if not self._is_whole:
            return
        report = RankReport(error=f"{type(error).__name__}: {error}")
        # A rank that hangs in a step of the model never hears it, and then this one has to end.
        last = threading.Thread(target=self._report, args=(report,), name="abut-leave", daemon=True)
        last.start()
        last.join(_LAST_REPORT_S)

    def _report(self, report: RankReport) -> None:
        try:
            self.exchange(report)
        except SamplerError:
            return  # they have failed as well


@stays(
    "its engine runs in this process",
    hint="create it in the process of the LLM; VLLMServerSampler works from any process",
)
class VLLMColocateSampler:
    """Samples from a `vllm.LLM` in this process, on the thread that called the engine.

    A context manager; the engine enters it for each batch of rollouts. The engine limits how many
    turns run at once (`max_requests`; vLLM's own limit is `max_num_seqs`) and how long one may take
    (`turn_timeout_s`). A turn that is given up is aborted between two steps.

    If vLLM is tensor-parallel under an external launcher (as in TRL), each rank has its own sampler
    and rollouts, and all ranks must play their batches at the same time.

    Args:
        llm: with `logprobs_mode="processed_logprobs"`.
        awake: returns a context manager in which the engine can sample, entered once for each batch
            of rollouts (`GRPOTrainer` uses it to wake an engine that sleeps during training).
        **sampling: temperature, top_k, top_p, min_p, repetition_penalty and generation_kwargs
            (more sampling settings of vLLM), as in `SamplingSettings`.

    Raises:
        ValueError: with a setting or this engine, logprobs would not match the sampled tokens, or
            vLLM does not know a setting.
    """

    def __init__(
        self,
        llm: Any,
        *,
        awake: Callable[[], AbstractContextManager[Any]] | None = None,
        **sampling: Unpack[SamplingKeywords],
    ) -> None:
        self._engine = llm.llm_engine
        self._config = config = self._engine.vllm_config
        if config.model_config.logprobs_mode != "processed_logprobs":
            raise ValueError(
                "the engine returns logprobs from before temperature and filters, because its "
                f"logprobs_mode is {config.model_config.logprobs_mode!r}\n"
                "hint: LLM(…, logprobs_mode='processed_logprobs')"
            )
        settings = settings_of(sampling)
        self._settings = _for_params(vllm_settings(settings))
        self._params(
            self._settings, 16, 0, ()
        )  # vLLM judges them now, not in the middle of a batch
        self._ranks = _ranks(config.parallel_config)
        self._awake = awake or nullcontext
        self._stack = ExitStack()
        self._named = 0
        self._pictures = PictureNames()

    @property
    def takes_images(self) -> bool:
        """True if the model accepts images."""
        return bool(getattr(self._config.model_config, "is_multimodal_model", False))

    @property
    def max_context_tokens(self) -> int:
        """The most tokens of prompt and sample together."""
        return int(self._config.model_config.max_model_len)

    def __enter__(self) -> Self:
        """Wake the engine for a batch of rollouts."""
        self._pictures.begin()
        self._stack.enter_context(self._awake())
        return self

    def __exit__(self, *exc: object) -> None:
        """Let the engine sleep again."""
        self._stack.close()

    def sample_stream(self, turns: PendingTurns) -> None:
        """Sample until no more turns will come, on this rank or another rank of the group.

        Raises:
            SamplerError: vLLM refused a request or gave a wrong answer, or another rank failed.
        """
        running: dict[str, PendingTurn | None] = {}
        try:
            while self._step(turns, running):
                pass
        except Exception as error:
            self._ranks.leave(error)
            raise
        finally:
            if running:
                self._abort(list(running))

    def _step(self, turns: PendingTurns, running: dict[str, PendingTurn | None]) -> bool:
        """Exchange reports, let turns join, and step once; returns whether there is more to do.

        Args:
            turns: the turns of this rank.
            running: all turns that the engine has, by name; None for those of other ranks.
        """
        taken = turns.take(0.0 if running else self._ranks.wait_s)
        own = {self._name(): turn for turn in taken}
        error = turns.error if turns.closed else None
        report = RankReport(
            {name: turn.request for name, turn in own.items()},
            [name for name, turn in running.items() if turn is not None and turn.given_up],
            turns.closed,
            None if error is None else f"{type(error).__name__}: {error}",
        )
        reports = self._ranks.exchange(report)
        if report.error is not None:
            return False  # the others know it now, and leave as well
        for one in reports:
            if one.given_up:
                self._engine.abort_request(one.given_up)
            for name in one.given_up:
                del running[name]
            for name, request in one.requests.items():
                self._admit(name, request)
                running[name] = own.get(name)
        if running:
            self._collect(running)
        return bool(running) or not all(one.is_done for one in reports)

    def _admit(self, name: str, request: SampleRequest) -> None:
        """Add a turn to the engine, on all ranks; if one rank raises, all do."""
        tokens = room(
            request,
            self.max_context_tokens,
            holder="the engine",
            longer="GRPOConfig(vllm_max_model_length=…)",
        )
        settings = never_drawn(self._settings, request)
        params = self._params(settings, tokens, request.seed, request.stop_token_ids, request.stop)
        # What vLLM's renderer makes of ids; versions that render it themselves pass over `type`.
        prompt = {"type": "token", "prompt_token_ids": request.prompt_ids.tolist()}
        try:
            if request.images:
                prompt = self._rendered(request)
            self._engine.add_request(name, prompt, params)
        except SamplerError:
            raise
        except Exception as error:  # of classes that differ from version to version
            said = f"{request.where}: vLLM refused the request: {error}"
            raise SamplerError(f"{said}{refusal_hint(said)}") from error

    def _rendered(self, request: SampleRequest) -> Any:
        """Return a prompt with images from vLLM's renderer; it must have the request's ids.

        Raises:
            SamplerError: the renderer writes other ids.
        """
        images = [span.image for span in request.images]
        (prompt,) = self._engine.renderer.render_cmpl(
            [
                {
                    "prompt_token_ids": with_placeholders(request),
                    "multi_modal_data": {"image": [image.to_pil() for image in images]},
                    "multi_modal_uuids": {"image": [*map(self._pictures.name, images)]},
                }
            ]
        )
        try:
            check_prompt(request, prompt["prompt_token_ids"])
        except SamplerError as error:
            raise SamplerError(f"{request.where}: {error}") from error
        return prompt

    def _collect(self, running: dict[str, PendingTurn | None]) -> None:
        """Step once, and answer this rank's turns that have ended."""
        for output in self._engine.step():
            turn = running.pop(output.request_id, None) if output.finished else None
            if turn is None:
                continue
            try:
                turn.answer(_sample(output, turn.request))
            except SamplerError as error:
                raise SamplerError(f"{turn.request.where}: {error}") from error

    def _abort(self, names: list[str]) -> None:
        """Abort the remaining requests of a failed batch, without hiding the batch's own error."""
        try:
            self._engine.abort_request(names)
        except Exception:  # a dead engine cannot
            logger.warning("vLLM cannot abort the requests of a batch that failed", exc_info=True)

    def _name(self) -> str:
        self._named += 1
        return f"abut-{self._ranks.rank}-{self._named}"

    def _params(
        self,
        settings: dict[str, Any],
        max_tokens: int,
        seed: int,
        stop_token_ids: tuple[int, ...],
        stop: tuple[str, ...] = (),
    ) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        stops = with_stops(settings.get("stop"), stop)
        try:
            return SamplingParams(
                **(settings | {"stop": stops} if stops else settings),
                max_tokens=max_tokens,
                seed=seed,
                stop_token_ids=list(stop_token_ids),
                logprobs=0,
                # Text is for stop strings alone; one that skipped tokens would hide them.
                detokenize=bool(stops),
                skip_special_tokens=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
        except TypeError as error:
            raise ValueError(
                f"vLLM does not accept these settings: {error}\nhint: remove the setting from "
                "generation_kwargs that this version of vLLM does not know"
            ) from error


def _for_params(settings: dict[str, Any]) -> dict[str, Any]:
    structured = settings.get("structured_outputs")
    if isinstance(structured, Mapping):
        from vllm.sampling_params import StructuredOutputsParams

        return settings | {"structured_outputs": StructuredOutputsParams(**structured)}
    return settings


def _ranks(parallel_config: Any) -> Alone | Ranks:
    """Return the ranks that step this engine: a tensor-parallel group, or one rank alone."""
    if (
        parallel_config.distributed_executor_backend != "external_launcher"
        or parallel_config.tensor_parallel_size == 1
    ):
        return Alone()
    from vllm.distributed import get_tp_group

    return Ranks(get_tp_group().cpu_group)


def _sample(output: Any, request: SampleRequest) -> Sample:
    if len(output.outputs) != 1:
        raise SamplerError(f"vLLM drew {len(output.outputs)} samples, but 1 was requested")
    (drawn,) = output.outputs
    ids = list(drawn.token_ids)
    logprobs = drawn.logprobs or []
    if len(logprobs) != len(ids):
        raise SamplerError(f"{len(ids)} ids came with {len(logprobs)} logprobs")
    return sample_of(
        request,
        prompt_ids=output.prompt_token_ids,
        ids=np.asarray(ids, dtype=np.int64),
        logprobs=np.asarray(
            [choices[id_].logprob for id_, choices in zip(ids, logprobs, strict=True)], np.float32
        ),
        finish_reason=drawn.finish_reason,
        stop_reason=drawn.stop_reason,
    )
