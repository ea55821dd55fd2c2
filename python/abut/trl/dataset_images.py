"""Images of a dataset: the columns `image` and `images`, put into the prompts as TRL does."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from abut.envs.task import RolloutTask
from abut.errors import ImageError
from abut.images import Image
from abut.messages import IMAGE_BLOCKS, Message, images_of, with_images
from abut.processor import PartsProcessor
from abut.template.image_processor import ImageProcessor
from abut.template.processor import ChatTemplateProcessor


def with_row_images(
    messages: Sequence[Message], row: Mapping[str, Any], where: str
) -> list[Message]:
    """Return the messages of a prompt with the images of its row.

    Blocks `{"type": "image"}` without an image get them in order. If no message has an image, they
    stand before the text of the first user message.

    Args:
        messages: of the prompt.
        row: of the dataset; has a column `images` (a list), or `image`, or neither.
        where: names the prompt, for errors.

    Raises:
        ValueError: an image cannot be read, or there are not as many as blocks for them.
    """
    try:
        images = [Image.of(value) for value in _images_of_row(row)]
        empty = sum(map(_is_empty, _blocks(messages)))
        filled = len(list(_blocks(messages))) - empty
        if images and not empty and not filled:
            messages = _before_first_text(messages, len(images))
            empty = len(images)
        if len(images) != empty and (empty or not filled):
            raise ImageError(
                f"its row has {len(images)} images, and its messages {empty} blocks without one\n"
                'hint: write {"type": "image"} once for each image of the row, or nowhere'
            )
        left = iter(images)
        # TRL has filled the blocks already where it saw the columns first.
        return [_with_content(message, left if empty else iter(())) for message in messages]
    except ImageError as error:
        raise ValueError(f"{where}: {error}") from error


def check_images(
    trainer: Any, tasks: Sequence[RolloutTask], engine_processor: PartsProcessor
) -> None:
    """Refuse prompts with images that cannot be trained or written, before anything is played.

    Args:
        trainer: trains images if its `trains_images` is True.
        tasks: of a batch.
        engine_processor: writes the conversations of tasks without a processor of their own.

    Raises:
        TypeError: the trainer does not train images.
        TemplateError: its processor or its template is refused; with both texts.
        ValueError: the template writes no images for a role; names the prompt.
    """
    pictured = [task for task in tasks if any(images_of(m.get("content")) for m in task.messages)]
    if pictured:
        check_trains_images(trainer, f"prompt {pictured[0].index}")
    for task in pictured:
        processor = task.processor or engine_processor
        if not isinstance(processor, ChatTemplateProcessor):
            continue
        if processor.images is None:  # raises what is wrong with the trainer's
            ChatTemplateProcessor(
                trainer.processing_class,
                chat_template=getattr(trainer, "chat_template", None),
                images=ImageProcessor(trainer.processing_class),
                **(getattr(trainer, "chat_template_kwargs", None) or {}),
            )
        for message in task.messages:
            role, written = message["role"], processor.report.image_roles
            if images_of(message.get("content")) and role not in written:
                raise ValueError(
                    f"prompt {task.index} has an image in a message of the role {role!r}, and the "
                    f"template writes images for: {', '.join(written) or 'no role'}\n"
                    "hint: put the image into a message of another role, or train with the "
                    "model's processor as processing_class"
                )


def refuse_images(tasks: Sequence[RolloutTask]) -> None:
    """Refuse prompts with images for an `AsyncGRPOTrainer`, which trains the text tower alone.

    Raises:
        TypeError: a prompt has one.
    """
    if any(images_of(message.get("content")) for task in tasks for message in task.messages):
        raise TypeError(
            "a prompt has an image, and AsyncGRPOTrainer trains without its pixels\n"
            "hint: from abut.trl import GRPOTrainer"
        )


def check_trains_images(trainer: Any, what: str) -> None:
    """Refuse a trainer whose forward passes get no pixels: its loss would fall all the same.

    Args:
        trainer: says with `trains_images` that its passes get them.
        what: has an image.

    Raises:
        TypeError: it does not say so.
    """
    if not getattr(trainer, "trains_images", False):
        raise TypeError(
            f"{what} has an image, and {type(trainer).__name__} trains without its pixels\n"
            "hint: from abut.trl import GRPOTrainer"
        )


def _images_of_row(row: Mapping[str, Any]) -> Sequence[Any]:
    if row.get("images") is not None:
        return list(row["images"])
    return [] if row.get("image") is None else [row["image"]]


def _blocks(messages: Iterable[Message]) -> Iterable[Mapping[str, Any]]:
    for message in messages:
        content = message.get("content")
        for block in content if isinstance(content, list | tuple) else ():
            if isinstance(block, Mapping) and block.get("type") in IMAGE_BLOCKS:
                yield block


def _is_empty(block: Any) -> bool:
    """Return whether it is a block for an image of the row."""
    return isinstance(block, Mapping) and block.get("type") == "image" and set(block) == {"type"}


def _before_first_text(messages: Sequence[Message], count: int) -> list[Message]:
    users = [k for k, message in enumerate(messages) if message["role"] == "user"]
    if not users:
        raise ImageError(f"its row has {count} images, and no message of a user shows them")
    placed = list(messages)
    content = placed[users[0]].get("content")
    texts = [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())
    placed[users[0]] = {**placed[users[0]], "content": [{"type": "image"}] * count + texts}
    return placed


def _with_content(message: Message, images: Any) -> Message:
    content = message.get("content")
    if not isinstance(content, list | tuple):
        return message
    filled = [{**b, "image": next(images)} if _is_empty(b) else b for b in content]
    return {**message, "content": with_images(filled)}
