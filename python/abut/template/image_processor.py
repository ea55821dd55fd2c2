"""`ImageProcessor`: text, tensors and token types of images, proved before use.

Invariant: an image's tokens in a row are those that the processor itself writes, and a forward pass
gets the tensors that the processor itself creates. Both are derived from probes (`image_proofs`); a
processor for which this does not hold is refused.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from abut.errors import ImageError, MissingExtraError, TemplateError, text_of
from abut.images import BytesLru, Expansion, Image, ImageSpan, Placeholder
from abut.template.image_proofs import probe_image, prove
from abut.template.processor_calls import ProcessorCalls
from abut.template.tensor_rules import Tensors, join

_OTHER_MEDIA = ("video_token_id", "audio_token_id")
# 1280 x 1024 is 23 MiB and 227 ms as patches of Qwen2.5-VL.
_TENSOR_BYTES = 512 * 2**20


class ImageProcessor:
    """Wraps a Hugging Face processor, to add images to a conversation token by token.

    Methods may be called on any thread.

    Attributes:
        name: the class of the processor, for errors.
        placeholder: the token that a chat template writes for an image, and that its expansion
            replaces.
        media_token: the token in expansions whose embeddings are replaced by the image's features.
        media_token_ids: its id, in a tuple.
        never_token_ids: the ids that a policy must never sample: media token and placeholder.
        argument_names: the model's arguments that the processor creates, without ids and mask.
    """

    name: str
    placeholder: str
    media_token: str
    media_token_ids: tuple[int, ...]
    never_token_ids: tuple[int, ...]
    argument_names: frozenset[str]

    def __init__(self, hf_processor: Any) -> None:
        """Derive the processor's text for images, and prove it on five images.

        Args:
            hf_processor: a processor of transformers, with a tokenizer and an image processor.

        Raises:
            TemplateError: there is no image processor, or a proof fails; shows both texts.
            MissingExtraError: Pillow is not installed.
        """
        self.name = type(hf_processor).__name__
        tokenizer = getattr(hf_processor, "tokenizer", None)
        if tokenizer is None or getattr(hf_processor, "image_processor", None) is None:
            raise TemplateError(
                f"{self.name} has no tokenizer or no image processor\n"
                "hint: pass AutoProcessor.from_pretrained(…) of a vision-language model"
            )
        self._facts = facts = prove(hf_processor, self.name)
        self._calls = ProcessorCalls(hf_processor, facts.placeholder)
        self.placeholder, self.media_token = facts.placeholder, facts.media_token
        self.argument_names = facts.arguments
        media, placeholder = tokenizer.convert_tokens_to_ids([self.media_token, self.placeholder])
        others = [getattr(hf_processor, name, None) for name in _OTHER_MEDIA]
        never = [media, placeholder, *(i for i in others if isinstance(i, int))]
        self.media_token_ids = (media,)
        self._placeholder_id: int = placeholder
        self.never_token_ids = tuple(dict.fromkeys(never))
        self._processed: BytesLru[_Processed] = BytesLru(_TENSOR_BYTES)
        # Texts alone: an `Expansion` holds its image, which then would never be given up.
        self._texts: WeakKeyDictionary[Image, tuple[str, Placeholder]] = WeakKeyDictionary()

    def __getstate__(self) -> dict[str, Any]:
        """Pickle and copy the proofs, but no image."""
        return {name: value for name, value in self.__dict__.items() if name != "_texts"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _texts=WeakKeyDictionary())

    def expansion(self, image: Image) -> Expansion:
        """Return the text of an image.

        Raises:
            ImageError: the processor does not accept this image.
        """
        known = self._texts.get(image)
        if known is None:
            text = self._process(image).text
            before, _, rest = text.partition(self.media_token)
            around = (before, rest.rpartition(self.media_token)[2])
            known = text, Placeholder(self._placeholder_id, *map(self._calls.encode, around))
            self._texts[image] = known
        text, placeholder = known
        return Expansion(text, image, text.count(self.media_token), placeholder)

    def tensors(self, rows: Sequence[Sequence[Image]]) -> dict[str, Any]:
        """Return the tensors of a forward pass over rows, by the name of the model's argument.

        Args:
            rows: the images of each row, in order; a row may have none.

        Raises:
            ImageError: the processor does not accept one of the images.
        """
        if self._facts.rules is None:
            filled = [row for row in rows if row]
            return dict(self._calls(filled).tensors) if filled else {}
        made = [[self._process(image).tensors for image in row] for row in rows]
        return join(self._facts.rules, made)

    def types(self, input_ids: Any) -> dict[str, Any]:
        """Return the token types of whole rows, for models that need them.

        Args:
            input_ids: `(B, T)`, a tensor, padded or not.

        Returns:
            By the name of the model's argument, `(B, T)` of the same dtype: 0 for text and padding.
        """
        import torch

        made = {}
        for key, of_ids in self._facts.types.items():
            made[key] = types = torch.zeros_like(input_ids)
            for token, type_ in of_ids.items():
                types[input_ids == token] = type_
        return made

    def model_inputs(
        self, input_ids: Any, attention_mask: Any, rows: Sequence[Sequence[ImageSpan]]
    ) -> dict[str, Any]:
        """Return the arguments of a forward pass over these rows, without ids and mask.

        Args:
            input_ids: `(B, T)`, a tensor.
            attention_mask: `(B, T)`, 0 at padding.
            rows: the images of each row, in order.

        Raises:
            ImageError: the number of media tokens in a row differs from that of its images'
                features. The model would then mix up features of rows, because transformers
                compares only the numbers of the whole batch.
        """
        import torch

        media = torch.isin(input_ids, torch.tensor(self.media_token_ids, device=input_ids.device))
        counts = (media & attention_mask.bool()).sum(dim=1).tolist()
        for number, (count, spans) in enumerate(zip(counts, rows, strict=True)):
            features = sum(span.features for span in spans)
            if count != features:
                raise ImageError(
                    f"row {number} has {count} tokens {self.media_token!r}, but the row's "
                    f"{len(spans)} images have {features} features"
                )
        made = self.tensors([[span.image for span in spans] for spans in rows])
        moved = {name: tensor.to(input_ids.device) for name, tensor in made.items()}
        return {**moved, **self.types(input_ids)}

    def spare_row(self) -> tuple[list[int], ImageSpan]:
        """Return the ids of a row with one small image, and the image in it.

        If ranks go through a vision tower together, a rank without images adds this row to its
        forward pass, and ignores the result.
        """
        image = probe_image()
        (ids,) = self._calls([[image]]).ids
        media = [place for place, token in enumerate(ids) if token in self.media_token_ids]
        return ids, ImageSpan(image, media[0], media[-1] + 1, len(media))

    def _process(self, image: Image) -> "_Processed":
        return self._processed.get(image.hash, lambda: self._processed_now(image), _bytes_of)

    def _processed_now(self, image: Image) -> "_Processed":
        try:
            output = self._calls([[image]])
        except MissingExtraError:
            raise
        except Exception as error:  # Qwen's refuses a side that is 200 times the other one
            raise ImageError(f"{self.name} does not accept {image}: {text_of(error)}") from error
        return _Processed(output.texts[0], output.tensors)


class _Processed(NamedTuple):
    """An image, as the processor makes it alone."""

    text: str
    tensors: Tensors


def _bytes_of(processed: _Processed) -> int:
    size: int = sum(t.numel() * t.element_size() for t in processed.tensors.values())
    return len(processed.text) + size
