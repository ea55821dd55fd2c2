"""A fleet of servers of the same model: chooses a server for each request, and another if it fails.

Invariant: a request gets at most one answer, so it may be sent again, and a row never gets two
samples for one turn.
"""

import asyncio
import logging
import time
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, Self, TypeAlias

from abut.address import Address
from abut.errors import SamplerError
from abut.samplers.fleet_server import FleetServer, Refused, Unavailable, open_session

logger = logging.getLogger(__name__)

OnRestart: TypeAlias = Literal["resume", "raise"]

# How often a server that has work is asked for its health, and how many misses mean that it hangs.
_WATCH_S = 10.0
_MISSED_WATCHES = 3
# The request itself may cause an internal error, so it is not sent for ever.
_INTERNAL_ERRORS = 3


class Fleet:
    """A session with some servers, within one event loop: use it with `async with`.

    Args:
        addresses: of the servers.
        check: checks a server before its first request of a batch, and again after it failed.
        headers: sent with each request.
        give_up_s: how many seconds all servers may be unavailable; `math.inf` leaves that to the
            caller.
        check_s: how many seconds a check may take; None: `give_up_s`.
        on_restart: "raise": raise an error if a server that was available refuses connections.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        check: Callable[[FleetServer], Awaitable[None]],
        *,
        headers: Mapping[str, str],
        give_up_s: float,
        check_s: float | None = None,
        on_restart: OnRestart,
    ) -> None:
        self._servers = [FleetServer(each.url, each.headers) for each in addresses]
        self._check = check
        self._headers = dict(headers)
        self._give_up_s = give_up_s
        self._check_s = give_up_s if check_s is None else check_s
        self._on_restart = on_restart
        self._homes: dict[str, FleetServer] = {}
        self._session: Any = None
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Open the session and wait until a server is available."""
        for server in self._servers:
            server.forget()
        self._session = open_session(self._headers)
        self._watch = asyncio.create_task(self._watch_all())
        try:
            while not any(await self._all_well()):
                await self._wait()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close the session."""
        session, self._session = self._session, None
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
            self._watch = None
        for server in self._homes.values():
            server.rollouts = 0
        self._homes.clear()
        await session.close()

    async def ask(
        self, rollout_id: str, path: str, body: bytes, *, tokens: int
    ) -> tuple[FleetServer, bytes]:
        """POST a JSON body; return the server that answered, and its answer.

        All requests of a rollout go to one server while it is available, because that server has
        the rollout's prefix in its cache.

        Raises:
            Refused: the answer would be the same next time.
            SamplerError: no server has been available for `give_up_s`.
        """
        if self._session is None:
            raise SamplerError(
                "the sampler is not open\n"
                "hint: use `async with sampler:`; the engine opens the sampler for each batch "
                "itself"
            )
        stale = internal = 0
        while True:
            server = self._pick(rollout_id)
            if server is None:
                await self._wait()
                continue
            if not await self._is_well(server):
                continue
            try:
                content = await self.send(server, path, body, tokens=tokens)
            except Unavailable as error:
                if error.stale and not stale:
                    stale += 1  # the server had closed an idle connection, so a new one is tried
                    continue
                internal += error.internal
                if internal == _INTERNAL_ERRORS:
                    raise SamplerError(f"the server at {server.url} {error.trouble}") from error
                self._note(server, error)
                continue
            server.answered()
            return server, content

    def troubles(self) -> str:
        """Return a line with the reasons for each server that has failed since it last answered."""
        failed = (server for server in self._servers if server.troubles)
        return "\n".join(f"  {each.url} {', then '.join(each.troubles)}" for each in failed)

    def forget(self, rollout_id: str) -> None:
        """Note that a rollout has ended, so its server has one rollout fewer."""
        home = self._homes.pop(rollout_id, None)
        if home is not None:
            home.rollouts -= 1

    async def send(
        self, server: FleetServer, path: str, body: bytes | None = None, *, tokens: int = 0
    ) -> bytes:
        """Send one request to one server, once; see `FleetServer.send`."""
        return await server.send(self._session, path, body, tokens=tokens)

    def _pick(self, rollout_id: str) -> FleetServer | None:
        """Return the rollout's server, or another while that server rests; None while all rest."""
        now = time.monotonic()
        home = self._homes.get(rollout_id)
        if home is not None and home.rests_until <= now:
            return home
        awake = [server for server in self._servers if server.rests_until <= now]
        if not awake:
            return None

        def order(server: FleetServer) -> tuple[int, int]:
            # Equals are chosen by a hash: many ranks may share the servers, and all would take the
            # first one.
            return server.rollouts, zlib.crc32(f"{rollout_id} {server.url}".encode())

        server = min(awake, key=order)
        if home is not None:
            home.rollouts -= 1
        server.rollouts += 1
        self._homes[rollout_id] = server
        return server

    async def _wait(self) -> None:
        """Wait until a server may be asked again.

        Raises:
            SamplerError: no server has been available for `give_up_s`.
        """
        now = time.monotonic()
        down = [now - server.down_since for server in self._servers if server.down_since]
        if len(down) == len(self._servers) and min(down) >= self._give_up_s:
            raise SamplerError(
                f"no server has answered for give_up_s={self._give_up_s:g}:\n{self.troubles()}\n"
                "hint: check that the server is running and that this is its address; a server "
                "that is ready answers GET /health with 200"
            )
        wakes = min(server.rests_until for server in self._servers)
        await asyncio.sleep(max(0.0, wakes - now))

    async def _all_well(self) -> list[bool]:
        """Check all servers at once; raise the error of a wrong one when all have answered."""
        found = await asyncio.gather(*map(self._is_well, self._servers), return_exceptions=True)
        wrong = [one for one in found if isinstance(one, BaseException)]
        if wrong:
            raise wrong[0]
        return [one is True for one in found]

    async def _is_well(self, server: FleetServer) -> bool:
        """Return whether a server is available; a batch's first request checks, others wait."""
        if server.checked:
            return True
        async with server.checking:
            if server.checked or server.rests_until > time.monotonic():
                return server.checked
            try:
                async with asyncio.timeout(self._check_s):
                    await self._check(server)
            except TimeoutError:
                self._note(server, Unavailable(f"does not answer within {self._check_s:g} s"))
                return False
            except Unavailable as error:
                self._note(server, error)
                return False
            if server.gone:
                logger.warning(
                    "the server at %s has restarted and has the weights it was started with, not "
                    "the trainer's",
                    server.url,
                )
            server.checked, server.ever_checked, server.gone = True, True, False
            server.answered()
            return True

    def _note(self, server: FleetServer, error: Unavailable) -> None:
        if server.rests_until > time.monotonic():
            return  # another request has noted it
        server.failed(error)
        if server.gone and self._on_restart == "raise":
            raise SamplerError(
                f"the server at {server.url} is down: it refuses connections\n"
                "hint: after a restart, a server has the weights it was started with, not the "
                "trainer's; restart both the server and training from the last checkpoint"
            )

    async def _watch_all(self) -> None:
        await asyncio.gather(*map(self._watch_one, self._servers))

    async def _watch_one(self, server: FleetServer) -> None:
        """Fail the requests to a server that hangs, which its connections alone would not show."""
        missed = 0
        while True:
            await asyncio.sleep(_WATCH_S)
            waiting = set(server.clocks)
            if not waiting:
                missed = 0
                continue
            try:
                async with asyncio.timeout(_WATCH_S):
                    with suppress(Refused):  # it answers, even if it refuses this path
                        await self.send(server, "/health")
                missed = 0
            except (TimeoutError, Unavailable):
                missed += 1
            if missed == _MISSED_WATCHES:
                missed = 0
                for clock in waiting & server.clocks:
                    clock.reschedule(asyncio.get_running_loop().time())
