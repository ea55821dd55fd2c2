"""Train the demo's tokenizer: a small byte-level BPE on text that ships with Python.

    python scripts/train_demo_tokenizer.py [--out FOLDER]

writes `tokenizer.json` and `tokenizer_config.json` (512 tokens: 256 bytes, merges, nine added
tokens). On one Python version the result is always the same; other versions have other docstrings,
so their merges differ. The pipeline is like Qwen2's: NFC, the Qwen2 pre-tokenizer pattern,
ByteLevel. The chat template in the same folder is written by hand.
"""

import argparse
import ast
import json
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, trainers
from tokenizers.models import BPE
from tokenizers.processors import ByteLevel

VOCAB_SIZE = 512
ASSETS = Path(__file__).parents[1] / "python" / "abut" / "demo" / "assets"

# The Qwen2 pattern: the most common one today; every digit is a separate token.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# As in Qwen3, the second group is `special=False`: `skip_special_tokens` keeps it in the text, and
# `split_special_tokens` does not disable it. Even so, untrusted text must not contain it.
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKUP = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)

# Words that the template writes in every turn: one token each instead of three, for short prompts.
SCAFFOLD_WORDS = ("system", "user", "assistant", "tool")
SCAFFOLD_REPEATS = 5_000

# Prose-heavy packages of the standard library, listed by name, because a glob would include modules
# that a distribution adds.
MODULES = (
    "argparse",
    "ast",
    "asyncio",
    "collections",
    "concurrent",
    "csv",
    "dataclasses",
    "datetime",
    "decimal",
    "doctest",
    "email",
    "enum",
    "fractions",
    "functools",
    "http",
    "importlib",
    "inspect",
    "json",
    "logging",
    "pathlib",
    "pickle",
    "random",
    "statistics",
    "string",
    "subprocess",
    "tarfile",
    "textwrap",
    "threading",
    "turtle",
    "typing",
    "unittest",
    "urllib",
    "zipfile",
)


def docstrings() -> Iterator[str]:
    """Return the docstrings of `MODULES`, in the order of the list, the path and the line."""
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    for name in MODULES:
        package = stdlib / name
        files = [package.with_suffix(".py")] if not package.is_dir() else package.rglob("*.py")
        for file in sorted(files, key=lambda file: file.as_posix()):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
                if isinstance(node, documented) and (text := ast.get_docstring(node)):
                    yield text


def train(texts: Iterable[str] | None = None, vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """Return the trained tokenizer, its added tokens last.

    Args:
        texts: what to train on; None is the demo's text.
        vocab_size: at most so many tokens, the added ones included.
    """
    tokenizer = Tokenizer(BPE(byte_fallback=False, fuse_unk=False))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = ByteLevel(add_prefix_space=False, trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(SPECIAL) - len(MARKUP),
        # Sorted, because the alphabet is a set, and its order determines the ids of the bytes.
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    if texts is None:
        words = "\n".join(SCAFFOLD_WORDS)
        texts = [*docstrings(), *[words] * SCAFFOLD_REPEATS]
    tokenizer.train_from_iterator(texts, trainer)
    for token in SPECIAL + MARKUP:
        tokenizer.add_tokens([AddedToken(token, special=token in SPECIAL, normalized=False)])
    return tokenizer


def config(tokenizer: Tokenizer) -> dict[str, object]:
    """Return `tokenizer_config.json`: EOS is `<|im_end|>`, padding is `<|endoftext|>`, no BOS."""
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": {
            str(tokenizer.token_to_id(token)): {
                "content": token,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": token in SPECIAL,
            }
            for token in SPECIAL + MARKUP
        },
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "model_max_length": 2048,
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }


def main() -> None:
    """Write the two files."""
    parser = argparse.ArgumentParser(description="Train the demo's tokenizer.")
    parser.add_argument("--out", type=Path, default=ASSETS, help="folder (default: %(default)s)")
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = train()
    tokenizer.save(str(out / "tokenizer.json"))
    settings = json.dumps(config(tokenizer), indent=2) + "\n"
    (out / "tokenizer_config.json").write_text(settings, encoding="utf-8")


if __name__ == "__main__":
    main()
