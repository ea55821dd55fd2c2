"""Assertions for your own tests: check that a tokenizer is exact where training joins texts.

    from abut.testing import assert_additive, assert_appendable, assert_exact_append

Each accepts an `abut.Tokenizer` or a transformers tokenizer. A transformers tokenizer is compared
with transformers' own encode, an `abut.Tokenizer` with one encode of the whole. If an assertion
fails, its message shows the first token that differs, the text on both sides, and what to do. The
assertions are plain functions, for pytest, unittest or Hypothesis.
"""

import json
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import Any, Literal

from abut._native import Tokenizer, Trajectory
from abut.audit.replay import Difference, Replay, difference, token_text
from abut.errors import TemplateError
from abut.messages import Message
from abut.pretrained import tokenizer_of
from abut.template.mask import json_or_none
from abut.template.processor import ChatTemplateProcessor

__all__ = [
    "assert_additive",
    "assert_appendable",
    "assert_exact_append",
    "native_tokenizer",
]


def assert_additive(tokenizer: Any, a: str, b: str) -> None:
    """Assert that the tokens of `a + b` are the tokens of `a` followed by the tokens of `b`.

    This is the literal equation for three independent encodes, without BOS and EOS. With most
    tokenizers it holds only at control tokens; abut does not need it between texts.

    Args:
        tokenizer: an `abut.Tokenizer` or a transformers tokenizer, which encodes itself.
        a: the text on the left.
        b: the text on the right.

    Raises:
        AssertionError: the equation does not hold.
    """
    __tracebackhide__ = True
    encode, text_of = _encoder(tokenizer)
    joined = [*encode(a), *encode(b)]
    if found := difference(encode(a + b), joined, text_of):
        raise AssertionError(
            _message(
                f"{a!r} and {b!r} are not additive: token {found.token} differs",
                found,
                ("together", "apart"),
                "do not join the ids of texts that were encoded separately; append the texts to "
                "one abut.Trajectory, or end the first text with a control token",
            )
        )


def assert_exact_append(
    tokenizer: Any, pieces: Sequence[str], *, added: Literal["parse", "text"] = "parse"
) -> None:
    """Assert that texts appended one by one give the same tokens as one encode of the whole.

    Checked after every append; also checks `drop` and `ids` of every seam.

    Args:
        tokenizer: an `abut.Tokenizer`, which is compared with its own encode of the whole, or a
            transformers tokenizer, which is compared with transformers' encode.
        pieces: the texts, in order; empty ones are fine.
        added: "parse": spelled control tokens become control tokens, as in transformers. "text":
            they stay text; transformers cannot do this, so the comparison is with
            `abut.Tokenizer`'s encode.

    Raises:
        AssertionError: the tokens differ.
    """
    __tracebackhide__ = True
    native = native_tokenizer(tokenizer)
    encode, text_of = _encoder(tokenizer if added == "parse" else native, added=added)
    trajectory, whole = Trajectory(native), ""
    before: list[int] = []
    for k, piece in enumerate(pieces):
        seam = trajectory.append_text(piece, added=added)
        whole += piece
        ids = trajectory.ids.tolist()
        if found := difference(ids, encode(whole), text_of):
            raise AssertionError(
                _message(
                    f"after piece {k} ({piece!r}) of {list(pieces)!r} token {found.token} differs",
                    found,
                    ("appended", "whole"),
                    "abut cannot append to this tokenizer's texts exactly; please report this bug "
                    "with the tokenizer.json",
                )
            )
        said = [*before[: len(before) - seam.drop], *seam.ids.tolist()]
        if found := difference(said, ids, text_of):
            raise AssertionError(
                _message(
                    f"the seam before piece {k} ({piece!r}) of {list(pieces)!r} is {seam}, but "
                    f"token {found.token} of the trajectory differs",
                    found,
                    ("the seam", "the ids"),
                    "please report this bug with the tokenizer.json",
                )
            )
        before = ids


def assert_appendable(
    hf_tokenizer: Any,
    conversation: Sequence[Message],
    *,
    cut: Collection[int] = (),
    tools: Sequence[Any] | None = None,
    chat_template: str | None = None,
    **chat_template_kwargs: Any,
) -> None:
    """Assert that a conversation built turn by turn has the tokens of the template's render.

    The assistant's answers count as sampled, thinking included. After every turn, the tokens are
    compared with transformers' encode of the rendered text or, if the template removes thinking
    from earlier turns, of the text that was sent to the engine. If contents spell control tokens,
    which transformers would create, the comparison is with one `encode_parts` of the whole. If a
    tokenizer would merge an answer with the generation prompt, the answer stays as sampled, and the
    comparison starts again after it.

    Args:
        hf_tokenizer: a transformers tokenizer with a chat template.
        conversation: messages, a prompt first.
        cut: the positions (from 0) of the turns that were cut by a length limit.
        tools: functions or JSON schemas, as for `apply_chat_template`.
        chat_template: a template to use instead of the tokenizer's own.
        **chat_template_kwargs: variables for the template.

    Raises:
        AssertionError: the tokens differ, or abut cannot append to the template.
        ValueError: the conversation has no prompt, or an answer that is not text.
    """
    __tracebackhide__ = True
    options = {"tools": tools, "chat_template": chat_template, **chat_template_kwargs}
    try:
        replayed = _replay(hf_tokenizer, options).run(conversation, cut=cut)
    except TemplateError as error:
        raise AssertionError(f"the conversation cannot be appended to: {error}") from error
    if replayed.problem is not None:
        raise AssertionError(
            f"{replayed.problem}\n"
            "hint: run `abut check` on this tokenizer and template to see which seam is not exact"
        )


# ---- what the assertions share


def native_tokenizer(tokenizer: Any) -> Tokenizer:
    """Return the `abut.Tokenizer` of a tokenizer, as the assertions use it; loaded only once.

    It is loaded again when tokens were added or the chat template changed.
    """
    if isinstance(tokenizer, Tokenizer):
        return tokenizer
    return _loaded(tokenizer, len(tokenizer), str(tokenizer.chat_template))


@lru_cache(maxsize=4)
def _loaded(tokenizer: Any, size: int, template: str) -> Tokenizer:
    return Tokenizer.from_pretrained(tokenizer)


def _encoder(
    tokenizer: Any, *, added: Literal["parse", "text"] = "parse"
) -> tuple[Callable[[str], list[int]], Callable[[int], str]]:
    """`encode` without BOS and EOS, and the text of one id."""
    if isinstance(tokenizer, Tokenizer):
        return lambda text: tokenizer.encode(text, added=added).tolist(), token_text(tokenizer)
    return (
        lambda text: list(tokenizer.encode(text, add_special_tokens=False)),
        lambda i: str(tokenizer.decode([i])),
    )


def _replay(hf_tokenizer: Any, options: dict[str, Any]) -> Replay:
    hf_tokenizer = tokenizer_of(hf_tokenizer)
    key = json_or_none(options)
    if key is None or json.loads(key) != options:
        return _new_replay(hf_tokenizer, options)
    return _known_replay(hf_tokenizer, len(hf_tokenizer), str(hf_tokenizer.chat_template), key)


@lru_cache(maxsize=16)
def _known_replay(hf_tokenizer: Any, size: int, template: str, options: str) -> Replay:
    return _new_replay(hf_tokenizer, json.loads(options))


def _new_replay(hf_tokenizer: Any, options: dict[str, Any]) -> Replay:
    processor = ChatTemplateProcessor(hf_tokenizer, **options)
    return Replay(hf_tokenizer, native_tokenizer(hf_tokenizer), processor, **options)


def _message(what: str, found: Difference, names: tuple[str, str], hint: str) -> str:
    return "\n".join([what, *found.lines(*names), f"hint: {hint}"])
