"""What is derived of a Hugging Face processor and its images, and which processors are refused."""

import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import transformers

from abut.errors import ImageError, TemplateError
from abut.images import Image, ImageSpan
from abut.template import ImageProcessor
from abut.template.tensor_rules import cat, find_rules, padcat, perrow
from tests.kit.training.vision import FAMILIES, chatml, llava, picture, tokenizer_with

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

RULES = {
    "llava": {"pixel_values": cat},
    "qwen2_5_vl": {"pixel_values": cat, "image_grid_thw": cat},
    "qwen3_vl": {"pixel_values": cat, "image_grid_thw": cat},
    "glm4v": {"pixel_values": cat, "image_grid_thw": cat},
    "gemma3": {"pixel_values": cat},
    "internvl": {"pixel_values": cat},
    "idefics3": {"pixel_values": perrow, "pixel_attention_mask": perrow},
    "smolvlm": {"pixel_values": perrow, "pixel_attention_mask": perrow},
    "llava_next": {"pixel_values": padcat, "image_sizes": cat},
}
TYPES = {
    "qwen2_5_vl": "mm_token_type_ids",
    "qwen3_vl": "mm_token_type_ids",
    "glm4v": "mm_token_type_ids",
    "gemma3": "token_type_ids",
}
IMAGES = [Image.of(picture(k, 30 + 17 * k, 70 - 9 * k)) for k in range(4)]


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_get_what_the_processor_itself_makes(name: str) -> None:
    hf = FAMILIES[name]().processor
    made = ImageProcessor(hf)
    assert dict(made._facts.rules or {}) == RULES[name]
    rows = [[], IMAGES[:1], IMAGES[1:], [IMAGES[0], IMAGES[0], IMAGES[2]]]
    placeholder = made.placeholder
    theirs = hf(
        text=["x" + placeholder * len(row) for row in rows if row],
        images=[[image.to_pil() for image in row] for row in rows if row],
        padding=True,
        return_tensors="pt",
    )
    tensors = made.tensors(rows)
    assert tensors.keys() == RULES[name].keys()
    for key, tensor in tensors.items():
        assert torch.equal(tensor, theirs[key]), key
    types = made.types(theirs["input_ids"])
    assert list(types) == [key for family, key in TYPES.items() if family == name]
    for key, of_rows in types.items():
        assert torch.equal(of_rows, theirs[key])
    again = made.tensors(rows)
    assert all(torch.equal(again[key], tensor) for key, tensor in tensors.items())


@pytest.mark.parametrize("name", FAMILIES)
def test_an_expansion_knows_its_placeholder_and_the_tokens_around_media_tokens(name: str) -> None:
    hf = FAMILIES[name]().processor
    made = ImageProcessor(hf)
    (media,) = made.media_token_ids
    for image in IMAGES:
        expansion = made.expansion(image)
        ids = hf.tokenizer.encode(str(expansion), add_special_tokens=False)
        places = [k for k, id_ in enumerate(ids) if id_ == media]
        token, before, behind = pickle.loads(pickle.dumps(expansion)).placeholder
        assert hf.tokenizer.convert_ids_to_tokens(token) == made.placeholder
        assert before == tuple(ids[: places[0]])
        assert behind == tuple(ids[places[-1] + 1 :])
    assert bool(before or behind) == (name in ("gemma3", "internvl", "idefics3", "smolvlm"))


def test_tokens_that_stand_for_images_are_never_to_be_sampled() -> None:
    gemma, qwen = (ImageProcessor(FAMILIES[name]().processor) for name in ("gemma3", "qwen3_vl"))
    assert (gemma.placeholder, gemma.media_token) == ("<start_of_image>", "<image_soft_token>")
    assert len(gemma.never_token_ids) == 2
    assert qwen.placeholder == qwen.media_token == "<|image_pad|>"
    assert len(qwen.never_token_ids) == 2, "nor is the token of a video"


def span(image: Image, features: int) -> ImageSpan:
    return ImageSpan(image, 0, features, features)


def test_media_tokens_are_counted_in_each_row() -> None:
    made = ImageProcessor(llava().processor)
    (media,) = made.media_token_ids
    ids = torch.full((2, 40), 5)
    ids[0, 3:19], ids[1, 8:40] = media, media
    mask = torch.ones_like(ids)
    rows = [[span(IMAGES[0], 16)], [span(IMAGES[1], 16), span(IMAGES[0], 16)]]
    inputs = made.model_inputs(ids, mask, rows)
    assert inputs["pixel_values"].shape == (3, 3, 32, 32)
    ids[1, 8], ids[0, 19] = 5, media  # as many as before in both rows together
    with pytest.raises(ImageError) as raised:
        made.model_inputs(ids, mask, rows)
    assert str(raised.value) == (
        "row 0 has 17 tokens '<image>', but the row's 1 images have 16 features"
    )
    mask[0, 19], ids[1, 8] = 0, media  # padding does not count
    made.model_inputs(ids, mask, rows)


def test_an_image_that_a_processor_refuses_is_an_error_of_that_image() -> None:
    made = ImageProcessor(FAMILIES["qwen2_5_vl"]().processor)
    thin = Image.of(picture(1, 900, 4))
    with pytest.raises(
        ImageError, match=r"Qwen2_5_VLProcessor does not accept Image.900x4"
    ) as raised:
        made.expansion(thin)
    assert "aspect ratio" in str(raised.value)


def test_each_image_is_processed_once_as_long_as_its_tensors_are_held(monkeypatch: Any) -> None:
    hf = llava().processor
    made = ImageProcessor(hf)
    calls: list[int] = []
    process = hf.image_processor.preprocess
    monkeypatch.setattr(
        type(hf.image_processor),
        "preprocess",
        lambda self, *a, **k: calls.append(1) or process(*a, **k),
    )
    for _ in range(3):
        made.expansion(IMAGES[0])
        made.tensors([[IMAGES[0]], [IMAGES[0], IMAGES[1]]])
    assert len(calls) == 2
    other = pickle.loads(pickle.dumps(made))
    assert other.expansion(IMAGES[0]) == made.expansion(IMAGES[0])
    assert copy.copy(made).tensors([[IMAGES[1]]]).keys() == {"pixel_values"}


def test_an_image_is_given_up_with_the_last_conversation_that_has_it() -> None:
    made = ImageProcessor(llava().processor)
    image = Image.of(pixels := picture(4711))
    text = made.expansion(image)
    made.tensors([[image]])
    gone = weakref.ref(image)
    del image, text
    gc.collect()
    assert gone() is None
    again = made.expansion(Image.of(pixels))  # whose tensors are held
    assert again == "<image>" * 16
    assert made.tensors([[again.image]])["pixel_values"].shape == (1, 3, 32, 32)


def test_threads_share_a_processor() -> None:
    made = ImageProcessor(FAMILIES["qwen2_5_vl"]().processor)
    images = [Image.of(picture(k, 40 + k, 50)) for k in range(20, 44)]
    texts: dict[int, str] = {}

    def expand(k: int) -> None:
        texts[k] = made.expansion(images[k])

    threads = [threading.Thread(target=expand, args=(k,)) for k in range(len(images))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [texts[k] for k in range(len(images))] == [made.expansion(image) for image in images]


def broken(change: Callable[[list[str]], list[str]]) -> Any:
    """LLaVA's processor whose texts are changed behind the expansion."""
    made = llava().processor

    class Changed(type(made)):  # type: ignore[misc]
        def get_text_with_replacements(self, text: Any, *args: Any, **kwargs: Any) -> Any:
            texts, offsets = super().get_text_with_replacements(text, *args, **kwargs)
            return change(texts), offsets

    made.__class__ = Changed
    return made


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda texts: ["<s>" + text for text in texts],
            "Changed changes the text around an image: 'abutA … abutB' against '<s>abutA <image>",
        ),
        (
            lambda texts: [text.replace("<image>\n", "<image> \n") for text in texts],
            "the text that Changed writes for an image depends on the text around the image: ",
        ),
        (
            lambda texts: [text if len(texts) == 1 else text[:-1] for text in texts],
            "the text that Changed writes for an image depends on the text around the image: ",
        ),
    ],
    ids=["a BOS of its own", "a space before a newline", "other rows"],
)
def test_a_processor_that_writes_other_text_is_refused_with_both(change: Any, text: str) -> None:
    with pytest.raises(TemplateError) as raised:
        ImageProcessor(broken(change))
    assert text in str(raised.value)
    assert " against " in str(raised.value)
    assert "\nhint: " in str(raised.value)


def test_a_processor_that_raises_for_several_images_is_refused() -> None:
    def one_alone(texts: list[str]) -> list[str]:
        if len(texts) > 1:
            raise OSError("one at a time")
        return texts

    with pytest.raises(TemplateError) as raised:
        ImageProcessor(broken(one_alone))
    assert str(raised.value).startswith(
        "Changed does not accept rows of images: OSError: one at a time\nhint: "
    )


def onevision() -> Any:
    """An image alone is taken as tiles, one beside another as it is."""
    return transformers.LlavaOnevisionProcessor(
        transformers.LlavaOnevisionImageProcessorPil(
            size={"height": 32, "width": 32}, image_grid_pinpoints=[[32, 64], [64, 32], [64, 64]]
        ),
        tokenizer_with("<image>", "<video>"),
        None,
        num_image_tokens=16,
        vision_feature_select_strategy="full",
        chat_template=chatml("<image>"),
    )


def idefics2() -> Any:
    """Writes a space behind an image, and one fence between two."""
    tokenizer = tokenizer_with("<fake_token_around_image>", "<image>", "<end_of_utterance>")
    return transformers.Idefics2Processor(
        transformers.Idefics2ImageProcessorPil(do_image_splitting=False),
        tokenizer,
        image_seq_len=4,
        chat_template=chatml("<image>"),
    )


def paligemma() -> Any:
    """Writes all images first, then a BOS."""
    tokenizer = tokenizer_with("<image>", "<bos>")
    tokenizer.bos_token = "<bos>"
    images = transformers.SiglipImageProcessorPil(size={"height": 32, "width": 32})
    images.image_seq_length = 4
    return transformers.PaliGemmaProcessor(images, tokenizer, chat_template=chatml("<image>"))


@pytest.mark.parametrize("make", [onevision, idefics2, paligemma])
def test_families_that_cannot_be_continued_are_refused(
    make: Callable[[], Any], monkeypatch: Any
) -> None:
    mixin = transformers.ProcessorMixin
    monkeypatch.setattr(mixin, "check_argument_for_proper_class", lambda self, n, v: type(v))
    with pytest.raises(TemplateError) as raised:
        ImageProcessor(make())
    assert " against " in str(raised.value)


def test_what_is_no_processor_of_images_is_refused() -> None:
    with pytest.raises(TemplateError, match="has no tokenizer or no image processor\nhint: "):
        ImageProcessor(tokenizer_with())
    made = llava().processor
    made.image_token = "<other>"
    made.chat_template = None
    with pytest.raises(TemplateError, match="LlavaProcessor does not accept images: ") as raised:
        ImageProcessor(made)
    assert raised.value.__cause__ is not None


def test_the_placeholder_is_found_in_the_template_as_well(monkeypatch: Any) -> None:
    made = FAMILIES["gemma3"]().processor

    class Renamed(type(made)):  # type: ignore[misc]
        """As in transformers 4: `image_token` is another token than the template writes."""

        def __call__(self, images: Any, text: Any, **kwargs: Any) -> Any:
            if "<start_of_image>" not in text[0]:
                raise ValueError("no <start_of_image>")
            type(self).image_token = "<start_of_image>"
            try:
                return super().__call__(images=images, text=text, **kwargs)
            finally:
                type(self).image_token = "<image_soft_token>"

    del made.image_token
    made.__class__ = Renamed
    Renamed.image_token = "<image_soft_token>"
    assert ImageProcessor(made).placeholder == "<start_of_image>"


def test_a_media_token_that_text_beside_it_changes_is_refused() -> None:
    import tokenizers

    made = llava().processor
    token = tokenizers.AddedToken("<image>", lstrip=True, normalized=False, special=True)
    made.tokenizer.add_tokens([token], special_tokens=True)
    made.tokenizer.backend_tokenizer.add_special_tokens([token])
    with pytest.raises(TemplateError, match="writes '<image>' for images, and the text next to it"):
        ImageProcessor(made)


def test_tensors_that_follow_no_rule_are_made_of_all_images_together() -> None:
    made = llava().processor
    process = made.image_processor.preprocess

    def numbered(images: Any, *args: Any, **kwargs: Any) -> Any:
        output = process(images, *args, **kwargs)
        output["pixel_values"] = [p + k for k, p in enumerate(output["pixel_values"])]
        return output

    made.image_processor.preprocess = numbered
    images = ImageProcessor(made)
    assert images._facts.rules is None
    rows = [IMAGES[:1], [], IMAGES[1:3]]
    (pixels,) = images.tensors(rows).values()
    plain = ImageProcessor(llava().processor).tensors(rows)["pixel_values"]
    torch.testing.assert_close(
        pixels - plain, torch.arange(3.0)[:, None, None, None] * torch.ones_like(plain)
    )
    assert images.tensors([[]]) == {}


def test_rules_are_tried_from_the_narrowest_and_hold_exactly() -> None:
    a, b = torch.ones(1, 2, 3), torch.full((1, 1, 4), 2.0)
    singles = {"a": {"x": a}, "b": {"x": b}}
    rows = [["a"], ["b", "a"]]
    tensors = [[singles[i]["x"] for i in row] for row in rows]
    assert padcat(tensors).shape == (3, 2, 4)
    assert perrow(tensors).shape == (2, 3, 4)
    assert find_rules(singles, [(rows, {"x": padcat(tensors)})]) == {"x": padcat}
    assert find_rules(singles, [(rows, {"x": perrow(tensors)})]) == {"x": perrow}
    off = padcat(tensors)
    off[2, 1, 3] = 1e-7
    assert find_rules(singles, [(rows, {"x": off})]) is None
    same = {"a": {"x": a}, "b": {"x": 2 * a}}
    joined = torch.cat([a, 2 * a, a])
    assert find_rules(same, [(rows, {"x": joined})]) == {"x": cat}
    assert find_rules(same, [(rows, {"x": joined.double()})]) is None
