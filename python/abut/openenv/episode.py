"""One episode on one session.

A session whose request was cut off is not in order, so giving it back closes it: whatever the
server still answers reaches nobody. What the user wrote runs on threads: on the loop, which all
episodes share, one that takes long would hold up all others.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from abut.env import Reply
from abut.errors import EnvError, InvalidAction
from abut.messages import Message
from abut.openenv.text import Texts
from abut.openenv.wire import Observation, Session

if TYPE_CHECKING:
    from abut.openenv.lender import Lender

logger = logging.getLogger(__name__)

MakeKwargs: TypeAlias = Callable[[], Awaitable[Mapping[str, Any]]]


class OpenEnvEpisode:
    """An `AsyncEnv`, lent by `OpenEnv`. The reward of a turn is that of its last action."""

    def __init__(self, lender: "Lender", make_kwargs: MakeKwargs, *, group: int) -> None:
        self.reward: float | None = None
        self.alive = False
        self._lender = lender
        self._make_kwargs = make_kwargs
        self._group = group
        self._session: Session | None = None
        self._texts: Texts | None = None
        self._closed = False
        self._seen = ""
        self._repeats = True
        lender.threads.enter()
        self._stay = ExitStack()
        self._stay.callback(lender.threads.leave)

    async def open(self) -> None:
        """Wait for a session. Runs on the loop of the sockets."""
        session = await self._lender.pool.lend()
        if self._closed:  # nobody waits any more
            self._lender.pool.give_back(session, keep=True)
            return
        self._session = session
        self._texts = await self._lender.texts(session.url)

    async def reset(self, seed: str) -> tuple[Self, Reply]:
        """Begin; the seed that the server is sent is the one that this was lent with."""
        kwargs = await self._make_kwargs()
        reply = await self._reply(await self._lender.call(lambda: self._begin(kwargs)))
        self._lender.compare(self._group, reply)
        return self, reply

    async def step(self, action: str) -> tuple[Self, Reply]:
        """Send the actions in a text one after the other, until one ends the episode."""
        replies: list[Reply] = []
        try:
            frames = await self._frames(action)
            self.alive = bool(frames)  # a text without any is the policy's last word
            for frame in frames:
                session = self._on_session()
                observation = await self._lender.call(partial(session.step, frame))
                replies.append(await self._reply(observation))
                if not self.alive:
                    break
        except InvalidAction as error:
            self.alive = self._lender.rules.on_invalid == "tell"
            self.reward = self._lender.rules.invalid_reward
            replies.append(str(error))
        return self, replies[0] if len(replies) == 1 else _together(replies)

    def close(self) -> None:
        """Give the session back; does not wait."""
        self._stay.close()
        self._lender.give_back(self)

    async def give_back(self) -> None:
        """Give the session back, on the loop of the sockets."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            self._lender.pool.give_back(session, keep=self._lender.rules.reuse_sessions)

    async def _begin(self, kwargs: Mapping[str, Any]) -> Observation:
        session = self._on_session()
        try:
            return await session.reset(kwargs)
        except EnvError as error:
            if session.episodes == 1:
                raise
            # No episode has begun yet, so this costs none: idle sessions are reaped without
            # notice, and some environments can be reset only once.
            logger.info(
                "a session that was used before cannot be reset, a new one is made: %s", error
            )
            self._session = None
            self._session = await self._lender.pool.renew(session)
            return await self._session.reset(kwargs)

    async def _frames(self, action: str) -> Sequence[Mapping[str, Any]]:
        assert self._texts is not None
        act = self._texts.act
        is_ours = self._lender.rules.act is None
        frames = act(action) if is_ours else await self._lender.on_thread(act, action)
        if isinstance(frames, Mapping):
            return [frames]
        if not isinstance(frames, Sequence) or not all(isinstance(f, Mapping) for f in frames):
            raise EnvError(
                f"act must return a dict or a list of dicts, got {type(frames).__name__}: "
                f"{str(frames)[:80]!r}\nhint: raise abut.InvalidAction where a text holds no action"
            )
        return frames

    async def _reply(self, observation: Observation) -> Reply:
        assert self._texts is not None
        lender, observe = self._lender, self._texts.observe
        take = lender.rules.reward
        self.reward = observation["reward"]
        if take is not None:
            self.reward = await lender.on_thread(take, observation)
        self.alive = not observation["done"]
        if lender.rules.observe is None:
            reply = observe(observation)
        else:
            reply = await lender.on_thread(observe, observation)
        return self._news(reply) if isinstance(reply, str) else reply

    def _news(self, text: str) -> str:
        """What of a text was not in the one before."""
        assert self._texts is not None
        if self._texts.history == "new" or not self._repeats:
            return text
        seen, self._seen = self._seen, text
        if text.startswith(seen):
            return text[len(seen) :].strip()
        if self._texts.history == "repeated":
            raise EnvError(
                "history='repeated', but an observation does not begin with the one before: "
                f"{seen[:80]!r} became {text[:80]!r}\nhint: history='new'"
            )
        # For good: texts that are new each time may be the same twice.
        self._repeats = False
        return text

    def _on_session(self) -> Session:
        if self._session is None:
            raise EnvError("the episode has no session: it was closed, or its server gave none")
        return self._session


def _together(replies: Sequence[Reply]) -> list[Message]:
    messages: list[Message] = []
    for reply in replies:
        messages += [{"role": "user", "content": reply}] if isinstance(reply, str) else reply
    return messages
