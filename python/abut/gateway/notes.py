"""What clients ask for and do not get, said once for each batch."""

import logging
from collections.abc import Mapping
from typing import Any

from abut.gateway.request import ChatRequest

logger = logging.getLogger(__name__)

_MOST = 32


class Notes:
    """Of one batch, on the loop of the gateway.

    Args:
        sampling: the trainer's own settings, which win over a client's; None: the client's hold.
    """

    def __init__(self, sampling: Mapping[str, Any] | None) -> None:
        self._sampling = sampling
        self._said: set[str] = set()

    def see(self, request: ChatRequest) -> None:
        """Look at a request."""
        for name in request.ignored:
            self._say(name, f"requests have {name[:80]!r}, which the gateway ignores")
        for name in request.unmet:
            self._say(name, f"requests ask by {name} for what is not enforced: sampled freely")
        for name, asked in request.sampling.items():
            if self._sampling is None:
                return
            if name not in self._sampling:
                self._say(name, f"requests have {name}={asked!r}, which the sampler decides itself")
            elif asked != (own := self._sampling[name]):
                self._say(name, f"requests have {name}={asked!r}; the trainer's {own!r} is used")

    def _say(self, name: str, text: str) -> None:
        if name not in self._said and len(self._said) < _MOST:
            self._said.add(name)
            logger.warning("%s", text)
