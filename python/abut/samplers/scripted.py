"""Samplers that answer by a script: with ids for tests and benchmarks, or with replies in words."""

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
"""A text, or `{"content": …, "tool_calls": [{"name": …, "arguments": {…}}]}` with one of the two
keys or both."""
Replies: TypeAlias = Sequence[Reply] | Callable[[Sequence[Message], int], Reply]
# So that no limit has to be set: a script ends by itself, or by `max_turns`.
_MOST_TOKENS = 2**20


class ScriptedReplies:
    """Replies in words: the chat template writes each, and its stop token.

    The tokens are those of a policy that is sure of them, each with logprob 0.

    Args:
        replies: one for each turn, the same list for every rollout; or a function that gets the
            messages so far and the number of the turn, from 0, on the loop of the batch, and may be
            asynchronous.
    """

    max_context_tokens = _MOST_TOKENS

    def __init__(self, replies: Replies) -> None:
        if isinstance(replies, str) or not (callable(replies) or isinstance(replies, Sequence)):
            raise TypeError(
                f"ScriptedReplies({replies!r}): expected a list of replies, or a function "
                "(messages, turn) -> reply\n"
                'hint: ScriptedReplies(["first turn", "second turn"])'
            )
        self._replies = replies

    async def sample(self, request: SampleRequest) -> Sample:
        """Answer with the reply of this turn, cut at `max_tokens`.

        Raises:
            SamplerError: the list is too short, a reply is none, or no template can write it.
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
                f"{request.where}: ScriptedReplies has {len(replies)} replies, none for turn {turn}"
                "\nhint: write one more, end the episode sooner, or set RolloutConfig(max_turns=…)"
            )
        return replies[turn]


def message_of(reply: Any, where: str) -> Message:
    """Return a reply as a message of the policy.

    Raises:
        SamplerError: it is none; names the turn.
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
            f"{where}: {reply!r} is no reply\n"
            'hint: a text, or {"content": …, "tool_calls": [{"name": …, "arguments": {…}}]}'
        ) from None
    functions = [{"function": {"name": name, "arguments": args}} for name, args in called]
    return {"role": "assistant", "content": content, "tool_calls": functions}


def _falling(index: int) -> float:
    return -0.5 - index / 64


class ScriptedSampler:
    """A sampler that answers by a script, for tests and benchmarks.

    Args:
        script: gives the ids for a request; cut at `max_tokens`.
        logprob: gives the logprob of the token at an index of the sample, in nats.
        delay_s: gives the seconds that the answer takes.
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
        """Answer by the script."""
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
