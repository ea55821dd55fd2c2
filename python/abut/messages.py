"""Reading messages, and copying them.

Datasets, environments and the policy put into messages what they like, and reward functions change
them: nobody's object gets into another's hands.
"""

import json
import math
import sys
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal, TypeAlias

import numpy as np

from abut.errors import EnvError, ImageError
from abut.images import IMAGE_FORMS, Image

Message: TypeAlias = dict[str, Any]

IMAGE_BLOCKS = ("image", "image_url")
"""The types of content blocks that hold an image, under a key of the same name."""

_OTHER_MEDIA = {
    "video": "send single frames of the video as images",
    "audio": "send a transcript of the audio as text",
}


def texts_of(message: Mapping[str, Any]) -> list[str]:
    """Return the texts of a message: its content, or those of the blocks of its content."""
    content = message.get("content")
    if isinstance(content, str):
        return [content]
    blocks = content if isinstance(content, list | tuple) else ()
    texts = [block.get("text") for block in blocks if isinstance(block, Mapping)]
    return [text for text in texts if isinstance(text, str)]


def is_content(content: Any) -> bool:
    """Return whether a content can be written: a string, or a list of texts and images."""
    if isinstance(content, str):
        return True
    return isinstance(content, list) and all(
        isinstance(block, Mapping)
        and (
            (block.get("type") == "text" and isinstance(block.get("text"), str))
            or (block.get("type") == "image" and isinstance(block.get("image"), Image))
        )
        for block in content
    )


def strange_block(content: Any, *, known: Collection[str] = ("text",)) -> str | None:
    """The type of the first block that is of none of the `known` ones, a video say."""
    for block in content if isinstance(content, list | tuple) else ():
        kind = block.get("type") if isinstance(block, Mapping) else None
        if isinstance(kind, str) and kind not in known:
            return kind
    return None


def refusal_of(kind: str) -> tuple[str, str]:
    """Return why a block of a type is not taken, and what to send instead."""
    for medium, instead in _OTHER_MEDIA.items():
        if medium in kind:  # video, video_url, input_audio, …
            return f"abut does not accept {medium}", instead
    return "abut accepts only text and images", "send only blocks of type 'text' or 'image'"


def image_in(block: Any) -> Any:
    """Return the value of an image block, None if the block is something else.

    The two forms are `{"type": "image", "image": X}` and
    `{"type": "image_url", "image_url": {"url": "data:…"}}`.

    Raises:
        ImageError: it is an image block without an image.
    """
    kind = block.get("type") if isinstance(block, Mapping) else None
    if kind not in IMAGE_BLOCKS:
        return None
    value = block.get(kind)
    if kind == "image_url" and isinstance(value, Mapping):
        value = value.get("url")
    if value is None:
        raise ImageError(f"a block of type {kind!r} has no key {kind!r}\n{IMAGE_FORMS}")
    return value


def with_images(content: Any) -> Any:
    """Return a content whose image blocks hold an `Image`; other contents as they are.

    This is where images enter: each is decoded here, once.

    Raises:
        ImageError: as `Image.of`, and for image blocks without an image.
    """
    if not isinstance(content, list | tuple):
        return content
    values = [image_in(block) for block in content]
    if all(value is None for value in values):
        return content
    return [
        block if value is None else {"type": "image", "image": Image.of(value)}
        for block, value in zip(content, values, strict=True)
    ]


def image_content(value: Any) -> list[dict[str, Any]] | None:
    """Return the content of a tool's result with an image; None if the result has no image.

    Args:
        value: an `Image`, a PIL image, a uint8 array `(H, W, 3)`, a list of text and image blocks
            with an image among them, or anything else.

    Raises:
        ImageError: as `Image.of`.
        EnvError: it is a list of blocks with a video or audio among them.
    """
    if isinstance(value, list):
        media = [kind for block in value if (kind := _other_medium(block)) is not None]
        if media and all(is_block(b) or _other_medium(b) is not None for b in value):
            because, instead = refusal_of(media[0])
            raise EnvError(
                f"a tool or reset returned content of type {media[0]!r}, but {because}\n"
                f"hint: {instead}"
            )
        whole = has_images(value) and all(map(is_block, value))
        return list(with_images(value)) if whole else None
    pillow = sys.modules.get("PIL.Image")  # who has a PIL image has imported it
    is_picture = pillow is not None and isinstance(value, pillow.Image)
    is_array = isinstance(value, np.ndarray) and value.dtype == np.uint8
    is_array = is_array and value.ndim == 3 and value.shape[2] == 3
    if isinstance(value, Image) or is_picture or is_array:
        return [{"type": "image", "image": Image.of(value)}]
    return None


def is_block(block: Any) -> bool:
    """Return whether a value is a block that holds a string, or one that holds an image."""
    if not isinstance(block, dict):
        return False
    kind = block.get("type")
    if kind == "text":
        return isinstance(block.get("text"), str) and set(block) == {"type", "text"}
    return kind in IMAGE_BLOCKS and block.get(kind) is not None and "text" not in block


def has_images(content: Any) -> bool:
    """Return whether a content has an image block, read or not."""
    blocks = content if isinstance(content, list | tuple) else ()
    return any(isinstance(b, Mapping) and b.get("type") in IMAGE_BLOCKS for b in blocks)


def _other_medium(block: Any) -> str | None:
    """Return the type of a block that holds video or audio; None if it is something else.

    A tool may return JSON that has a type, a list of videos that it found say: that is text. A
    block holds its medium under the key that its type names, and nothing besides.
    """
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(kind, str) or not any(medium in kind for medium in _OTHER_MEDIA):
        return None
    return kind if set(block) == {"type", kind} else None


def images_of(content: Any) -> list[Image]:
    """Return the images of a content, in order, whose blocks `with_images` has made."""
    blocks = content if isinstance(content, list | tuple) else ()
    return [value for block in blocks if isinstance(value := image_in(block), Image)]


def blocks_of(parts: Iterable[str | Image]) -> list[dict[str, Any]]:
    """Return the content blocks of texts and images."""
    return [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image", "image": part}
        for part in parts
    ]


def with_hashes(message: Message) -> Message:
    """Return a message with the hashes of its images in their place, for digests."""
    content: Any = message.get("content")
    if not images_of(content):
        return message
    hashed = [{**b, "image": b["image"].hash} if images_of([b]) else b for b in content]
    return {**message, "content": hashed}


def with_arguments(message: Message, form: Literal["object", "text"]) -> Message:
    """Return the message with the arguments of its calls as objects, or as their JSON text.

    OpenAI's API has them as text. Text that is not the JSON of an object stays as it is.
    """
    calls = message.get("tool_calls")
    if not isinstance(calls, list | tuple):
        return message
    return {**message, "tool_calls": [_call_with_arguments(call, form) for call in calls]}


def _call_with_arguments(call: Any, form: str) -> Any:
    if not isinstance(call, Mapping):
        return call
    if isinstance(call.get("function"), Mapping):
        return {**call, "function": _call_with_arguments(call["function"], form)}
    given: Any = call.get("arguments")
    if form == "text" and isinstance(given, Mapping):
        return {**call, "arguments": json.dumps(given, ensure_ascii=False)}
    if form == "object" and isinstance(given, str):
        try:
            value = json.loads(given) if given.strip() else {}
        except (ValueError, RecursionError):
            return call
        return {**call, "arguments": value} if isinstance(value, dict) else call
    return call


def without_filler(message: Mapping[str, Any]) -> Message:
    """Return the message without the keys that Arrow filled with null, also in calls and blocks.

    All rows of an Arrow column have the keys of each of them, so a call has the arguments of all
    other calls. A content of None stays: it is what is next to calls without text.
    """
    said = {k: v for k, v in message.items() if v is not None or k == "content"}
    if said.get("tool_calls"):
        said["tool_calls"] = _without_none(said["tool_calls"])
    if isinstance(said.get("content"), list | tuple):
        said["content"] = _without_none(said["content"])
    return said


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_without_none(item) for item in value]
    return value


def last_user_text(messages: Iterable[Mapping[str, Any]]) -> str:
    """Return what the last user message says; an empty string where there is none."""
    users = [message for message in messages if message.get("role") == "user"]
    return "".join(texts_of(users[-1])) if users else ""


# Python's own limit is no help: a destructor that happens to run close to it fails, too, and its
# error then appears in code that has nothing to do with this value.
_MOST_LEVELS = 300


def json_copy(value: Any, levels: int = _MOST_LEVELS, *, deeper: str | None = None) -> Any:
    """Return a copy in JSON values and images; what JSON cannot hold, a NaN say, as text.

    Args:
        value: to copy.
        levels: how deep it may be nested.
        deeper: stands for what is nested deeper. None: an error.

    Raises:
        RecursionError: the value is nested deeper than `levels`, or contains itself.
    """
    if not levels:
        if deeper is not None:
            return deeper
        raise RecursionError("the value is nested too deeply, or contains itself")
    # Most values are strings, and the test for a `Mapping` takes six times as long.
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return {str(k): json_copy(item, levels - 1, deeper=deeper) for k, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_copy(item, levels - 1, deeper=deeper) for item in value]
    if value is None or isinstance(value, int | Image):
        return value
    return value if isinstance(value, float) and math.isfinite(value) else str(value)


def container_copy(value: Any) -> Any:
    """Return a copy of lists and dicts, however deep; what they hold, an image say, is the same."""
    if isinstance(value, dict):
        return {key: container_copy(item) for key, item in value.items()}
    if isinstance(value, list):
        return [container_copy(item) for item in value]
    return value
