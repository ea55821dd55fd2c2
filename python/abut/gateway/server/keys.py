"""The ids of rollouts at the endpoint, and the keys that open them.

Invariant: a key follows from the id and the run's secret, so a rollout that has ended is told apart
from one that never was, without being remembered.
"""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass

from abut.gateway.ledger.refusal import Refusal

_ID = re.compile(
    r"(?P<rollout>[A-Za-z0-9_-]{1,200})\.(?P<attempt>[0-9]{1,6})(?:r(?P<rank>[0-9]{1,6}))?"
)


@dataclass(frozen=True)
class EndpointId:
    """One attempt at a rollout, and the rank that plays it; None if there is only one rank."""

    rollout_id: str
    attempt: int
    rank: int | None = None

    def __str__(self) -> str:
        rank = "" if self.rank is None else f"r{self.rank}"
        return f"{self.rollout_id}.{self.attempt}{rank}"

    @classmethod
    def read(cls, text: str) -> "EndpointId | None":
        """Return the id that a text spells; None if it spells none."""
        found = _ID.fullmatch(text)
        if found is None:
            return None
        rank = found["rank"]
        return cls(found["rollout"], int(found["attempt"]), None if rank is None else int(rank))


class Keys:
    """The keys of one run.

    Args:
        key: opens all rollouts of the run; None makes one.

    Attributes:
        key: opens all rollouts of the run.
    """

    def __init__(self, key: str | None = None) -> None:
        self.key = key or secrets.token_urlsafe(24)
        self._live: set[str] = set()

    def of(self, endpoint_id: str) -> str:
        """Return the key that opens one rollout alone."""
        digest = hashlib.blake2b(_bytes(endpoint_id), key=self.key.encode()[:64], digest_size=18)
        return f"abut-{digest.hexdigest()}"

    def opens_all(self, key: str) -> bool:
        """Return whether a key opens all rollouts of the run."""
        return hmac.compare_digest(_bytes(key), self.key.encode())

    def opens(self, key: str, endpoint_id: str) -> bool:
        """Return whether a key opens this rollout."""
        return self.opens_all(key) or hmac.compare_digest(
            _bytes(key), self.of(endpoint_id).encode()
        )

    def add_live(self, endpoint_id: str) -> None:
        """Note that a rollout is live."""
        self._live.add(self.of(endpoint_id))

    def discard_live(self, endpoint_id: str) -> None:
        """Note that a rollout has ended."""
        self._live.discard(self.of(endpoint_id))

    def is_live(self, key: str) -> bool:
        """Return whether a key opens a live rollout, or all rollouts."""
        return self.opens_all(key) or key in self._live

    def check(self, key: str | None, endpoint_id: str | None) -> None:
        """Refuse a key that does not open a rollout, or all rollouts if `endpoint_id` is None.

        Raises:
            Refusal: with the status 400: a 401 would kill a NeMo Gym model server.
        """
        if not key:
            raise Refusal("no API key: send the endpoint's as a bearer token", code="no_api_key")
        if not (self.opens_all(key) if endpoint_id is None else self.opens(key, endpoint_id)):
            raise Refusal("the API key does not open this rollout", code="wrong_api_key")


def _bytes(text: str) -> bytes:
    """Return the bytes of a client's text, which may be no UTF-8."""
    return text.encode("utf-8", "surrogatepass")
