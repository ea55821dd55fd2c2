"""The gateway: an OpenAI-compatible endpoint in front of the policy.

Invariant: one server for a run, however many agents and batches; between batches it answers that a
rollout is over. Its loop runs no foreign code, and nothing that takes long.
"""

import atexit
import logging
import os
import stat
import sys
import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal

from abut.address import Address
from abut.concurrency.loop import DaemonLoop
from abut.errors import EnvError, MissingExtraError
from abut.gateway.ids import EndpointId, Keys
from abut.gateway.known import Seen
from abut.gateway.matching import REWRITES, Rewrite
from abut.gateway.refusal import Refusal, over
from abut.gateway.request import ChatRequest
from abut.gateway.session import Session
from abut.pickling import stays

logger = logging.getLogger(__name__)

KEY_VARIABLE = "ABUT_GATEWAY_KEY"
MODEL = "policy"
_START_S = 30.0
_CLOSE_S = 2.0


@stays(
    "it has a server, connections and rollouts of this process",
    hint="make one in the process that trains, and give others its address and key",
)
class Gateway:
    """The endpoint that agents ask: settings, and the server that runs by them.

    It starts with the first batch that needs it and ends with the process. All that comes over it
    needs a key: each rollout has its own, and `key` opens all rollouts of the run.

    Args:
        host: where it listens: a name or an address of this machine.
        port: 0 takes a free one. With several ranks rank 0 has it, and the others a free one.
        public_url: under which agents reach it; None: `http://host:port`.
        key: opens all rollouts; None takes the environment variable ABUT_GATEWAY_KEY, else makes a
            random one, which `key_file` shows.
        key_file: gets the key, readable for its owner alone.
        rewrites: what clients may do to a message of the policy, see docs/agents.md; `()`: nothing.
        unenforced: "accept" samples freely where a client asks for a form of the answer, such as
            `response_format`; "refuse" answers that this cannot be exact.

    Attributes:
        key: opens all rollouts of this run.

    Raises:
        ValueError: an argument is none of what it may be.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        public_url: str | None = None,
        key: str | None = None,
        *,
        key_file: str | os.PathLike[str] | None = None,
        rewrites: Collection[Rewrite] = REWRITES,
        unenforced: Literal["refuse", "accept"] = "refuse",
    ) -> None:
        if not 0 <= port < 2**16:
            raise ValueError(f"port={port!r}: must be between 0 and 65535")
        if strange := sorted(set(rewrites) - set(REWRITES)):
            raise ValueError(f"rewrites has {strange[0]!r}: known are {', '.join(REWRITES)}")
        if unenforced not in ("refuse", "accept"):
            raise ValueError(f"unenforced={unenforced!r}: must be 'refuse' or 'accept'")
        if public_url is not None:
            address = Address.of(public_url)
            if address.headers:
                raise ValueError("public_url has user:password@: agents are given a key instead")
            public_url = address.url
        key = key or os.environ.get(KEY_VARIABLE) or None
        if key is not None and (len(key) < 16 or not key.isascii() or not key.isprintable()):
            raise ValueError(
                f"the gateway's key (key=, {KEY_VARIABLE}) must be 16 printable ASCII characters "
                "or more"
            )
        self._keys = Keys(key)
        self._host, self._port, self._public_url = host, port, public_url
        self._key_file = None if key_file is None else Path(key_file)
        self._rewrites = frozenset(rewrites)
        self.unenforced = unenforced
        self._lock = threading.Lock()
        self._loop: DaemonLoop | None = None
        self._runner: Any = None
        self._url = ""
        self._run_id = ""
        self._rank: int | None = None
        self.peers: Mapping[int, str] = {}
        """Where the other ranks' gateways are."""
        self.sessions: dict[str, Session] = {}
        """Those that are live, by the ids of their endpoints."""

    @property
    def key(self) -> str:
        """Opens all rollouts of this run: for agents that have one fixed key."""
        return self._keys.key

    @property
    def base_url(self) -> str:
        """For clients that name their rollout themselves; ends in `/v1`.

        Raises:
            RuntimeError: it has not started.
        """
        if not self._url:
            raise RuntimeError("the gateway has not started: it does so with the first batch")
        return f"{self._url}/v1"

    @property
    def loop(self) -> DaemonLoop:
        """On which it runs, once it was started."""
        assert self._loop is not None
        return self._loop

    def belongs_to(self, run_id: str, *, rank: int | None = None, key: str | None = None) -> None:
        """Say whose rollouts it serves.

        Args:
            run_id: ends the ids of all rollouts of the run.
            rank: of this process; None where there is one.
            key: that of rank 0.
        """
        self._run_id, self._rank = run_id, rank
        if key is not None:
            self._keys = Keys(key)

    def start(self) -> None:
        """Listen, from a thread of its own; nothing where it does already. Blocks until it does.

        Raises:
            EnvError: the address cannot be had.
            MissingExtraError: aiohttp is not installed.
        """
        with self._lock:
            if self._runner is not None:
                return
            try:
                from abut.gateway.app import make_app, serve
            except ImportError as error:
                raise MissingExtraError(
                    "the gateway needs aiohttp: pip install 'abut[gateway]'"
                ) from error
            self._loop = DaemonLoop("abut-gateway")
            self._loop.open()
            port = 0 if self._rank else self._port
            serving = self._loop.submit(lambda: serve(make_app(self), self._host, port))
            try:
                self._runner, bound = serving.result(_START_S)
            except OSError as error:
                raise EnvError(
                    f"the gateway cannot listen on {self._host}:{port}: {error}\n"
                    "hint: Gateway(host=…, port=0) takes a free port of this machine"
                ) from error
            host = f"[{self._host}]" if ":" in self._host else self._host
            if self._host in ("0.0.0.0", "::"):
                host = "127.0.0.1"
            self._url = f"http://{host}:{bound}"
            if self._public_url is not None and not self._rank:
                self._url = self._public_url
            self._show_key()
            # A loop that still runs while the interpreter is taken down may end in a crash.
            atexit.register(self.stop)

    def stop(self) -> None:
        """Stop listening, and end what is live."""
        with self._lock:
            loop, runner = self._loop, self._runner
            self._runner, self._url = None, ""
            atexit.unregister(self.stop)
            if loop is None or runner is None:
                return
            for session in list(self.sessions.values()):
                loop.submit(_ends(session)).result(_CLOSE_S)
            loop.submit(runner.cleanup).result(_START_S)
            loop.end(_CLOSE_S)
            self._loop = None

    def url_of(self, endpoint_id: str) -> str:
        """The base URL of one rollout."""
        return f"{self._url}/r/{endpoint_id}/v1"

    def key_of(self, endpoint_id: str) -> str:
        """The key that opens one rollout alone."""
        return self._keys.of(endpoint_id)

    def id_of(self, rollout_id: str, attempt: int) -> EndpointId:
        """The id of one attempt at a rollout of this rank."""
        return EndpointId(rollout_id, attempt, self._rank)

    @property
    def rewrites(self) -> Collection[str]:
        """What clients may do to a message of the policy."""
        return self._rewrites

    # ---- what the app asks

    def check_key(self, key: str | None, endpoint_id: str | None) -> None:
        """Refuse who has no key of this rollout; None: of the run.

        Raises:
            Refusal: says so, as a status that ends no agent's server.
        """
        if not key:
            raise Refusal("no API key: send the endpoint's as a bearer token", code="no_api_key")
        opens = self._keys.opens_all(key)
        if not opens and endpoint_id is not None:
            opens = self._keys.opens(key, endpoint_id)
        if not opens:
            raise Refusal("the API key does not open this rollout", code="wrong_api_key")

    def rank_of(self, endpoint_id: str) -> int | None:
        """The other rank that plays a rollout; None where this one does."""
        read = EndpointId.read(endpoint_id)
        if read is None or read.rank in (None, self._rank):
            return None
        return read.rank

    def seen(self, endpoint_id: str | None, messages: Any) -> Seen:
        """What of a request's messages its rollout has seen before, see `Session.seen`."""
        session = None if endpoint_id is None else self.sessions.get(endpoint_id)
        if session is None or not isinstance(messages, list):
            return Seen()
        return session.seen(messages)

    async def session_of(self, endpoint_id: str | None, request: ChatRequest) -> Session:
        """The rollout that a request belongs to.

        Raises:
            Refusal: it has ended, or never was one of this run.
        """
        if endpoint_id is None:
            raise Refusal(
                "the request names no rollout\nhint: use the endpoint's base_url as it is; or name "
                "it by rollout_id in the body, by the header x-abut-rollout, or by the model "
                "policy/ID",
                code="unknown_rollout",
            )
        session = self.sessions.get(endpoint_id)
        if session is not None:
            return session
        read = EndpointId.read(endpoint_id)
        if read is not None and self._run_id and read.rollout_id.endswith(f"-{self._run_id}"):
            raise over("it has ended")
        raise Refusal(
            f"there is no rollout {endpoint_id[:200]!r}\n"
            "hint: use the endpoint's base_url as it is",
            code="unknown_rollout",
        )

    def _show_key(self) -> None:
        """Write the key where only its owner reads it."""
        if self._key_file is None:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        descriptor = os.open(self._key_file, flags, stat.S_IRUSR | stat.S_IWUSR)
        with os.fdopen(descriptor, "w") as file:
            if sys.platform != "win32":
                os.fchmod(file.fileno(), stat.S_IRUSR | stat.S_IWUSR)  # one that was there
            file.write(self.key + "\n")


def _ends(session: Session) -> Any:
    async def end() -> None:
        session.end("the gateway has stopped")

    return end
