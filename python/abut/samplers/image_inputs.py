"""Images in a forward pass of a model in this process, and tokens that are never drawn.

`abut.template.ImageProcessor` makes the inputs; samplers know it by the protocol defined here.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from abut.errors import SamplerError
from abut.images import ImageSpan
from abut.samplers.sampler import SampleRequest


class ImageInputs(Protocol):
    """Makes the arguments of a model for the images of rows."""

    def model_inputs(
        self, input_ids: Any, attention_mask: Any, rows: Sequence[Sequence[ImageSpan]]
    ) -> dict[str, Any]:
        """Return the arguments; see `abut.template.ImageProcessor.model_inputs`."""
        ...

    def spare_row(self) -> tuple[Sequence[int], ImageSpan]:
        """Return the ids of a short row, and the image in it."""
        ...


def image_inputs(
    images: ImageInputs | None,
    requests: Sequence[SampleRequest],
    input_ids: Any,
    attention_mask: Any,
) -> dict[str, Any]:
    """Return the model's arguments for the images of a batch; `{}` if no row has one.

    Args:
        images: makes them.
        requests: of the batch.
        input_ids: `(B, T)`, padded.
        attention_mask: `(B, T)`.

    Raises:
        SamplerError: the sampler has no image processor.
    """
    pictured = [request for request in requests if request.images]
    if not pictured:
        return {}
    if images is None:
        raise SamplerError(
            f"{pictured[0].where} has images, but this sampler has no image processor\n"
            "hint: TransformersSampler(…, images=ImageProcessor(hf_processor))"
        )
    return images.model_inputs(input_ids, attention_mask, [r.images for r in requests])


def with_spare_row(
    images: ImageInputs | None, requests: Sequence[SampleRequest]
) -> list[SampleRequest]:
    """Return a rank's requests, plus one with an image if none of them has an image.

    Ranks that share a sharded model go through its vision tower together, because all ranks gather
    its weights. A rank without images would leave the others waiting forever. The added request is
    the last one and asks for one token.

    Args:
        images: None if the model has no vision tower.
        requests: of this rank.
    """
    if images is None or any(request.images for request in requests):
        return list(requests)
    ids, span = images.spare_row()
    stops = requests[0].stop_token_ids
    spare = SampleRequest(np.asarray(ids), 1, stops, 0, "spare row", 0, images=(span,))
    return [*requests, spare]


def dummy_row(images: ImageInputs | None, pad_token_id: int, device: Any) -> tuple[Any, Any]:
    """Return the `(1, T)` ids of a row whose output is not used, and the model's arguments."""
    import torch

    if images is None:
        return torch.full((1, 1), pad_token_id, device=device), {}
    row, span = images.spare_row()
    ids = torch.tensor([row], device=device)
    return ids, images.model_inputs(ids, torch.ones_like(ids), [[span]])


def ends_at_limits(requests: Sequence[SampleRequest], start: int) -> Any:
    """Return stopping criteria that end each row of a `generate` at its own `max_tokens`.

    Args:
        requests: of the rows.
        start: where the samples begin.
    """
    import torch

    limits = [start + request.max_tokens for request in requests]

    def ended(input_ids: Any, scores: Any, **_: Any) -> Any:
        length = input_ids.shape[1]
        return torch.tensor([length >= limit for limit in limits], device=input_ids.device)

    return ended


def never_drawn(requests: Sequence[SampleRequest], device: Any) -> list[Any]:
    """Return logits processors that exclude each row's `never_token_ids`; `[]` if no row has any.

    They run before all other logits processors, so filters and logprobs belong to the distribution
    without these tokens.
    """
    if not any(request.never_token_ids for request in requests):
        return []
    import torch

    rows: list[int] = []
    tokens: list[int] = []
    for row, request in enumerate(requests):
        rows += [row] * len(request.never_token_ids)
        tokens += request.never_token_ids
    places = torch.tensor(rows, device=device), torch.tensor(tokens, device=device)

    def refused(input_ids: Any, scores: Any) -> Any:
        return scores.index_put(places, scores.new_tensor(-torch.inf))

    return [refused]
