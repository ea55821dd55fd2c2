"""An adapter that lets the engine play a policy which answers with messages instead of tokens.

Invariant: such a rollout is never trained, because its tokens are unknown. The demo's chat template
renders each answer to ids, only so that the engine, the tools and the gateway can treat all
policies alike. These ids are dropped when the rollout ends.
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

# More tokens than any conversation has, because only the host limits the tokens.
_NO_LIMIT = 2**30
_A_LIMIT = 2**20


class TextPolicy:
    """A sampler for the engine that gets its answers from a `TextSampler`.

    Args:
        sampler: gives the answers.
    """

    max_context_tokens = _NO_LIMIT

    def __init__(self, sampler: TextSampler) -> None:
        self._sampler = sampler
        self._usage: dict[str, dict[str, int]] = {}

    async def __aenter__(self) -> Self:
        """Enter the sampler, if it is a context manager."""
        if hasattr(self._sampler, "__aenter__"):
            await self._sampler.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        """Leave the sampler, if it is a context manager."""
        if hasattr(self._sampler, "__aexit__"):
            await self._sampler.__aexit__(*error)

    async def sample(self, request: SampleRequest) -> Sample:
        """Return the ids of the sampler's answer, as the template renders it.

        Raises:
            SamplerError: the sampler raised one, or did not return a message.
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
        # The id of an agent's attempt is that of its rollout, a dot and a number.
        self._note(request.rollout_id.partition(".")[0], said.get("usage") or {})
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
        """Drop the ids of a rollout that has ended, and set its `usage`, over all attempts.

        Its `turns` become those of all of its conversations, because a branch without ids is none.
        """
        for branch in rollout.branches:
            for turn in branch.turns:
                turn.message = None  # `messages` are those of the row
                rollout.turns.append(turn)
        rollout.columns, rollout.provenance, rollout.prompt_ids = None, (), None
        rollout.branches, rollout.images, rollout.seams = (), (), []
        rollout.usage = self._usage.pop(rollout.rollout_id, {})


def _as_chat(message: Message, where: str) -> Message:
    """Return a message in the form that a chat API accepts.

    Raises:
        SamplerError: the message has an image.
    """
    content = message.get("content")
    if images_of(content):
        raise SamplerError(
            f"{where}: a message has an image, and a TextSampler accepts only text\n"
            "hint: sample with a vLLM server or a transformers model"
        )
    keys = ("role", "tool_calls", "tool_call_id", "reasoning_content")
    said = {key: message[key] for key in keys if message.get(key)}
    text = "\n".join(texts_of(message))
    return with_arguments({**said, "content": text}, "text")


def _with_call_ids(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with an id for each tool call, and the same id for the call's result.

    A chat API requires these ids. Chat templates do not, so environments leave them out.
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
    """Return a chat API's message in the form that `message_of` accepts.

    A tool call whose arguments are not a JSON object cannot be run, so it becomes text.
    """
    content, calls = said.get("content") or "", []
    for call in with_arguments(dict(said), "object").get("tool_calls") or ():
        function = call.get("function") or {}
        if isinstance(function.get("arguments"), dict):
            calls.append({"name": function.get("name"), "arguments": function["arguments"]})
        else:
            content += f"\n{json.dumps(function, ensure_ascii=False)}"
    return {"content": content or ("" if calls else " "), "tool_calls": calls}
