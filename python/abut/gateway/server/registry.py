"""Who may ask which rollout, and where that is played.

Invariant: who has no key learns nothing, and what has ended is told apart from what never was
without being remembered.
"""

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from abut.concurrency.loop import DaemonLoop
from abut.gateway.ledger.agent_call import AgentRequest
from abut.gateway.ledger.ledger import Ledger
from abut.gateway.ledger.refusal import Refusal, ended
from abut.gateway.ledger.unnamed import ExpectedRollout, Judge, Unnamed
from abut.gateway.ledger.writer import RunWriters
from abut.gateway.server.body import Bodies
from abut.gateway.server.connections import Connections
from abut.gateway.server.keys import EndpointId, Keys
from abut.gateway.server.standalone import Standalone
from abut.rollout.config import RolloutConfig

T = TypeVar("T")
MODEL = "policy"
"""The name to ask for; any other one is answered as well."""


class Registry:
    """What the routes of one gateway ask, on its loop.

    Args:
        key: opens all rollouts of the run; None makes one.
        rewrites: what clients may do to a message of the policy.
        unenforced: "accept" samples freely where a form of the answer is asked for.
        agents_may_end: whether a rollout's own key may end and reward it.
        serving: the rollouts that no trainer plays; None where one does.
    """

    def __init__(
        self,
        key: str | None,
        *,
        rewrites: Collection[str],
        unenforced: str,
        agents_may_end: bool,
        standalone: Standalone | None,
    ) -> None:
        self.rewrites = frozenset(rewrites)
        self.unenforced = unenforced
        self.agents_may_end = agents_may_end
        self.standalone = standalone
        self.ledgers: dict[str, Ledger] = {}
        """Those that are live, by the ids of their endpoints; of a trainer's batches."""
        self.unnamed = Unnamed(self.rewrites)
        """The rollouts that are asked without their ids."""
        self.connections = Connections()
        self.bodies = Bodies()
        self.peers: Mapping[int, str] = {}
        """Where the other ranks' gateways are."""
        self.rank: int | None = None
        """Of this process; None where there is one."""
        self.settings: Mapping[str, Any] = {}
        """How the trainer samples, by the names that clients know, `max_tokens` of a completion
        among them; for agents that have to say so to somebody."""
        self.judge: Judge | None = None
        """Answers requests that name no rollout and are no rollout's; None: they are refused."""
        self.writing: RunWriters | None = None
        """Writes the conversations of the batch, for agents that check rows before it is played."""
        self.turn_timeout_s = RolloutConfig.turn_timeout_s
        """The limit of a turn in the batch that is played."""
        self.loop: DaemonLoop | None = None
        """Where it is asked, while the server runs."""
        if standalone is not None:
            standalone.on_open = lambda id_: self._live_keys.add(self.key_of(id_))
            standalone.on_end = self._forget
        self._keys = Keys(key)
        self._live_keys: set[str] = set()
        self._run_id = ""

    @property
    def key(self) -> str:
        """Opens all rollouts of the run."""
        return self._keys.key

    async def open(self, ledger: Ledger) -> None:
        """Answer a rollout from here on."""
        self.ledgers[ledger.rollout_id] = ledger
        self._live_keys.add(self.key_of(ledger.rollout_id))

    async def expect(self, endpoint_id: str, expected: ExpectedRollout) -> None:
        """Match requests that name no rollout with this one, from its first call on.

        Rank 0 alone gets such requests and knows its own rollouts alone, so with several ranks
        none is matched: the one that fits may be another rank's.
        """
        if self.rank is None and (ledger := self.ledgers.get(endpoint_id)) is not None:
            self.unnamed.expect(ledger, expected)

    async def end(self, ledger: Ledger) -> None:
        """Answer a rollout no more, and wait until nothing of it changes."""
        self.ledgers.pop(ledger.rollout_id, None)
        self.unnamed.forget(ledger)
        await ledger.close()
        self._forget(ledger.rollout_id)

    def _forget(self, endpoint_id: str) -> None:
        self._live_keys.discard(self.key_of(endpoint_id))
        self.connections.end(endpoint_id)
        self.bodies.forget(endpoint_id)

    def ask(self, call: Callable[[], Awaitable[T]]) -> Awaitable[T]:
        """Have it done on the gateway's loop; waits on that of the caller."""
        assert self.loop is not None
        return self.loop.ask(call)

    def submit(self, call: Callable[[], Awaitable[T]]) -> "Future[T]":
        """Have it done on the gateway's loop."""
        assert self.loop is not None
        return self.loop.submit(call)

    def belongs_to(self, run_id: str, *, rank: int | None = None, key: str | None = None) -> None:
        """Say whose rollouts it serves.

        Args:
            run_id: ends the ids of all rollouts of the run.
            rank: of this process; None where there is one.
            key: that of rank 0.
        """
        self._run_id, self.rank = run_id, rank
        if key is not None:
            self._keys = Keys(key)

    def probe_id(self, number: int) -> str:
        """An id for a rollout of no batch, which is this rank's."""
        return str(self.id_of(f"probe-{number}-{self._run_id}", 0))

    def key_of(self, endpoint_id: str) -> str:
        """The key that opens one rollout alone."""
        return self._keys.of(endpoint_id)

    def id_of(self, rollout_id: str, attempt: int) -> EndpointId:
        """The id of one attempt at a rollout of this rank."""
        return EndpointId(rollout_id, attempt, self.rank)

    def admit(self, key: str | None, *endpoint_ids: str | None) -> None:
        """Refuse a request whose key opens nothing, before its body is read.

        A live rollout's key is admitted without its id, which may stand in the body.

        Args:
            key: of the request.
            endpoint_ids: the ids that stand outside of the body.

        Raises:
            Refusal: as `check_key`.
        """
        named = [id_ for id_ in endpoint_ids if id_ is not None]
        if key and (self._keys.opens_all(key) or key in self._live_keys):
            return
        if key and any(self._keys.opens(key, id_) for id_ in named):
            return
        self.check_key(key, named[0] if named else None)

    @contextmanager
    def noting(self, key: str | None, endpoint_id: str | None) -> Iterator[None]:
        """Note what is refused in here, for the rollout that the key opens."""
        try:
            yield
        except Refusal as refusal:
            if key and endpoint_id is not None and self._keys.opens(key, endpoint_id):
                if self.standalone is not None:
                    self.standalone.refused(endpoint_id, refusal)
                elif (ledger := self.ledgers.get(endpoint_id)) is not None:
                    ledger.refusal = str(refusal)
            raise

    def is_run_key(self, key: str | None) -> bool:
        """Return whether a key opens all rollouts of the run."""
        return key is not None and self._keys.opens_all(key)

    def check_key(self, key: str | None, endpoint_id: str | None) -> None:
        """Refuse who has no key of this rollout; None: of the run.

        Raises:
            Refusal: says so, as a status that ends no agent's server.
        """
        if not key:
            raise Refusal("no API key: send the endpoint's as a bearer token", code="no_api_key")
        keys = self._keys
        if not (keys.opens_all(key) if endpoint_id is None else keys.opens(key, endpoint_id)):
            raise Refusal("the API key does not open this rollout", code="wrong_api_key")

    def rank_of(self, endpoint_id: str) -> int | None:
        """The other rank that plays a rollout; None where this one does."""
        if self.standalone is not None or endpoint_id in self.ledgers:
            return None
        read = EndpointId.read(endpoint_id)
        return None if read is None or read.rank == self.rank else read.rank

    async def ledger_of(
        self, endpoint_id: str | None, request: AgentRequest, body: bytes, *, retried: bool
    ) -> Ledger:
        """The rollout that a request belongs to; arguments as of `Ledger.call`.

        Raises:
            Refusal: it has ended, or never was one of this run.
        """
        if self.standalone is not None:
            return await self.standalone.ledger_of(endpoint_id, request, body, retried=retried)
        if endpoint_id is None:
            otherwise = None if self.judge is None else self.judge.ledger
            return await self.unnamed.ledger_of(request, body, retried=retried, otherwise=otherwise)
        if (ledger := self.ledgers.get(endpoint_id)) is not None:
            return ledger
        read = EndpointId.read(endpoint_id)
        if read is not None and self._run_id and read.rollout_id.endswith(f"-{self._run_id}"):
            raise ended()
        raise Refusal(
            f"there is no rollout {endpoint_id[:200]!r}\n"
            "hint: use the endpoint's base_url as it is",
            code="unknown_rollout",
        )
