"""The two questions that are asked over plain HTTP: /health and /schema."""

import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from urllib.error import HTTPError


def http_get(
    url: str, *, local: bool, timeout_s: float, headers: Mapping[str, str] | None = None
) -> bytes:
    """The body of an answer 200. `local`: past any proxy of the surrounding network.

    Raises:
        OSError: no connection, another answer, or none in time.
    """
    handlers = [urllib.request.ProxyHandler({})] if local else []
    request = urllib.request.Request(url, headers=dict(headers or {}))
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=timeout_s) as answer:
            return bytes(answer.read())
    except HTTPError as error:
        error.close()  # it holds the connection
        raise OSError(f"the answer is {error.code}") from error
    except HTTPException as error:
        raise OSError(f"{type(error).__name__}: {error}") from error
