"""The images of bodies, decoded on a thread.

Invariant: an image of a live rollout is decoded once, however often its client repeats it, and a
body holds the `Image` instead of its base64. Equal pixels share one object, so a client that
encodes its screenshots again in each request still repeats its history.
"""

import base64
import binascii
import hashlib
import threading
from collections.abc import Collection, Sequence
from typing import Any
from weakref import WeakValueDictionary

from abut.concurrency.slots import Slots
from abut.concurrency.threads import work_done
from abut.errors import ImageError, MissingExtraError
from abut.gateway.dialects.dialect import HttpDialect, Like
from abut.gateway.dialects.image_fields import ImageField
from abut.gateway.ledger.refusal import Refusal
from abut.images import MOST_PIXELS, Image

# The limit for the new images of one body: 300 screenshots of 1280 x 1024, decoded in 4 seconds. A
# body of 64 MiB can hold a thousand images of 40 megapixels, if each has only one colour.
_MOST_NEW_PIXELS = 10 * MOST_PIXELS
# The processor of a model takes about 10 ms for each image, however small.
_MOST_NEW_IMAGES = 1000
# An image of 40 megapixels takes 250 MB while it is decoded.
_AT_ONCE = 4
# PNG, JPEG, and the RIFF of WebP with its name after the length.
_FORMATS = {
    "png": (0, b"\x89PNG\r\n\x1a\n"),
    "jpeg": (0, b"\xff\xd8\xff"),
    "webp": (8, b"WEBP"),
}
_SNIFFED = 16  # characters of base64: 12 bytes


class BodyImages:
    """Decodes the images of bodies, on the loop of the gateway.

    Attributes:
        roles: the chat roles in whose messages the policy takes images; empty: it takes only text.
    """

    def __init__(self) -> None:
        self.roles: Collection[str] = ()
        # Weak: the messages of live rollouts keep the images.
        self._known: WeakValueDictionary[bytes, Image] = WeakValueDictionary()
        self._lock = threading.Lock()
        self._slots = Slots(_AT_ONCE)

    async def read(
        self, dialect: HttpDialect, body: dict[str, Any], like: Like | None = None
    ) -> Collection[str]:
        """Put an `Image` into a body wherever it has one in base64.

        Args:
            dialect: of the body.
            body: its JSON.
            like: what it repeats of an earlier body, whose images were put there.

        Returns:
            The names of sibling fields of the images that are ignored.

        Raises:
            Refusal: the policy does not take an image there, or it cannot be read.
        """
        history = dialect.history_in(body)
        fields = [
            field
            for place in range(0 if like is None else like.elements, len(history))
            if isinstance(element := history[place], dict)
            for field in dialect.image_fields(element, place)
        ]
        if len(fields) > _MOST_NEW_IMAGES:
            raise _refusal(
                fields[_MOST_NEW_IMAGES],
                f"is one image too many: a request may add at most {_MOST_NEW_IMAGES} images to "
                "its conversation",
            )
        roles = [r for r in self.roles if not (r == "system" and dialect.places_system)]
        for field in fields:
            _check_role(field, roles)
        if fields:
            await self._slots.take(0)
            try:
                await work_done(False, lambda: self._put(fields))
            finally:
                self._slots.give()
        return {field.ignored for field in fields if field.ignored is not None}

    def _put(self, fields: Sequence[ImageField]) -> None:
        pixels = 0
        for field in fields:
            digest = hashlib.sha256(field.data.encode("utf-8", "surrogatepass")).digest()
            with self._lock:
                image = self._known.get(digest)
            if image is None:
                image = _decoded(field)
                pixels += image.width * image.height
                if pixels > _MOST_NEW_PIXELS:
                    raise _refusal(
                        field,
                        "is one image too many: the new images of a request may have at most "
                        f"{_MOST_NEW_PIXELS // 10**6} megapixels together\n"
                        "hint: scale the images down, or send fewer",
                    )
                with self._lock:
                    self._known[digest] = image
            field.put(image)


def _check_role(field: ImageField, roles: Collection[str]) -> None:
    if not roles:
        raise _refusal(field, "is an image, but this policy takes only text")
    if field.role not in roles:
        raise _refusal(
            field,
            f"is an image in a {field.role!r} message, but the policy takes images only in "
            f"messages of these roles: {', '.join(roles)}\n"
            "hint: send the image in a user message",
        )


def _decoded(field: ImageField) -> Image:
    """Return the image of a field; its bytes determine the format.

    Raises:
        Refusal: it cannot be read.
    """
    try:
        first = base64.b64decode(field.data[:_SNIFFED], validate=True)
        if not any(first.startswith(magic, at) for at, magic in _FORMATS.values()):
            raise _refusal(field, f"is not an image in a supported format: {', '.join(_FORMATS)}")
        return Image(base64.b64decode(field.data, validate=True))
    except (binascii.Error, ValueError) as error:
        if isinstance(error, ImageError):
            # Without its hint, which is meant for images in Python code.
            why = str(error).partition("\n")[0]
            raise _refusal(
                field,
                f"is an image that the gateway cannot use: {why}\n"
                f"hint: send one frame of at most {MOST_PIXELS // 10**6} megapixels",
            ) from error
        raise _refusal(field, f"is not base64: {error}") from error
    except MissingExtraError as error:
        raise _refusal(
            field, f"is an image, but the gateway cannot read images: {error}"
        ) from error


def _refusal(field: ImageField, why: str) -> Refusal:
    return Refusal(f"{field.path} {why}", param=field.path.partition("[")[0])
