"""Hypothesis strategies for difficult texts, messages, conversations and recorded calls.

    from hypothesis import given
    from abut import strategies
    from abut.testing import assert_exact_append

    @given(strategies.pieces(tokenizer))
    def test_my_tokenizer_appends_exactly(pieces):
        assert_exact_append(tokenizer, pieces)

They contain many cases that tokenizers treat specially: runs of whitespace, combining marks, emoji,
scripts without spaces, look-alikes. With a tokenizer they also spell its control and textual
tokens, whole and in halves. Failures shrink to plain letters.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from abut._native import Tokenizer
from abut.audit.fuzz import FRAGMENTS, spellings
from abut.errors import MissingExtraError
from abut.messages import Message
from abut.parts import Content, Part, Scaffold

try:
    from hypothesis import strategies as st
except ImportError as error:
    raise MissingExtraError(
        "abut.strategies needs Hypothesis: pip install 'abut[testing]'"
    ) from error

__all__ = [
    "conversations",
    "fragments",
    "messages",
    "partial_utf8",
    "parts",
    "pieces",
    "recorded_calls",
    "texts",
]

RecordedCall = tuple[list[int], list[int], list[float]]

# Unassigned characters are left out: libraries differ in the Unicode version that they know.
_characters = st.characters(exclude_categories=["Cs", "Cn"])


def fragments(
    tokenizer: Tokenizer | None = None, *, also: Sequence[str] = ()
) -> st.SearchStrategy[str]:
    """Short pieces of text, of which `texts` consists; never empty.

    Args:
        tokenizer: its control and textual tokens are spelled too.
        also: more pieces.
    """
    own = list(also)
    if tokenizer is not None:
        profile = tokenizer.profile()
        own += spellings([*profile["control_tokens"], *profile["textual_tokens"]])
    known = st.sampled_from(FRAGMENTS) | st.text(_characters, min_size=1, max_size=3)
    return known | st.sampled_from(own) if own else known


def texts(
    tokenizer: Tokenizer | None = None, *, also: Sequence[str] = (), max_fragments: int = 8
) -> st.SearchStrategy[str]:
    """Texts of up to `max_fragments` fragments; they may be empty."""
    return st.lists(fragments(tokenizer, also=also), max_size=max_fragments).map("".join)


@st.composite
def _cut(draw: st.DrawFn, whole: st.SearchStrategy[Any], max_pieces: int) -> list[Any]:
    """Something with slices, cut at up to `max_pieces - 1` random places."""
    value = draw(whole)
    places = st.lists(st.integers(0, len(value)), max_size=max_pieces - 1).map(sorted)
    edges = [0, *draw(places), len(value)]
    return [value[start:end] for start, end in pairwise(edges)]


def pieces(
    tokenizer: Tokenizer | None = None, *, also: Sequence[str] = (), max_pieces: int = 6
) -> st.SearchStrategy[list[str]]:
    """A text cut at random places, inside control tokens and combining sequences too.

    Up to `max_pieces` pieces; some are empty.
    """
    return _cut(texts(tokenizer, also=also, max_fragments=12), max_pieces)


def partial_utf8(
    tokenizer: Tokenizer | None = None, *, also: Sequence[str] = (), max_pieces: int = 6
) -> st.SearchStrategy[list[bytes]]:
    """The bytes of a string, cut at random places, inside characters too, as in a stream."""
    return _cut(texts(tokenizer, also=also).map(str.encode), max_pieces)


def parts(
    tokenizer: Tokenizer | None = None, *, also: Sequence[str] = (), max_parts: int = 6
) -> st.SearchStrategy[list[Part]]:
    """Scaffold and content in any order, for `encode_parts` and `append_parts`.

    Half of them are single fragments: they cut tokens in two, which is where scaffold and content
    meet.
    """
    text = texts(tokenizer, also=also) | fragments(tokenizer, also=also)
    part: st.SearchStrategy[Part] = st.builds(Scaffold, text) | st.builds(Content, text)
    return st.lists(part, max_size=max_parts)


def messages(
    tokenizer: Tokenizer | None = None,
    *,
    roles: Sequence[str] = ("user",),
    stripped: bool = False,
) -> st.SearchStrategy[Message]:
    """A message of one of these roles, with text as content.

    Args:
        tokenizer: as for `fragments`.
        roles: a message of the role `tool` has a name and an id, too.
        stripped: without whitespace around the content, for templates that trim it; never empty.
    """
    content = texts(tokenizer)
    if stripped:
        content = content.map(str.strip).filter(bool)

    def message(role: str, content: str) -> Message:
        call = {"name": "look", "tool_call_id": "abutcall0"} if role == "tool" else {}
        return {"role": role, "content": content, **call}

    return st.builds(message, st.sampled_from(list(roles)), content)


@st.composite
def conversations(
    draw: st.DrawFn,
    tokenizer: Tokenizer | None = None,
    *,
    max_turns: int = 3,
    system: bool = True,
    roles: Sequence[str] = ("user",),
    stripped: bool = False,
) -> list[Message]:
    """A prompt, then turns: an answer of the assistant, and messages that reply to it.

    Answers have no whitespace around them, are not empty and do not spell control tokens, so a
    template that trims earlier messages does not change them.

    Args:
        draw: Hypothesis gives it.
        tokenizer: as for `fragments`, for all but the answers.
        max_turns: most answers; at least one.
        system: whether the first message may be a system message.
        roles: of the messages that reply to an answer.
        stripped: as for `messages`.
    """
    said = messages(tokenizer, roles=roles, stripped=stripped)
    answers = messages(roles=["assistant"], stripped=True)
    first = messages(tokenizer, roles=["user"], stripped=stripped)
    conversation: list[Message] = []
    if system and draw(st.booleans()):
        conversation.append(draw(messages(tokenizer, roles=["system"], stripped=stripped)))
    conversation.append(draw(first))
    for _ in range(draw(st.integers(1, max_turns))):
        conversation += [draw(answers), draw(said)]
    return conversation


@st.composite
def recorded_calls(
    draw: st.DrawFn, *, max_calls: int = 9, vocab_size: int = 3, drift: bool = True
) -> list[RecordedCall]:
    """Engine calls for `abut.stitch`, shuffled; there may be none.

    Each sampled token has a different logprob, so that a test can find it again. Some completions
    are empty.

    Args:
        draw: Hypothesis gives it.
        max_calls: most calls.
        vocab_size: ids are below it. With few ids, histories are sometimes equal by chance.
        drift: True for trees of calls with retries, calls that were recorded twice, and rewritten
            histories; False for the turns of one conversation, which `stitch` accepts.
    """
    ids = st.integers(0, vocab_size - 1)
    tokens = st.lists(ids, max_size=4)
    pairs: list[tuple[list[int], list[int]]] = []
    kinds = ["root", *["extend"] * 4, "retry", "again", *["edit"] * 3] if drift else ["extend"]
    for _ in range(draw(st.integers(0, max_calls))):
        if not pairs:
            pairs.append(([draw(ids), *draw(tokens)], draw(tokens)))
            continue
        kind = draw(st.sampled_from(kinds))
        prompt, sampled = draw(st.sampled_from(pairs)) if drift else pairs[-1]
        whole = prompt + sampled
        if kind == "again":
            pairs.append((prompt, sampled))
            continue
        if kind == "root":
            prompt = [draw(ids), *draw(tokens)]
        elif kind == "extend":
            prompt = whole + draw(tokens)
        elif kind == "edit":
            start = draw(st.integers(0, len(whole)))
            stop = draw(st.integers(start, len(whole)))
            prompt = whole[:start] + draw(tokens) + whole[stop:] + draw(tokens)
        if prompt:
            pairs.append((prompt, draw(tokens)))
    count = 0
    calls = []
    for prompt, sampled in draw(st.permutations(pairs)):
        logprobs = [-(count + index + 1) / 64 for index in range(len(sampled))]
        count += len(sampled)
        calls.append((list(prompt), list(sampled), logprobs))
    return calls
