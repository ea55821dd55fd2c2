"""Sampling with a transformers model in this process.

Invariant: the logprob of a sampled token belongs to the distribution it was drawn from, after
temperature, penalties and filters. Each request has its own random generator, so its sample does
not depend on the other requests of the batch (except for float noise from padding).
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from typing import Any, Self, Unpack

import numpy as np

from abut._native import Tokenizer
from abut.errors import MissingExtraError, SamplerError
from abut.pickling import stays
from abut.samplers.forward_passes import (
    Batches,
    any_rank_samples,
    batches_of,
    is_sharded,
    next_logits,
)
from abut.samplers.image_inputs import (
    ImageInputs,
    dummy_row,
    ends_at_limits,
    image_inputs,
    never_drawn,
    with_spare_row,
)
from abut.samplers.sampler import Sample, SampleRequest
from abut.samplers.settings import NAMED, SamplingKeywords, settings_of
from abut.samplers.stop_strings import Spelled, StopStrings

try:
    import torch
    from transformers import (
        GenerationConfig,
        LogitsProcessor,
        LogitsProcessorList,
        StoppingCriteriaList,
    )
    from transformers.generation.logits_process import (
        MinPLogitsWarper,
        RepetitionPenaltyLogitsProcessor,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )
except ImportError as error:
    raise MissingExtraError(
        "abut.samplers.transformers needs transformers and torch: pip install 'abut[trl]'"
    ) from error

logger = logging.getLogger(__name__)

# With these, the logprobs would not be those of the drawn distribution, or `generate` would draw
# more than one sample. The value 1 or True is allowed: this sampler does that anyway.
_REFUSED = ("num_beams", "num_return_sequences", "do_sample", "penalty_alpha", "assistant_model")
# This sampler decides these for each request, or could not apply them before the draw.
_NOT_TAKEN = (
    "max_new_tokens",
    "max_length",
    "eos_token_id",
    "pad_token_id",
    "stop_strings",
    "typical_p",
    "epsilon_cutoff",
    "eta_cutoff",
    "top_h",
)


@stays(
    "it holds a model of this process",
    hint="send the model's name, and create the model and the sampler in the other process",
)
class TransformersSampler:
    """Samples with a transformers model: batched `generate` with left padding.

    Requests with the same stop tokens share one `generate`. Ranks that share a sharded model
    generate together: a rank without turns passes a dummy row until all ranks are done. If the
    model reads left padding as text, the prompts of a batch have equal lengths.

    Args:
        model: a causal language model, on its device.
        pad_token_id: fills the left of shorter prompts; masked out.
        max_batch: the most requests in one `generate`.
        unwrap: returns a context manager for the plain model, entered once for a batch of rollouts
            (as `GRPOTrainer` does for sharded models).
        tokenizer: finds stop strings; without it, requests with stop strings are refused.
        images: the model's `abut.template.ImageProcessor`; without it, requests with images are
            refused.
        **sampling: temperature, top_k, top_p, min_p, repetition_penalty and generation_kwargs
            (more settings of `transformers.GenerationConfig`), as in `SamplingSettings`.

    Raises:
        ValueError: with one of the settings, logprobs would not match the sampled tokens.
    """

    def __init__(
        self,
        model: Any,
        *,
        pad_token_id: int,
        max_batch: int = 256,
        unwrap: Callable[[], AbstractContextManager[Any]] | None = None,
        tokenizer: Tokenizer | None = None,
        images: ImageInputs | None = None,
        **sampling: Unpack[SamplingKeywords],
    ) -> None:
        settings = settings_of(sampling)
        more = dict(settings.generation_kwargs)
        for name in _REFUSED:
            if (value := more.pop(name, None)) not in (None, 1):
                raise ValueError(
                    f"generation_kwargs[{name!r}]={value!r}: not possible, because training needs "
                    "each token drawn by itself with its own logprob\nhint: remove the setting"
                )
        for name in _NOT_TAKEN:
            if (value := more.pop(name, None)) is not None:
                raise ValueError(
                    f"generation_kwargs[{name!r}]={value!r}: this sampler cannot apply this "
                    "setting\nhint: remove it; RolloutConfig sets limits, and top_k, top_p and "
                    "min_p are the filters"
                )
        # To transformers a None is a filter that is off.
        off = {name: more.pop(name) for name in NAMED if name in more}
        self._model = model
        self._pad_token_id = pad_token_id
        self._settings = replace(settings, **off, generation_kwargs=more)
        self._max_batch = max_batch
        self._tokenizer = tokenizer
        self._images = images
        self._unwrap = unwrap or (lambda: nullcontext(model))
        self._stack: ExitStack | None = None
        self._plain: Any = None
        self._in_step = False
        self._batches: Batches | None = None  # not tried yet

    @property
    def takes_images(self) -> bool:
        """True if the sampler has an image processor."""
        return self._images is not None

    def __enter__(self) -> Self:
        """Unwrap the model and set it to eval mode, for a batch of rollouts."""
        with ExitStack() as stack:
            self._plain = stack.enter_context(self._unwrap())
            # Only what trains goes back to training: parts may be frozen in eval mode.
            training = [module for module in self._plain.modules() if module.training]
            self._plain.eval()
            stack.callback(_train_again, training)
            self._in_step = is_sharded(self._plain)
            if self._in_step and self._batches is None:  # all ranks together
                self._try_batches()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        """Restore the model once no rank samples any more."""
        if self._stack is None:
            return
        try:
            # An interrupted rank waits for nobody; one that failed lets the others finish.
            if self._in_step and (exc[0] is None or issubclass(exc[0], Exception)):  # type: ignore[arg-type]
                self._pass_along()
        finally:
            self._stack.close()
            self._stack = self._plain = None

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        """Sample one turn for each request, in order."""
        if self._stack is None:
            with self:
                return self.sample_batch(requests)
        samples: dict[int, Sample] = {}
        waiting = list(range(len(requests)))
        while waiting:
            alike = self._together(requests, _alike(requests, waiting))
            batch = self._fitting(requests, alike[: self._max_batch])
            rows = [requests[index] for index in batch]
            drawn = self._generate(with_spare_row(self._images, rows) if self._in_step else rows)
            samples.update(zip(batch, drawn, strict=False))  # of a spare row there is no index
            waiting = [index for index in waiting if index not in samples]
        return [samples[index] for index in range(len(requests))]

    def _together(self, requests: Sequence[SampleRequest], batch: list[int]) -> list[int]:
        """Return the requests that the model can sample together with the first."""
        if len(batch) > 1 and self._batches is None:
            self._try_batches()
        if self._batches is Batches.ONE:
            return batch[:1]
        if self._batches is Batches.EQUAL:
            length = len(requests[batch[0]].prompt_ids)
            return [index for index in batch if len(requests[index].prompt_ids) == length]
        return batch

    def _try_batches(self) -> None:
        """Find out, once, whether batches change the model's logprobs."""
        self._batches, nats = batches_of(self._plain, self._pad_token_id, in_step=self._in_step)
        if self._batches is not Batches.ANY:
            why = "reads left padding as text" if self._batches is Batches.EQUAL else "mixes rows"
            logger.warning(
                "%s %s: in a batch, a prompt's logprobs differ by up to %.2g nats from those of "
                "the prompt alone. abut therefore samples %s, which is slower but exact",
                type(self._plain).__name__,
                why,
                nats,
                self._batches,
            )

    def _fitting(self, requests: Sequence[SampleRequest], batch: list[int]) -> list[int]:
        """Return the requests whose prompt leaves room for the longest sample of the batch.

        Each row goes through the model until the whole batch is done, and a model with learned
        positions fails beyond its last position.
        """
        config = self._plain.config
        if hasattr(config, "get_text_config"):
            config = config.get_text_config()
        positions = getattr(config, "max_position_embeddings", None)
        if positions is None:
            return batch
        room = positions - max(requests[index].max_tokens for index in batch)
        return [index for index in batch if len(requests[index].prompt_ids) <= room] or batch

    def _check_ids(self, request: SampleRequest) -> None:
        """Refuse an id without an embedding, for which torch would raise an IndexError."""
        rows = getattr(self._plain.get_input_embeddings(), "num_embeddings", None)
        highest = int(np.max(request.prompt_ids, initial=-1))  # Python's max takes 0.2 ms for 8,000
        if rows is not None and highest >= rows:
            raise SamplerError(
                f"{request.where}: the prompt has token {highest}, but the model's "
                f"embedding has only {rows} rows, so model and tokenizer do not match\n"
                "hint: call model.resize_token_embeddings(len(tokenizer)) before creating the "
                "trainer"
            )

    def _generate(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        longest = max(len(request.prompt_ids) for request in requests)
        input_ids = np.full((len(requests), longest), self._pad_token_id, dtype=np.int64)
        attention_mask = np.zeros_like(input_ids)
        for row, request in enumerate(requests):
            self._check_ids(request)
            input_ids[row, longest - len(request.prompt_ids) :] = request.prompt_ids
            attention_mask[row, longest - len(request.prompt_ids) :] = 1
        device = self._plain.device
        ids = torch.from_numpy(input_ids).to(device)
        mask = torch.from_numpy(attention_mask).to(device)
        stops = self._stop_strings(requests)
        draw = _Draw([request.seed for request in requests], device)
        # What is None here would be taken from the model's own generation config.
        config = GenerationConfig(
            **self._settings.generation_kwargs,
            do_sample=False,  # `_Draw` leaves one token to choose
            num_beams=1,
            num_return_sequences=1,
            # `_warpers` has these; here they are what does nothing, without a warning.
            repetition_penalty=1.0,
            temperature=1.0,
            top_k=50,
            top_p=1.0,
            max_new_tokens=max(request.max_tokens for request in requests),
            eos_token_id=sorted(set(requests[0].stop_token_ids)),  # the same for all
            pad_token_id=self._pad_token_id,
            disable_compile=True,
        )
        ends: list[Any] = [stops] if stops else []
        if self._in_step:
            if self._images is not None:  # there may be a spare row
                ends.append(ends_at_limits(requests, longest))
            any_rank_samples(True, device)
        # Weights that FSDP gathers in inference mode could not be trained afterwards.
        with torch.no_grad() if self._in_step else torch.inference_mode():
            output_ids = self._plain.generate(
                input_ids=ids,
                attention_mask=mask,
                **image_inputs(self._images, requests, ids, mask),
                generation_config=config,
                logits_processor=LogitsProcessorList(
                    [*never_drawn(requests, device), *self._warpers(mask), draw]
                ),
                stopping_criteria=StoppingCriteriaList(ends),
                # transformers would sync whole models as well, where DeepSpeed gathered them.
                synced_gpus=self._in_step,
            )
        drawn_ids = output_ids[:, longest:].cpu().numpy()
        drawn_logprobs = torch.stack(draw.logprobs, dim=1).cpu().numpy()
        if drawn_logprobs.shape != drawn_ids.shape:
            got = f"tokens {drawn_ids.shape}, logprobs {drawn_logprobs.shape}"
            raise SamplerError(f"generate returned {got}")
        spelled = stops.spelled if stops else [None] * len(requests)
        return [
            _cut(*row) for row in zip(drawn_ids, drawn_logprobs, requests, spelled, strict=True)
        ]

    def _pass_along(self) -> None:
        """Pass a dummy row through the model while other ranks still sample."""
        device = self._plain.device
        while any_rank_samples(False, device):
            ids, inputs = dummy_row(self._images, self._pad_token_id, device)
            next_logits(self._plain, ids, torch.ones_like(ids), self._pad_token_id, True, inputs)

    def _stop_strings(self, requests: Sequence[SampleRequest]) -> "StopStrings | None":
        stopping = [request for request in requests if request.stop]
        if not stopping:
            return None
        if self._tokenizer is None:
            raise SamplerError(
                f"{stopping[0].where} has stop strings, but this sampler has no tokenizer to find "
                "them\nhint: TransformersSampler(…, tokenizer=Tokenizer.from_pretrained(…))"
            )
        return StopStrings(self._tokenizer, [request.stop for request in requests])

    def _warpers(self, attention_mask: Any) -> list[Any]:
        """Return the filters, in the order in which `generate` applies its own."""
        settings = self._settings
        warpers: list[Any] = []
        if settings.repetition_penalty not in (None, 1.0):
            warpers.append(_RepetitionPenalty(settings.repetition_penalty, attention_mask))
        if settings.temperature != 1.0:
            warpers.append(TemperatureLogitsWarper(float(settings.temperature)))
        if settings.top_k:
            warpers.append(TopKLogitsWarper(settings.top_k))
        if settings.top_p is not None and settings.top_p < 1.0:
            warpers.append(TopPLogitsWarper(settings.top_p))
        if settings.min_p:
            warpers.append(MinPLogitsWarper(settings.min_p))
        return warpers


def _alike(requests: Sequence[SampleRequest], waiting: Sequence[int]) -> list[int]:
    """Return the requests that have the same stop tokens as the first.

    `generate` has one set of stop tokens and fills a row with padding after any of them, so a row
    that should not stop there would contain tokens that were not sampled.
    """
    stops = set(requests[waiting[0]].stop_token_ids)
    return [index for index in waiting if set(requests[index].stop_token_ids) == stops]


def _train_again(modules: Sequence[Any]) -> None:
    for module in modules:
        module.training = True


class _RepetitionPenalty(LogitsProcessor):  # type: ignore[misc]
    """The repetition penalty of transformers, except that padding does not count as repetition."""

    def __init__(self, penalty: float, attention_mask: Any) -> None:
        self._penalty = RepetitionPenaltyLogitsProcessor(penalty)
        self._seen = attention_mask.bool()

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Return `(B, V)` scores for `(B, T)` ids and `(B, V)` scores."""
        longest = self._seen.shape[1]
        prompt_ids, sampled_ids = input_ids[:, :longest], input_ids[:, longest:]
        # Padding is on the left, so the last token of a prompt is its own: seen once more.
        prompt_ids = torch.where(self._seen, prompt_ids, prompt_ids[:, -1:])
        return self._penalty(torch.cat([prompt_ids, sampled_ids], dim=1), scores)


class _Draw(LogitsProcessor):  # type: ignore[misc]
    """Draws each row's token with the row's own generator and leaves only that token.

    Adding Gumbel noise and taking the maximum is an exact draw from the softmax. The noise of a row
    comes from its own seed, so the draw does not depend on the other rows.
    """

    def __init__(self, seeds: Sequence[int], device: Any) -> None:
        self._generators = [torch.Generator(device).manual_seed(seed) for seed in seeds]
        self.logprobs: list[Any] = []

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Return `(B, V)` scores that are finite only at the drawn token."""
        logprobs = torch.log_softmax(scores.float(), dim=-1)
        exponential = torch.empty_like(logprobs)
        for row, generator in enumerate(self._generators):
            exponential[row].exponential_(generator=generator)
        drawn = (logprobs - exponential.log()).argmax(dim=-1, keepdim=True)
        self.logprobs.append(logprobs.gather(1, drawn).squeeze(1))
        return torch.full_like(scores, -torch.inf).scatter_(1, drawn, 0.0)


def _cut(ids: Any, logprobs: Any, request: SampleRequest, spelled: Spelled | None) -> Sample:
    """Return a row's sample, cut at its first stop token or string, or at its `max_tokens`."""
    ids, logprobs = ids[: request.max_tokens], logprobs[: request.max_tokens]
    stops = np.flatnonzero(np.isin(ids, request.stop_token_ids))
    end = int(stops[0]) + 1 if len(stops) else len(ids)
    # Behind a stop token stands padding, in which a string may be found as well.
    if spelled is not None and spelled.tokens < end + (not len(stops)):
        end = spelled.tokens
        return Sample(ids[:end].copy(), logprobs[:end].copy(), "stop", spelled.stop)
    if len(stops):
        return Sample(ids[:end].copy(), logprobs[:end].copy(), "stop")
    return Sample(ids.copy(), logprobs.copy(), "length")
