"""The `tokenizer.json` of a transformers tokenizer."""

import os
from collections.abc import Collection
from typing import Any

from abut.errors import MissingExtraError, TokenizerError


def load_transformers_tokenizer(source: str | os.PathLike[str]) -> Any:
    """Load a tokenizer by name or folder with transformers.

    Raises:
        MissingExtraError: transformers is not installed.
        OSError: transformers finds no tokenizer there (its own message).
    """
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise MissingExtraError(
            "loading a tokenizer by name or folder needs transformers: pip install 'abut[hf]'\n"
            "hint: Tokenizer.from_file('tokenizer.json') needs no extra"
        ) from error
    return AutoTokenizer.from_pretrained(os.fspath(source))


def tokenizer_json(source: Any) -> str:
    """Return the `tokenizer.json` of a transformers tokenizer, a model's name or a folder.

    The current truncation and padding are part of that text; the core ignores both.

    Raises:
        TokenizerError: the tokenizer has no `tokenizers` backend, so it has no such file.
        MissingExtraError: a name or folder was given and transformers is not installed.
    """
    tokenizer = source
    if isinstance(source, str | os.PathLike):
        tokenizer = load_transformers_tokenizer(source)
    # A multimodal processor holds its tokenizer.
    tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise TokenizerError(
            f"{type(source).__name__} has no backend_tokenizer: it is not a fast tokenizer\n"
            "hint: pass a transformers tokenizer that has a tokenizer.json, its name or its folder"
        )
    return str(backend.to_str())


def tokenizer_source(
    source: Any, control: Collection[str], textual: Collection[str]
) -> tuple[str, list[str]]:
    """Return the `tokenizer.json` and the added tokens that are control tokens in any case.

    Those are `control`, and what the chat template spells unless `textual` says otherwise. Tokens
    of whitespace are left out: a template's own line breaks spell them by accident.
    """
    tokenizer = source
    if isinstance(source, str | os.PathLike):
        tokenizer = load_transformers_tokenizer(source)
    text = tokenizer_json(tokenizer)
    tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
    template = getattr(tokenizer, "chat_template", None) or ""
    templates = template.values() if isinstance(template, dict) else [template]
    # Asked, and not read from the text: to parse that takes 0.4 s where there are 150,000 ids.
    added = tokenizer.backend_tokenizer.get_added_tokens_decoder().values()
    written = {
        token.content
        for token in added
        if token.content.strip() and any(token.content in text for text in templates)
    }
    return text, sorted({*control, *(written - set(textual))})
