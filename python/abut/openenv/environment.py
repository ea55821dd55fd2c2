"""`OpenEnv`: environments on OpenEnv servers, lent one by one.

Invariant: an episode is played on one session from reset to end. Where the session breaks, the
episode ends with an `EnvError`, and the engine plays it again, whole, on another one.
"""

import asyncio
import json
import logging
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeAlias, TypeVar
from urllib.parse import urlsplit

from abut.env import Reply
from abut.errors import EnvError, InvalidAction
from abut.openenv.episode import OpenEnvEpisode
from abut.openenv.http import http_get
from abut.openenv.loop import LoopThread
from abut.openenv.pool import Limits, Pool
from abut.openenv.target import Host, Target, hosts_of
from abut.openenv.text import Act, Observe, act_by_schema, observe_by_schema
from abut.openenv.wire import Observation
from abut.rollout import RolloutTask
from abut.threads import DaemonThreads

T = TypeVar("T")

logger = logging.getLogger(__name__)

ResetKwargs: TypeAlias = Mapping[str, Any] | Callable[[Mapping[str, Any]], Mapping[str, Any]]

_REMEMBERED_GROUPS = 1024
_CLOSE_S = 5.0
_SCHEMA_S = 30.0


@dataclass(frozen=True)
class Texts:
    """How observations and actions become text, with nothing left open."""

    observe: Observe
    act: Act
    history: Literal["auto", "repeated", "new"]
    """"auto": cut off what is repeated, where it is."""


class OpenEnv:
    """Environments on servers that speak OpenEnv's protocol: a pool for `make_rollout_func`.

    Sessions are made as they are needed and kept for the next episode; nothing is started or
    connected before the first is lent.

    Args:
        target: where the servers are: an address `http://…`, `serve:package.server.app:app`,
            `hf:org/space`, `docker:image`, a `Serve` or `Docker` with settings, or a list of these.
        observe: the text, or the messages, that the policy gets for an observation: a dict of its
            fields, with `reward` and `done`. None: decided by the server's schema.
        act: the action, or the actions, in a text of the policy; `InvalidAction` where there is
            none. None: decided by the server's schema.
        history: whether each observation repeats all before it ("repeated": the policy gets only
            what is new) or not ("new"). "auto": repeated where `observe` is None, the observation
            has `messages`, and their text does begin with the one before.
        reset: what `reset` is sent besides the seed; or a function that makes it of the row's
            columns.
        tasks: what `reset` is sent too, one of them for each group, in turn.
        reward: takes the reward from an observation; None: its `reward`.
        on_invalid: an action that cannot be taken is the policy's fault: "tell" it what is wrong
            and go on, or "end" the episode.
        invalid_reward: the reward after such an action.
        max_sessions: sessions on one server at most; None: as many as it gives.
        reuse_sessions: whether a session is reset for the next episode, or made anew.
        headers: HTTP headers for the servers, such as `{"Authorization": "Bearer …"}`.
        connect_timeout_s: how long a server is tried that cannot be reached, or whose sessions
            others have.
        session_timeout_s: how long making an environment may take on the server.
        idle_timeout_s: after which an unused session is closed, for others.
        max_message_bytes: of a reply.

    Raises:
        TypeError: `target` is no target, or `tasks` no mappings.
        ValueError: an address or a setting is wrong.
    """

    def __init__(
        self,
        target: Target | Sequence[Target],
        *,
        observe: Observe | None = None,
        act: Act | None = None,
        history: Literal["auto", "repeated", "new"] = "auto",
        reset: ResetKwargs | None = None,
        tasks: Sequence[Mapping[str, Any]] = (),
        reward: Callable[[Observation], float | None] | None = None,
        on_invalid: Literal["tell", "end"] = "tell",
        invalid_reward: float | None = 0.0,
        max_sessions: int | None = None,
        reuse_sessions: bool = True,
        headers: Mapping[str, str] | None = None,
        connect_timeout_s: float = 60,
        session_timeout_s: float = 300,
        idle_timeout_s: float = 300,
        max_message_bytes: int = 16 * 2**20,
    ) -> None:
        _check("history", history, history in ("auto", "repeated", "new"), "auto, repeated or new")
        _check("on_invalid", on_invalid, on_invalid in ("tell", "end"), "tell or end")
        few = max_sessions is not None and max_sessions < 1
        _check("max_sessions", max_sessions, not few, "at least 1, or None")
        hosts = hosts_of(target)
        self.on_invalid = on_invalid
        self.invalid_reward = invalid_reward
        self.reuse_sessions = reuse_sessions
        self.reward = reward
        self._given = (observe, act)
        self._history = history
        self._reset = reset
        self._tasks = [dict(task) for task in tasks]
        self._headers = dict(headers or {})
        self._texts: Texts | None = None
        self._texts_lock = asyncio.Lock()
        self._first: OrderedDict[int, Reply] = OrderedDict()
        self._warned = False
        self.pool = Pool(
            hosts,
            Limits(connect_timeout_s, session_timeout_s, idle_timeout_s, max_message_bytes),
            max_sessions=max_sessions,
            headers=self._headers,
        )
        self._loop = LoopThread("abut-openenv")
        self._end = weakref.finalize(self, _end, self.pool, self._loop, hosts)

    async def lend(self, task: RolloutTask) -> OpenEnvEpisode:
        """Wait for a session; the episode's `close` gives it back.

        Raises:
            EnvError: no session can be had.
        """
        task_kwargs = self._tasks[task.group % len(self._tasks)] if self._tasks else {}
        more = self._reset(task.columns) if callable(self._reset) else self._reset or {}
        kwargs = {"seed": task.episode_seed, **task_kwargs, **more}
        episode = OpenEnvEpisode(self, kwargs, group=task.episode_seed)
        try:
            await self.call(episode.open())
        except BaseException:
            episode.close()
            raise
        return episode

    def list_tools(self) -> list[dict[str, Any]]:
        """The tools of an MCP environment as JSON schemas, for `ChatTemplateProcessor(tools=…)`.

        Raises:
            EnvError: no session can be had, or the environment has no tools.
        """
        return self._submit(self._list_tools()).result()

    def close(self) -> None:
        """Close the sessions and end the servers that were started; also done at exit."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop of the sockets.

        Raises:
            EnvError: this was closed meanwhile.
        """
        future = self._submit(coroutine)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if future.cancelled() and task is not None and not task.cancelling():
                raise EnvError("the OpenEnv was closed during an episode") from None
            raise

    def give_back(self, episode: OpenEnvEpisode) -> None:
        """Take back what an episode holds; does not wait."""
        with suppress(RuntimeError):  # closed, and every session with it
            self._loop.submit(episode.give_back())

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
        first = self._first.setdefault(group, reply)
        if len(self._first) > _REMEMBERED_GROUPS:
            self._first.popitem(last=False)
        if first != reply and not self._warned:
            self._warned = True
            logger.warning(
                "the rollouts of one group began with different observations, %.80r and %.80r: the "
                "environment does not follow the seed, so different tasks are compared\n"
                "hint: send what selects the task, with reset= or tasks=",
                first,
                reply,
            )

    def _submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        try:
            return self._loop.submit(coroutine)
        except RuntimeError:
            raise EnvError("this OpenEnv is closed\nhint: make a new one") from None

    async def _ask_for_texts(self, url: str) -> Texts:
        observe, act = self._given
        repeats = self._history == "repeated"
        if observe is None or act is None:
            schema = await _schema(url, self._headers)
            if observe is None:
                observe, repeats = observe_by_schema(schema, url)
            act = act or act_by_schema(schema, url)
        history = self._history
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
            self.pool.give_back(session, keep=self.reuse_sessions)
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


def _end(pool: Pool, loop: LoopThread, hosts: Sequence[Host]) -> None:
    if loop.current:  # collected on its own thread, which cannot wait for itself
        threading.Thread(target=_end, args=(pool, loop, hosts), daemon=True).start()
        return
    with suppress(TimeoutError):
        loop.submit(pool.close()).result(_CLOSE_S)
    loop.close(_CLOSE_S)
    for host in hosts:
        host.close()


def _check(name: str, value: Any, holds: bool, allowed: str) -> None:
    if not holds:
        raise ValueError(f"OpenEnv({name}={value!r}): must be {allowed}")
