"""Holds screenshots of rollouts, or tensors of rows, in a separate process, and prints the bytes.

The row `image_memory` starts it with the tokenizer's folder, the size of a picture, the pictures
per rollout, the objects to hold, and their number.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import transformers

from abut import ChatTemplateProcessor, Tokenizer
from abut.images import Image
from abut.rollout.conversation import Conversation
from abut.template import ImageProcessor
from benchmarks.loading import resident_bytes
from benchmarks.screenshots import screenshot, seeing_processor

# Small tensors fill the caches just as well, and scaling takes most of the time.
_PLAYED_PIXELS = 448 * 448


def main(arguments: Sequence[str]) -> None:
    """Hold the objects; print the largest growth of the process, and the sizes of the pictures."""
    folder, kind = Path(arguments[0]), arguments[4]
    width, height, shown, count = map(int, (*arguments[1:4], arguments[5]))
    hold = {"play": _play, "rows": _rows}[kind]
    sys.stdout.write(json.dumps(hold(folder, (width, height), shown, count)) + "\n")


def _play(folder: Path, size: tuple[int, int], shown: int, rollouts: int) -> dict[str, Any]:
    """Give all rollouts their next screenshot, turn by turn."""
    hf_processor = seeing_processor(transformers, folder, _PLAYED_PIXELS)
    images = ImageProcessor(hf_processor)
    processor = ChatTemplateProcessor(hf_processor, images=images)
    tokenizer = Tokenizer.from_pretrained(hf_processor)
    talks = [Conversation(tokenizer, processor) for _ in range(rollouts)]
    before, files = resident_bytes(), 0
    for turn in range(shown):
        for number, talk in enumerate(talks):
            image = Image(screenshot(turn * rollouts + number, *size))
            files += len(image.data)
            message = {"role": "user", "content": [{"type": "image", "image": image}]}
            (talk.reply if turn else talk.open)([message])
            talk.request()
            ids = np.array([5, 6, 7, talk.stop_token_ids[0]])
            talk.hear(ids, np.full(len(ids), -1.0, np.float32))
    pixels = rollouts * shown * size[0] * size[1] * 3
    return {"peak": _grown(before), "files": files, "pixels": pixels}


def _rows(folder: Path, size: tuple[int, int], shown: int, rows: int) -> dict[str, Any]:
    """Make the tensors of one row after the other, as a forward pass receives them."""
    images = ImageProcessor(seeing_processor(transformers, folder))
    of_rows = [
        [Image(screenshot(row * shown + k, *size)) for k in range(shown)] for row in range(rows)
    ]
    before, tensors = resident_bytes(), 0
    for row in of_rows:
        made = images.tensors([row])
        tensors = sum(t.numel() * t.element_size() for t in made.values())
        del made
    return {"peak": _grown(before), "tensors": tensors}


def _grown(before: int | None) -> int | None:
    peak = resident_bytes("VmHWM")
    return None if before is None or peak is None else peak - before


if __name__ == "__main__":
    main(sys.argv[1:])
