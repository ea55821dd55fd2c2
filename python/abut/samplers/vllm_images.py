"""Images in requests to vLLM, which expands them by itself.

Invariant: what is sent is one placeholder for each image, and what vLLM makes of it is compared
with the ids of the request: it answers other numbers of placeholders and images without an error.

vLLM caches what its vision tower makes of a picture under the picture's name, and no reset of its
prefix cache drops that when the weights change. So a name is the hash of the pixels and a tag of
the weights, which is new for each batch.
"""

import base64
import json
import secrets
from collections.abc import Mapping
from typing import Any

from abut.errors import SamplerError
from abut.images import Image
from abut.samplers.sampler import SampleRequest

# As OpenAI's API bounds it: the logit of a token that is as good as never drawn.
_NEVER = -100.0


def with_placeholders(request: SampleRequest) -> list[int]:
    """Return the ids of a prompt with one placeholder in the place of each image.

    Raises:
        SamplerError: an image came without its placeholder, the text beside it has changed tokens
            of its expansion, or there are tokens of an image that did not come.
    """
    ids: list[int] = request.prompt_ids.tolist()
    sent: list[int] = []
    at = 0
    for span in request.images:
        if span.placeholder is None:
            raise SamplerError(
                f"{request.where}: the placeholder of {span.image} is not known, and vLLM wants it "
                "in the image's place\n"
                "hint: write images with ChatTemplateProcessor(…, images=ImageProcessor(…))"
            )
        token, before, behind = span.placeholder
        start, end = span.start - len(before), span.end + len(behind)
        if (
            start < at
            or tuple(ids[start : span.start]) != before
            or tuple(ids[span.end : end]) != behind
        ):
            raise SamplerError(
                f"{request.where}: the text beside {span.image} has merged with the text that the "
                "model's processor writes around an image, and vLLM, which writes it by itself, "
                "would have other tokens there\n"
                "hint: sample with TransformersSampler, or use a model whose images begin and end "
                "with control tokens"
            )
        sent += [*_text(ids[at:start], request), token]
        at = end
    return sent + _text(ids[at:], request)


def _text(ids: list[int], request: SampleRequest) -> list[int]:
    """Return ids between images, none of which stands for an image.

    Raises:
        SamplerError: one does. vLLM would take it as text, and return the prompt unchanged.
    """
    if stray := set(ids) & set(request.never_token_ids):
        raise SamplerError(
            f"{request.where}: the prompt has tokens {sorted(stray)}, which stand for images, "
            f"outside its {len(request.images)} images"
        )
    return ids


def returned_prompt(content: bytes) -> list[int]:
    """Return the prompt that an answer repeats, with its images expanded.

    Raises:
        SamplerError: it does not.
    """
    ids = json.loads(content).get("prompt_token_ids")
    if not isinstance(ids, list):
        raise SamplerError(
            "the answer to a request with images does not repeat the prompt, so nobody knows what "
            "the model has seen\nhint: vLLM does from 0.30 on"
        )
    return ids


def never_drawn(settings: Mapping[str, Any], request: SampleRequest) -> dict[str, Any]:
    """Return the settings of a request, under which its `never_token_ids` are not drawn."""
    if not request.never_token_ids:
        return dict(settings)
    bias = {int(token): value for token, value in (settings.get("logit_bias") or {}).items()}
    return {**settings, "logit_bias": bias | dict.fromkeys(request.never_token_ids, _NEVER)}


class PictureNames:
    """The names of pictures in the caches of vLLM, and which of them a server knows by now."""

    def __init__(self) -> None:
        self._tag = ""
        self._known: dict[str, set[str]] = {}
        self.begin()

    def begin(self) -> None:
        """Begin a batch, whose weights may be others: no name is one of the batch before."""
        self._tag = secrets.token_hex(8)
        self._known.clear()

    def name(self, image: Image) -> str:
        """Return the name of a picture, of these pixels and these weights."""
        return f"{image.hash}-{self._tag}"

    def knows(self, request: SampleRequest) -> bool:
        """Return whether a request sends any of its pictures as a name alone."""
        known = self._known.get(request.rollout_id, ())
        return any(self.name(span.image) in known for span in request.images)

    def took(self, request: SampleRequest) -> None:
        """Note that the server of a rollout has taken its pictures."""
        known = self._known.setdefault(request.rollout_id, set())
        known.update(self.name(span.image) for span in request.images)

    def forget(self, rollout_id: str) -> None:
        """Send the pictures of a rollout whole again; it may have moved to another server."""
        self._known.pop(rollout_id, None)

    def content_parts(self, request: SampleRequest) -> list[dict[str, str]]:
        """Return the images of a request, as `/inference/v1/generate` takes them.

        A picture that its server knows goes as its name alone.
        """
        known = self._known.get(request.rollout_id, ())
        parts = []
        for span in request.images:
            part = {"type": "image_url", "uuid": self.name(span.image)}
            # Whole each time it comes in a request that brings it: vLLM looks for all at once.
            if part["uuid"] not in known:
                part["url"] = _data_url(span.image)
            parts.append(part)
        return parts


def _data_url(image: Image) -> str:
    return "data:image/png;base64," + base64.b64encode(image.to_png()).decode()
