"""One question over plain HTTP, for who has no client: `/health`, `/schema`, a head server."""

import urllib.request
from collections.abc import Mapping
from http.client import HTTPException, HTTPMessage
from typing import IO
from urllib.error import HTTPError

from abut.address import redirected


class AnswerError(OSError):
    """The answer is another one than 200.

    Attributes:
        status: its number.
    """

    def __init__(self, status: int) -> None:
        super().__init__(f"the server answered with HTTP status {status}")
        self.status = status


class _WithinOrigin(urllib.request.HTTPRedirectHandler):
    """Follows redirects within an origin: urllib itself takes a token along to any other."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        try:
            newurl = redirected(req.full_url, newurl)
        except OSError:
            fp.close()  # it holds the connection
            raise
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def http_get(
    url: str,
    *,
    local: bool,
    timeout_s: float,
    max_message_bytes: int,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """The body of an answer 200. `local`: past any proxy of the surrounding network.

    Raises:
        RedirectError: the answer sends to another origin.
        AnswerError: it is another answer.
        OSError: no connection, a longer answer, or none in time.
    """
    handlers = [urllib.request.ProxyHandler({})] if local else []
    opener = urllib.request.build_opener(_WithinOrigin, *handlers)
    request = urllib.request.Request(url, headers=dict(headers or {}))
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            body = bytes(answer.read(max_message_bytes + 1))
    except HTTPError as error:
        error.close()  # it holds the connection
        raise AnswerError(error.code) from error
    except HTTPException as error:
        raise OSError(f"{type(error).__name__}: {error}") from error
    if len(body) > max_message_bytes:
        raise OSError(f"the answer is longer than max_message_bytes={max_message_bytes}")
    return body
