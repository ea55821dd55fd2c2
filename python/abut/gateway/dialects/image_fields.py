"""Images in the bodies of clients: which fields hold them, and which kinds are taken.

Invariant: an image is the bytes that its client sends; abut never fetches one. A refusal names the
path of the field in the body.
"""

from typing import Any, NamedTuple

from abut.gateway.ledger.refusal import Refusal, short
from abut.images import Image
from abut.messages import refusal_of

# The rest of a URL has megabytes, and a client may send a URL without a comma.
_MOST_HEAD = 200
_MEDIA_TYPES = ("image/png", "image/jpeg", "image/jpg", "image/webp")
_TAKEN = "png, jpeg or webp"
_PAGES = (
    "but abut takes only text and images\n"
    "hint: send the text of the document, or its pages as images"
)
# By a part of the name of a block's type, or of a media type.
_OTHERS = {
    "document": f"a document, {_PAGES}",
    "pdf": f"a document, {_PAGES}",
    "file": f"a file, {_PAGES}",
    "image": "an image, but messages of this role take no images\n"
    "hint: send the image in a user message",
}


class ImageField(NamedTuple):
    """A field of a body that holds an image in base64."""

    path: str
    """The path of the field in the body, for errors."""
    role: str
    """The chat role of the message that shows the image."""
    data: str
    """The base64."""
    holder: dict[str, Any]
    """The object in the body whose field gets the `Image`."""
    key: str
    """The name of that field."""
    ignored: str | None = None
    """The name of a sibling field that the gateway ignores, if the client has sent one."""

    def put(self, image: Image) -> None:
        """Put the image into the body, replacing its base64."""
        self.holder[self.key] = image


def base64_of_url(url: Any, path: str) -> str:
    """Return the base64 of a `data:` URL.

    Raises:
        Refusal: it is another kind of URL, or does not hold an image that abut takes.
    """
    param = path.partition("[")[0]
    if not isinstance(url, str):
        raise Refusal(f"{path} must be a data: URL, got {short(url)}", param=param)
    if url[: len("data:")].lower() != "data:":
        raise not_fetched(path, url)
    comma = url.find(",", 0, _MOST_HEAD)
    media_type, *parameters = url[len("data:") : max(comma, 0)].lower().split(";")
    if comma < 0 or "base64" not in parameters:
        raise Refusal(
            f"{path} is a data: URL without base64 data: {short(url[:_MOST_HEAD])}\n"
            "hint: send data:image/png;base64,…",
            param=param,
        )
    check_media_type(media_type, path)
    return url[comma + 1 :]


def not_fetched(path: str, address: Any) -> Refusal:
    """Return the refusal of an image that would have to be fetched."""
    shown = short(address[:_MOST_HEAD] if isinstance(address, str) else address)
    return Refusal(
        f"{path} is {shown}, but abut does not fetch images\n"
        f"hint: send the image itself in base64, as {_TAKEN}",
        param=path.partition("[")[0],
    )


def check_media_type(media_type: Any, path: str) -> None:
    """Refuse a media type that abut does not take.

    The type is not compared with the bytes here, because clients call a JPEG a PNG; the bytes
        decide when they are decoded.
    """
    given = media_type.lower() if isinstance(media_type, str) else ""
    if given in _MEDIA_TYPES:
        return
    if given.startswith("image/"):
        raise Refusal(
            f"{path} has the media type {short(media_type)}, but abut takes images only as "
            f"{_TAKEN}",
            param=path.partition("[")[0],
        )
    raise unread(path, media_type)


def base64_at(holder: dict[str, Any], key: str, path: str) -> str:
    """Return the base64 in a field.

    Raises:
        Refusal: it is not a string.
    """
    data = holder.get(key)
    if not isinstance(data, str):
        raise Refusal(f"{path}.{key} must be a base64 string", param=path.partition("[")[0])
    return data


def unread(where: str, kind: Any) -> Refusal:
    """Return the refusal of a block or part that messages cannot have.

    Args:
        where: its path in the body.
        kind: its type, or its media type.
    """
    named = kind.lower() if isinstance(kind, str) else ""
    known = next((what for word, what in _OTHERS.items() if word in named), None)
    if known is None:
        because, instead = refusal_of(named)
        known = f"content of the type {short(kind)}, but {because}\nhint: {instead}"
    return Refusal(f"{where} has {known}", param=where.partition("[")[0])
