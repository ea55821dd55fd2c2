"""Images in each of four dialects: how a client shows one, and what a tool that shows one says."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch

from abut import ChatTemplateProcessor, Tokenizer
from abut.images import Image
from abut.samplers.sampler import Sample, SampleRequest
from abut.template import ImageProcessor
from tests.kit.clients.dialect_clients import (
    Client,
    GeminiClient,
    MessagesClient,
    ResponsesClient,
    send,
)
from tests.kit.clients.dialect_talks import GeminiTalk, MessagesTalk, ResponsesTalk
from tests.kit.stage.agents import LOOKUP
from tests.kit.stage.rollouts import Recording, Stage
from tests.kit.training.vision import FAMILIES, Family, model_of, own_logprobs


class Asks:
    """An endpoint in the place of a gateway, for the clients of dialects."""

    def __init__(self, endpoint: Any) -> None:
        self.key = endpoint.api_key
        self._endpoint = endpoint

    def endpoint(self, rollout: str) -> Any:
        """Return it."""
        return self._endpoint


class ChatClient(Client):
    """Asks for chat completions."""

    def post(self, messages: Any, **fields: Any) -> tuple[int, Any]:
        """Send messages; returns status and JSON, or events."""
        key = {"Authorization": f"Bearer {self.gateway.key}"}
        url = f"{self.gateway.endpoint(self.rollout).base_url}/chat/completions"
        return send(url, "", {**self.fields, "messages": messages, **fields}, **key)

    def ask(self, messages: Any, **fields: Any) -> dict[str, Any]:
        """One turn; returns the assistant's message."""
        status, answer = self.post(messages, **fields)
        assert status == 200, answer
        message: dict[str, Any] = answer["choices"][0]["message"]
        return message


class Shows(ABC):
    """How the clients of one dialect show images.

    Attributes:
        kind: of client.
        fields: tools.
        list_key: the list that grows with the conversation.
        user_path: of an image that is the second part of the first message.
        tool_path: of an image in the first result, in the third element.
    """

    kind: ClassVar[type[Client]]
    fields: ClassVar[dict[str, Any]]
    list_key: ClassVar[str] = "messages"
    user_path: ClassVar[str]
    tool_path: ClassVar[str]

    @staticmethod
    @abstractmethod
    def image(data: str, media_type: str = "image/png") -> dict[str, Any]:
        """The part for base64."""

    @staticmethod
    @abstractmethod
    def said(*parts: Any) -> dict[str, Any]:
        """What a user says: texts and parts."""

    @staticmethod
    @abstractmethod
    def answered(answer: Any, *found: Sequence[Any]) -> list[Any]:
        """An answer as it is sent back, and what its calls have found: texts and parts."""

    @staticmethod
    @abstractmethod
    def elsewhere() -> list[dict[str, Any]]:
        """Parts for images that are not in the body."""

    @staticmethod
    @abstractmethod
    def others() -> list[tuple[dict[str, Any], str]]:
        """Parts for other media, and a word of their refusal."""


def _parts(parts: Sequence[Any], kind: str = "text") -> list[Any]:
    return [{"type": kind, "text": one} if isinstance(one, str) else one for one in parts]


class ChatShows(Shows):
    kind = ChatClient
    fields: ClassVar[dict[str, Any]] = {"tools": [LOOKUP]}
    user_path = "messages[0].content[1].image_url"
    tool_path = "messages[2].content[1].image_url"

    @staticmethod
    def image(data: str, media_type: str = "image/png") -> dict[str, Any]:
        url = f"data:{media_type};base64,{data}"
        return {"type": "image_url", "image_url": {"url": url, "detail": "low"}}

    @staticmethod
    def said(*parts: Any) -> dict[str, Any]:
        return {"role": "user", "content": _parts(parts)}

    @staticmethod
    def answered(answer: Any, *found: Sequence[Any]) -> list[Any]:
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": _parts(parts)}
            for call, parts in zip(answer.get("tool_calls") or (), found, strict=True)
        ]
        return [answer, *results]

    @staticmethod
    def elsewhere() -> list[dict[str, Any]]:
        urls = ("https://example.com/a.png", "file:///etc/passwd", "HTTP://x", "a.png", "", None, 3)
        return [{"type": "image_url", "image_url": {"url": url}} for url in urls]

    @staticmethod
    def others() -> list[tuple[dict[str, Any], str]]:
        video = {"type": "image_url", "image_url": {"url": "data:video/mp4;base64,AAAA"}}
        return [
            ({"type": "video_url", "video_url": {"url": "data:,"}}, "video"),
            ({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, "audio"),
            ({"type": "file", "file": {"file_id": "a"}}, "file"),
            (video, "video"),
            ({"type": "image", "image": "abc"}, "an image"),
            ({"type": "hologram"}, "hologram"),
        ]


class MessagesShows(Shows):
    kind = MessagesClient
    fields: ClassVar[dict[str, Any]] = {"tools": MessagesTalk.fields["tools"]}
    user_path = "messages[0].content[1].source"
    tool_path = "messages[2].content[0].content[1].source"

    @staticmethod
    def image(data: str, media_type: str = "image/png") -> dict[str, Any]:
        source = {"type": "base64", "media_type": media_type, "data": data}
        return {"type": "image", "source": source}

    said = staticmethod(ChatShows.said)

    @staticmethod
    def answered(answer: Any, *found: Sequence[Any]) -> list[Any]:
        calls = [block for block in answer["content"] if block["type"] == "tool_use"]
        blocks = [
            {"type": "tool_result", "tool_use_id": call["id"], "content": _parts(parts)}
            for call, parts in zip(calls, found, strict=True)
        ]
        return [answer, *[{"role": "user", "content": blocks}] * bool(blocks)]

    @staticmethod
    def elsewhere() -> list[dict[str, Any]]:
        sources: list[Any] = [
            {"type": "url", "url": "https://example.com/a.png"},
            {"type": "file", "file_id": "file_1"},
            {},
            None,
        ]
        return [{"type": "image", "source": source} for source in sources]

    @staticmethod
    def others() -> list[tuple[dict[str, Any], str]]:
        source = {"type": "base64", "media_type": "application/pdf", "data": ""}
        return [
            ({"type": "document", "source": source}, "document"),
            ({"type": "image", "source": {**source, "media_type": "video/mp4"}}, "video"),
            ({"type": "video", "source": source}, "video"),
            ({"type": "audio"}, "audio"),
        ]


class ResponsesShows(Shows):
    kind = ResponsesClient
    fields: ClassVar[dict[str, Any]] = {"tools": ResponsesTalk.fields["tools"]}
    list_key = "input"
    user_path = "input[0].content[1].image_url"
    tool_path = "input[2].output[1].image_url"

    @staticmethod
    def image(data: str, media_type: str = "image/png") -> dict[str, Any]:
        url = f"data:{media_type};base64,{data}"
        return {"type": "input_image", "image_url": url, "detail": "auto"}

    @staticmethod
    def said(*parts: Any) -> dict[str, Any]:
        return {"role": "user", "content": _parts(parts, "input_text")}

    @staticmethod
    def answered(answer: Any, *found: Sequence[Any]) -> list[Any]:
        calls = [item for item in answer["output"] if item["type"].endswith("_call")]
        results = [
            {
                "type": "function_call_output",
                "call_id": call["call_id"],
                "output": _parts(parts, "input_text"),
            }
            for call, parts in zip(calls, found, strict=True)
        ]
        return [*answer["output"], *results]

    @staticmethod
    def elsewhere() -> list[dict[str, Any]]:
        return [
            {"type": "input_image", "image_url": "https://example.com/a.png"},
            {"type": "input_image", "file_id": "file_1"},
            {"type": "input_image"},
        ]

    @staticmethod
    def others() -> list[tuple[dict[str, Any], str]]:
        return [
            ({"type": "input_audio", "input_audio": {}}, "audio"),
            ({"type": "input_file", "file_id": "a"}, "file"),
            ({"type": "input_video"}, "video"),
            ({"type": "input_image", "image_url": "data:audio/wav;base64,"}, "audio"),
        ]


class GeminiShows(Shows):
    kind = GeminiClient
    fields: ClassVar[dict[str, Any]] = {"tools": GeminiTalk.fields["tools"]}
    list_key = "contents"
    user_path = "contents[0].parts[1].inlineData"
    tool_path = "contents[2].parts[0].functionResponse.parts[0].inlineData"

    @staticmethod
    def image(data: str, media_type: str = "image/png") -> dict[str, Any]:
        # As Google's SDK writes bytes.
        data = data.replace("+", "-").replace("/", "_")
        return {"inlineData": {"mimeType": media_type, "data": data}}

    @staticmethod
    def said(*parts: Any) -> dict[str, Any]:
        return {"role": "user", "parts": [{"text": p} if isinstance(p, str) else p for p in parts]}

    @staticmethod
    def answered(answer: Any, *found: Sequence[Any]) -> list[Any]:
        calls = [part["functionCall"] for part in answer.get("parts", ()) if "functionCall" in part]
        parts = [
            {
                "functionResponse": {
                    "id": call["id"],
                    "name": call["name"],
                    "response": {"result": "".join(p for p in parts if isinstance(p, str))},
                    "parts": [part for part in parts if not isinstance(part, str)],
                }
            }
            for call, parts in zip(calls, found, strict=True)
        ]
        return [answer, *[{"role": "user", "parts": parts}] * bool(parts)]

    @staticmethod
    def elsewhere() -> list[dict[str, Any]]:
        file = {"fileUri": "https://example.com/a.png", "mimeType": "image/png"}
        return [{"fileData": file}, {"file_data": file}]

    @staticmethod
    def others() -> list[tuple[dict[str, Any], str]]:
        kinds = {"video/mp4": "video", "audio/wav": "audio", "application/pdf": "document"}
        return [
            ({"inlineData": {"mimeType": kind, "data": ""}}, word) for kind, word in kinds.items()
        ]


SHOWS: dict[str, type[Shows]] = {
    "chat": ChatShows,
    "messages": MessagesShows,
    "responses": ResponsesShows,
    "gemini": GeminiShows,
}


class Seeing(Recording):
    """A scripted sampler that takes images."""

    takes_images = True


class Scoring(Seeing):
    """A scripted sampler whose logprobs are those that a model gives to its texts.

    Args:
        script: see `ScriptedSampler`.
        family: of the model, which is a tiny one with random weights.
    """

    def __init__(self, script: Any, *, family: Family) -> None:
        super().__init__(script)
        self.family, self.model = family, model_of(family)
        self._images = ImageProcessor(family.processor)

    async def sample(self, request: SampleRequest) -> Sample:
        """Say the text of the script, with the model's logprobs of it."""
        said = await super().sample(request)
        self.calls[-1] = request, replace(said, logprobs=self._logprobs(request, said.ids))
        return self.calls[-1][1]

    def _logprobs(self, request: SampleRequest, ids: Any) -> Any:
        start = len(request.prompt_ids)
        row = torch.from_numpy(np.concatenate([request.prompt_ids, ids]))[None]
        inputs = self._images.model_inputs(row, torch.ones_like(row), [request.images])
        with torch.no_grad():
            logits = self.model(input_ids=row, **inputs).logits[0, start - 1 : -1].float()
        logits[:, list(request.never_token_ids)] = -torch.inf
        return torch.log_softmax(logits, -1).gather(1, row[0, start:, None])[:, 0].numpy()

    def check(self, *rows: Any) -> None:
        """Replay rows and branches by a plain forward, with their own pictures and with others."""
        for one in rows:
            ids = np.concatenate([one.columns.prompt_ids, one.columns.completion_ids])
            sampled = one.columns.env_mask == 1
            shown = [span.image for span in one.images]
            others = [Image.of(255 - image.pixels) for image in shown]
            ours = one.columns.logprobs[sampled]
            replayed, wrong = (
                self._replayed(ids, of)[-len(sampled) :][sampled] for of in (shown, others)
            )
            assert np.abs(ours - replayed).max() < 1e-5
            assert not shown or np.abs(ours - wrong).max() > 1e-3

    def _replayed(self, ids: Any, images: Sequence[Image]) -> Any:
        pictures = [image.to_pil() for image in images]
        never = self._images.never_token_ids
        hf_processor = self.family.processor
        return own_logprobs(self.model, hf_processor, ids, pictures, never=never).numpy()


def seeing_stage(name: str) -> tuple[Stage, Any]:
    """A stage that writes images as a family does, and the family's processor."""
    hf_processor = FAMILIES[name]().processor
    images = ImageProcessor(hf_processor)
    processor = ChatTemplateProcessor(hf_processor, images=images)
    return Stage(Tokenizer.from_pretrained(hf_processor), processor), hf_processor


def check_images(row: Any, stage: Stage, *images: Any) -> None:
    """A row or branch has these pictures, and its media tokens are theirs, in order."""
    assert [span.image for span in row.images] == [Image.of(one) for one in images]
    columns = row.columns
    ids = np.concatenate([columns.prompt_ids, columns.completion_ids])
    media = np.flatnonzero(np.isin(ids, stage.processor.media_token_ids)).tolist()
    assert media == [at for span in row.images for at in range(span.start, span.end)]
