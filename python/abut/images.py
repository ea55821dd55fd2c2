"""Images in conversations: read once when they enter, and kept in their original encoding.

Invariant: images with equal pixels are one object in a process, so an image that many rollouts
share is held once, and the hash of its pixels identifies it in any encoding. Pixels are decoded
when they are needed, and only the latest ones are kept: 64 rollouts with 40 screenshots of
1280 x 1024 each have 9.4 GiB of pixels, but only 0.1 to 0.5 GiB of PNG.
"""

import base64
import binascii
import hashlib
import io
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from abut.errors import ImageError, MissingExtraError, text_of
from abut.image_structure import check_structure
from abut.parts import Scaffold

T = TypeVar("T")

MOST_PIXELS = 40_000_000
"""Images with more pixels are refused: 40 megapixels are 120 MB of RGB."""

# Pillow also has readers that start other programs (EPS), and readers of documents.
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
_HASH = re.compile("[0-9a-f]{32}")
_BACKGROUND = (255, 255, 255)
IMAGE_FORMS = (
    "hint: an image is an abut.Image, a PIL image, a uint8 array (H, W, 3), bytes, a pathlib.Path "
    "or a data: URL"
)


class BytesLru(Generic[T]):
    """The latest values, as many as fit into so many bytes; for use by several threads.

    A value that is larger than that is made each time.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._values: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], T], size: Callable[[T], int]) -> T:
        """Return the value of a key, made now if it is not held.

        Args:
            key: of the value.
            make: makes it, without a lock: two threads may make the same one.
            size: its bytes.
        """
        with self._lock:
            if (known := self._values.get(key)) is not None:
                self._values.move_to_end(key)
                return known[0]
        value = make()
        added = size(value)
        with self._lock:
            if added <= self._most_bytes and key not in self._values:
                self._values[key] = (value, added)
                self._bytes += added
                while self._bytes > self._most_bytes:
                    _, (_, dropped) = self._values.popitem(last=False)
                    self._bytes -= dropped
        return value

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy the limit alone."""
        return BytesLru, (self._most_bytes,)


_PIXELS: BytesLru[NDArray[np.uint8]] = BytesLru(256 * 2**20)
_IMAGES: "WeakValueDictionary[str, Image]" = WeakValueDictionary()
_IMAGES_LOCK = threading.Lock()


class Image:
    """An immutable image.

    `Image.of(…)` converts every value that an image block may hold. The pixels are RGB, rotated
    according to EXIF, with transparent pixels on white. Equal images are one object, and copying
    returns the image itself.

    Attributes:
        data: the original bytes, or a lossless PNG if there were none.
        width: the width in pixels.
        height: the height in pixels.
        hash: a hash of the size and the RGB pixels, in hex; equal for two files of the same image.
    """

    __slots__ = ("__weakref__", "data", "hash", "height", "width")

    data: bytes
    width: int
    height: int
    hash: str

    def __new__(cls, data: bytes) -> "Image":
        """Read an encoded image.

        Raises:
            ImageError: the image is broken, animated, too large, or in a format that abut cannot
                read.
            MissingExtraError: Pillow is not installed.
        """
        return _of_pixels(_decoded(data), lambda: data)

    @classmethod
    def of(cls, value: Any) -> "Image":
        """Return the image of a value.

        Args:
            value: an `Image`, a PIL image, a uint8 array `(H, W, 3)`, bytes, a `pathlib.Path`, or a
                `data:` URL.

        Raises:
            ImageError: the value has another type, or the image cannot be read.
            MissingExtraError: Pillow is not installed.
        """
        if isinstance(value, Image):
            return value
        if isinstance(value, bytes | bytearray | memoryview):
            return cls(bytes(value))
        if isinstance(value, Path):
            try:
                return cls(value.read_bytes())
            except OSError as error:
                raise ImageError(f"the image {value} cannot be read: {text_of(error)}") from error
        if isinstance(value, str):
            return cls(_bytes_of_url(value))
        if isinstance(value, np.ndarray):
            return _of_pixels(value := _checked_array(value), lambda: _png(value))
        if isinstance(value, _pillow().Image):
            try:
                array = np.asarray(_rgb(value))  # decodes now what Pillow has only opened
            except (OSError, SyntaxError, ValueError) as error:
                if isinstance(error, ImageError):
                    raise
                raise ImageError(f"the image is broken: {text_of(error)}") from error
            return _of_pixels(array, lambda: _png(array))
        raise ImageError(f"{type(value).__name__} is not an image\n{IMAGE_FORMS}")

    @property
    def pixels(self) -> NDArray[np.uint8]:
        """`(H, W, 3)` uint8, RGB, read-only; decoded now or taken from a cache."""
        return _PIXELS.get(self.hash, lambda: _decoded(self.data), lambda array: array.nbytes)

    def to_png(self) -> bytes:
        """Return a PNG of exactly these pixels, already rotated and without transparency.

        Use it where pixels must be equal, because decoders of lossy formats differ between
        versions.
        """
        with _pillow().open(io.BytesIO(self.data), formats=_FORMATS) as picture:
            plain = picture.format == "PNG" and picture.mode == "RGB"
            if plain and "transparency" not in picture.info and not picture.getexif():
                return self.data
        return _png(self.pixels)

    def to_pil(self) -> Any:
        """Return a new PIL image of the pixels, in RGB."""
        return _pillow().fromarray(self.pixels)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"an abut.Image is immutable: {name} cannot be set")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"an abut.Image is immutable: {name} cannot be deleted")

    def __copy__(self) -> "Image":
        return self

    def __deepcopy__(self, memo: object) -> "Image":
        return self  # TRL deep-copies prompts

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the image without decoding it again."""
        return _the_one, (self.data, self.width, self.height, self.hash)

    def __repr__(self) -> str:
        return f"Image({self.width}x{self.height}, {self.hash[:8]})"


class Placeholder(NamedTuple):
    """The token that a template writes for an image, for engines that expand it by themselves."""

    token_id: int
    before: tuple[int, ...]
    """The ids that its expansion has before the first media token."""
    behind: tuple[int, ...]
    """The ids of its expansion after the last media token."""


class Expansion(Scaffold):
    """The text that stands for an image, as the model's processor writes it."""

    __slots__ = ("features", "image", "placeholder")

    image: Image
    features: int
    """How many of its tokens stand for features of the image."""
    placeholder: Placeholder | None
    """The placeholder token that it replaces, if known."""

    def __new__(
        cls, text: str, image: Image, features: int, placeholder: Placeholder | None = None
    ) -> "Expansion":
        """Return the text of an image, so many of whose tokens are its features."""
        self = super().__new__(cls, text)
        self.image, self.features, self.placeholder = image, features, placeholder
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle and copies."""
        return Expansion, (str(self), self.image, self.features, self.placeholder)

    def __repr__(self) -> str:
        return f"Expansion({self.image!r}, {self.features} features)"


@dataclass(frozen=True)
class ImageSpan:
    """An image in a row, and where its tokens are."""

    image: Image
    start: int
    """Its first media token: one whose embedding is replaced by a feature of the image."""
    end: int
    """Behind its last media token."""
    features: int
    """How many media tokens it has between the two, where other tokens may be as well."""
    placeholder: Placeholder | None = field(default=None, compare=False, repr=False)
    """The placeholder token that the expansion replaces, if known; not recorded."""


def _of_pixels(pixels: NDArray[np.uint8], data: Callable[[], bytes]) -> Image:
    """Return the image of `(H, W, 3)` RGB pixels; `data` gives the bytes of a new one."""
    height, width, _ = pixels.shape
    digest = hashlib.blake2b(f"{width}x{height} RGB".encode(), digest_size=16)
    digest.update(np.ascontiguousarray(pixels).data)
    known = _IMAGES.get(key := digest.hexdigest())
    if known is not None:
        return known
    image = _the_one(data(), width, height, key)
    if not pixels.flags.writeable:  # decoded: a processor is likely to ask for them next
        _PIXELS.get(key, lambda: pixels, lambda array: array.nbytes)
    return image


def _the_one(data: bytes, width: int, height: int, digest: str) -> Image:
    """Return the image of this hash in this process, which may have other bytes."""
    with _IMAGES_LOCK:
        if (known := _IMAGES.get(digest)) is not None:
            return known
        image = object.__new__(Image)
        values = {"data": data, "width": width, "height": height, "hash": digest}
        for name, value in values.items():
            object.__setattr__(image, name, value)
        _IMAGES[digest] = image
        return image


def _decoded(data: bytes) -> NDArray[np.uint8]:
    """Return the RGB pixels, `(H, W, 3)` uint8, read-only."""
    pillow = _pillow()
    try:
        check_structure(data)
        with pillow.open(io.BytesIO(data), formats=_FORMATS) as picture:
            _check_size(*picture.size)
            # A photo of a phone may be a JPEG with a second one behind it (MPO). The frames are not
            # counted, because Pillow would read a GIF to its end for that.
            if getattr(picture, "is_animated", False) and picture.format != "MPO":
                raise ImageError(
                    "the image has several frames\n"
                    "hint: abut does not accept animations or videos; send the frames one by one"
                )
            pixels = np.array(_rgb(picture), dtype=np.uint8)
    except (ImageError, MissingExtraError, MemoryError):
        raise
    except (pillow.DecompressionBombError, pillow.DecompressionBombWarning) as error:
        raise ImageError(f"the image is too large: {error}") from error
    except pillow.UnidentifiedImageError as error:
        raise ImageError(
            f"{len(data)} bytes are not an image in a format that abut reads\n"
            f"hint: send {', '.join(_FORMATS)}, or open the image with PIL and send the PIL image"
        ) from error
    except Exception as error:  # a broken file can raise anything in a decoder
        raise ImageError(f"the image is broken: {text_of(error)}") from error
    pixels.flags.writeable = False
    return pixels


def _rgb(picture: Any) -> Any:
    """Return a PIL image as it is seen: rotated, on white, in RGB."""
    from PIL import ImageOps

    _check_size(*picture.size)
    picture = ImageOps.exif_transpose(picture)
    if picture.mode == "RGB" and "transparency" not in picture.info:
        return picture
    if picture.mode.startswith("I;16"):  # Pillow would cut off all above 255
        return _pillow().fromarray((np.asarray(picture) >> 8).astype(np.uint8)).convert("RGB")
    if picture.mode in ("I", "F"):
        raise ImageError(
            f"the image has the mode {picture.mode!r}, which does not define a range of values\n"
            "hint: convert it to 8 bits, such as a uint8 array (H, W, 3)"
        )
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        white = _pillow().new("RGBA", picture.size, (*_BACKGROUND, 255))
        picture = _pillow().alpha_composite(white, picture)
    return picture.convert("RGB")


def _check_size(width: int, height: int) -> None:
    if width * height > MOST_PIXELS:
        raise ImageError(
            f"the image has {width} x {height} pixels, but abut accepts at most "
            f"{MOST_PIXELS // 10**6} megapixels\nhint: scale it down"
        )
    if width < 1 or height < 1:
        raise ImageError(f"the image has {width} x {height} pixels")


def _checked_array(array: NDArray[Any]) -> NDArray[np.uint8]:
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3:
        raise ImageError(
            f"an array of {array.dtype}, shape {array.shape}, is not an image\n"
            "hint: pass a uint8 array of shape (H, W, 3)"
        )
    _check_size(array.shape[1], array.shape[0])
    return array


def _bytes_of_url(url: str) -> bytes:
    scheme, found, rest = url.partition(":")
    if found and scheme.lower() in ("http", "https", "file", "ftp"):
        raise ImageError(
            f"abut does not download images: {url[:80]!r}\n"
            "hint: download it yourself and send the bytes, a pathlib.Path, or a data: URL"
        )
    if _HASH.fullmatch(url):
        raise ImageError(
            f"{url} is a hash, which a record holds instead of the image itself\n"
            f"hint: the image is a file in the folder that you passed as record_images: "
            f"Path(folder, '{url}.png'), or .jpg, .webp, .gif, .bmp; without record_images, "
            "abut does not keep images"
        )
    if scheme.lower() != "data" or not found:
        raise ImageError(f"the text {url[:40]!r} is not an image\n{IMAGE_FORMS}")
    head, found, payload = rest.partition(",")
    kind, *parameters = head.lower().split(";")
    if not found or "base64" not in parameters or not kind.startswith("image/"):
        raise ImageError(
            f"the URL 'data:{head[:80]}' is not a base64 image\nhint: data:image/png;base64,…"
        )
    try:
        return base64.b64decode(payload, validate=True)
    except binascii.Error as error:
        raise ImageError(f"the data: URL has invalid base64: {error}") from error


def _png(pixels: NDArray[np.uint8]) -> bytes:
    """Return a lossless PNG of RGB pixels."""
    written = io.BytesIO()
    # The default of 6 takes three times as long.
    _pillow().fromarray(pixels).save(written, "PNG", compress_level=1)
    return written.getvalue()


def _pillow() -> Any:
    """Return the module `PIL.Image`."""
    try:
        from PIL import Image as pillow
    except ImportError as error:
        raise MissingExtraError("images need Pillow: pip install 'abut[images]'") from error
    return pillow
