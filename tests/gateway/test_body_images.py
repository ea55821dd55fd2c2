"""Images in bodies: decoded once, on a thread, and not kept as text."""

import asyncio
import json
import threading
from typing import Any

import numpy as np
import pytest

pytest.importorskip("PIL")

from abut.gateway.dialects.chat import Chat
from abut.gateway.dialects.dialect import Like
from abut.gateway.ledger.comparable import KnownPrefix, comparable_message
from abut.gateway.ledger.entry import coarse_key
from abut.gateway.ledger.refusal import Refusal
from abut.gateway.ledger.system_messages import SystemMessages
from abut.gateway.ledger.unnamed import opening_of
from abut.gateway.server import body_images
from abut.gateway.server.body import Body
from abut.gateway.server.body_images import BodyImages
from abut.gateway.server.body_json import read_body
from abut.images import Image
from abut.messages import images_of
from tests.kit.clients.image_pictures import as_text, encoded, picture


def url(pixels: Any, level: int = 6) -> str:
    return "data:image/png;base64," + as_text(encoded(pixels, compress_level=level))


def shown(*urls: str) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": one}} for one in urls]
    return {"role": "user", "content": [{"type": "text", "text": "What?"}, *parts]}


def seeing() -> BodyImages:
    images = BodyImages()
    images.roles = ("user",)
    return images


def read(images: BodyImages, body: dict[str, Any], like: Like | None = None) -> Any:
    asyncio.run(images.read(Chat(), body, like))
    return Chat().read(body, like)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads on which pictures were decoded."""
    threads: list[str] = []
    decode = body_images._decoded

    def noted(field: Any) -> Any:
        threads.append(threading.current_thread().name)
        return decode(field)

    monkeypatch.setattr(body_images, "_decoded", noted)
    return threads


def test_a_picture_is_decoded_once_on_a_thread(decoded: list[str]) -> None:
    images, same = seeing(), url(picture(1001))  # which no other test has
    first = read(images, {"messages": [shown(same)]})
    second = read(images, {"messages": [shown(same), shown(same, url(picture(2)))]})
    assert len(decoded) == 2
    assert threading.current_thread().name not in decoded
    (one,) = images_of(first.messages[0]["content"])
    assert images_of(second.messages[1]["content"])[0] is one
    # A picture that nobody has any more is not kept.
    del first, second, one
    read(images, {"messages": [shown(same)]})
    assert len(decoded) == 3


def test_a_body_that_repeats_another_keeps_its_images_and_no_base64(decoded: list[str]) -> None:
    images, dialect = seeing(), Chat()
    messages = [shown(url(picture(1)))]
    _, beginning = read_body(Body.of([json.dumps({"messages": messages}).encode()]), dialect)
    assert beginning is not None
    beginning.request = read(images, beginning.body)
    assert isinstance(beginning.elements[0]["content"][1]["image"], Image)
    messages.append(shown(url(picture(2))))
    content = Body.of([json.dumps({"messages": messages}).encode()], [beginning])
    body, following = read_body(content, dialect)
    assert following is not None
    asked = read(images, body, following.like)
    assert len(decoded) == 2
    assert [len(images_of(message["content"])) for message in asked.messages] == [1, 1]
    assert asked.messages[0] is beginning.elements[0]


@pytest.mark.parametrize(
    ("limit", "count", "why"),
    [
        ("_MOST_NEW_IMAGES", 3, "may add at most 2 images"),
        ("_MOST_NEW_PIXELS", 2, "megapixels together"),
    ],
)
def test_very_many_pictures_are_refused(
    monkeypatch: pytest.MonkeyPatch, decoded: list[str], limit: str, count: int, why: str
) -> None:
    monkeypatch.setattr(body_images, limit, 2 if limit == "_MOST_NEW_IMAGES" else 48 * 32 + 1)
    body = {"messages": [shown(*(url(picture(seed)) for seed in range(count)))]}
    with pytest.raises(Refusal, match=rf"messages\[0\].content\[{count}\].*{why}"):
        read(seeing(), body)
    assert len(decoded) <= 2


def test_ten_thousand_tiny_pictures_are_not_decoded(decoded: list[str]) -> None:
    tiny = [url(np.full((1, 1, 3), seed % 256, np.uint8)) for seed in range(256)]
    with pytest.raises(Refusal, match="a request may add at most 1000 images"):
        read(seeing(), {"messages": [shown(*(tiny * 40))]})
    assert decoded == []


@pytest.mark.parametrize("head", ["data:" + ";" * 2**22, "data:image/png;base64" + "x" * 2**22])
def test_a_url_without_a_comma_is_refused_at_once(head: str) -> None:
    with pytest.raises(Refusal, match="without base64") as refused:
        read(seeing(), {"messages": [shown(head)]})
    assert len(str(refused.value)) < 500


def test_messages_are_compared_by_pixels() -> None:
    one, other = Image.of(picture(1)), Image.of(picture(2))

    def message(image: Any, *texts: str, **more: Any) -> Any:
        parts = [{"type": "text", "text": text, **more} for text in texts]
        return {"role": "user", "content": [*parts, {"type": "image", "image": image}]}

    marked = message(one, "a", cache_control={"type": "ephemeral"})
    assert comparable_message(marked) == comparable_message(message(one, "a"))
    assert comparable_message(message(one, "a")) != comparable_message(message(other, "a"))
    # Two texts are one only if the template says so, and an image is between texts.
    split, whole = message(one, "a", "b"), message(one, "ab")
    assert comparable_message(split, joint="") == comparable_message(whole, joint="")
    assert comparable_message(split) != comparable_message(whole)
    assert coarse_key(split) == coarse_key(whole) != coarse_key(message(other, "ab"))
    assert opening_of([split]) == opening_of([whole]) != opening_of([message(other, "ab")])
    known = KnownPrefix()
    known.learn(0, {**message(one, "a"), "n": 1}, ours=False)  # a number: equal only as JSON
    assert known.common([{**message(one, "a"), "n": 1}]) == 1
    assert known.common([{**message(one, "a"), "n": True}]) == 0
    assert known.common([{**message(other, "a"), "n": 1}]) == 0


class NoSystem:
    """Takes no system message."""

    def opening(self, messages: Any) -> list[str]:
        return [""]

    increment = opening


def test_a_system_message_is_joined_to_a_message_with_an_image() -> None:
    image = Image.of(picture(1))
    block = {"type": "image", "image": image}
    places = SystemMessages(NoSystem(), lambda messages: [*messages])  # type: ignore[arg-type]
    system = {"role": "system", "content": "Be brief."}
    before = {"role": "user", "content": [{"type": "text", "text": "Look:"}, block]}
    behind = {"role": "user", "content": [block, {"type": "text", "text": "What?"}]}
    (joined,) = places.placed([system, before], opens=True)
    assert joined["content"] == [{"type": "text", "text": "Be brief.\n\nLook:"}, block]
    (joined,) = places.placed([system, behind], opens=True)
    assert joined["content"] == [
        {"type": "text", "text": "Be brief.\n\n"},
        block,
        {"type": "text", "text": "What?"},
    ]
    *_, joined = places.placed([before, system], opens=True)
    assert joined["content"] == [
        {"type": "text", "text": "Look:"},
        block,
        {"type": "text", "text": "\n\nBe brief."},
    ]
