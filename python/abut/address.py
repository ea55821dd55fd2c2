"""The addresses of servers: whose they are, and what of them is never printed or passed on.

So are the variables of servers that abut starts, which their logs may repeat.
"""

import base64
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO
from urllib.parse import unquote, urljoin, urlsplit

_SECRET_LENGTH = 8  # a shorter secret may be any word of a text
_PORTS = {"http": 80, "https": 443}
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.6.2


class RedirectError(OSError):
    """An answer that sends its reader to another origin, or nowhere."""


@dataclass(frozen=True)
class Address:
    """A server's address without `user:password@`, and the header that says them instead."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, text: str) -> "Address":
        """Take apart `http://user:password@host:port/path`.

        Raises:
            ValueError: the text is not an address; the error does not repeat `user:password@`.
        """
        try:
            parts = urlsplit(text)
            valid = parts.scheme in _PORTS and bool(parts.hostname) and parts.port != 0
        except ValueError:  # its own text may have a part of the password
            valid = False
        # A sign that ends the host may be one of a password that is not percent-encoded.
        if not valid or re.search(r"[?#\s\x00-\x1f\x7f]", text):
            raise ValueError(
                f"{shown(text)!r}: an address starts with http:// or https:// and has no ? and no "
                "#\n"
                "hint: write it like 'http://localhost:8000'; percent-encode such characters in "
                "user:password@"
            )
        secret, _, place = parts.netloc.rpartition("@")
        url = f"{parts.scheme}://{place}{parts.path}".rstrip("/")
        if not secret:
            return cls(url)
        basic = base64.b64encode(unquote(secret).encode()).decode()
        return cls(url, {"Authorization": f"Basic {basic}"})


def shown(text: str) -> str:
    """A URL, or what should be one, without what may be `user:password@`."""
    scheme, slashes, rest = text.partition("//")
    if not slashes:
        scheme, rest = "", text
    return f"{scheme}{slashes}…@{rest.rpartition('@')[2]}" if "@" in rest else text


def said(error: BaseException) -> str:
    """The type and the text of an error of somebody else's, who may name a proxy with password."""
    text = re.sub(r"//[^\s'\"]*@", "//…@", str(error))
    return f"{type(error).__name__}: {text}"


def end_without_secrets(file: IO[bytes], most_bytes: int, environ: Mapping[str, str]) -> str:
    """Return the end of a log without the values of these variables, and without reading the rest.

    Values of at least 8 characters are replaced by the variable's name, as `<NAME>`.
    """
    start = max(0, file.seek(0, os.SEEK_END) - most_bytes)
    file.seek(start)
    text = file.read(most_bytes).decode(errors="replace")
    secrets = {value: name for name, value in environ.items() if len(value) >= _SECRET_LENGTH}
    if start:  # the text may begin inside a secret, or be inside it
        text = text.lstrip("\ufffd")
        if any(text in secret for secret in secrets):
            return ""
        ends = (len(s) - k for s in secrets for k in range(1, len(s)) if text.startswith(s[k:]))
        text = text[max(ends, default=0) :]
    for secret in sorted(secrets, key=len, reverse=True):  # one may begin with another
        text = text.replace(secret, f"<{secrets[secret]}>")
    return text


def origin(url: str) -> str:
    """Scheme, host and port, as http(s).

    Raises:
        ValueError: it has none.
    """
    parts = urlsplit(url)
    scheme = {"ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme)
    if scheme not in _PORTS or not re.fullmatch(r"[\w.:%-]+", parts.hostname or "", re.ASCII):
        raise ValueError("not the address of a server")
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    port = "" if parts.port in (None, _PORTS[scheme]) else f":{parts.port}"
    return f"{scheme}://{host}{port}"


def redirected(url: str, location: str) -> str:
    """Where an answer of `url` sends its reader; within the origin, to which its secrets belong.

    Raises:
        RedirectError: to another origin, or nowhere.
    """
    here = origin(url)
    try:
        target = urlsplit(urljoin(url, location))
        there = origin(target.geturl())
    except ValueError:
        raise RedirectError(f"{here} redirects to something that is not an address") from None
    if there != here:
        raise RedirectError(
            f"{here} redirects to another origin, {there}; abut does not follow, so that your "
            f"headers stay with {here}\nhint: if the server has moved, use {there} as its address"
        )
    parts = urlsplit(url)
    return parts._replace(path=target.path, query=target.query).geturl()


def checked_headers(name: str, headers: Mapping[str, str]) -> dict[str, str]:
    """Headers that can be sent.

    Raises:
        ValueError: one cannot; the text names it and not its value.
    """
    for key, value in headers.items():
        if not _HEADER_NAME.fullmatch(key) or not re.fullmatch(r"[\t\x20-\x7e]*", value):
            raise ValueError(
                f"{name}: the header {key!r} cannot be sent: a header's value must be printable "
                "ASCII on one line\nhint: if you read the value from a file, call .strip() on it"
            )
    return dict(headers)


def check_one_authorization(name: str, address: Address, headers: Mapping[str, str]) -> None:
    """Refuse two ways to authenticate at once.

    Raises:
        ValueError: `user:password@` in the address and an Authorization header.
    """
    if address.headers and any(key.lower() == "authorization" for key in headers):
        raise ValueError(
            f"{name}: {address.url} has user:password@, and you also pass an Authorization header\n"
            "hint: pass one of the two"
        )
