"""Screenshots, and a vision-language model's processor on top of a text tokenizer.

The processor is Qwen2.5-VL's with its defaults, and Pillow scales the pictures: a picture of
1280 x 1024 has 1,702 tokens and 23 MiB of patches.
"""

import io
from pathlib import Path
from typing import Any

import numpy as np

PLACEHOLDER = "<|image_pad|>"
TOKENS = ("<|vision_start|>", "<|vision_end|>", PLACEHOLDER, "<|video_pad|>")
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for b in m.content %}"
    "{{ '<|vision_start|><|image_pad|><|vision_end|>' if b.type == 'image' else b.text }}"
    "{% endfor %}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def seeing_processor(transformers: Any, folder: Path, most_pixels: int | None = None) -> Any:
    """Return the processor on the tokenizer of a folder; None: its default limit of pixels."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": list(TOKENS)})

    class Qwen2_5_VLProcessor(transformers.Qwen2_5_VLProcessor):  # type: ignore[misc]
        def check_argument_for_proper_class(self, name: str, value: Any) -> Any:
            return type(value)  # its video processor, None here, would need torchvision

    limits = {} if most_pixels is None else {"max_pixels": most_pixels}
    images = transformers.Qwen2VLImageProcessorPil(**limits)
    return Qwen2_5_VLProcessor(images, tokenizer, None, chat_template=TEMPLATE)


def screenshot(number: int, width: int, height: int) -> bytes:
    """Return a PNG with text-like lines on white; each number has different pixels."""
    from PIL import Image

    random = np.random.default_rng(number)
    small = random.integers(0, 256, (height // 16 + 1, width // 8 + 1), dtype=np.uint8)
    small[::2] = 255  # between two lines
    small[small > 100] = 255
    page = np.kron(small, np.ones((16, 8), np.uint8))[:height, :width]
    file = io.BytesIO()
    Image.fromarray(np.repeat(page[:, :, None], 3, axis=2)).save(file, "PNG", compress_level=1)
    return file.getvalue()
