"""The tokens by which TRL tells whether a completion ended, and what it fills rows up with."""

import warnings
from typing import Any


def check_end_tokens(
    trainer: Any, hf_tokenizer: Any, close_token_id: int, *, stacklevel: int
) -> None:
    """Warn where TRL would take each row for one that was cut.

    Raises:
        ValueError: there is no token to fill rows up with.
    """
    name, eos = hf_tokenizer.name_or_path, hf_tokenizer.eos_token_id
    if hf_tokenizer.pad_token_id is None:
        raise ValueError(
            f"the tokenizer {name!r} has no pad token, which rows are filled up with, and no EOS "
            "token to take its place\n"
            "hint: set tokenizer.eos_token to the token that ends a turn, and tokenizer.pad_token"
        )
    # From TRL 1.14 on those of the model's generation config, too.
    ends = [i for i in getattr(trainer, "eos_token_ids", [eos]) if i is not None]
    close = hf_tokenizer.convert_ids_to_tokens(close_token_id)
    if eos is None:
        what = f"the tokenizer {name!r} has no EOS token"
    elif close_token_id not in ends:
        theirs = ", ".join(map(repr, hf_tokenizer.convert_ids_to_tokens(ends)))
        what = f"turns end on {close!r}, but the tokenizer {name!r} and the model say {theirs}"
    else:
        return
    warnings.warn(
        f"{what}: TRL tells by its EOS tokens whether a completion ended, and takes others for cut "
        "(completions/clipped_ratio; mask_truncated_completions leaves them out)\n"
        f"hint: tokenizer.eos_token = {close!r}",
        stacklevel=stacklevel + 1,
    )
