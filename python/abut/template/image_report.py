"""A report on the images of a model: its processor, roles with images, and numbers of tokens."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from abut.errors import AbutError, ImageError, TemplateError, text_of
from abut.images import Image
from abut.pretrained import is_tokenizer_file
from abut.template.image_processor import ImageProcessor
from abut.template.placed_images import NO_IMAGES
from abut.template.processor import ChatTemplateProcessor

SIZES = ((224, 224), (448, 448), (640, 480), (1280, 1024), (1920, 1080))
"""Of the pictures whose tokens are counted, `(width, height)`: thumbnails to screens."""

_FILES = ("processor_config.json", "preprocessor_config.json")


@dataclass(frozen=True)
class ImageReport:
    """The findings about a model's images.

    Attributes:
        processor: the name of the class of its processor.
        refused: why no images can be written, in full; None if the processor is proved.
        placeholder: the token that the template writes for an image.
        media_token: the token whose embedding a feature of the image replaces.
        roles: those in whose messages the template writes images.
        notes: why not in those of others, one sentence each.
        tokens: how many tokens a picture takes, by its size, such as `"640x480"`; None where the
            processor does not take it.
    """

    processor: str
    refused: str | None = None
    placeholder: str = ""
    media_token: str = ""
    roles: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    tokens: Mapping[str, int | None] | None = None


def _report_images(
    hf_processor: Any, *, chat_template: str | None = None, **chat_template_kwargs: Any
) -> ImageReport:
    """Prove a processor and its template on probe images, and report.

    Args:
        hf_processor: of a vision-language model.
        chat_template: instead of its own.
        **chat_template_kwargs: variables for the template.
    """
    name = type(hf_processor).__name__
    try:
        images = ImageProcessor(hf_processor)
        written = ChatTemplateProcessor(
            hf_processor, images=images, chat_template=chat_template, **chat_template_kwargs
        )
    except AbutError as error:
        return ImageReport(name, refused=str(error))
    return ImageReport(
        name,
        placeholder=images.placeholder,
        media_token=images.media_token,
        roles=written.report.image_roles,
        notes=tuple(note for note in written.report.notes if note.startswith(NO_IMAGES)),
        tokens={f"{w}x{h}": _tokens(hf_processor.tokenizer, images, w, h) for w, h in SIZES},
    )


def report_model_images(
    source: Any, *, chat_template: str | None = None, **chat_template_kwargs: Any
) -> ImageReport | None:
    """Report on the images of a model; return None if it takes none.

    Args:
        source: a name or folder that exists, a tokenizer.json, a tokenizer, or a processor.
        chat_template: instead of its own.
        **chat_template_kwargs: variables for the template.
    """
    try:
        hf_processor = _load_image_processor(source)
    except TemplateError as error:
        return ImageReport("its processor", refused=str(error))
    if hf_processor is None:
        return None
    return _report_images(hf_processor, chat_template=chat_template, **chat_template_kwargs)


def _load_image_processor(source: Any) -> Any:
    """Return the processor of a model that takes images, None if it takes none.

    Raises:
        TemplateError: it has one, and transformers cannot load it; says why.
    """
    if not isinstance(source, str | os.PathLike):
        return source if getattr(source, "image_processor", None) is not None else None
    if is_tokenizer_file(source):
        return None
    from transformers import AutoProcessor
    from transformers.utils import cached_file

    name = os.fspath(source)
    if not any(_has(cached_file, name, file) for file in _FILES):
        return None
    try:
        processor = AutoProcessor.from_pretrained(name, trust_remote_code=False)
    except Exception as error:  # torchvision is missing, or the code is the model's own
        raise TemplateError(f"{name}: its processor cannot be loaded: {text_of(error)}") from error
    return processor if getattr(processor, "image_processor", None) is not None else None


def _has(cached_file: Any, name: str, file: str) -> bool:
    try:
        cached_file(name, file)
    except OSError:
        return False
    return True


def _tokens(hf_tokenizer: Any, images: ImageProcessor, width: int, height: int) -> int | None:
    try:
        expansion = images.expansion(Image.of(np.zeros((height, width, 3), np.uint8)))
    except ImageError:
        return None
    return len(hf_tokenizer.encode(str(expansion), add_special_tokens=False))
