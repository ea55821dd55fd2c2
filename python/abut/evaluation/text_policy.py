"""A policy that answers with messages, as the engine plays it.

Invariant: nothing of such a rollout is trained, since nobody knows its tokens. The demo's chat
template writes each answer, only so that the engine, the tools and the gateway need not tell such a
policy from others, and those ids are dropped when the rollout has ended.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from abut.errors import SamplerError
from abut.messages import Message, images_of, texts_of, with_arguments
from abut.rollout.rollout import Rollout
from abut.samplers.hosted import TextSampler
from abut.samplers.sampler import Sample, SampleRequest
from abut.samplers.scripted import message_of

# More tokens than any conversation has: the host has limits, and there are none here.
_NO_LIMIT = 2**30
_A_LIMIT = 2**20


class TextPolicy:
    """A `TextSampler` as the engine asks it.

    Args:
        sampler: answers.
    """

    max_context_tokens = _NO_LIMIT

    def __init__(self, sampler: TextSampler) -> None:
        self._sampler = sampler
        self._usage: dict[str, dict[str, int]] = {}

    async def __aenter__(self) -> Self:
        """Enter the sampler, if it has to be."""
        if hasattr(self._sampler, "__aenter__"):
            await self._sampler.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        """Leave it."""
        if hasattr(self._sampler, "__aexit__"):
            await self._sampler.__aexit__(*error)

    async def sample(self, request: SampleRequest) -> Sample:
        """Return the ids of its answer, as the template writes it.

        Raises:
            SamplerError: the sampler raised it, or returned no message.
        """
        settings: dict[str, Any] = {"seed": request.seed}
        if request.max_tokens < _A_LIMIT:
            settings["max_tokens"] = request.max_tokens
        if request.stop:
            settings["stop"] = list(request.stop)
        messages = [_as_chat(message, request.where) for message in request.messages()]
        said = await self._sampler.reply(_with_call_ids(messages), request.tools, settings)
        if not isinstance(said, Mapping):
            raise SamplerError(
                f"{request.where}: {type(self._sampler).__name__}.reply returned "
                f"{type(said).__name__}, not a message"
            )
        self._note(request.rollout_id, said.get("usage") or {})
        assert request.ids_of is not None
        ids = request.ids_of(message_of(_as_reply(said), request.where))
        reason = "length" if said.get("finish_reason") == "length" else "stop"
        return Sample(ids, np.zeros(len(ids), np.float32), reason, in_words=True)  # type: ignore[arg-type]

    def _note(self, rollout_id: str, usage: Mapping[str, Any]) -> None:
        total = self._usage.setdefault(rollout_id, {})
        for name in ("prompt_tokens", "completion_tokens"):
            if isinstance(usage.get(name), int):
                total[name] = total.get(name, 0) + usage[name]

    def finish(self, rollout: Rollout) -> None:
        """Drop the ids of a rollout that has ended, and say which tokens it has cost."""
        rollout.columns, rollout.provenance, rollout.prompt_ids = None, (), None
        rollout.branches, rollout.images = (), ()
        attempts = [
            usage
            for id_, usage in self._usage.items()
            if id_ == rollout.rollout_id or id_.startswith(f"{rollout.rollout_id}.")
        ]
        names = {name for usage in attempts for name in usage}
        rollout.usage = {name: sum(u.get(name, 0) for u in attempts) for name in sorted(names)}


def _as_chat(message: Message, where: str) -> Message:
    """Return a message as a chat API takes it.

    Raises:
        SamplerError: it has an image.
    """
    content = message.get("content")
    if images_of(content):
        raise SamplerError(
            f"{where}: a message has an image, and a TextSampler gets text alone\n"
            "hint: sample with a vLLM server or a transformers model"
        )
    keys = ("role", "tool_calls", "tool_call_id", "reasoning_content")
    said = {key: message[key] for key in keys if message.get(key)}
    text = "\n".join(texts_of(message))
    return with_arguments({**said, "content": text}, "text")


def _with_call_ids(messages: Sequence[Message]) -> list[Message]:
    """Return the messages, with an id for each call and the same for its result.

    Templates need none, so environments give none.
    """
    told, waiting = [], []
    for number, message in enumerate(messages):
        if calls := message.get("tool_calls"):
            calls = [{"id": f"call_{number}_{k}", **call} for k, call in enumerate(calls)]
            waiting = [call["id"] for call in calls]
            message = {**message, "tool_calls": calls}
        elif message["role"] == "tool" and waiting:
            first, *waiting = waiting
            message = {"tool_call_id": first, **message}
        told.append(message)
    return told


def _as_reply(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message of a chat API as `message_of` takes it.

    A call whose arguments are no JSON object is text: a policy said it, and nobody can call it.
    """
    content, calls = said.get("content") or "", []
    for call in with_arguments(dict(said), "object").get("tool_calls") or ():
        function = call.get("function") or {}
        if isinstance(function.get("arguments"), dict):
            calls.append({"name": function.get("name"), "arguments": function["arguments"]})
        else:
            content += f"\n{json.dumps(function, ensure_ascii=False)}"
    return {"content": content or ("" if calls else " "), "tool_calls": calls}
