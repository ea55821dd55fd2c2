"""Pictures as clients send them."""

import base64
import io
from typing import Any

import numpy as np
from PIL import Image as pillow


def encoded(pixels: Any, form: str = "PNG", **options: Any) -> bytes:
    """A file of pixels `(H, W, 3)`, or of several frames."""
    frames = [pillow.fromarray(one) for one in (pixels if np.ndim(pixels) == 4 else [pixels])]
    file = io.BytesIO()
    more = {"save_all": True, "append_images": frames[1:]} if len(frames) > 1 else {}
    frames[0].save(file, form, **more, **options)
    return file.getvalue()


def as_text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def picture(seed: int, width: int = 48, height: int = 32) -> Any:
    """`(height, width, 3)` uint8: blocks of colours."""
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (4, 6, 3), dtype=np.uint8)
    rows, columns = np.arange(height) * 4 // height, np.arange(width) * 6 // width
    return blocks[rows][:, columns]
