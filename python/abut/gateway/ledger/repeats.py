"""The requests of a rollout that were sent before, to recognize a retry.

Invariant: a retry is not a turn, and each sample is given to one client.
"""

from collections import defaultdict

from abut.gateway.ledger.agent_call import AgentCall, PendingRequest


class Repeats:
    """The requests of a rollout by the digests of their bodies, to recognize a repeated one."""

    def __init__(self) -> None:
        self._calls: defaultdict[bytes, list[AgentCall]] = defaultdict(list)
        self._waiting: dict[PendingRequest, None] = {}

    def wait(self, pending: PendingRequest) -> None:
        """Add a request that waits for its place."""
        self._waiting[pending] = None

    def settle(self, pending: PendingRequest, call: AgentCall | None = None) -> None:
        """Note that a request was placed, as `call` if it is a new one, or was refused."""
        self._waiting.pop(pending, None)
        if call is not None:
            self._calls[pending.digest].append(call)

    def before(self, digest: bytes, retried: bool) -> AgentCall | None:
        """Return the call whose sample a request gets; None if it is a new one.

        An equal body alone does not make a repeated request: an agent that wants the best of n
        answers sends n equal bodies at the same time, and each gets a sample of its own. A request
        is a repeated one if the first client has hung up, or if this one says that it retries.
        """
        same = [call for call in self._calls.get(digest, ()) if call.may_be_reused]
        undelivered = [call for call in same if not call.delivered]
        for call in undelivered:
            if not call.is_open():
                return call
        if retried and same:
            return (undelivered or same)[-1]
        return None

    def fit(self, digest: bytes, retried: bool) -> int:
        """Return how well a request fits as a repeated one, to choose between rollouts.

        Returns:
            3 if the client of an equal body has hung up, 2 if it still waits, 1 if it has its
            answer; 0 if the request is new.
        """
        if (call := self.before(digest, retried)) is not None:
            return 1 if call.delivered else 2 if call.is_open() else 3
        same = [pending for pending in self._waiting if pending.digest == digest]
        return 3 if any(not pending.is_open() for pending in same) else 2 if retried and same else 0
