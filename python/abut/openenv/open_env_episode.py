"""One episode on one session, and what all episodes of an `OpenEnv` share.

A session whose request was cut off is not in order, so giving it back closes it: whatever the
server still answers reaches nobody. An episode is played on the loop of the sockets, and everything
that touches a session runs there. The user's functions run on threads: on the loop, which all
episodes share, a slow one would hold up all others.
"""

import asyncio
import functools
import json
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Self, TypeAlias
from urllib.parse import urlsplit

from abut.address import RedirectError, said
from abut.concurrency.lending import Loan, PoolLoop
from abut.concurrency.threads import THREADS
from abut.envs.env import LoopBound, Reply
from abut.errors import EnvError, InvalidAction
from abut.http import http_get
from abut.messages import Message
from abut.notices import Once
from abut.openenv.session_pool import SessionPool
from abut.openenv.text import (
    Act,
    Observe,
    Texts,
    act_by_schema,
    observe_by_schema,
    sees_observation,
)
from abut.openenv.wire import Observation, Session, ToldError

logger = logging.getLogger(__name__)

_REMEMBERED_GROUPS, _SHOWN = 1024, 80
_SCHEMA_S = 30.0


@dataclass(frozen=True)
class EpisodeRules:
    """The settings of an `OpenEnv` that its episodes follow."""

    observe: Observe | None
    act: Act | None
    history: Literal["auto", "repeated", "new"]
    reward: Callable[[Observation], float | None] | None
    on_invalid: Literal["tell", "end"]
    on_error: Literal["tell", "fail"]
    invalid_reward: float | None


class EpisodeContext:
    """The sessions of one `OpenEnv`, their loop, and the texts that its servers decided."""

    def __init__(self, pool: SessionPool, rules: EpisodeRules, max_message_bytes: int) -> None:
        self.pool = pool
        self.rules = rules
        self.loop = PoolLoop("OpenEnv")
        self._max_message_bytes = max_message_bytes
        self._texts: Texts | None = None
        self._texts_lock = asyncio.Lock()
        self._first_replies: OrderedDict[int, tuple[int, str]] = OrderedDict()
        self._once = Once(logger)

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
        """Warn, once, if the rollouts of a group begin with different observations."""
        text = repr(reply)
        shown = (hash(text), text[:_SHOWN])  # replies may be large
        first = self._first_replies.setdefault(group, shown)
        if len(self._first_replies) > _REMEMBERED_GROUPS:
            self._first_replies.popitem(last=False)
        if first != shown:
            self._once.warn(
                "seed",
                "the rollouts of one group began with different observations, %s and %s, so the "
                "group's rewards compare different tasks: the environment ignores the seed\n"
                "hint: choose the task with reset= or tasks=",
                first[1],
                shown[1],
            )

    async def list_tools(self) -> list[dict[str, Any]]:
        """See `OpenEnv.list_tools`."""
        session = await self.pool.lend()
        try:
            observation = await session.step({"type": "list_tools"})
        except InvalidAction as error:
            raise EnvError(f"{session.url} did not list any tools: {error}") from error
        finally:
            self.pool.give_back(session)
        tools = observation.get("tools")
        if not tools or not isinstance(tools, list):
            raise EnvError(f"{session.url} did not list any tools: {observation.get('metadata')}")
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
            f"{url} does not describe the environment, {said(error)}\nhint: pass observe= and act="
        ) from error


logger = logging.getLogger(__name__)

MakeKwargs: TypeAlias = Callable[[], Awaitable[Mapping[str, Any]]]


class OpenEnvEpisode(Loan[Session], LoopBound):
    """An `AsyncEnv`, lent by `OpenEnv`. A turn has the reward of its last action."""

    loop: PoolLoop

    def __init__(
        self, context: EpisodeContext, make_kwargs: MakeKwargs, *, group: int, question: str = ""
    ) -> None:
        super().__init__(context.pool, context.loop)
        self.reward: float | None = None
        self.alive = False
        self._context = context
        self._make_kwargs = make_kwargs
        self._group = group
        self._question = question
        self._observation: Observation = {}
        self._texts: Texts | None = None
        self._text_before = ""
        self._repeats = True

    async def open(self) -> None:
        """Wait for a session; on the loop of the sockets."""
        await super().open()
        if self.item is not None:
            self._texts = await self._context.texts(self.item)

    async def reset(self, seed: str) -> tuple[Self, Reply]:
        """Begin; the seed that the server is sent is the one that this was lent with."""
        return self, await self.loop.call(self._first_reply)

    async def step(self, action: str) -> tuple[Self, Reply]:
        """Send the actions in a string one after the other, until one ends the episode."""
        return self, await self.loop.call(lambda: self._next_reply(action))

    async def _first_reply(self) -> Reply:
        reply = await self._reply(await self._begin(await self._make_kwargs()))
        if not self.alive:
            raise EnvError(
                f"{self._on_session().url}: the environment was done right after reset\n"
                "hint: check what reset= and tasks= send; some servers end the episode at once if "
                "the task does not exist"
            )
        self._context.compare(self._group, reply)
        # An environment of tools says nothing at reset. Without the prompt's text the policy would
        # begin on an empty user turn.
        return reply or self._question

    async def _next_reply(self, action: str) -> Reply:
        replies: list[Reply] = []
        try:
            frames = await self._frames(action)
            self.alive = bool(frames)  # a text without any is the policy's last word
            for frame in frames:
                tell = self._context.rules.on_error == "tell"
                observation = await self._on_session().step(frame, tell_errors=tell)
                replies.append(await self._reply(observation))
                if not self.alive:
                    break
        except InvalidAction as error:
            on_invalid = self._context.rules.on_invalid
            self.alive = isinstance(error, ToldError) or on_invalid == "tell"
            self.reward = self._context.rules.invalid_reward
            replies.append(str(error))
        return replies[0] if len(replies) == 1 else _messages_of(replies)

    async def _begin(self, kwargs: Mapping[str, Any]) -> Observation:
        session = self._on_session()
        try:
            return await session.reset(kwargs)
        except EnvError as error:
            if session.episodes == 1:
                raise
            # No episode has begun yet, so this costs none: idle sessions are reaped without
            # notice, and some environments can be reset only once.
            logger.info("a used session cannot be reset, so abut opens a new one: %s", error)
            self.item = None
            self.item = await self._context.pool.renew(session)
            return await self.item.reset(kwargs)

    async def _frames(self, action: str) -> Sequence[Mapping[str, Any]]:
        assert self._texts is not None
        act: Callable[..., Any] = self._texts.act
        if self._context.rules.act is None:
            frames = act(action)
        elif self._texts.act_sees:
            frames = await THREADS.ask(partial(act, action, self._observation))
        else:
            frames = await THREADS.ask(partial(act, action))
        if isinstance(frames, Mapping):
            return [frames]
        if not isinstance(frames, Sequence) or not all(isinstance(f, Mapping) for f in frames):
            raise EnvError(
                f"act must return a dict or a list of dicts, got {type(frames).__name__}: "
                f"{str(frames)[:80]!r}\nhint: if the text has no action, raise abut.InvalidAction"
            )
        return frames

    async def _reply(self, observation: Observation) -> Reply:
        assert self._texts is not None
        rules, observe = self._context.rules, self._texts.observe
        self._observation = observation
        self.reward = observation["reward"]
        if rules.reward is not None:
            self.reward = await THREADS.ask(partial(rules.reward, observation))
        self.alive = not observation["done"]
        if rules.observe is None:
            reply = observe(observation)
        else:
            reply = await THREADS.ask(partial(observe, observation))
        return self._unseen(reply) if isinstance(reply, str) else reply

    def _unseen(self, text: str) -> str:
        """Return the part of a string that was not in the one before."""
        assert self._texts is not None
        if self._texts.history == "new" or not self._repeats:
            return text
        before, self._text_before = self._text_before, text
        if text.startswith(before):
            return text[len(before) :].strip()
        if self._texts.history == "repeated":
            raise EnvError(
                "history='repeated' needs observations that begin with the previous one, but after "
                f"{before[:80]!r} came {text[:80]!r}\nhint: history='new'"
            )
        # For good: texts that are new each time may be the same twice.
        self._repeats = False
        return text

    def _on_session(self) -> Session:
        if self.item is None:
            raise EnvError(
                "the episode has no session, because it was closed or its server did not open one"
            )
        return self.item


def _messages_of(replies: Sequence[Reply]) -> list[Message]:
    messages: list[Message] = []
    for reply in replies:
        messages += [{"role": "user", "content": reply}] if isinstance(reply, str) else reply
    return messages
