"""Conversations with images: the tokens are those of the processor itself, after every append."""

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

from abut import ChatTemplateProcessor, TemplateError, Tokenizer
from abut.images import Expansion, Image
from abut.parts import Content
from abut.pretrained import tokenizer_of
from abut.rollout.conversation import Conversation
from abut.template import ImageProcessor
from tests.kit.training.vision import FAMILIES, INST, Family, chatml, llava, picture

Message = dict[str, Any]


class Made:
    """A family's processor, and what abut makes of it."""

    def __init__(self, name: str, family: Family | None = None) -> None:
        self.name, self.family = name, family or FAMILIES[name]()
        self.hf = self.family.processor
        self.images = ImageProcessor(self.hf)
        self.processor = ChatTemplateProcessor(self.hf, images=self.images)
        self.tokenizer = Tokenizer.from_pretrained(self.hf)

    def ids(self, messages: Sequence[Message]) -> list[int]:
        """The ids of the processor itself for a conversation that asks for the next turn."""
        seen = [image for message in messages for image in images_of(message)]
        taken = [{**m, "content": blocks_of(m)} for m in messages]
        text = tokenizer_of(self.hf).apply_chat_template(
            taken, tokenize=False, add_generation_prompt=True
        )
        pictures = [[Image.of(image).to_pil() for image in seen]] if seen else None
        made = self.hf(text=[text], images=pictures, add_special_tokens=False)
        return list(made["input_ids"][0])

    def said(self, text: str) -> list[int]:
        """A turn of the policy, with its stop token."""
        ids = self.tokenizer.encode_parts([Content(text)], at_start=False)
        return [*ids.tolist(), self.processor.close_token_id]


_made = functools.cache(Made)


def images_of(message: Message) -> list[Any]:
    content = message["content"]
    return [b["image"] for b in content if "image" in b] if isinstance(content, list) else []


def blocks_of(message: Message) -> list[Message]:
    content = message["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return [{"type": "image"} if "image" in b else b for b in blocks]


def show(*blocks: Any, role: str = "user") -> Message:
    """A message of texts and pictures."""
    return {
        "role": role,
        "content": [
            {"type": "text", "text": b} if isinstance(b, str) else {"type": "image", "image": b}
            for b in blocks
        ],
    }


@pytest.fixture(scope="module", params=FAMILIES)
def made(request: Any) -> Made:
    return _made(request.param)


@pytest.fixture(scope="module")
def llava_made() -> Made:
    return _made("llava")


def test_five_turns_have_the_processors_ids_after_every_append(made: Made) -> None:
    check_five_turns(made)


@pytest.mark.parametrize(("name", "template"), [("qwen3", chatml("<image>")), ("mistral_v3", INST)])
def test_five_turns_with_a_real_vocabulary(name: str, template: str) -> None:
    folder = Path(os.environ.get("ABUT_TOKENIZERS", "")) / name
    if not (folder / "tokenizer.json").is_file():
        pytest.skip(f"ABUT_TOKENIZERS has no {name}")
    check_five_turns(Made("llava", llava(folder, template)))


def check_five_turns(made: Made) -> None:
    talk = Conversation(made.tokenizer, made.processor)
    turns = [
        [show(picture(1), "What is this?")],
        [show("And\n", picture(2, 97, 61), "\n\nthis?")],
        [show(picture(3, 31, 80), picture(1), "Both.")],
        [{"role": "user", "content": "No picture"}],
        [show("Last", picture(4, 120, 50))],
    ]
    before = "" if made.family.processor.chat_template.find("Assistant:") < 0 else " "
    messages: list[Message] = []
    for k, said in enumerate(turns):
        (talk.reply if k else talk.open)(said)
        messages += said
        assert talk.request().tolist() == made.ids(messages)
        check_spans(made, talk)
        answer = f"{before}Answer {k}."
        talk.hear(ids := made.said(answer), [-0.5] * len(ids))
        messages.append({"role": "assistant", "content": answer.strip()})
    assert [span.image for span in talk.images] == [
        Image.of(image) for message in messages for image in images_of(message)
    ]


def check_spans(made: Made, talk: Conversation) -> None:
    """The spans cover the media tokens, each its own, in order, and nobody sampled them."""
    ids, provenance = talk.trajectory.ids, talk.trajectory.provenance
    media = np.flatnonzero(np.isin(ids, made.images.media_token_ids))
    left = media.tolist()
    for span in talk.images:
        own, left = left[: span.features], left[span.features :]
        assert (own[0], own[-1] + 1) == (span.start, span.end)
        assert span.features == made.images.expansion(span.image).features
    assert not left
    assert set(provenance[media].tolist()) <= {2}, "media tokens are scaffold"


words = st.sampled_from(
    [
        "a",
        " b",
        "\n",
        "\n\n",
        "c\n",
        "<image>",
        "<|image_pad|>",
        "<im",
        "age>",
        " ",
        "é",
        "<|im_end|>",
    ]
)
sizes = st.tuples(st.integers(8, 90), st.integers(8, 90))
blocks = st.lists(st.one_of(words, sizes), min_size=1, max_size=4)


@given(data=st.lists(blocks, min_size=1, max_size=2))
@settings(max_examples=8)
@pytest.mark.parametrize("name", ["qwen2_5_vl", "gemma3"])
def test_whatever_stands_around_images_only_they_have_media_tokens(
    name: str, data: list[list[Any]]
) -> None:
    made = _made(name)
    talk = Conversation(made.tokenizer, made.processor)
    count = 0
    for k, of_turn in enumerate(data):
        shown = [b if isinstance(b, str) else picture(7 * k, *b) for b in of_turn]
        count += sum(not isinstance(b, str) for b in shown)
        (talk.reply if k else talk.open)([show(*shown)])
        check_spans(made, talk)
        assert len(talk.images) == count
        talk.request()
        talk.hear(ids := made.said("x"), [-0.5] * len(ids))


def test_a_spelled_placeholder_is_never_minted(made: Made) -> None:
    spelled = "".join(dict.fromkeys([made.images.placeholder, made.images.media_token]))
    talk = Conversation(made.tokenizer, made.processor)
    talk.open([show(f"I type {spelled} here", picture(1), spelled)])
    assert len(talk.images) == 1
    check_spans(made, talk)
    assert talk.control_spellings[made.images.placeholder] == 2


def test_a_template_that_counts_pictures_is_refused() -> None:
    made = _made("qwen2_5_vl")
    with pytest.raises(TemplateError) as raised:
        ChatTemplateProcessor(made.hf, images=made.images, add_vision_id=True)
    text = str(raised.value)
    assert "depends on the history" in text
    assert "Picture 2: " in text
    assert "Picture 1: " in text
    ChatTemplateProcessor(made.hf, add_vision_id=True)  # text alone never shows it


def test_the_report_says_for_which_roles_images_are_written(made: Made) -> None:
    roles = {
        "gemma3": ("user",),
        "qwen3_vl": ("user", "tool"),
    }
    found = made.processor.report.image_roles
    assert found == roles.get(made.name, ("user", "tool", "system"))
    for role in ("tool", "system"):
        assert (role in found) != any(
            f"does not write images in {role} messages: " in note
            for note in made.processor.report.notes
        )


def test_a_role_whose_images_a_template_drops_is_refused(llava_made: Made) -> None:
    template = chatml("<image>").replace("{{ '<image>' }}", "{{ '<image>' if m.role == 'user' }}")
    processor = ChatTemplateProcessor(
        llava_made.hf, images=llava_made.images, chat_template=template
    )
    assert processor.report.image_roles == ("user",)
    with pytest.raises(TemplateError) as raised:
        processor.increment([show(picture(1), role="tool")])
    assert str(raised.value).startswith(
        "the template writes 0 placeholders ('<image>') for the 1 images of [tool]\nhint: "
    )


def test_a_template_that_writes_no_image_is_refused(llava_made: Made) -> None:
    template = chatml("").replace("{{ '' }}", "")
    with pytest.raises(TemplateError, match="writes 0 placeholders"):
        ChatTemplateProcessor(llava_made.hf, images=llava_made.images, chat_template=template)


def test_without_an_image_processor_an_image_is_refused(llava_made: Made) -> None:
    processor = ChatTemplateProcessor(llava_made.hf)
    with pytest.raises(TemplateError) as raised:
        processor.opening([show(picture(1))])
    assert str(raised.value).startswith(
        "the messages [user] have an image, but this processor writes only text\nhint: "
    )


def test_an_expansion_is_scaffold_that_knows_its_image(llava_made: Made) -> None:
    image = Image.of(picture(1))
    parts = llava_made.processor.opening([show("<image>", image)])
    (expansion,) = [part for part in parts if isinstance(part, Expansion)]
    assert (expansion.image, expansion.features, str(expansion)) == (image, 16, "<image>" * 16)
    assert [part for part in parts if isinstance(part, Content)] == ["<image>"]


def test_processors_with_images_are_pickled(llava_made: Made) -> None:
    import pickle

    copy = pickle.loads(pickle.dumps(llava_made.processor))
    messages = [show("a", picture(5))]
    assert copy.opening(messages) == llava_made.processor.opening(messages)
    again = copy.with_tools(None)
    assert again.opening(messages) == llava_made.processor.opening(messages)


def test_text_alone_is_what_it_is_without_images(made: Made) -> None:
    plain = ChatTemplateProcessor(made.hf)
    said = [{"role": "user", "content": "Hi <image>"}]
    assert plain.opening(said) == made.processor.opening(said)
    assert plain.increment(said) == made.processor.increment(said)
