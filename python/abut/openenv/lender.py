"""What the episodes of one `OpenEnv` share: its sessions, the loop they live on, its settings.

Everything that touches a socket runs on that one loop; `call` crosses over to it. What the user
wrote runs on threads; `on_thread` crosses over to them.
"""

import asyncio
import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

from abut.env import Reply
from abut.errors import EnvError, InvalidAction
from abut.openenv.episode import MakeKwargs, OpenEnvEpisode
from abut.openenv.http import http_get
from abut.openenv.pool import Pool
from abut.openenv.target import Host
from abut.openenv.text import Act, Observe, Texts, act_by_schema, observe_by_schema
from abut.openenv.wire import Observation
from abut.threads import DaemonLoop, DaemonThreads, Mailbox, SharedThreads, is_cancelled

T = TypeVar("T")

logger = logging.getLogger(__name__)

_REMEMBERED_GROUPS, _SHOWN = 1024, 80
_CLOSE_S = 5.0
_SCHEMA_S = 30.0


@dataclass(frozen=True)
class Rules:
    """How episodes are played; see `OpenEnv`."""

    observe: Observe | None
    act: Act | None
    history: Literal["auto", "repeated", "new"]
    reward: Callable[[Observation], float | None] | None
    on_invalid: Literal["tell", "end"]
    invalid_reward: float | None
    reuse_sessions: bool


class Lender:
    """Lends episodes on the sessions of a pool."""

    def __init__(
        self, hosts: Sequence[Host], pool: Pool, rules: Rules, headers: Mapping[str, str]
    ) -> None:
        self.pool = pool
        self.rules = rules
        self.threads = SharedThreads("abut-openenv-user")
        self._hosts = hosts
        self._headers = headers
        self._lock = threading.Lock()
        self._loop: DaemonLoop | None = DaemonLoop("abut-openenv")
        self._texts: Texts | None = None
        self._texts_lock = asyncio.Lock()
        self._first: OrderedDict[int, tuple[int, str]] = OrderedDict()
        self._warned = False

    async def lend(self, make_kwargs: MakeKwargs, *, group: int) -> OpenEnvEpisode:
        """Wait for a session; the episode's `close` gives it back.

        Raises:
            EnvError: no session can be had.
        """
        episode = OpenEnvEpisode(self, make_kwargs, group=group)
        try:
            await self.call(episode.open)
        except BaseException:
            episode.close()
            raise
        return episode

    def list_tools(self) -> list[dict[str, Any]]:
        """The tools of an MCP environment as JSON schemas.

        Raises:
            EnvError: no session can be had, or the environment has no tools.
        """
        return self._on_loop(lambda loop: loop.submit(self._list_tools)).result()

    def close(self) -> None:
        """End the sessions, the loop, and the servers that were started."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is None:
            return
        if loop.is_current:  # collected on its own thread, which cannot wait for itself
            threading.Thread(target=self._end, args=(loop,), daemon=True).start()
        else:
            self._end(loop)

    async def call(self, call: Callable[[], Awaitable[T]]) -> T:
        """Run what `call` makes on the loop of the sockets.

        Raises:
            EnvError: this was closed, before or meanwhile.
        """
        mailbox = Mailbox(asyncio.get_running_loop())
        try:
            return await self._on_loop(lambda loop: loop.ask(call, mailbox))
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            raise EnvError("the OpenEnv was closed during an episode") from None

    async def on_thread(self, function: Callable[..., T], *args: Any) -> T:
        """Run a function of the user's, without holding up the loop of who waits for it."""
        threads = self.threads.enter()
        try:
            return await threads.ask(lambda: function(*args), Mailbox(asyncio.get_running_loop()))
        finally:
            self.threads.leave()

    def give_back(self, episode: OpenEnvEpisode) -> None:
        """Take back what an episode holds; does not wait."""
        with suppress(EnvError):  # closed, and every session with it
            self._on_loop(lambda loop: loop.submit(episode.give_back))

    async def texts(self, url: str) -> Texts:
        """The functions for texts; asks the server at `url` the first time, if it must.

        Raises:
            EnvError: the server's schema does not decide them.
        """
        async with self._texts_lock:
            if self._texts is None:
                self._texts = await self._ask_for_texts(url)
            return self._texts

    def compare(self, group: int, reply: Reply) -> None:
        """Warn, once, where the rollouts of a group begin with different observations."""
        text = repr(reply)
        shown = (hash(text), text[:_SHOWN])  # replies may be large
        first = self._first.setdefault(group, shown)
        if len(self._first) > _REMEMBERED_GROUPS:
            self._first.popitem(last=False)
        if first != shown and not self._warned:
            self._warned = True
            logger.warning(
                "the rollouts of one group began with different observations, %s and %s: the "
                "environment does not follow the seed, so different tasks are compared\n"
                "hint: send what selects the task, with reset= or tasks=",
                first[1],
                shown[1],
            )

    def _on_loop(self, use: Callable[[DaemonLoop], T]) -> T:
        with self._lock:  # what is given to the loop is there before `close` ends it
            if self._loop is None:
                raise EnvError("this OpenEnv is closed\nhint: make a new one")
            self._loop.open()
            return use(self._loop)

    def _end(self, loop: DaemonLoop) -> None:
        loop.open()
        with suppress(TimeoutError):
            loop.submit(self.pool.close).result(_CLOSE_S)
        loop.end(_CLOSE_S)
        for host in self._hosts:
            host.close()

    async def _ask_for_texts(self, url: str) -> Texts:
        observe, act, history = self.rules.observe, self.rules.act, self.rules.history
        repeats = history == "repeated"
        if observe is None or act is None:
            schema = await _schema(url, self._headers)
            if observe is None:
                observe, repeats = observe_by_schema(schema, url)
            act = act or act_by_schema(schema, url)
        if history == "auto" and not repeats:
            history = "new"
        return Texts(observe, act, history)

    async def _list_tools(self) -> list[dict[str, Any]]:
        session = await self.pool.lend()
        try:
            observation = await session.step({"type": "list_tools"})
        except InvalidAction as error:
            raise EnvError(f"{session.url} has no tools to list: {error}") from error
        finally:
            self.pool.give_back(session, keep=self.rules.reuse_sessions)
        tools = observation.get("tools")
        if not tools or not isinstance(tools, list):
            raise EnvError(f"{session.url} has no tools to list: {observation.get('metadata')}")
        return [
            {
                "type": "function",
                "function": {
                    "name": tool["name"],
                    "description": tool["description"],
                    "parameters": tool["input_schema"],
                },
            }
            for tool in tools
        ]


async def _schema(url: str, headers: Mapping[str, str]) -> Any:
    local = urlsplit(url).hostname in ("127.0.0.1", "localhost")
    threads = DaemonThreads("abut-openenv-schema")

    def get() -> Any:
        return json.loads(
            http_get(f"{url}/schema", local=local, timeout_s=_SCHEMA_S, headers=headers)
        )

    try:
        return await asyncio.wrap_future(threads.submit(get))
    except (OSError, ValueError) as error:
        raise EnvError(
            f"{url}/schema says nothing, {type(error).__name__}: {error}\n"
            "hint: pass observe= and act="
        ) from error
    finally:
        threads.close()
