"""The head server of a NeMo Gym, which knows the addresses of all other servers.

Invariant: the head's last answer is used until the next request to it. Ports are random, so abut
requests it again before each batch, and when a server does not answer at its address. The
configuration has a key in clear text, so it is never logged.
"""

import json
import logging
import threading
from typing import Any

from abut.address import Address, said
from abut.errors import EnvError, MissingExtraError
from abut.http import http_get
from abut.nemo_gym.servers import Servers

logger = logging.getLogger(__name__)

_ASK_S = 30.0
_MOST_BYTES = 64 * 2**20


class Head:
    """The head server.

    Args:
        url: `http://host:port`, where the port is 11000 unless Gym's configuration sets another.

    Raises:
        ValueError: `url` is not such an address.
        MissingExtraError: PyYAML is not installed.
    """

    def __init__(self, url: str) -> None:
        _yaml()
        self._address = Address.of(url)
        self._lock = threading.Lock()
        self._known: Servers | None = None
        self._is_stale = True

    @property
    def url(self) -> str:
        """The address, without secrets."""
        return self._address.url

    def servers(self) -> Servers:
        """Return the servers in the head's last answer; blocks if a new request is needed.

        Raises:
            EnvError: the head does not answer, and never did.
        """
        with self._lock:
            if self._is_stale:
                try:
                    self._known = self._ask()
                except EnvError as error:
                    if self._known is None:
                        raise
                    logger.warning(
                        "still using the servers that the head named before, because %s", error
                    )
                # Also after a failure: else every rollout would wait for its own time-out.
                self._is_stale = False
            assert self._known is not None
            return self._known

    def forget(self) -> None:
        """Request the servers again at the next call, because one does not answer."""
        self._is_stale = True

    def _ask(self) -> Servers:
        try:
            instances = json.loads(self._get("server_instances"))
            config = json.loads(self._get("global_config_dict_yaml"))
            return Servers(instances, _yaml().safe_load(config))
        except OSError as error:
            raise EnvError(
                f"no NeMo Gym head answers at {self.url}: {said(error)}\n"
                "hint: use the address that `gym env start` prints; if Gym runs on another "
                "machine, start it with +head_server.host=<address of that machine>"
            ) from error
        except Exception as error:  # not JSON or YAML, or the answer of another kind of server
            raise EnvError(
                f"the server at {self.url} is not a NeMo Gym head: {type(error).__name__}\n"
                "hint: use the head's address, not the address of an agent or a model server"
            ) from error

    def _get(self, path: str) -> bytes:
        return http_get(
            f"{self.url}/{path}",
            local=True,
            timeout_s=_ASK_S,
            max_message_bytes=_MOST_BYTES,
            headers=self._address.headers,
        )


def _yaml() -> Any:
    try:
        import yaml
    except ImportError as error:
        raise MissingExtraError(
            "abut.nemo_gym needs PyYAML: pip install 'abut[nemo_gym]'"
        ) from error
    return yaml
