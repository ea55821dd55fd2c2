"""Images in requests to vLLM, which expands them itself.

Invariant: abut sends one placeholder for each image, and compares vLLM's expanded prompt with the
ids of the request, because vLLM does not raise an error if their numbers differ.

vLLM caches the output of its vision tower under the image's name, and does not drop it when the
weights change, even if its prefix cache is reset. So abut's names consist of the hash of the pixels
and a tag of the weights, which is new for each batch.
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
    """Return the ids of a prompt with one placeholder instead of each image's tokens.

    Raises:
        SamplerError: an image has no placeholder, the text next to it has changed tokens of its
            expansion, or the prompt has image tokens outside its images.
    """
    ids: list[int] = request.prompt_ids.tolist()
    sent: list[int] = []
    at = 0
    for span in request.images:
        if span.placeholder is None:
            raise SamplerError(
                f"{request.where}: vLLM needs the placeholder of {span.image}, which the request "
                "does not have\n"
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
                f"{request.where}: vLLM would get other tokens here, because vLLM writes the text "
                "around an image itself, and this text has merged with the text next to "
                "{span.image}\n"
                "hint: sample with TransformersSampler, or use a model whose images begin and end "
                "with control tokens"
            )
        sent += [*_text(ids[at:start], request), token]
        at = end
    return sent + _text(ids[at:], request)


def _text(ids: list[int], request: SampleRequest) -> list[int]:
    """Return ids between images, after checking that none of them is an image token.

    Raises:
        SamplerError: an id is an image token. vLLM would treat it as text and return the prompt
            unchanged.
    """
    if stray := set(ids) & set(request.never_token_ids):
        raise SamplerError(
            f"{request.where}: the prompt has the image tokens {sorted(stray)} outside its "
            f"{len(request.images)} images"
        )
    return ids


def returned_prompt(content: bytes) -> list[int]:
    """Return the prompt that an answer repeats, with its images expanded.

    Raises:
        SamplerError: the answer does not repeat the prompt.
    """
    ids = json.loads(content).get("prompt_token_ids")
    if not isinstance(ids, list):
        raise SamplerError(
            "the answer to a request with images does not repeat the prompt, so abut cannot check "
            "what the model has seen\nhint: use vLLM 0.30 or later, which repeats the prompt"
        )
    return ids


def never_drawn(settings: Mapping[str, Any], request: SampleRequest) -> dict[str, Any]:
    """Return the settings of a request, extended so that its `never_token_ids` are not drawn."""
    if not request.never_token_ids:
        return dict(settings)
    bias = {int(token): value for token, value in (settings.get("logit_bias") or {}).items()}
    return {**settings, "logit_bias": bias | dict.fromkeys(request.never_token_ids, _NEVER)}


class PictureNames:
    """The names of images in vLLM's caches, and which of them a server already has."""

    def __init__(self) -> None:
        self._tag = ""
        self._known: dict[str, set[str]] = {}
        self.begin()

    def begin(self) -> None:
        """Begin a batch with new names, because the weights may have changed."""
        self._tag = secrets.token_hex(8)
        self._known.clear()

    def name(self, image: Image) -> str:
        """Return the name of an image for the current weights."""
        return f"{image.hash}-{self._tag}"

    def knows(self, request: SampleRequest) -> bool:
        """Return whether a request sends any of its images only by name."""
        known = self._known.get(request.rollout_id, ())
        return any(self.name(span.image) in known for span in request.images)

    def took(self, request: SampleRequest) -> None:
        """Note that the server of a rollout has received the request's images."""
        known = self._known.setdefault(request.rollout_id, set())
        known.update(self.name(span.image) for span in request.images)

    def forget(self, rollout_id: str) -> None:
        """Send a rollout's images in full again, because it may have moved to another server."""
        self._known.pop(rollout_id, None)

    def content_parts(self, request: SampleRequest) -> list[dict[str, str]]:
        """Return the images of a request in the form of `/inference/v1/generate`.

        An image that the server already has is sent only by name.
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
