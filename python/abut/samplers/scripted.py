"""Samplers that follow a script, given as ids (tests, benchmarks) or as text and tool calls."""

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from abut.errors import SamplerError, TemplateError
from abut.messages import Message
from abut.samplers.sampler import Sample, SampleRequest

Script: TypeAlias = Callable[[SampleRequest], Sequence[int]]


Reply: TypeAlias = str | Mapping[str, Any]
"""A string, or `{"content": …, "tool_calls": [{"name": …, "arguments": {…}}]}`; either key may be
left out."""
Replies: TypeAlias = Sequence[Reply] | Callable[[Sequence[Message], int], Reply]
# Large enough never to matter, because a script ends by itself or at `max_turns`.
_MOST_TOKENS = 2**20


class ScriptedReplies:
    """A sampler that plays your replies; the chat template renders each and adds the stop token.

    Each token has logprob 0, as if the policy had been certain of it.

    Args:
        replies: one for each turn, the same list for every rollout. Or a function of the messages
            so far and the number of the turn, from 0; it runs on the batch's event loop and may be
            asynchronous.
    """

    max_context_tokens = _MOST_TOKENS
    takes_images = True
    """A script needs no vision: environments with images can be tested like any other."""

    def __init__(self, replies: Replies) -> None:
        if isinstance(replies, str) or not (callable(replies) or isinstance(replies, Sequence)):
            raise TypeError(
                f"ScriptedReplies({replies!r}): expected a list of replies or a function "
                "(messages, turn) -> reply\n"
                'hint: ScriptedReplies(["first turn", "second turn"])'
            )
        self._replies = replies

    async def sample(self, request: SampleRequest) -> Sample:
        """Return the reply of this turn, truncated to `max_tokens`.

        Raises:
            SamplerError: the list is too short, the reply is invalid, or the template cannot render
                it.
        """
        message = message_of(await self._reply(request), request.where)
        try:
            assert request.ids_of is not None
            ids = request.ids_of(message)[: request.max_tokens]
        except TemplateError as error:
            raise SamplerError(f"{request.where}: {error}") from error
        stopped = len(ids) and int(ids[-1]) in request.stop_token_ids
        return Sample(ids, np.zeros(len(ids), np.float32), "stop" if stopped else "length")

    async def _reply(self, request: SampleRequest) -> Any:
        replies, turn = self._replies, request.turn
        if callable(replies):
            reply = replies(request.messages(), turn)
            return await reply if inspect.isawaitable(reply) else reply
        if turn >= len(replies):
            raise SamplerError(
                f"{request.where}: ScriptedReplies has {len(replies)} replies, so none for turn "
                f"{turn}\nhint: add a reply, end the episode sooner, or set "
                "RolloutConfig(max_turns=…)"
            )
        return replies[turn]


def message_of(reply: Any, where: str) -> Message:
    """Return a reply as an assistant message.

    Raises:
        SamplerError: the reply is invalid; the error names the turn.
    """
    if isinstance(reply, str):
        return {"role": "assistant", "content": reply}
    try:
        content, calls = reply.get("content"), reply.get("tool_calls") or ()
        called = [(call["name"], dict(call["arguments"])) for call in calls]
        if not isinstance(content, str | None) or not (content or called):
            raise ValueError
    except (AttributeError, KeyError, TypeError, ValueError):
        raise SamplerError(
            f"{where}: {reply!r} is not a reply\n"
            'hint: pass a string, or {"content": …, "tool_calls": [{"name": …, "arguments": {…}}]}'
        ) from None
    functions = [{"function": {"name": name, "arguments": args}} for name, args in called]
    return {"role": "assistant", "content": content, "tool_calls": functions}


def _falling(index: int) -> float:
    return -0.5 - index / 64


class ScriptedSampler:
    """A sampler whose ids come from a function, for tests and benchmarks.

    Args:
        script: returns the ids for a request; they are truncated to `max_tokens`.
        logprob: returns the logprob, in nats, of the token at an index of the sample.
        delay_s: returns how many seconds the answer takes.
    """

    def __init__(
        self,
        script: Script,
        *,
        logprob: Callable[[int], float] = _falling,
        delay_s: Callable[[SampleRequest], float] | None = None,
    ) -> None:
        self._script = script
        self._logprob = logprob
        self._delay_s = delay_s
        self.requests: list[SampleRequest] = []

    async def sample(self, request: SampleRequest) -> Sample:
        """Return the script's ids for this request."""
        self.requests.append(request)
        if self._delay_s is not None:
            await asyncio.sleep(self._delay_s(request))
        ids = list(self._script(request))[: request.max_tokens]
        stopped = bool(ids) and ids[-1] in request.stop_token_ids
        return Sample(
            np.asarray(ids, dtype=np.int64),
            np.asarray([self._logprob(index) for index in range(len(ids))], dtype=np.float32),
            "stop" if stopped else "length",
        )
