"""A turn with a screenshot, compared with the model's own processor on the screenshot alone."""

import io
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from abut import ChatTemplateProcessor, Tokenizer
from abut.images import Image
from abut.rollout.conversation import Conversation
from abut.template import ImageProcessor
from benchmarks.figures import Row, require_same
from benchmarks.measured_conversation import logprobs
from benchmarks.screenshots import PLACEHOLDER, screenshot, seeing_processor
from benchmarks.timing import Check, Prepare, Sides, interleave
from benchmarks.workbench import Workbench

ABUT, PROCESSOR = "abut", "the model's processor, picture only"


def measure(workbench: Workbench) -> Row:
    """Append screenshots after a few and after many others."""
    (width, height), counts = workbench.scale.image_size, workbench.scale.image_counts
    row = Row(
        "image_turn",
        f"append an image turn of {width} x {height} pixels, template included",
        equal="the picture's tokens in the conversation, and the tensors of a forward pass, with "
        "those of the model's processor, after every append",
        notes=[
            "Both sides receive the bytes of a new PNG. The conversation has the template of "
            "Qwen2.5-VL, and its earlier pictures are copies of one picture, because only their "
            "number matters.",
            "Every side is called twice in a row, for two conversations of the same length, and "
            "only the second call is timed: the first call allocates 23 MiB and takes twice as "
            "long.",
        ],
    )
    workbench.peer("pillow", "PIL")
    hf_processor = seeing_processor(workbench.peer("transformers"), workbench.folder)
    images = ImageProcessor(hf_processor)
    writer = ChatTemplateProcessor(hf_processor, images=images)
    tokenizer = Tokenizer.from_pretrained(hf_processor)
    first = Image(screenshot(0, width, height))
    files = (screenshot(number, width, height) for number in itertools.count(1))
    for count in counts:
        timed, twin = (
            _turns(_talk(tokenizer, writer, count * [first]), images, hf_processor, files)
            for _ in range(2)
        )
        taken = interleave(timed, workbench.scale.image_rounds, twin=twin)
        row.add(case := _case(count), taken)
        row.need_ratio(
            f"{ABUT} ÷ {PROCESSOR}, {case}", (ABUT, case), (PROCESSOR, case), "at most", 1.25
        )
    few, many = _case(counts[0]), _case(counts[-1])
    row.need_ratio(f"{ABUT}, {many} ÷ {few}", (ABUT, many), (ABUT, few), "at most", 1.2)
    return row


def _turns(
    conversation: Conversation, images: ImageProcessor, hf_processor: Any, files: Iterator[bytes]
) -> Prepare:
    """One round is one turn."""
    media = images.media_token_ids[0]

    def prepare(number: int) -> tuple[Sides, Check]:
        data = next(files)
        _answer(conversation)
        before = len(conversation.trajectory)
        kept: list[Image] = []

        def append() -> None:
            kept.append(Image(data))
            conversation.say([_shown(kept[0])])

        def check(results: dict[str, Any]) -> None:
            theirs = results[PROCESSOR]
            new, ids = conversation.trajectory.ids[before:], theirs["input_ids"][0].numpy()
            where = f"turn {number}"
            require_same(where, PROCESSOR, new[new == media], ids[ids == media])
            pixels = images.tensors([kept])["pixel_values"].numpy()
            require_same(where, PROCESSOR, pixels, theirs["pixel_values"].numpy())

        sides: dict[str, Callable[[], Any]] = {
            ABUT: append,
            PROCESSOR: lambda: hf_processor(
                images=[_opened(data)], text=[PLACEHOLDER], return_tensors="pt"
            ),
        }
        return sides, check

    return prepare


def _case(count: int) -> str:
    return f"after {count} picture{'s' * (count > 1)}"


def _talk(tokenizer: Tokenizer, writer: ChatTemplateProcessor, shown: list[Image]) -> Conversation:
    """Return a conversation with these images, which ends with the last one."""
    conversation = Conversation(tokenizer, writer)
    conversation.open([_shown(shown[0])])
    for image in shown[1:]:
        _answer(conversation)
        conversation.say([_shown(image)])
    return conversation


def _shown(image: Image) -> dict[str, Any]:
    blocks = [{"type": "image", "image": image}, {"type": "text", "text": "What now?"}]
    return {"role": "user", "content": blocks}


def _answer(conversation: Conversation) -> None:
    """Add an answer of the policy."""
    conversation.request()
    ids = np.array([5, 6, 7, conversation.stop_token_ids[0]])
    conversation.hear(ids, logprobs(len(ids)))


def _opened(data: bytes) -> Any:
    from PIL import Image as pillow

    return pillow.open(io.BytesIO(data)).convert("RGB")
