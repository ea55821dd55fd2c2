"""What the episodes of one `OpenEnv` share: its sessions, the loop they live on, its settings.

Everything that touches a session runs on that one loop.
"""

import asyncio
import functools
import json
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from abut.address import RedirectError, said
from abut.concurrency.pool_loop import PoolLoop
from abut.concurrency.threads import THREADS
from abut.envs.env import Reply
from abut.errors import EnvError, InvalidAction
from abut.http import http_get
from abut.openenv.session_pool import SessionPool
from abut.openenv.text import (
    Act,
    Observe,
    Texts,
    act_by_schema,
    observe_by_schema,
    sees_observation,
)
from abut.openenv.wire import Observation, Session

logger = logging.getLogger(__name__)

_REMEMBERED_GROUPS, _SHOWN = 1024, 80
_SCHEMA_S = 30.0


@dataclass(frozen=True)
class EpisodeRules:
    """How episodes are played; see `OpenEnv`."""

    observe: Observe | None
    act: Act | None
    history: Literal["auto", "repeated", "new"]
    reward: Callable[[Observation], float | None] | None
    on_invalid: Literal["tell", "end"]
    on_error: Literal["tell", "fail"]
    invalid_reward: float | None
    reuse_sessions: bool


class Shared:
    """The sessions, the loop they live on, and what was learned of the servers."""

    def __init__(self, pool: SessionPool, rules: EpisodeRules, max_message_bytes: int) -> None:
        self.pool = pool
        self.rules = rules
        self.loop = PoolLoop("OpenEnv")
        self._max_message_bytes = max_message_bytes
        self._texts: Texts | None = None
        self._texts_lock = asyncio.Lock()
        self._first_replies: OrderedDict[int, tuple[int, str]] = OrderedDict()
        self._warned = False

    def close(self) -> None:
        """End the sessions, the loop, and the servers that were started."""
        self.loop.close(self.pool.close, then=self.pool.end_servers)

    async def texts(self, session: Session) -> Texts:
        """The functions for texts; asks the session's server the first time, if it must.

        Raises:
            EnvError: the server's schema does not decide them.
        """
        async with self._texts_lock:
            if self._texts is None:
                self._texts = await self._ask_for_texts(session)
            return self._texts

    def compare(self, group: int, reply: Reply) -> None:
        """Warn, once, where the rollouts of a group begin with different observations."""
        text = repr(reply)
        shown = (hash(text), text[:_SHOWN])  # replies may be large
        first = self._first_replies.setdefault(group, shown)
        if len(self._first_replies) > _REMEMBERED_GROUPS:
            self._first_replies.popitem(last=False)
        if first != shown and not self._warned:
            self._warned = True
            logger.warning(
                "the rollouts of one group began with different observations, %s and %s: the "
                "environment does not follow the seed, so different tasks are compared\n"
                "hint: send what selects the task, with reset= or tasks=",
                first[1],
                shown[1],
            )

    async def list_tools(self) -> list[dict[str, Any]]:
        """See `OpenEnv.list_tools`."""
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

    async def _ask_for_texts(self, session: Session) -> Texts:
        observe, act, history = self.rules.observe, self.rules.act, self.rules.history
        repeats = history == "repeated"
        if observe is None or act is None:
            schema = await _schema(session, self._max_message_bytes)
            if observe is None:
                observe, repeats = observe_by_schema(schema, session.url)
            act = act or act_by_schema(schema, session.url)
        if history == "auto" and not repeats:
            history = "new"
        return Texts(observe, act, history, act_sees=sees_observation(act))


async def _schema(session: Session, max_message_bytes: int) -> Any:
    url = f"{session.url}/schema"
    get = functools.partial(
        http_get,
        url,
        local=urlsplit(url).hostname in ("127.0.0.1", "localhost"),
        timeout_s=_SCHEMA_S,
        max_message_bytes=max_message_bytes,
        headers=session.headers,
    )
    try:
        return await THREADS.ask(lambda: json.loads(get()))
    except RedirectError as error:
        raise EnvError(str(error)) from error
    except (OSError, ValueError) as error:
        raise EnvError(
            f"{url} says nothing, {said(error)}\nhint: pass observe= and act="
        ) from error
