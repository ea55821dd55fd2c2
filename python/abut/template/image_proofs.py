"""Derives from probes what a Hugging Face processor does with an image, and proves it.

Five pictures of different shapes go through the processor, each alone and in rows with others. What
is found for one alone must hold in every row that was tried; a processor of which it does not is
refused, with both texts. No code here knows a family of models.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from abut.errors import AbutError, TemplateError, text_of
from abut.images import Image
from abut.pretrained import tokenizer_of
from abut.template.processor_calls import Pieces, ProcessorCalls, ProcessorOutput
from abut.template.rendering import Rendering
from abut.template.tensor_rules import Rule, Tensors, equal, find_rules
from abut.template.turn_layout import assistant, quote_difference, user

_BEFORE, _BEHIND = "abutA ", " abutB"
# Square, wide, tall, uneven, large: (width, height).
_SHAPES = ((56, 56), (112, 56), (56, 168), (97, 61), (224, 140))
_HINT = (
    "hint: abut cannot add images of this processor to a conversation token by token; use another "
    "model, or only text"
)


@dataclass(frozen=True)
class ImageFacts:
    """The facts about a processor that hold for every image and every row.

    Attributes:
        placeholder: the token that the template writes for an image.
        media_token: the token of an expansion whose embedding a feature of the image replaces.
        types: of each token id that has one, by the key of the model's argument. Empty where the
            model needs none: tokenizers may return zeros that a model refuses.
        arguments: the names of all that the processor makes for a model, but ids and mask.
        rules: how the tensors of rows are made from those of single images, by name; None: the
            processor has to make those of all images of a forward pass together.
    """

    placeholder: str
    media_token: str
    types: Mapping[str, Mapping[int, int]]
    arguments: frozenset[str]
    rules: Mapping[str, Rule] | None


def prove(hf_processor: Any, name: str) -> ImageFacts:
    """Return the facts about a processor.

    Args:
        hf_processor: has a tokenizer and an image processor.
        name: of it, for errors.

    Raises:
        TemplateError: a proof fails, with both texts; or it takes no images, or not these.
    """
    try:
        return _proved(hf_processor, name)
    except AbutError:
        raise
    except Exception as error:  # a processor is foreign code and can raise anything
        raise TemplateError(
            f"{name} does not accept rows of images: {text_of(error)}\n{_HINT}"
        ) from error


def _proved(hf_processor: Any, name: str) -> ImageFacts:
    images = [_probe_image(k, *shape) for k, shape in enumerate(_SHAPES)]
    written = _written_around_an_image(hf_processor)
    placeholder = _placeholder(hf_processor, name, images[0], written)
    calls = ProcessorCalls(hf_processor, placeholder)
    alone = {image: calls([[_BEFORE, image, _BEHIND]]) for image in images}
    expansions = {image: _expansion(output, name) for image, output in alone.items()}
    rows = _rows(images, [token for token in written if token != placeholder])
    outputs = [calls(rows), calls(rows[::-2])]
    for of_rows, output in zip((rows, rows[::-2]), outputs, strict=True):
        _check_texts(of_rows, output, expansions, name)
    _check_no_text_in_tensors(calls, images, name)
    tokens = [token for token in hf_processor.tokenizer.get_added_vocab() if token.strip()]
    media_token = _media_token(expansions.values(), tokens, name)
    _check_hard(hf_processor.tokenizer, media_token, name)
    together = [
        ([_images(row) for row in of_rows], output.tensors)
        for of_rows, output in zip((rows, rows[::-2]), outputs, strict=True)
    ]
    singles: dict[Image, Tensors] = {image: output.tensors for image, output in alone.items()}
    rules = find_rules(singles, together)
    every = [*alone.values(), *outputs]
    arguments = frozenset(key for of in every for key in (*of.tensors, *of.types))
    return ImageFacts(placeholder, media_token, _types(every, name), arguments, rules)


def probe_image() -> Image:
    """Return a small picture, for a row that is only there so that all ranks do the same."""
    return _probe_image(0, *_SHAPES[0])


def _probe_image(seed: int, width: int, height: int) -> Image:
    """Return a picture that no scaling leaves as it is, and that is nowhere one colour."""
    columns, rows = np.arange(width)[None, :, None], np.arange(height)[:, None, None]
    channels = np.array([3, 5, 7])[None, None]
    return Image.of(((rows * 31 + columns * 17 * channels + seed * 97) % 256).astype(np.uint8))


def _placeholder(hf_processor: Any, name: str, image: Image, written: Sequence[str]) -> str:
    """Return the token that the processor expands; `written` are the tokens around images."""
    tokenizer = hf_processor.tokenizer
    named = [getattr(of, "image_token", None) for of in (hf_processor, tokenizer)]
    refused: Exception | None = None
    for token in dict.fromkeys([*named, *written]):
        if not isinstance(token, str) or not token:
            continue
        try:
            output = ProcessorCalls(hf_processor, token)([[_BEFORE, image, _BEHIND]])
        except Exception as error:  # the first says most: `image_token` is nearly always right
            refused = refused or error
            continue
        if output.tensors:
            return token
    because = "" if refused is None else f": {text_of(refused)}"
    raise TemplateError(f"{name} does not accept images{because}\n{_HINT}") from refused


def _written_around_an_image(hf_processor: Any) -> list[str]:
    """Return the control tokens that the template writes for a message with an image."""
    with suppress(TemplateError):  # there is no template, or one that knows no images
        render = Rendering(tokenizer_of(hf_processor), {"tools": None, "chat_template": None})
        blocks = [{"type": "image"}, {"type": "text", "text": "abutUser"}]
        rendered = render([{"role": "user", "content": blocks}, assistant(), user()])
        return list(dict.fromkeys(token for _, token in render.tokens(rendered)))
    return [hf_processor.tokenizer.eos_token or ""]


def _expansion(output: ProcessorOutput, name: str) -> str:
    """Return the text in the place of the only image of a row."""
    text: str
    (text,) = output.texts
    if not (text.startswith(_BEFORE) and text.endswith(_BEHIND)):
        ours = f"{_BEFORE}…{_BEHIND}"
        raise TemplateError(
            f"{name} changes the text around an image: {quote_difference(ours, text)}\n{_HINT}"
        )
    return text[len(_BEFORE) : len(text) - len(_BEHIND)]


def _rows(images: Sequence[Image], control: Sequence[str]) -> list[Pieces]:
    """Return rows with images alone, in text, and next to another image."""
    a, b, c, d, e = images
    first, last = (control[0], control[-1]) if control else ("", "")  # of the template
    return [
        [a],
        ["abutIn ", b, " text."],
        ["\n", c, "\n\n", d, "\n"],
        [first, d, last, e],
        [a, b],
        [b, a, a],
        ["abut", c, first, e, " \n"],
        [" ", e, "  ", d, "abut"],
        [last, b],
    ]


def _images(row: Pieces) -> list[Image]:
    return [piece for piece in row if isinstance(piece, Image)]


def _check_texts(
    rows: Sequence[Pieces], output: ProcessorOutput, expansions: Mapping[Image, str], name: str
) -> None:
    """Prove that an image has the same text wherever it is."""
    for row, theirs in zip(rows, output.texts, strict=True):
        ours = "".join(expansions[p] if isinstance(p, Image) else p for p in row)
        if ours != theirs:
            raise TemplateError(
                f"the text that {name} writes for an image depends on the text around the image: "
                f"{quote_difference(ours, theirs)}\n{_HINT}"
            )


def _check_no_text_in_tensors(calls: ProcessorCalls, images: Sequence[Image], name: str) -> None:
    """Prove that the tensors of images do not depend on the text, which keeps growing."""
    row = list(images[:2])
    short, long = calls([row]).tensors, calls([["abut ", *row, " and more text."]]).tensors
    for key in short:
        if not equal(short[key], long.get(key)):
            raise TemplateError(
                f"{name}: {key!r} depends on the text, not on the images alone\n{_HINT}"
            )


def _media_token(expansions: Iterable[str], tokens: Sequence[str], name: str) -> str:
    """Return the control token that stands for the features: the most frequent one."""
    pattern = re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) or "(?!)")
    counts = Counter(token for text in expansions for token in pattern.findall(text))
    ranked = counts.most_common(2)
    if not ranked or (len(ranked) > 1 and ranked[0][1] == ranked[1][1]):
        raise TemplateError(
            f"{name} writes the tokens {dict(counts)} for five images, so abut cannot tell which "
            f"token stands for the features\n{_HINT}"
        )
    return str(ranked[0][0])


def _check_hard(hf_tokenizer: Any, token: str, name: str) -> None:
    """Prove that no text around a media token changes it.

    Added tokens alone decide that, so a tokenizer without a vocabulary tells it in a millisecond.
    """
    import tokenizers

    from abut._native import Tokenizer

    added = hf_tokenizer.backend_tokenizer.get_added_tokens_decoder().values()
    empty = tokenizers.Tokenizer(tokenizers.models.BPE())
    empty.add_tokens(list(added))
    if token not in Tokenizer.from_str(empty.to_str()).profile()["hard_tokens"]:
        raise TemplateError(
            f"{name} writes {token!r} for images, and the text next to it can change that token\n"
            "hint: add the token to the tokenizer with normalized=False, lstrip=False, rstrip=False"
        )


def _types(outputs: Sequence[ProcessorOutput], name: str) -> dict[str, dict[int, int]]:
    """Return the types of token ids, proved the same wherever an id is."""
    found: dict[str, dict[int, int]] = {}
    for output in outputs:
        for key, rows in output.types.items():
            for ids, types in zip(output.ids, rows, strict=True):
                for token, type_ in zip(ids, types, strict=True):
                    if found.setdefault(key, {}).setdefault(token, type_) != type_:
                        raise TemplateError(
                            f"{name} gives token {token} the {key} {type_} at one position and "
                            f"{found[key][token]} at another\n{_HINT}"
                        )
    typed = {key: {i: type_ for i, type_ in of.items() if type_} for key, of in found.items()}
    return {key: of for key, of in typed.items() if of}
