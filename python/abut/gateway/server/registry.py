"""The rollouts that a gateway answers, and the keys that open them.

Invariant: a request without a valid key gets no information. A key is derived from the rollout's id
and the run's secret, so the gateway can distinguish a rollout that has ended from one that never
existed without remembering it.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from abut.concurrency.loop import DaemonLoop
from abut.gateway.dialects.dialect import HttpDialect
from abut.gateway.ledger import prompt
from abut.gateway.ledger.agent_call import AgentRequest
from abut.gateway.ledger.ledger import Ledger
from abut.gateway.ledger.refusal import Refusal, ended
from abut.gateway.ledger.unnamed import ExpectedRollout, Judge, Unnamed
from abut.gateway.ledger.writer import RunWriters
from abut.gateway.server.body import Bodies
from abut.gateway.server.body_images import BodyImages
from abut.gateway.server.connections import Connections
from abut.gateway.server.standalone import Standalone
from abut.rollout.config import BranchChoice, RolloutConfig
from abut.rollout.conversation import Conversation

T = TypeVar("T")
MODEL = "policy"
"""The model's name. Requests for other names are answered as well."""

MOST_BODY_BYTES = 64 * 2**20
"""The default limit of a request's body: 40 screenshots of 1280 x 1024 take 53 MB."""

_ID = re.compile(
    r"(?P<rollout>[A-Za-z0-9_-]{1,200})\.(?P<attempt>[0-9]{1,6})(?:r(?P<rank>[0-9]{1,6}))?"
)


@dataclass(frozen=True)
class EndpointId:
    """One attempt at a rollout, and the rank that plays it; None if there is only one rank.

    In URLs and headers it is `ROLLOUT.ATTEMPT`, with several ranks `ROLLOUT.ATTEMPTrRANK`.
    """

    rollout_id: str
    attempt: int
    rank: int | None = None

    def __str__(self) -> str:
        rank = "" if self.rank is None else f"r{self.rank}"
        return f"{self.rollout_id}.{self.attempt}{rank}"

    @classmethod
    def read(cls, text: str) -> "EndpointId | None":
        """Return the id that a string spells; None if it does not spell one."""
        found = _ID.fullmatch(text)
        if found is None:
            return None
        rank = found["rank"]
        return cls(found["rollout"], int(found["attempt"]), None if rank is None else int(rank))


class Keys:
    """The keys of one run.

    Args:
        key: opens all rollouts of the run; None makes a random one.

    Attributes:
        key: opens all rollouts of the run.
    """

    def __init__(self, key: str | None = None) -> None:
        self.key = key or secrets.token_urlsafe(24)
        self._live: set[str] = set()

    def of(self, endpoint_id: str) -> str:
        """Return the key that opens only this rollout."""
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
            Refusal: the key does not open it. Its status is 400, because a 401 would stop a NeMo
                Gym model server.
        """
        if not key:
            raise Refusal(
                "the request has no API key\nhint: send endpoint.api_key as a bearer token",
                code="no_api_key",
            )
        if not (self.opens_all(key) if endpoint_id is None else self.opens(key, endpoint_id)):
            raise Refusal("the API key does not open this rollout", code="wrong_api_key")


def _bytes(text: str) -> bytes:
    """Return the bytes of a client's string, which may be invalid UTF-8."""
    return text.encode("utf-8", "surrogatepass")


class Registry:
    """The live rollouts of one gateway, for its routes and for the batches that play them.

    Used on the loop of the gateway.

    Args:
        key: opens all rollouts of the run; None makes a random one.
        dialects: the protocols that it speaks; the first one writes refusals of unknown routes.
        agents_may_end: whether a rollout's own key may end and reward it.
        standalone: the rollouts without a trainer; None if a trainer plays them.
        max_body_bytes: the largest request body.
    """

    def __init__(
        self,
        key: str | None,
        *,
        dialects: Sequence[HttpDialect],
        agents_may_end: bool,
        standalone: Standalone | None,
        max_body_bytes: int = MOST_BODY_BYTES,
    ) -> None:
        self.dialects = dialects
        self.agents_may_end = agents_may_end
        self.standalone = standalone
        self.ledgers: dict[str, Ledger] = {}
        """The ledgers of a trainer's live rollouts, by the ids of their endpoints."""
        self.unnamed = Unnamed()
        """The rollouts whose agents may leave out their ids."""
        self.connections = Connections()
        self.bodies = Bodies()
        self.images = BodyImages()
        self.max_body_bytes = max_body_bytes
        self.peers: Mapping[int, str] = {}
        """The addresses of the other ranks' gateways."""
        self.rank: int | None = None
        """The rank of this process; None if there is only one."""
        self.session_headers: set[str] = set()
        """The headers that name the session of a call, of all agents, in lower case."""
        # A `PlayedAgent` sets the next six when a batch begins.
        self.settings: Mapping[str, Any] = {}
        """The trainer's sampling settings by their names in a chat request, with `max_tokens` of a
        completion, for agents that pass them on."""
        self.judge: Judge | None = None
        """Answers requests that belong to no rollout; None: they are refused."""
        self.writers: RunWriters | None = None
        """The writers of the batch, for agents that check rows before the batch is played."""
        self.turn_timeout_s = RolloutConfig.turn_timeout_s
        """The time limit of a turn in the current batch, in seconds."""
        self.branch: BranchChoice | None = None
        """The conversations of a rollout that become rows in the current batch."""
        self.rollout_timeout_s = RolloutConfig.rollout_timeout_s
        """The time limit of a rollout in this batch, for agents that limit their own phases."""
        self.in_process = False
        """True if the trainer's own model samples this batch; its time counts for no limit."""
        self.loop: DaemonLoop | None = None
        """The loop of the gateway, while the server runs."""
        self._keys = Keys(key)
        if standalone is not None:
            self.images.roles = standalone.image_roles
            standalone.on_open = self._keys.add_live
            standalone.on_end = self._forget
        self._run_id = ""

    @property
    def key(self) -> str:
        """The key that opens all rollouts of the run."""
        return self._keys.key

    async def open(self, ledger: Ledger) -> None:
        """Begin to answer a rollout."""
        self.ledgers[ledger.rollout_id] = ledger
        self._keys.add_live(ledger.rollout_id)

    async def expect(self, endpoint_id: str, expected: ExpectedRollout) -> None:
        """Begin to match requests that do not name a rollout with this one.

        With several ranks, no request is matched: only rank 0 gets such requests, and it knows only
        its own rollouts, but the matching rollout may be on another rank.
        """
        if self.rank is None and (ledger := self.ledgers.get(endpoint_id)) is not None:
            self.unnamed.expect(ledger, expected)

    async def end(self, ledger: Ledger) -> None:
        """Stop answering a rollout, and wait until it no longer changes."""
        self.ledgers.pop(ledger.rollout_id, None)
        self.unnamed.forget(ledger)
        await ledger.close()
        self._forget(ledger.rollout_id)

    def _forget(self, endpoint_id: str) -> None:
        self._keys.discard_live(endpoint_id)
        self.connections.end(endpoint_id)
        self.bodies.forget(endpoint_id)

    def ask(self, call: Callable[[], Awaitable[T]]) -> Awaitable[T]:
        """Run a call on the gateway's loop, and await its result on the caller's."""
        assert self.loop is not None
        return self.loop.ask(call)

    def submit(self, call: Callable[[], Awaitable[T]]) -> "Future[T]":
        """Run a call on the gateway's loop."""
        assert self.loop is not None
        return self.loop.submit(call)

    def join_run(self, run_id: str, *, rank: int | None = None, key: str | None = None) -> None:
        """Set the run whose rollouts this gateway serves.

        Args:
            run_id: the suffix of the ids of all rollouts of the run.
            rank: of this process; None if there is only one.
            key: the key of rank 0.
        """
        self._run_id, self.rank = run_id, rank
        if key is not None:
            self._keys.key = key

    def probe_id(self, number: int) -> str:
        """Return an id for a rollout of this rank that is in no batch."""
        return str(self.id_of(f"probe-{number}-{self._run_id}", 0))

    def key_of(self, endpoint_id: str) -> str:
        """Return the key that opens only this rollout."""
        return self._keys.of(endpoint_id)

    def id_of(self, rollout_id: str, attempt: int) -> EndpointId:
        """Return the id of one attempt at a rollout of this rank."""
        return EndpointId(rollout_id, attempt, self.rank)

    def admit(self, key: str | None, *endpoint_ids: str | None) -> "Access":
        """Refuse a request whose key is not valid, before its body is read.

        The key of a live rollout is admitted without the rollout's id, which may be in the body.

        Args:
            key: of the request.
            endpoint_ids: the ids outside of the body, by precedence.

        Raises:
            Refusal: there is no key, or it does not open one of these rollouts.
        """
        named = [id_ for id_ in endpoint_ids if id_]
        first = named[0] if named else None
        if not (
            key and (self._keys.is_live(key) or any(self._keys.opens(key, id_) for id_ in named))
        ):
            self._keys.check(key, first)
        return Access(self, self._keys, key, first)

    def check_run_key(self, key: str | None) -> None:
        """Refuse a request whose key does not open all rollouts of the run.

        Raises:
            Refusal: the key does not open all rollouts.
        """
        self._keys.check(key, None)

    def note_refusal(self, endpoint_id: str, refusal: Refusal) -> None:
        """Note why a rollout's last request was refused."""
        if self.standalone is not None:
            self.standalone.refused(endpoint_id, refusal)
        elif (ledger := self.ledgers.get(endpoint_id)) is not None:
            ledger.refusal = str(refusal)

    def rank_of(self, endpoint_id: str) -> int | None:
        """Return the rank that plays a rollout; None if it is this one."""
        if self.standalone is not None or endpoint_id in self.ledgers:
            return None
        read = EndpointId.read(endpoint_id)
        return None if read is None or read.rank == self.rank else read.rank

    async def ledger_of(
        self, endpoint_id: str | None, request: AgentRequest, digest: bytes, *, retried: bool
    ) -> Ledger:
        """Return the ledger of a request's rollout; takes the arguments of `Ledger.ask`.

        Raises:
            Refusal: the rollout has ended, or never existed in this run.
        """
        if self.standalone is not None:
            return await self.standalone.ledger_of(endpoint_id, request, digest, retried=retried)
        if endpoint_id is None:
            otherwise = None if self.judge is None else self.judge.new_ledger
            return await self.unnamed.ledger_of(
                request, digest, retried=retried, otherwise=otherwise
            )
        return self._ledger(endpoint_id)

    def live(self, endpoint_id: str) -> Ledger | None:
        """Return the ledger of a rollout; None if no request has opened it so far.

        Raises:
            Refusal: the rollout has ended, or never existed in this run.
        """
        if self.standalone is not None:
            return self.standalone.ledger(endpoint_id)
        return self._ledger(endpoint_id)

    async def count(self, endpoint_id: str | None, request: AgentRequest) -> int:
        """Return how many tokens the prompt of a request would have; it opens no rollout.

        Raises:
            Refusal: the rollout has ended, or never existed in this run; or no rollout has started
                yet.
        """
        ledger = None if endpoint_id is None else self.live(endpoint_id)
        run = self.writers if self.standalone is None else self.standalone.writers
        if ledger is not None:
            return await ledger.count(request)
        if run is None:
            raise Refusal("no rollout has started yet", code="unknown_rollout")
        writer = await run.writers.of(request)
        conversation = Conversation(run.tokenizer, writer.processor)
        return await prompt.length(request, writer, conversation)

    def _ledger(self, endpoint_id: str) -> Ledger:
        """Return the ledger of a trainer's rollout."""
        if (ledger := self.ledgers.get(endpoint_id)) is not None:
            return ledger
        read = EndpointId.read(endpoint_id)
        if read is not None and self._run_id and read.rollout_id.endswith(f"-{self._run_id}"):
            raise ended()
        raise Refusal(
            f"this run has no rollout {endpoint_id[:200]!r}\n"
            "hint: use the endpoint's base_url unchanged",
            code="unknown_rollout",
        )


class Access:
    """A request's key, and the rollout that the request names.

    As a context manager it records refusals for that rollout, if the key opens it.

    Attributes:
        rollout_id: None while the request has not named a rollout.
    """

    def __init__(
        self, registry: Registry, keys: Keys, key: str | None, rollout_id: str | None
    ) -> None:
        self.rollout_id = rollout_id
        self._registry = registry
        self._keys = keys
        self._key = key

    def check(self, rollout_id: str | None) -> None:
        """Set the rollout, which the body may name too, and check that the key opens it.

        Raises:
            Refusal: the key does not open the rollout.
        """
        self.rollout_id = rollout_id
        self._keys.check(self._key, rollout_id)

    @property
    def opens_all(self) -> bool:
        """True if the key opens all rollouts of the run."""
        return bool(self._key) and self._keys.opens_all(self._key or "")

    def __enter__(self) -> "Access":
        """Begin to note refusals."""
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Note a refusal, unless it concerns the key."""
        key, rollout_id = self._key, self.rollout_id
        if isinstance(error, Refusal) and key and rollout_id and self._keys.opens(key, rollout_id):
            self._registry.note_refusal(rollout_id, error)
