"""Limits for how an encoded image is put together, checked before it is decoded.

Invariant: decoding takes time in proportion to the pixels, which `MOST_PIXELS` limits, and not to
what a file of the same pixels repeats. Decoders have no such limit: 61 bytes of a progressive JPEG
make libjpeg visit all of 40 megapixels once more, which takes 0.15 s, so 1 MB would decode for 40
minutes. Each chunk of a PNG costs Pillow 16 microseconds, so 60 MB of empty chunks take a minute.
"""

import re
from collections.abc import Iterator

from abut.errors import ImageError

# Encoders write 10 to 20 scans.
_MOST_SCANS = 100
# zlib's buffer of 8 KiB makes 15 000 chunks of 40 megapixels of noise.
_MOST_PIECES = 50_000
_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG = b"\xff\xd8"
_SCAN, _END = 0xDA, 0xD9
_BARE = frozenset({0x01, *range(0xD0, 0xD9)})
"""Markers of JPEG without a length."""
_MARKER = re.compile(rb"\xff+([^\x00\xff])")
# In the data of a scan, FF 00 stands for the byte FF, and FF D0 to FF D7 do not end the scan.
_NEXT_MARKER = re.compile(rb"\xff+([^\x00\xd0-\xd7\xff])")


def check_structure(data: bytes) -> None:
    """Refuse an encoded image that takes much longer to decode than other images of its size.

    Raises:
        ImageError: it has too many pieces, or too many scans.
    """
    scans = 0
    for pieces, kind in enumerate(_pieces(data), start=1):
        scans += kind == _SCAN
        if pieces > _MOST_PIECES or scans > _MOST_SCANS:
            what = f"{_MOST_SCANS} scans" if scans > _MOST_SCANS else f"{_MOST_PIECES} pieces"
            raise ImageError(
                f"the image has more than {what}\n"
                "hint: encode it again: no usual encoder writes so many"
            )


def _pieces(data: bytes) -> Iterator[int]:
    """Yield the marker of each segment of a JPEG, and a 0 for each chunk of a PNG."""
    if data.startswith(_PNG):
        at = len(_PNG)
        while at < len(data):
            yield 0
            at += 12 + int.from_bytes(data[at : at + 4], "big")
    elif data.startswith(_JPEG):
        at, pattern = len(_JPEG), _MARKER
        while (found := pattern.search(data, at)) and (marker := found[1][0]) != _END:
            yield marker
            at = found.end()
            if marker not in _BARE:
                at += int.from_bytes(data[at : at + 2], "big")
            pattern = _NEXT_MARKER if marker == _SCAN else _MARKER
