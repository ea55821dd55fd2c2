"""Images in requests: in each dialect the same pictures make the same row, however encoded."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("PIL")
pytest.importorskip("torch")

from abut.errors import TemplateError
from abut.gateway.dialects.responses import Responses
from abut.gateway.server import body_images
from abut.gateway.server.gateway import Gateway
from abut.images import Image
from abut.records.read import from_record
from abut.records.record import to_record
from abut.template.processor_calls import ProcessorCalls
from tests.kit.clients.dialect_clients import GeminiClient, MessagesClient, ResponsesClient
from tests.kit.clients.image_pictures import as_text, encoded
from tests.kit.clients.image_talks import (
    SHOWS,
    ChatClient,
    ResponsesShows,
    Seeing,
    Shows,
    check_images,
    seeing_stage,
)
from tests.kit.stage.agents import a_call, check_tree, says, serving
from tests.kit.stage.rollouts import Recording, Stage, row
from tests.kit.training.vision import picture

EACH = pytest.mark.parametrize("shows", SHOWS.values(), ids=SHOWS)
ONE, TWO, OTHER = picture(1), picture(2, 61, 33), picture(3)
TEXTS = (a_call(a="one"), "It is.", "Bye.")


@pytest.fixture(scope="module")
def seen() -> tuple[Stage, Any]:
    return seeing_stage("qwen3_vl")


@pytest.fixture
def sampler(seen: tuple[Stage, Any]) -> Recording:
    return says(seen[0], *TEXTS, kind=Seeing)


@pytest.fixture
def gateway(sampler: Recording, seen: tuple[Stage, Any]) -> Iterator[Gateway]:
    with serving(sampler, seen[1]) as gateway:
        yield gateway


def png(pixels: Any, level: int = 6) -> str:
    return as_text(encoded(pixels, compress_level=level))


def talk(
    gateway: Gateway, shows: type[Shows], shown: Callable[[Any, int], Any], rollout: str = "a"
) -> Any:
    """Hold a conversation of three turns, all of whose images are encoded anew in each request."""
    client: Any = shows.kind(gateway, rollout, **shows.fields)
    answers: list[Any] = []
    for turn in range(3):
        history = [shows.said("What?", shown(ONE, turn))]
        if turn > 0:
            history += shows.answered(answers[0], ["found", shown(TWO, turn)])
        if turn > 1:
            history += [*shows.answered(answers[1]), shows.said("And?", shown(ONE, turn), "Well?")]
        answers.append(client.ask(history))
    return client


@EACH
def test_a_picture_that_is_encoded_anew_is_the_same_picture(
    gateway: Gateway, sampler: Recording, seen: tuple[Stage, Any], shows: type[Shows]
) -> None:
    forms = [
        lambda pixels: shows.image(png(pixels, 0)),
        lambda pixels: shows.image(png(pixels, 9)),
        lambda pixels: shows.image(as_text(encoded(pixels, "WEBP", lossless=True)), "image/webp"),
    ]
    client = talk(gateway, shows, lambda pixels, turn: forms[turn](pixels))
    assert client.causes == [None]
    rollout = gateway.end("a", 1.0)
    assert (rollout.error, rollout.branches, len(rollout.turns)) == (None, [], 3)
    check_images(rollout, seen[0], ONE, TWO, ONE)
    check_tree(rollout, sampler.calls)
    last, _ = sampler.calls[-1]
    assert [span.image for span in last.images] == [Image.of(one) for one in (ONE, TWO, ONE)]
    assert last.never_token_ids == seen[0].processor.never_token_ids
    # The row is that of a chat client, whose pictures stay as they are.
    talk(gateway, SHOWS["chat"], lambda pixels, turn: SHOWS["chat"].image(png(pixels)), "chat")
    assert row(rollout) == row(gateway.end("chat", 1.0))


@EACH
def test_other_pixels_are_another_history(
    gateway: Gateway, seen: tuple[Stage, Any], shows: type[Shows]
) -> None:
    changed = ONE.copy()
    changed[0, 0, 0] ^= 1

    def shown(pixels: Any, turn: int) -> Any:
        return shows.image(png(changed if turn == 2 and pixels is ONE else pixels))

    assert talk(gateway, shows, shown).causes == [None, "rewritten"]
    rollout = gateway.end("a", 1.0)
    (branch,) = rollout.branches
    rows = sorted([rollout, branch], key=lambda one: len(one.images))
    check_images(rows[0], seen[0], ONE, TWO)
    check_images(rows[1], seen[0], changed, TWO, changed)


@EACH
def test_a_fork_keeps_what_ends_before_and_the_record_names_what_was_dropped(
    gateway: Gateway, seen: tuple[Stage, Any], shows: type[Shows]
) -> None:
    client: Any = shows.kind(gateway, **shows.fields)
    history = [shows.said("What?", shows.image(png(ONE)))]
    call = client.ask(history)
    client.ask([*history, *shows.answered(call, ["found", shows.image(png(TWO))])])
    client.ask([*history, *shows.answered(call, ["found, and left out"])])
    assert client.causes == [None, "rewritten"]
    rollout = gateway.end("a", 1.0)
    (branch,) = rollout.branches
    rows = sorted([rollout, branch], key=lambda one: len(one.images))
    check_images(rows[0], seen[0], ONE)
    check_images(rows[1], seen[0], ONE, TWO)
    (dropped,) = rollout.dropped_images
    (span,) = rows[1].images[1:]
    assert (dropped.images, dropped.cause) == ((span.image,), "rewritten")
    assert dropped.image_tokens == span.features
    forked = row(rows[0])[: rows[0].turns[-1].start]
    before = row(rows[1])
    shared = next(k for k, (a, b) in enumerate(zip(forked, before, strict=False)) if a != b)
    assert dropped.reread_tokens == len(forked) - shared
    record = from_record(to_record(rollout))
    assert record["dropped_images"] == [
        {
            "cause": "rewritten",
            "hashes": [span.image.hash],
            "image_tokens": dropped.image_tokens,
            "reread_tokens": dropped.reread_tokens,
        }
    ]


@EACH
def test_nothing_is_dropped_where_a_conversation_only_goes_on(
    gateway: Gateway, shows: type[Shows]
) -> None:
    talk(gateway, shows, lambda pixels, turn: shows.image(png(pixels)))
    assert gateway.end("a", 1.0).dropped_images == []


@EACH
def test_a_step_with_its_newest_screenshot_alone_drops_the_one_before(
    gateway: Gateway, seen: tuple[Stage, Any], shows: type[Shows]
) -> None:
    """As browser-use asks: each step is a conversation of its own."""
    client: Any = shows.kind(gateway, **shows.fields)
    for step, pixels in enumerate((ONE, TWO, TWO)):
        client.ask([shows.said(f"Step {step}", shows.image(png(pixels)))])
    assert client.causes == [None, "new", "new"]
    rollout = gateway.end("a", 1.0)
    # The third step shows what the second did, so nothing is left out.
    (dropped,) = rollout.dropped_images
    assert (dropped.images, dropped.cause) == ((Image.of(ONE),), "new")
    first, second = (
        next(
            one for one in (rollout, *rollout.branches) if one.turns[0].answer_id.endswith(f"-{k}")
        )
        for k in range(2)
    )
    assert dropped.image_tokens == first.images[0].features
    prompt = row(second)[: second.turns[0].start]
    shared = next(k for k, (a, b) in enumerate(zip(prompt, row(first), strict=False)) if a != b)
    assert dropped.reread_tokens == len(prompt) - shared


@EACH
def test_a_conversation_beside_another_one_drops_nothing(
    gateway: Gateway, shows: type[Shows]
) -> None:
    """The agent asks something else in between, and goes on with its own conversation."""
    client: Any = shows.kind(gateway, **shows.fields)
    history = [shows.said("What?", shows.image(png(ONE)))]
    call = client.ask(history)
    client.ask([shows.said("Beside:", shows.image(png(TWO)))])
    client.ask([*history, *shows.answered(call, ["found"])])
    assert client.causes == [None, "new"]
    assert gateway.end("a", 1.0).dropped_images == []


def test_another_system_prompt_is_another_agent(gateway: Gateway) -> None:
    shows = SHOWS["chat"]
    client: Any = shows.kind(gateway)
    for role, pixels in (("You act.", ONE), ("You judge.", TWO)):
        system = {"role": "system", "content": role}
        client.ask([system, shows.said("What?", shows.image(png(pixels)))])
    assert client.causes == [None, "new"]
    assert gateway.end("a", 1.0).dropped_images == []


@EACH
def test_each_picture_is_read_and_processed_once_however_long_the_conversation(
    gateway: Gateway, shows: type[Shows], monkeypatch: pytest.MonkeyPatch
) -> None:
    work: list[str] = []
    read, process = body_images._decoded, ProcessorCalls.__call__

    def counted_read(field: Any) -> Any:
        work.append("read")
        return read(field)

    def counted_process(calls: ProcessorCalls, rows: Any) -> Any:
        work.append("processed")
        return process(calls, rows)

    client: Any = shows.kind(gateway)
    history: list[Any] = []
    for turn in range(12):
        history.append(shows.said("What?", shows.image(png(picture(100 + turn, 8 + turn, 8)))))
        if turn == 1:  # the processor is proved by now
            monkeypatch.setattr(body_images, "_decoded", counted_read)
            monkeypatch.setattr(ProcessorCalls, "__call__", counted_process)
        history += shows.answered(client.ask(history))
    assert client.causes == [None]
    assert Counter(work) == {"read": 11, "processed": 11}


def refusal(answer: tuple[int, Any]) -> str:
    status, body = answer
    assert status == 400, body
    message: str = body["error"]["message"]
    return message


@EACH
def test_an_image_that_is_elsewhere_is_refused_by_the_name_of_its_field(
    gateway: Gateway, shows: type[Shows]
) -> None:
    client: Any = shows.kind(gateway)
    parts = shows.elsewhere()
    assert parts
    for part in parts:
        answer = client.post([shows.said("What?", part)])
        said = refusal(answer)
        assert said.startswith(shows.user_path.rpartition(".")[0])
        assert "base64" in said or "data: URL" in said
        assert answer[1]["error"].get("param", shows.list_key) == shows.list_key
    assert client.causes == []


@EACH
def test_other_media_are_refused_in_their_own_words(gateway: Gateway, shows: type[Shows]) -> None:
    client: Any = shows.kind(gateway)
    for part, word in shows.others():
        said = refusal(client.post([shows.said("What?", part)]))
        assert word in said
        assert shows.list_key in said


def files() -> dict[str, tuple[str, str, str]]:
    """Base64, media type and refusal of files that are not taken."""
    good = encoded(ONE)
    svg = b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>"
    frames = [ONE, OTHER]
    return {
        "truncated base64": (as_text(good)[:-3], "image/png", "base64"),
        "no base64": ("é" * 40, "image/png", "base64"),
        "half a surrogate": ("\ud800" * 40, "image/png", "base64"),
        "nothing": ("", "image/png", "not an image in a supported"),
        "truncated file": (as_text(good[:-40]), "image/png", "broken"),
        "broken file": (
            as_text(good[:40] + bytes(40) + good[80:]),
            "image/png",
            "are not an image",
        ),
        "SVG": (as_text(svg), "image/svg+xml", "png, jpeg or webp"),
        "SVG as PNG": (as_text(svg), "image/png", "not an image in a supported"),
        "GIF": (as_text(encoded(ONE, "GIF")), "image/gif", "png, jpeg or webp"),
        "GIF as PNG": (as_text(encoded(ONE, "GIF")), "image/png", "not an image in a supported"),
        "TIFF as JPEG": (
            as_text(encoded(ONE, "TIFF")),
            "image/jpeg",
            "not an image in a supported",
        ),
        "animated PNG": (as_text(encoded(frames)), "image/png", "several frames"),
        "animated WebP": (as_text(encoded(frames, "WEBP")), "image/webp", "several frames"),
        "too large": (as_text(bomb(7000, 6000)), "image/png", "40 megapixels"),
        "a bomb": (as_text(bomb(60_000, 60_000)), "image/png", "40 megapixels"),
    }


def bomb(width: int, height: int) -> bytes:
    """The beginning of a PNG that says how large it is."""
    import struct
    import zlib

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", zlib.compress(bytes(1000))), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


@EACH
def test_what_cannot_be_read_is_refused_by_the_name_of_its_field(
    gateway: Gateway, shows: type[Shows]
) -> None:
    client: Any = shows.kind(gateway)
    for name, (data, media_type, why) in files().items():
        said = refusal(client.post([shows.said("What?", shows.image(data, media_type))]))
        assert said.startswith(shows.user_path), name
        assert why in said, name
    assert client.causes == []


@EACH
def test_a_file_is_what_its_bytes_say_and_not_its_media_type(
    gateway: Gateway, seen: tuple[Stage, Any], shows: type[Shows]
) -> None:
    client: Any = shows.kind(gateway)
    client.ask([shows.said("What?", shows.image(png(ONE), "image/jpeg"))])
    check_images(gateway.end("a", 1.0), seen[0], ONE)


@EACH
def test_a_policy_without_images_says_so(
    stage: Stage, hf_tokenizer: Any, shows: type[Shows]
) -> None:
    with serving(says(stage), hf_tokenizer) as gateway:
        client: Any = shows.kind(gateway)
        # Nothing is decoded for it, so a broken picture gets the same answer.
        for data in (png(ONE), "AAAA"):
            said = refusal(client.post([shows.said("What?", shows.image(data))]))
            assert said == f"{shows.user_path} is an image, but this policy takes only text"
        client.ask([shows.said("What?")])


def test_a_model_with_images_behind_a_sampler_without_them_says_so(
    seen: tuple[Stage, Any],
) -> None:
    stage, hf_processor = seen
    shows = SHOWS["chat"]
    with serving(says(stage), hf_processor) as gateway:
        said = refusal(ChatClient(gateway).post([shows.said("", shows.image(png(ONE)))]))
        assert "this policy takes only text" in said


@EACH
def test_a_role_whose_images_the_template_does_not_write_is_refused(shows: type[Shows]) -> None:
    stage, hf_processor = seeing_stage("gemma3")
    assert stage.processor.report.image_roles == ("user",)
    with serving(says(stage, kind=Seeing), hf_processor) as gateway:
        client: Any = shows.kind(gateway)
        history = [
            shows.said("What?"),
            *shows.answered(CALLED[shows.kind], ["found", shows.image(png(ONE))]),
        ]
        said = refusal(client.post(history))
        assert said.startswith(f"{shows.tool_path} is an image in a 'tool' message")
        assert client.causes == []


CALL = {"id": "call00000", "type": "function", "function": {"name": "lookup", "arguments": "{}"}}
ITEM = {"type": "function_call", "call_id": "call00000", "name": "lookup", "arguments": "{}"}
USE = {"type": "tool_use", "id": "call00000", "name": "lookup", "input": {}}
PART = {"functionCall": {"id": "call00000", "name": "lookup", "args": {}}}
CALLED: dict[Any, Any] = {
    ChatClient: {"role": "assistant", "content": None, "tool_calls": [CALL]},
    MessagesClient: {"role": "assistant", "content": [USE]},
    ResponsesClient: {"output": [ITEM]},
    GeminiClient: {"role": "model", "parts": [PART]},
}
"""An answer that calls a tool, as a client sends it."""


@pytest.mark.parametrize("role", ["assistant", "system"])
@pytest.mark.parametrize("name", ["chat", "messages", "responses"])
def test_images_of_an_assistant_or_a_system_are_refused(
    gateway: Gateway, name: str, role: str
) -> None:
    shows = SHOWS[name]
    client: Any = shows.kind(gateway)
    shown = {**shows.said("So:", shows.image(png(ONE))), "role": role}
    said = refusal(client.post([shown, shows.said("What?")]))
    assert said.startswith(f"{shows.user_path} is an image in a {role!r} message")


def test_a_field_that_changes_nothing_is_named_once(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    talk(gateway, SHOWS["chat"], lambda pixels, turn: SHOWS["chat"].image(png(pixels)))
    assert caplog.text.count("image_url.detail") == 1


@pytest.mark.parametrize("name", ["messages", "gemini"])
def test_the_tokens_of_images_are_counted(gateway: Gateway, sampler: Recording, name: str) -> None:
    shows = SHOWS[name]
    client: Any = shows.kind(gateway)
    history = [shows.said("What?", shows.image(png(ONE)))]
    how: dict[str, Any] = {"path": "/count_tokens"} if name == "messages" else {}
    if name == "gemini":
        how = {"verb": "countTokens"}
    status, counted = client.post(history, **how)
    assert status == 200, counted
    client.ask(history)
    assert next(iter(counted.values())) == len(sampler.calls[-1][0].prompt_ids)
    if name == "gemini":
        nested = {"generateContentRequest": {"contents": history}}
        assert client.post(None, "countTokens", **nested) == (status, counted)


def test_a_response_is_followed_by_its_id(gateway: Gateway, seen: tuple[Stage, Any]) -> None:
    client = ResponsesClient(gateway)
    shows = ResponsesShows
    first = client.ask([shows.said("What?", shows.image(png(ONE)))])
    client.ask([shows.said("And?", shows.image(png(TWO)))], previous_response_id=first["id"])
    assert client.causes == [None]
    check_images(gateway.end("a", 1.0), seen[0], ONE, TWO)


def test_a_screenshot_of_a_computer_is_the_result_of_a_tool(
    gateway: Gateway, seen: tuple[Stage, Any]
) -> None:
    url = f"data:image/png;base64,{png(ONE)}"
    call = {"type": "computer_call", "call_id": "call00000", "action": {"type": "screenshot"}}
    shot = {"type": "computer_screenshot", "image_url": url}
    result = {"type": "computer_call_output", "call_id": "call00000", "output": shot}
    client = ResponsesClient(gateway, **ResponsesShows.fields)
    client.ask([ResponsesShows.said("Look."), call, result])
    check_images(gateway.end("a", 1.0), seen[0], ONE)
    elsewhere = {**result, "output": {"type": "computer_screenshot", "file_id": "file_1"}}
    said = refusal(client.post([ResponsesShows.said("Look."), call, elsewhere]))
    assert said.startswith("input[2].output.file_id is 'file_1', but abut does not fetch images")


@EACH
def test_a_retry_gets_the_same_sample(
    gateway: Gateway, sampler: Recording, shows: type[Shows]
) -> None:
    client: Any = shows.kind(gateway)
    history = [shows.said("What?", shows.image(png(ONE)))]
    client.ask(history)
    again = {"x-stainless-retry-count": "1"}
    if shows.kind in (MessagesClient, ResponsesClient):
        assert client.post(history, headers=again)[0] == 200
        assert len(sampler.calls) == 1
    client.ask(history)
    assert client.causes == [None, "repeated"]
    # The same request with another picture is another one.
    client.ask([shows.said("What?", shows.image(png(OTHER)))])
    assert client.causes[2:] == ["new"]


def test_the_largest_body_is_a_setting(sampler: Recording, seen: tuple[Stage, Any]) -> None:
    shows = SHOWS["chat"]
    history = [shows.said("What?", shows.image(png(picture(5, 400, 400), 0)))]
    with serving(sampler, seen[1], max_body_bytes=600_000) as gateway:
        said = refusal(ChatClient(gateway).post(history))
        assert said == (
            "the request body has more than 600000 bytes\nhint: raise Gateway(max_body_bytes=…)"
        )
    with serving(sampler, seen[1], max_body_bytes=700_000) as gateway:
        assert ChatClient(gateway).ask(history)
    with pytest.raises(ValueError, match="max_body_bytes=0: must be 1 or more"):
        Gateway(max_body_bytes=0)


def test_an_image_that_was_not_decoded_is_never_read_as_text() -> None:
    shown = ResponsesShows.said(ResponsesShows.image(png(ONE)))
    with pytest.raises(Exception, match="has an image, but messages of this role take no images"):
        Responses().read({"input": [shown]})


def test_a_gateway_without_a_trainer_finds_the_processor_of_a_named_model(tmp_path: Path) -> None:
    stage, hf_processor = seeing_stage("llava")
    hf_processor.save_pretrained(tmp_path)
    shows = SHOWS["chat"]
    with serving(says(stage, kind=Seeing), str(tmp_path)) as gateway:
        ChatClient(gateway).ask([shows.said("What?", shows.image(png(ONE)))])
        check_images(gateway.end("a", 1.0), stage, ONE)


def test_a_processor_that_is_refused_leaves_text_alone_and_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stage, hf_processor = seeing_stage("llava")

    def refuse(hf_processor: Any) -> Any:
        raise TemplateError("it writes them otherwise")

    monkeypatch.setattr("abut.gateway.server.client_policy.ImageProcessor", refuse)
    with serving(says(stage, kind=Seeing), hf_processor) as gateway:
        shown = SHOWS["chat"].said("What?", SHOWS["chat"].image(png(ONE)))
        assert "takes only text" in refusal(ChatClient(gateway).post([shown]))
        ChatClient(gateway).ask([SHOWS["chat"].said("What?")])
    assert "the gateway will refuse images: it writes them otherwise" in caplog.text
