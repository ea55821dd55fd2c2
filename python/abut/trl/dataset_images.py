"""The images of a dataset: moves the columns `image` and `images` into the prompts, like TRL."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from abut.envs.task import RolloutTask
from abut.errors import ImageError
from abut.images import Image
from abut.messages import IMAGE_BLOCKS, Message, images_of, with_images, without_filler
from abut.processor import PartsProcessor
from abut.rollout.rollout import Rollout
from abut.template.image_processor import ImageProcessor
from abut.template.processor import ChatTemplateProcessor
from abut.trl.version import LIGER_IS_LOGPROBS, trl_version, trl_version_text

_COLUMNS = ("image", "images")


def with_row_images(
    messages: Sequence[Message], row: Mapping[str, Any], where: str
) -> list[Message]:
    """Return the messages of a prompt with the images of its row.

    Blocks `{"type": "image"}` without an image get the images in order. If no message has an image,
    they go before the text of the first user message.

    Args:
        messages: of the prompt.
        row: of the dataset; has a column `images` (a list), or `image`, or neither.
        where: names the prompt, for errors.

    Raises:
        ValueError: an image cannot be read, or the numbers of images and of blocks differ.
    """
    try:
        blocks = list(_blocks(messages))
        empty = sum(map(_is_empty, blocks))
        filled = len(blocks) - empty
        if filled and not empty:  # the row's images are there already
            return [_with_content(message, iter(())) for message in messages]
        images = [Image.of(value) for value in images_of_row(row)]
        if images and not empty:
            messages = _before_first_text(messages, len(images))
            empty = len(images)
        if len(images) != empty:
            raise ImageError(
                f"the row has {len(images)} images, but the messages have {empty} blocks for "
                "them\n"
                'hint: write {"type": "image"} once for each image of the row, or leave all such '
                "blocks out"
            )
        left = iter(images)
        return [_with_content(message, left) for message in messages]
    except ImageError as error:
        raise ValueError(f"{where}: {error}") from error


def with_moved_images(
    rows: Sequence[Mapping[str, Any]],
) -> tuple[Sequence[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Return rows of a dataset with their images in the prompts, and the columns that held them.

    TRL runs the images of these columns through its processor, for all rows of a batch at once.

    Args:
        rows: one for each prompt. A string prompt does not change, because it has no place for an
            image.

    Returns:
        New rows without the columns, and the columns; the rows themselves and an empty list if
        there are no such columns. A prompt does not change if `with_row_images` refuses it.
    """
    columns: list[Mapping[str, Any]]
    columns = [{name: row[name] for name in _COLUMNS if name in row} for row in rows]
    if not any(columns):
        return rows, []
    moved: list[Mapping[str, Any]] = []
    for number, row in enumerate(rows):
        kept = {name: value for name, value in row.items() if name not in _COLUMNS}
        prompt = row.get("prompt")
        if isinstance(prompt, list | tuple) and all(map(_has_role, prompt)):
            # Its task raises this again, at a point where the other ranks are notified.
            with suppress(ValueError):
                messages = [without_filler(message) for message in prompt]
                kept["prompt"] = with_row_images(messages, row, f"prompt {number}")
        moved.append(kept)
    return moved, columns


def check_images(
    trainer: Any, tasks: Sequence[RolloutTask], engine_processor: PartsProcessor
) -> None:
    """Refuse prompts with images that cannot be trained or written, before anything is played.

    Args:
        trainer: trains images if its `trains_images` is True.
        tasks: of a batch.
        engine_processor: writes the conversations of tasks that have no processor of their own.

    Raises:
        TypeError: the trainer does not train images.
        TemplateError: its processor or its template is refused; shows both texts.
        ValueError: the template does not write images for a role; names the prompt.
    """
    pictured = [task for task in tasks if any(images_of(m.get("content")) for m in task.messages)]
    if pictured:
        _check_trains_images(trainer, f"prompt {pictured[0].index}")
    columns = {name for task in tasks for name in _COLUMNS if task.columns.get(name) is not None}
    if columns and getattr(trainer, "abut_image_columns", None) == ():
        raise TypeError(
            f"the dataset has a column {min(columns)!r}, and the trainer's rollout_func is a "
            "wrapper that hides make_rollout_func(…), so TRL would also run the images through "
            "its processor\n"
            "hint: pass make_rollout_func(…) itself, or wrap it with functools.wraps"
        )
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
                    f"prompt {task.index} has an image in a {role!r} message, but the chat "
                    f"template writes images only for: {', '.join(written) or 'no role'}\n"
                    "hint: put the image into a message of another role, or pass the model's "
                    "processor as processing_class"
                )


def refuse_image_processor(processor: Any) -> None:
    """Refuse a processor that writes images for an asynchronous trainer.

    Raises:
        TypeError: the processor writes images.
    """
    if getattr(processor, "images", None) is not None:
        raise TypeError(
            f"processor={type(processor).__name__}(…) writes images, but asynchronous trainers "
            "do not pass pixels to the model\n"
            "hint: leave images= out of the processor, or train with abut.trl.GRPOTrainer"
        )


def refuse_images(tasks: Sequence[RolloutTask]) -> None:
    """Refuse prompts with images for an asynchronous trainer, which trains only on text.

    Raises:
        TypeError: a prompt has an image.
    """
    if any(images_of(message.get("content")) for task in tasks for message in task.messages):
        raise TypeError(
            "a prompt has an image, but asynchronous trainers do not pass pixels to the model\n"
            "hint: train with abut.trl.GRPOTrainer"
        )


def check_rollout_images(
    trainer: Any, rollouts: Sequence[Rollout], images: ImageProcessor | None
) -> None:
    """Refuse rollouts whose images would not be trained.

    Args:
        trainer: trains images if its `trains_images` is True.
        rollouts: of a batch.
        images: computes the tensors of images; None: there is no image processor.

    Raises:
        TypeError: the trainer does not train images, or there is no image processor.
        ValueError: the trainer's loss is liger's own, without pixels.
    """
    pictured = [r for r in rollouts if r.images or any(branch.images for branch in r.branches)]
    if not pictured:
        return
    what = f"rollout {pictured[0].rollout_id}"
    _check_trains_images(trainer, what)
    if images is None:
        raise TypeError(
            f"{what} has an image, but the processor= of make_rollout_func has no ImageProcessor "
            "to compute its pixels\n"
            "hint: pass processor=ChatTemplateProcessor(tokenizer, "
            "images=ImageProcessor(hf_processor))"
        )


def _check_trains_images(trainer: Any, what: str) -> None:
    """Refuse a trainer whose forward passes get no pixels, because its loss would fall anyway.

    Args:
        trainer: its `trains_images` says whether its forward passes get pixels.
        what: the prompt or rollout that has an image.

    Raises:
        TypeError: the trainer does not train images.
        ValueError: its loss is liger's own, without pixels.
    """
    if not getattr(trainer, "trains_images", False):
        raise TypeError(
            f"{what} has an image, but {type(trainer).__name__} does not pass pixels to the "
            "model\n"
            "hint: train with abut.trl.GRPOTrainer"
        )
    liger = getattr(trainer.args, "use_liger_kernel", False)
    if liger and trl_version() < LIGER_IS_LOGPROBS:
        raise ValueError(
            f"{what} has an image, but use_liger_kernel=True with TRL {trl_version_text()} "
            "computes the loss without pixels\n"
            "hint: pip install 'trl>=1.14', or set use_liger_kernel=False"
        )


def _has_role(message: Any) -> bool:
    return isinstance(message, Mapping) and isinstance(message.get("role"), str)


def images_of_row(row: Mapping[str, Any]) -> Sequence[Any]:
    """Return the images in the columns `images` or `image` of a row, unchanged."""
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
    """Return whether a value is a block for an image of the row."""
    return isinstance(block, Mapping) and block.get("type") == "image" and set(block) == {"type"}


def _before_first_text(messages: Sequence[Message], count: int) -> list[Message]:
    users = [k for k, message in enumerate(messages) if message["role"] == "user"]
    if not users:
        raise ImageError(
            f"the row has {count} images, but the prompt has no user message to show them in"
        )
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
