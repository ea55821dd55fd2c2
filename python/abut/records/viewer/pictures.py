"""The thumbnails of a page: small pictures of what a folder of images holds, each once.

Invariant: a picture in the page was decoded and written anew here, so whatever an image's bytes
hold, a browser gets the pixels of a small JPEG. All of them together are no larger than
`MOST_BYTES`; a picture beyond that is shown as its size and hash.
"""

import base64
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from abut.errors import ImageError
from abut.images import Image
from abut.records.recorded_messages import image_hashes
from abut.records.viewer.packed import block

SIDE = 192  # pixels of the longer side: a screenshot can be told from another, at 5 to 10 kB
MOST_BYTES = 16_000_000
_BLOCK_BYTES = 1_000_000


class Pictures:
    """The thumbnails of the images that records name.

    Args:
        folder: of `record_images`; None: no record's pictures were kept.

    Attributes:
        missing: the hashes without a file.
        left_out: the hashes of pictures that would make the page too large.
    """

    def __init__(self, folder: Path | None) -> None:
        self._files = {} if folder is None else {file.stem: file for file in folder.iterdir()}
        self._has_folder = folder is not None
        self._texts: dict[str, str] = {}
        self._bytes = 0
        self.missing: dict[str, str] = {}
        self.left_out: set[str] = set()

    def add(self, record: Mapping[str, Any]) -> None:
        """Add the images of a record that are not there yet."""
        if self._has_folder:
            for digest in _hashes(record):
                if not self._is_known(digest):
                    self._add(digest)

    def packed(self) -> Iterator[tuple[list[str], bytes]]:
        """Yield the hashes of each block of thumbnails, and the block."""
        texts: dict[str, str] = {}
        size = 0
        for digest, text in self._texts.items():
            texts[digest] = text
            size += len(text)
            if size >= _BLOCK_BYTES:
                yield [*texts], block(texts)
                texts, size = {}, 0
        if texts:
            yield [*texts], block(texts)

    def together(self) -> bytes:
        """Return all thumbnails as one block."""
        return block(self._texts)

    def troubles(self) -> Iterator[str]:
        """Yield why pictures are not in the page, a line for each reason."""
        if self.missing:
            digest, because = next(iter(self.missing.items()))
            yield f"{len(self.missing)} images are not shown, such as {digest}: {because}"
        if self.left_out:
            yield (
                f"{len(self.left_out)} images are left out, for the page has {MOST_BYTES // 10**6} "
                "MB of pictures already; show fewer rollouts (where)"
            )

    def _is_known(self, digest: str) -> bool:
        return digest in self._texts or digest in self.missing or digest in self.left_out

    def _add(self, digest: str) -> None:
        try:
            if (file := self._files.get(digest)) is None:
                self.missing[digest] = "the folder of images has no such file"
                return
            thumbnail = _thumbnail(Image.of(file))
        except ImageError as error:
            self.missing[digest] = str(error)
            return
        if self._bytes + len(thumbnail) > MOST_BYTES:
            self.left_out.add(digest)
            return
        self._bytes += len(thumbnail)
        self._texts[digest] = base64.b64encode(thumbnail).decode("ascii")


def _thumbnail(image: Image) -> bytes:
    picture = image.to_pil()
    picture.thumbnail((SIDE, SIDE))
    written = io.BytesIO()
    picture.save(written, "JPEG", quality=85, subsampling=0)
    return written.getvalue()


def _hashes(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the hashes that a record names, of its rows and in its messages."""
    for row in (record, *(record.get("branches") or ())):
        for image in row.get("images") or ():
            yield image["hash"]
    for message in record.get("messages") or ():
        yield from image_hashes(message.get("content"))
