"""What closes a turn that was sampled, before the next messages are written behind it.

One function for the engine, the audit and the replay: what is certified is what training writes.
"""

import itertools
from collections.abc import Collection, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from abut._native import Tokenizer
from abut.messages import Message
from abut.parts import Part
from abut.processor import PartsProcessor

Ids: TypeAlias = Sequence[int] | NDArray[np.signedinteger[Any]]


def stops_in(ids: Ids, stop_token_ids: Collection[int]) -> list[int]:
    """The places of the stop tokens in a sample; at the first of them the turn ended."""
    # One comparison for each of the few stop tokens: `np.isin` costs several times as much.
    sampled = np.asarray(ids)
    places = [(sampled == token).nonzero()[0].tolist() for token in stop_token_ids]
    return sorted(itertools.chain.from_iterable(places))


def turn_close(
    processor: PartsProcessor,
    tokenizer: Tokenizer,
    ids: Ids,
    messages: Sequence[Message],
    *,
    stop_token_ids: Collection[int],
) -> list[Part]:
    """What is missing of the end of a sampled turn that `messages` follow; `[]` for nothing.

    A turn ended at its first stop token. What was sampled behind that stays, and where one of its
    stop tokens is the one that the template writes, nothing is missing. A turn without any was cut:
    where it was cut inside its thinking, what closes the thinking comes first.

    Args:
        processor: writes the end. Where it has `close_thinking`, see `PartsProcessor`.
        tokenizer: decodes the sample.
        ids: all that was sampled, at least one.
        messages: what follows the turn.
        stop_token_ids: of the engine, which may have more than the processor.

    Raises:
        TemplateError: as `PartsProcessor.closing`.
    """
    if stops := stops_in(ids, stop_token_ids):
        ends = [processor.closing(messages, after=int(ids[place])) for place in stops]
        return min(ends, key=lambda parts: len("".join(parts)))
    close_thinking = getattr(processor, "close_thinking", None)
    if close_thinking is not None and (thinking := close_thinking(tokenizer.decode(ids))):
        return [*thinking, *processor.closing(messages)]
    return processor.closing(messages, after=int(ids[-1]))
