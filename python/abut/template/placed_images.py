"""Puts images into what a template writes: each placeholder becomes the expansion of its image.

Invariant: the template has written as many placeholders as its messages have images. A placeholder
that somebody spelled is content and stays text; only scaffold is looked through.
"""

from collections.abc import Callable, Sequence

from abut.errors import TemplateError
from abut.images import Image
from abut.messages import Message
from abut.parts import Content, Part, Scaffold
from abut.template.image_processor import ImageProcessor
from abut.template.image_proofs import probe_image
from abut.template.turn_layout import WITH_TEMPLATE, roles, user

NO_IMAGES = "the template does not write images in "
"""The beginning of a note on a role."""

Written = Callable[[Sequence[Message]], object]


def text_alone(messages: Sequence[Message]) -> TemplateError:
    """Return the error of messages with an image that a processor without images is given."""
    return TemplateError(
        f"the messages {roles(messages)} have an image, but this processor writes only text\n"
        "hint: ChatTemplateProcessor(tokenizer, images=ImageProcessor(hf_processor)); to train, "
        "abut.trl.GRPOTrainer with the model's processor as processing_class"
    )


def with_expansions(
    parts: Sequence[Part],
    images: Sequence[Image],
    processor: ImageProcessor | None,
    messages: Sequence[Message],
) -> list[Part]:
    """Return the parts with each placeholder replaced.

    Args:
        parts: of the template.
        images: of the messages, in order.
        processor: writes images; None: there are none, see `text_alone`.
        messages: those that the parts were made of, for errors.

    Raises:
        TemplateError: the template does not write one placeholder for each image.
        ImageError: the processor does not take an image.
    """
    if processor is None:
        return list(parts)
    placeholder = processor.placeholder
    placed: list[Part] = []
    left = list(images)[::-1]
    count = 0
    for part in parts:
        if isinstance(part, Content) or placeholder not in part:
            placed.append(part)
            continue
        first, *behind = part.split(placeholder)
        count += len(behind)
        placed += [Scaffold(first)] * bool(first)
        for text in behind:
            if left:  # one too many is an error below
                placed.append(processor.expansion(left.pop()))
            placed += [Scaffold(text)] * bool(text)
    if count != len(images):
        raise TemplateError(
            f"the template writes {count} placeholders ({placeholder!r}) for the {len(images)} "
            f"images of {roles(messages)}\n"
            "hint: put images only into messages whose role is in report.image_roles, or pass a "
            f"template that writes images: {WITH_TEMPLATE}"
        )
    return placed


def prove_roles(opening: Written, increment: Written) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the roles in whose messages a template writes images, and why not in those of others.

    Args:
        opening: of a `ChatTemplateProcessor`.
        increment: of the same.

    Raises:
        TemplateError: it does not write them in a user's message, or not the same after every
            history.
    """
    blocks = [
        {"type": "image", "image": probe_image()},
        {"type": "text", "text": "abutSeen"},
    ]
    increment([{"role": "user", "content": blocks}])
    found, notes = ["user"], []
    tool: Message = {"role": "tool", "name": "abutTool", "tool_call_id": "abutCall0"}
    for role, write, messages in (
        ("tool", increment, [{**tool, "content": blocks}]),
        ("system", opening, [{"role": "system", "content": blocks}, user()]),
    ):
        try:
            write(messages)
            found.append(role)
        except TemplateError as error:
            because = str(error).partition("\n")[0]
            notes.append(f"{NO_IMAGES}{role} messages: {because}")
    return tuple(found), tuple(notes)
