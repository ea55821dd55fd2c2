"""A server that answers requests with images like vLLM, and only counts."""

from typing import Any

from tests.kit.servers.fake_server import FakeServer, status

MISS = "Cache miss for image at index 0 but data is not provided."


class ImageServer(FakeServer):
    """Expands placeholders as vLLM does, and knows the pictures that it was sent by their names."""

    media, features = 400, 3
    repeats = True

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.pictures: dict[str, str] = {}

    async def _answer(self, writer: Any, path: str, body: Any) -> None:
        parts = body.get("content_parts", ())
        assert not parts or path == "/inference/v1/generate"
        self.pictures |= {part["uuid"]: part["url"] for part in parts if "url" in part}
        if any(part["uuid"] not in self.pictures for part in parts):
            self.requests.append(body)
            await status(400, MISS)(self, writer, body)
            return
        await super()._answer(writer, path, body)

    def completion(self, body: Any, logprob: float | None = None) -> dict[str, Any]:
        if "content_parts" not in body:
            return super().completion(body, logprob)
        expanded: list[int] = []
        for id_ in body["token_ids"]:
            expanded += [self.media] * self.features if id_ == self.media else [id_]
        answer = super().completion(body | {"token_ids": expanded}, logprob)
        return answer | ({"prompt_token_ids": expanded} if self.repeats else {})
