"""Images: what they are made of, what is refused, and that equal pictures are one object."""

import base64
import copy
import io
import pickle
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from abut import images
from abut.errors import EnvError, ImageError, MissingExtraError
from abut.images import BytesLru, Image
from abut.messages import image_content, images_of, with_images

PIL = pytest.importorskip("PIL.Image")

PIXELS = np.arange(5 * 4 * 3, dtype=np.uint8).reshape(5, 4, 3)


def encoded(picture: Any, kind: str = "PNG", **options: Any) -> bytes:
    written = io.BytesIO()
    picture.save(written, kind, **options)
    return written.getvalue()


def png(pixels: Any = PIXELS, **options: Any) -> bytes:
    return encoded(PIL.fromarray(pixels), **options)


def url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def test_all_forms_of_a_picture_are_one_image(tmp_path: Path) -> None:
    (path := tmp_path / "a.png").write_bytes(png())
    forms = [PIXELS, PIL.fromarray(PIXELS), png(), bytearray(png()), path, url(png())]
    made = [Image.of(form) for form in forms]
    assert len(set(map(id, made))) == 1
    image = made[0]
    assert (image.width, image.height) == (4, 5)
    assert Image.of(image) is image
    np.testing.assert_array_equal(image.pixels, PIXELS)
    np.testing.assert_array_equal(np.asarray(image.to_pil()), PIXELS)


def test_a_png_of_an_image_has_its_pixels_and_is_made_only_where_its_bytes_are_not_that() -> None:
    plain = png(255 - PIXELS)
    assert Image(plain).to_png() is plain
    turned = PIL.Exif()
    turned[0x0112] = 6
    picture = PIL.fromarray(PIXELS)
    clear = PIL.fromarray(np.dstack([PIXELS, np.full((5, 4), 40, np.uint8)]))
    for data in (
        encoded(picture, "JPEG"),
        png(exif=turned),
        encoded(clear),
        encoded(picture.convert("P")),
        png(transparency=(0, 1, 2)),
    ):
        image = Image(data)
        written = image.to_png()
        assert written != data
        with PIL.open(io.BytesIO(written)) as read:
            assert (read.format, read.mode) == ("PNG", "RGB")
            np.testing.assert_array_equal(np.asarray(read), image.pixels)


def test_two_files_of_one_picture_are_one_image_and_other_pictures_are_not() -> None:
    small, large = png(compress_level=9), png(compress_level=0)
    assert small != large
    assert Image(small) is Image(large)
    other = PIXELS.copy()
    other[4, 3, 2] ^= 1
    wide = PIXELS.reshape(4, 5, 3)  # the same bytes in another shape
    hashes = {Image.of(form).hash for form in (PIXELS, other, wide)}
    assert len(hashes) == 3


def test_the_bytes_stay_as_they_came() -> None:
    jpeg = encoded(PIL.fromarray(np.full((8, 8, 3), 77, np.uint8)), "JPEG")
    assert Image(jpeg).data == jpeg


def test_an_image_never_changes_and_is_its_own_copy() -> None:
    image = Image.of(PIXELS)
    assert copy.copy(image) is image
    assert copy.deepcopy([{"image": image}])[0]["image"] is image
    assert pickle.loads(pickle.dumps(image)) is image
    with pytest.raises(AttributeError, match="is immutable"):
        image.width = 3
    with pytest.raises(AttributeError, match="is immutable"):
        del image.hash
    with pytest.raises(ValueError, match="read-only"):
        image.pixels[0, 0, 0] = 1
    assert repr(image) == f"Image(4x5, {image.hash[:8]})"


def test_it_is_decoded_once_where_it_enters_and_again_when_it_is_used_after_others(
    monkeypatch: Any,
) -> None:
    decoded: list[int] = []
    real = images._decoded
    monkeypatch.setattr(images, "_decoded", lambda data: decoded.append(1) or real(data))
    monkeypatch.setattr(images, "_PIXELS", BytesLru(2 * PIXELS.nbytes))
    first, *others = [Image(png(np.full_like(PIXELS, k))) for k in (101, 102, 103)]
    assert len(decoded) == 3
    for _ in range(3):
        assert first.pixels[0, 0, 0] == 101
    assert len(decoded) == 4
    for other in others:
        assert other.pixels.nbytes == PIXELS.nbytes
    assert first.pixels[0, 0, 0] == 101, "decoded again: two others took its place"
    assert len(decoded) == 7
    copied = pickle.loads(pickle.dumps(first))
    assert copied is first
    assert len(decoded) == 7, "pickle decodes nothing"


def test_a_cache_holds_no_more_bytes_than_it_may() -> None:
    cache: BytesLru[bytes] = BytesLru(10)
    made: list[str] = []

    def get(key: str, size: int) -> bytes:
        return cache.get(key, lambda: made.append(key) or bytes(size), len)

    for key, size in (("a", 4), ("b", 6), ("a", 4), ("c", 5), ("a", 4), ("b", 6), ("huge", 11)):
        assert len(get(key, size)) == size
    assert made == ["a", "b", "c", "b", "huge"], "c took b's place, since a was used later"
    get("huge", 11)
    assert made[-2:] == ["huge", "huge"]


def test_threads_that_make_one_picture_get_one_image() -> None:
    data = png(np.full_like(PIXELS, 55))
    start, made = threading.Barrier(8), []

    def make() -> None:
        start.wait()
        made.append(Image(data))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 8
    assert len(set(map(id, made))) == 1


def test_pixels_are_those_that_are_seen() -> None:
    exif = PIL.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees to see it
    turned = Image(encoded(PIL.fromarray(PIXELS), exif=exif))
    assert (turned.width, turned.height) == (5, 4)
    np.testing.assert_array_equal(turned.pixels, np.rot90(PIXELS, k=-1))
    half = PIL.new("RGBA", (1, 1), (0, 0, 0, 128))
    assert Image.of(half).pixels.tolist() == [[[127, 127, 127]]]
    palette = PIL.new("P", (1, 1), 3)
    palette.putpalette([0] * 9 + [9, 8, 7])
    assert Image.of(palette).pixels.tolist() == [[[9, 8, 7]]]
    clear = encoded(palette, "GIF", transparency=3)
    assert Image(clear).pixels.tolist() == [[[255, 255, 255]]]
    grey = PIL.fromarray(np.array([[0, 0x8000, 0xFFFF]], np.uint16))
    assert Image.of(grey).pixels[0, :, 0].tolist() == [0, 0x80, 0xFF]


def test_a_photo_with_a_second_one_behind_it_is_the_first() -> None:
    """As phones write them: a JPEG that holds a second picture, for depth."""
    first, second = (PIL.fromarray(np.full((8, 8, 3), k, np.uint8)) for k in (40, 200))
    photo = encoded(first, "MPO", save_all=True, append_images=[second])
    assert Image(photo) is Image(encoded(first, "JPEG"))


def chunk(data: bytes) -> bytes:
    return (len(data) - 4).to_bytes(4, "big") + data + zlib.crc32(data).to_bytes(4, "big")


def huge_png(width: int, height: int) -> bytes:
    """A PNG that says it is so large, and holds no pixel."""
    size = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    head = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR" + size + bytes([8, 2, 0, 0, 0]))
    return head + chunk(b"IDAT")


def with_chunks(count: int, kind: bytes) -> bytes:
    """A PNG with so many chunks before its pixels."""
    whole = png()
    at = whole.index(b"IDAT") - 4
    return whole[:at] + chunk(kind) * count + whole[at:]


def with_scans(count: int) -> bytes:
    """A progressive JPEG of 36 megapixels whose last scan comes so many times more."""
    whole = encoded(PIL.new("L", (6000, 6000)), "JPEG", progressive=True)
    last = whole[whole.rindex(b"\xff\xda") : -2]
    return whole[:-2] + last * count + whole[-2:]


def with_segments(count: int, segment: bytes) -> bytes:
    """A JPEG with so many segments before its pixels."""
    whole = encoded(PIL.new("L", (4, 4)), "JPEG")
    return whole[:2] + segment * count + whole[2:]


NOISE = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
FRAMES = [PIL.new("L", (2, 2), k) for k in (0, 99)]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            huge_png(8000, 5001),
            "8000 x 5001 pixels, but abut accepts at most 40 megapixels\nhint: ",
        ),
        (huge_png(90_000, 90_000), "is too large"),
        (
            encoded(FRAMES[0], "GIF", save_all=True, append_images=FRAMES[1:]),
            "has several frames\nhint:",
        ),
        (
            encoded(FRAMES[0], "PNG", save_all=True, append_images=FRAMES[1:]),
            "has several frames\nhint:",
        ),
        (png(NOISE)[:2000], "the image is broken: "),
        (PIL.open(io.BytesIO(png(NOISE)[:2000])), "the image is broken: "),
        (
            b"%!PS-Adobe-3.0 EPSF-3.0",
            "bytes are not an image in a format that abut reads\nhint: send PNG, JPEG",
        ),
        (b"", "0 bytes are not an image"),
        (encoded(PIL.fromarray(PIXELS), "TIFF"), "are not an image in a format that abut reads"),
        (Path("nowhere.png"), "the image nowhere.png cannot be read: FileNotFoundError"),
        (
            "https://a.example/b.png",
            "abut does not download images: 'https://a.example/b.png'\nhint: ",
        ),
        ("http://a.example/b.png", "abut does not download images"),
        ("FILE:///etc/passwd", "abut does not download images"),
        (
            "0af" * 10 + "9b",
            "is a hash, which a record holds instead of the image itself\nhint: the image",
        ),
        ("picture.png", "the text 'picture.png' is not an image\nhint: an image is an abut.Image"),
        ("data:image/png,abc", "is not a base64 image\nhint: data:image/png;base64,"),
        ("data:text/plain;base64,YQ==", "is not a base64 image"),
        ("data:image/png;base64,Y", "has invalid base64"),
        (PIXELS.astype(np.float32), "an array of float32, shape (5, 4, 3), is not an image\nhint:"),
        (PIXELS[:, :, 0], "an array of uint8, shape (5, 4), is not an image"),
        (PIXELS[:0], "the image has 4 x 0 pixels"),
        (PIL.new("F", (2, 2)), "the mode 'F', which does not define a range of values\nhint: "),
        (7, "int is not an image\nhint: an image is an abut.Image, a PIL image, "),
        (None, "NoneType is not an image"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else type(value).__name__,
)
def test_what_is_no_image_is_named(value: Any, text: str) -> None:
    with pytest.raises(ImageError) as raised:
        Image.of(value)
    assert text in str(raised.value)
    assert isinstance(raised.value, ValueError)


@pytest.mark.parametrize(
    ("bomb", "text"),
    [
        (lambda: with_scans(20_000), "more than 100 scans\nhint: "),  # an hour
        (lambda: with_chunks(5_000_000, b"prVt"), "more than 50000 pieces"),  # a minute
        (lambda: with_chunks(5_000_000, b"IDAT"), "more than 50000 pieces"),
        (lambda: with_segments(10_000_000, b"\xff\xfe\0\2"), "more than 50000 pieces"),
        (lambda: with_segments(10_000_000, b"\xff\xd0"), "more than 50000 pieces"),
    ],
    ids=["scans", "chunks", "empty data", "comments", "restarts"],
)
def test_an_image_that_would_decode_for_minutes_is_refused_at_once(
    bomb: Callable[[], bytes], text: str
) -> None:
    data = bomb()
    began = time.perf_counter()
    with pytest.raises(ImageError, match=text):
        Image(data)
    assert time.perf_counter() - began < 5


def test_usual_encoders_stay_below_these_limits() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (1000, 1000, 3), np.uint8)
    for name, settings in {
        "JPEG": {"progressive": True, "quality": 100, "restart_marker_blocks": 1},
        "PNG": {"compress_level": 0},
    }.items():
        assert Image(encoded(PIL.fromarray(noise), name, **settings)).width == 1000
    rows = PIL.new("L", (6000, 6000))
    assert Image(encoded(rows, "JPEG", restart_marker_blocks=1)).width == 6000
    assert Image(with_chunks(1000, b"prVt")) is Image(png())


def test_contents_are_read_where_they_enter() -> None:
    image = Image.of(PIXELS)
    text = {"type": "text", "text": "a"}
    content = [
        text,
        {"type": "image", "image": PIXELS},
        {"type": "image_url", "image_url": {"url": url(png())}},
        {"type": "image_url", "image_url": url(png())},
    ]
    block = {"type": "image", "image": image}
    assert with_images(content) == [text, block, block, block]
    assert images_of(with_images(content)) == [image] * 3
    for other in ("a", None, [text], [{"type": "video"}]):
        assert with_images(other) is other
    for empty in ({"type": "image"}, {"type": "image_url", "image_url": {"detail": "low"}}):
        with pytest.raises(ImageError, match="a block of type 'image"):
            with_images([text, empty])


def test_results_of_tools_that_show_an_image() -> None:
    image = Image.of(PIXELS)
    block = {"type": "image", "image": image}
    for shown in (image, PIXELS, image.to_pil(), [{"type": "image", "image": PIXELS}]):
        assert image_content(shown) == [block]
    text = {"type": "text", "text": "a"}
    assert image_content([text, block]) == [text, block]
    for other in (png(), "a", [text], [block, "a"], [{"type": "image"}], {"type": "image"}, None):
        assert image_content(other) is None


def test_a_tool_that_finds_videos_returns_text_and_one_that_shows_one_is_refused() -> None:
    found = [{"type": "video", "title": "Cats"}, {"type": "video", "video": 3, "title": "Dogs"}]
    assert image_content(found) is None
    for kind in ("video", "video_url", "input_audio"):
        with pytest.raises(EnvError, match=f"type '{kind}', but abut does not accept "):
            image_content([{"type": "text", "text": "a"}, {"type": kind, kind: b"abc"}])


def test_without_pillow_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['PIL'] = None\n"
        "from abut import Image\n"
        "from abut.errors import MissingExtraError\n"
        "try: Image(b'')\n"
        "except MissingExtraError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "images need Pillow: pip install 'abut[images]'\n"
    assert issubclass(MissingExtraError, ImportError)
