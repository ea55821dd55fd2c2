"""The images of rows, added to the inputs of a model at each forward.

TRL passes only ids and masks. A hook on the model determines which rows a call has, compares their
ids with those of the rollouts, and adds the pixels and token types of just these rows. So a forward
pass has the pixels of its own rows, whatever the size of a batch, and every forward pass gets them:
for logprobs of the old policy and of the reference, for the loss and for evaluation.

A model whose parameters or gradients are sharded over ranks waits until all ranks have run the
vision tower. In that case rows without an image get an additional spare row with one, and the
model's output is cut back to the rows that TRL knows.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.nn.functional import pad

from abut.images import ImageSpan
from abut.rollout.image_spans import images_before
from abut.trl.rows.row_batch import ForwardRows

_HINT = (
    "hint: with images, the trainer must not change, drop or reorder rows between sampling and "
    "the loss"
)


@contextmanager
def images_added(model: Any, rows: ForwardRows, *, in_step: bool) -> Iterator[None]:
    """Give each call of the model the images of the next of these rows, in order.

    Args:
        model: the object that will be called.
        rows: the rows that will go through the model, in one or several calls; their batch has
            images.
        in_step: whether other ranks make the same calls, so that no rank may skip the vision tower.

    Raises:
        RuntimeError: the ids differ from those of the row; or a row did not go through the model.
        ImageError: the number of a row's media tokens is not the number of its images' features.
    """
    passes = _ImagePasses(rows, in_step)
    hooks = [
        model.register_forward_pre_hook(passes.before, with_kwargs=True),
        model.register_forward_hook(passes.behind),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
    passes.check_complete()


class _ImagePasses:
    """Consecutive calls of a model, which together get the rows of `images_added`."""

    def __init__(self, rows: ForwardRows, in_step: bool) -> None:
        self._batch, self._numbers = rows.batch, rows.numbers
        assert rows.batch.images is not None
        self._images = rows.batch.images
        media = self._images.media_token_ids
        self._filler = next(token for token in itertools.count() if token not in media)
        self._in_step = in_step
        self._taken = 0
        self._rows_of_trl: int | None = None

    def before(
        self, model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call with images; a forward pre-hook."""
        # TRL may have made some of a dataset's images, for the prompt alone.
        made_anew = self._images.argument_names
        given = {name: value for name, value in kwargs.items() if name not in made_anew}
        numbers = self._next_numbers(len(given["input_ids"]))
        spans = self._checked_spans(given, numbers)
        self._rows_of_trl = None
        if self._in_step and not any(spans):
            self._rows_of_trl = len(numbers)
            given, spans = self._with_spare_row(given, spans)
        made = self._images.model_inputs(given["input_ids"], given["attention_mask"], spans)
        return args, given | made

    def behind(self, model: Any, args: Any, output: Any) -> Any:
        """Cut the output of a call back to the rows that TRL knows; a forward hook."""
        if (rows := self._rows_of_trl) is None:
            return output
        for name, value in output.items():
            if isinstance(value, torch.Tensor) and value.ndim and len(value) == rows + 1:
                output[name] = value[:rows]
        return output

    def check_complete(self) -> None:
        """Raise a RuntimeError if a row did not go through the model."""
        if self._taken < len(self._numbers):
            raise RuntimeError(
                f"only {self._taken} of {len(self._numbers)} rows went through the model\n{_HINT}"
            )

    def _next_numbers(self, count: int) -> Sequence[int]:
        start, self._taken = self._taken, self._taken + count
        if self._taken > len(self._numbers):
            raise RuntimeError(
                f"{self._taken} rows went through the model, but the batch has only "
                f"{len(self._numbers)}\n"
                f"{_HINT}"
            )
        return self._numbers[start : self._taken]

    def _checked_spans(
        self, given: dict[str, Any], numbers: Sequence[int]
    ) -> list[Sequence[ImageSpan]]:
        """Return the images of each row, and remove media tokens of other images from its ids."""
        ids, mask = given["input_ids"].cpu().numpy(), given["attention_mask"].cpu().numpy() != 0
        spans: list[Sequence[ImageSpan]] = []
        stray = np.zeros(mask.shape, bool)
        for position, number in enumerate(numbers):
            conversation = self._batch.conversation_of(number)
            if conversation is None:  # it is not trained, and has no media tokens
                spans.append(())
                continue
            columns = conversation.columns
            own = np.concatenate([columns.prompt_ids, columns.completion_ids])
            attended = ids[position, mask[position]]
            seen = len(attended)
            # TRL masks the whole completion of a truncated row (mask_truncated_completions).
            may_end = seen == len(own) or seen <= len(columns.prompt_ids)
            if not (may_end and np.array_equal(attended, own[:seen])):
                raise RuntimeError(_changed(number, own, attended))
            spans.append(images_before(conversation.images, seen))
            if seen < len(own):
                start = int(mask[position].argmax())
                end = start + max((span.end for span in spans[-1]), default=0)
                stray[position, end:] = np.isin(ids[position, end:], self._images.media_token_ids)
        if stray.any():
            # A model also looks for them outside of the mask; such a row is not trained.
            places = torch.from_numpy(stray).to(given["input_ids"].device)
            given["input_ids"] = given["input_ids"].masked_fill(places, self._filler)
        return spans

    def _with_spare_row(
        self, given: dict[str, Any], spans: list[Sequence[ImageSpan]]
    ) -> tuple[dict[str, Any], list[Sequence[ImageSpan]]]:
        """Return the arguments with an additional last row that has an image.

        If that row is longer than the others, they get more padding in front, because TRL slices
        the output from the end.
        """
        row_ids, span = self._images.spare_row()
        missing = max(0, len(row_ids) - given["input_ids"].shape[1])
        row = torch.tensor([row_ids])
        rows = {
            "input_ids": (row, self._filler),
            "attention_mask": (torch.ones_like(row), 0),
            "labels": (torch.full_like(row, -100), -100),
        }
        for name, (of_row, filler) in rows.items():
            if given.get(name) is not None:
                wider = pad(given[name], (missing, 0), value=filler)
                of_row = pad(of_row, (wider.shape[1] - len(row_ids), 0), value=filler)
                given[name] = torch.cat([wider, of_row.to(wider)])
        return given, [*spans, [span]]


def _changed(number: int, own: Any, ids: Any) -> str:
    both = min(len(own), len(ids))
    differ = np.flatnonzero(own[:both] != ids[:both])
    at = int(differ[0]) if len(differ) else both
    return (
        f"the trainer changed the ids of row {number}: token {at} is {ids[at : at + 1].tolist()} "
        f"where the rollout has {own[at : at + 1].tolist()} (the row has {len(ids)} tokens, the "
        f"rollout {len(own)})\n"
        f"{_HINT}"
    )
