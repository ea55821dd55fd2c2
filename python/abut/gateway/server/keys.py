"""The ids of rollouts at the endpoint, and the keys that open them.

Invariant: a key follows from the id and the run's secret, so that what has ended need not be
remembered to be told apart from what never was.
"""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass

_ID = re.compile(
    r"(?P<rollout>[A-Za-z0-9_-]{1,200})\.(?P<attempt>[0-9]{1,6})(?:r(?P<rank>[0-9]{1,6}))?"
)


@dataclass(frozen=True)
class EndpointId:
    """One attempt at a rollout, and the rank that plays it; None where there is one rank."""

    rollout_id: str
    attempt: int
    rank: int | None = None

    def __str__(self) -> str:
        rank = "" if self.rank is None else f"r{self.rank}"
        return f"{self.rollout_id}.{self.attempt}{rank}"

    @classmethod
    def read(cls, text: str) -> "EndpointId | None":
        """What a text says; None where it is none."""
        found = _ID.fullmatch(text)
        if found is None:
            return None
        rank = found["rank"]
        return cls(found["rollout"], int(found["attempt"]), None if rank is None else int(rank))


class Keys:
    """Those of one run.

    Args:
        key: opens everything of the run; None makes one.

    Attributes:
        key: it.
    """

    def __init__(self, key: str | None = None) -> None:
        self.key = key or secrets.token_urlsafe(24)

    def of(self, endpoint_id: str) -> str:
        """The key that opens one rollout alone."""
        digest = hashlib.blake2b(_bytes(endpoint_id), key=self.key.encode()[:64], digest_size=18)
        return f"abut-{digest.hexdigest()}"

    def opens_all(self, key: str) -> bool:
        """Whether it is the run's."""
        return hmac.compare_digest(_bytes(key), self.key.encode())

    def opens(self, key: str, endpoint_id: str) -> bool:
        """Whether it opens this rollout."""
        return self.opens_all(key) or hmac.compare_digest(
            _bytes(key), self.of(endpoint_id).encode()
        )


def _bytes(text: str) -> bytes:
    """The bytes of what a client sent, which may be no UTF-8."""
    return text.encode("utf-8", "surrogatepass")
