"""A turn as it was sampled: its text, and the tokens that end it.

Invariant: a control token counts only where it was sampled as one. A policy can also spell
`<tool_call>` with ordinary tokens, and an answer that quotes it this way is not a call.

Parsers search the text, so each spelled control token is hidden from them: its first character is
replaced by a character that the text does not have, until `Sampled` restores it.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from abut._native import Tokenizer, positions_of
from abut.errors import SamplerError
from abut.messages import Message
from abut.parts import Part, Sampled
from abut.processor import PartsProcessor, ThinkingProcessor
from abut.rollout.rollout import TurnRecord

Ids: TypeAlias = Sequence[int] | NDArray[np.signedinteger[Any]]

# Noncharacters and characters for private use, of which no text has all.
_VEILS = (range(0xFDD0, 0xFDF0), range(0xF0000, 0x10FFFE))


def sampled_text(tokenizer: Tokenizer, ids: Ids) -> str:
    """Return the text of ids; a `Sampled` if it spells control tokens that the ids lack.

    Args:
        tokenizer: decodes them.
        ids: `(T,)`, as they were sampled.
    """
    text = tokenizer.decode(ids)
    spelled = tokenizer.control_spellings(text)
    if not spelled:
        return text
    tokens = [tokenizer.token_to_id(token) for _, token in spelled]
    places = positions_of(ids, [token for token in {*tokens} if token is not None])
    if [int(ids[place]) for place in places] == tokens:
        return text
    # The runs between those that were sampled are text, whatever they spell.
    pieces: list[tuple[str, bool]] = []
    for before, place in pairwise([-1, *places, len(ids)]):
        pieces.append((tokenizer.decode(ids[before + 1 : place]), False))
        pieces.append((tokenizer.decode(ids[place : place + 1]), True))
    firsts = sorted({token[0] for _, token in spelled})
    free = (veil for veil in map(chr, chain(*_VEILS)) if veil not in text)
    hide = dict(zip(firsts, free, strict=False))
    veiled = "".join(
        piece if is_token else _veiled(tokenizer, piece, hide) for piece, is_token in pieces
    )
    return Sampled(veiled, {veil: first for first, veil in hide.items()})


def _veiled(tokenizer: Tokenizer, text: str, hide: dict[str, str]) -> str:
    characters = list(text)
    for place, token in tokenizer.control_spellings(text):
        characters[place] = hide.get(token[0], token[0])
    return "".join(characters)


def end_of_turn(
    processor: PartsProcessor,
    tokenizer: Tokenizer,
    ids: Ids,
    messages: Sequence[Message],
    *,
    stops: Sequence[int],
) -> list[Part]:
    """Return the parts that end a sampled turn before `messages`; `[]` if nothing is missing.

    The engine, the audit and the replay share this function, so the audit certifies exactly what
    training writes. A turn ends at its first stop token, but tokens sampled after that stay in the
    row. If one of its stop tokens is the one that the template writes, nothing is missing. A turn
    without a stop token was cut; if it was cut inside its thinking, the thinking is closed first.

    Args:
        processor: writes the end, also of thinking if it is a `ThinkingProcessor`.
        tokenizer: decodes the sample.
        ids: all sampled tokens; if empty, the whole end is missing.
        messages: the messages that follow the turn.
        stops: the positions in `ids` of the engine's stop tokens, which may be more than the
            processor's. The turn ended at the first.

    Raises:
        TemplateError: as for `PartsProcessor.closing`.
    """
    if not len(ids):
        return processor.closing(messages)
    if stops:
        ends = [processor.closing(messages, after=int(ids[place])) for place in stops]
        # The shortest, because there the most of the template's end was sampled already.
        return min(ends, key=lambda parts: len("".join(parts)))
    if isinstance(processor, ThinkingProcessor):
        thinking = processor.close_thinking(sampled_text(tokenizer, ids))
        if thinking:
            return [*thinking, *processor.closing(messages)]
    return processor.closing(messages, after=int(ids[-1]))


def until_stop(
    tokenizer: Tokenizer,
    ids: Ids,
    stops: Sequence[int],
    stop_string: str | None,
    record: TurnRecord,
    *,
    turn: int,
) -> str:
    """Return the text of a sample before its stop, and record what stopped it.

    Args:
        tokenizer: of the sample.
        ids: of the sample, at least one.
        stops: the positions of stop tokens in the sample.
        stop_string: the stop string that ended it, if one did.
        record: of the turn.
        turn: its number, for errors.

    Raises:
        SamplerError: the stop string is not in its text.
    """
    decode_bytes, start = tokenizer.decode_bytes, record.start
    if stops:
        record.stop_token = start + stops[0]
        ids = ids[: stops[0]]
    if stop_string is None:
        return sampled_text(tokenizer, ids)
    spoken = decode_bytes(ids)
    at = spoken.find(stop_string.encode())
    if at < 0 or not stop_string:
        raise SamplerError(
            f"turn {turn}: the sample ended with the stop string {stop_string!r}, but its text "
            "does not have it\n"
            "hint: the sampler must return all sampled ids, including those of the stop string"
        )
    # The token that has the byte `at`, by the lengths of the decoded beginnings.
    token = bisect_right(range(1, len(ids)), at, key=lambda end: len(decode_bytes(ids[:end])))
    record.stop_token, record.stop_string = start + token, stop_string
    record.stop_inside = at > len(decode_bytes(ids[:token]))
    text = spoken[:at].decode("utf-8", errors="replace")
    whole = sampled_text(tokenizer, ids)
    return whole.part(whole.veiled[: len(text)]) if isinstance(whole, Sampled) else text
