"""The images of a conversation, and the positions of their tokens.

Invariant: in a row there are as many media tokens as its images have features, in order. Media
tokens are never sampled and later text never moves them, so only newly written ids are searched.
"""

from collections.abc import Sequence

import numpy as np

from abut._native import Seam
from abut.errors import TrajectoryError
from abut.images import Expansion, ImageSpan
from abut.parts import Part


def written_images(
    parts: Sequence[Part], seam: Seam, before: int, media_token_ids: Sequence[int]
) -> list[ImageSpan]:
    """Return the images in parts that were just written.

    Args:
        parts: the parts that were written.
        seam: the result of writing them.
        before: the length of the trajectory before that, in tokens.
        media_token_ids: tokens that stand for features of images.

    Raises:
        TrajectoryError: the number of media tokens is not the number of the images' features.
    """
    images = [part for part in parts if isinstance(part, Expansion)]
    ids = seam.ids
    media = np.flatnonzero(np.isin(ids, media_token_ids)) + (before - seam.drop)
    ends = np.cumsum([part.features for part in images], dtype=np.int64)
    if len(media) != (ends[-1] if images else 0):
        raise TrajectoryError(
            f"the prompt has {len(media)} media tokens, but its {len(images)} images have "
            f"{int(ends[-1]) if images else 0} features\n"
            "hint: use the tokenizer and the image processor of the same model"
        )
    return [
        ImageSpan(
            part.image,
            int(media[end - part.features]),
            int(media[end - 1]) + 1,
            part.features,
            part.placeholder,
        )
        for part, end in zip(images, ends, strict=True)
    ]


def images_before(images: Sequence[ImageSpan], at: int) -> list[ImageSpan]:
    """Return the images that end at or before token `at`: the images of a row that ends there."""
    return [span for span in images if span.end <= at]
