"""Images in a forward pass of a model in this process, and tokens that are never drawn.

`abut.template.ImageProcessor` is what makes the inputs; a sampler knows it by the protocol here.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from abut.errors import SamplerError
from abut.images import ImageSpan
from abut.samplers.sampler import SampleRequest


class ImageInputs(Protocol):
    """Makes the arguments of a model for the images of rows."""

    def model_inputs(
        self, input_ids: Any, attention_mask: Any, rows: Sequence[Sequence[ImageSpan]]
    ) -> dict[str, Any]:
        """Return them; see `abut.template.ImageProcessor.model_inputs`."""
        ...


def image_inputs(
    images: ImageInputs | None,
    requests: Sequence[SampleRequest],
    input_ids: Any,
    attention_mask: Any,
    *,
    in_step: bool,
) -> dict[str, Any]:
    """Return the model's arguments for the images of a batch; `{}` if no row has one.

    Args:
        images: makes them.
        requests: of the batch.
        input_ids: `(B, T)`, padded.
        attention_mask: `(B, T)`.
        in_step: the ranks make equally many passes, with a sharded model.

    Raises:
        SamplerError: nothing can make them, or ranks are in step.
    """
    pictured = [request for request in requests if request.images]
    if not pictured:
        return {}
    if images is None:
        raise SamplerError(
            f"{pictured[0].where} has images, and this sampler has nothing to read them with\n"
            "hint: TransformersSampler(…, images=ImageProcessor(hf_processor))"
        )
    if in_step:
        raise SamplerError(
            f"{pictured[0].where} has images, and the model is sharded: the ranks whose rows have "
            "no image would not go through the vision tower, and the others would wait for them\n"
            "hint: sample with vLLM, or train without FSDP and ZeRO-3"
        )
    return images.model_inputs(input_ids, attention_mask, [r.images for r in requests])


def never_drawn(requests: Sequence[SampleRequest], device: Any) -> list[Any]:
    """Return what keeps each row from drawing its `never_token_ids`; `[]` if no row has any.

    It comes before all other processors of logits, so filters and logprobs are those of the
    distribution without these tokens.
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
