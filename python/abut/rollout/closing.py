"""What closes a turn that was sampled, before the next messages are written behind it.

One function for the engine, the audit and the replay: what is certified is what training writes.
"""

from collections.abc import Sequence

from abut._native import Tokenizer
from abut.messages import Message
from abut.parts import Part
from abut.processor import PartsProcessor
from abut.rollout.sampled_text import Ids, sampled_text


def turn_close(
    processor: PartsProcessor,
    tokenizer: Tokenizer,
    ids: Ids,
    messages: Sequence[Message],
    *,
    stops: Sequence[int],
) -> list[Part]:
    """What is missing of the end of a sampled turn that `messages` follow; `[]` for nothing.

    A turn ended at its first stop token. What was sampled behind that stays, and where one of its
    stop tokens is the one that the template writes, nothing is missing. A turn without any was cut:
    where it was cut inside its thinking, what closes the thinking comes first.

    Args:
        processor: writes the end. Where it has `close_thinking`, see `PartsProcessor`.
        tokenizer: decodes the sample.
        ids: all that was sampled; none: the end is missing as a whole.
        messages: what follows the turn.
        stops: where in `ids` stop tokens of the engine stand, which may have more of them than
            the processor; at the first of them the turn ended.

    Raises:
        TemplateError: as `PartsProcessor.closing`.
    """
    if not len(ids):
        return processor.closing(messages)
    if stops:
        ends = [processor.closing(messages, after=int(ids[place])) for place in stops]
        return min(ends, key=lambda parts: len("".join(parts)))
    close_thinking = getattr(processor, "close_thinking", None)
    if close_thinking is not None and (thinking := close_thinking(sampled_text(tokenizer, ids))):
        return [*thinking, *processor.closing(messages)]
    return processor.closing(messages, after=int(ids[-1]))
