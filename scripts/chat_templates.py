"""The table of `docs/templates.md`: every chat template of TRL, and what can be appended to it.

    python scripts/chat_templates.py            # print the table
    python scripts/chat_templates.py --write    # write docs/templates.md
    python scripts/chat_templates.py gemma gptoss    # these only, with what is written

A template does not say which tokens its tokenizer has: `FAMILIES` does. The tokenizers are made up
of these tokens and single bytes. What a template writes does not depend on the rest.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import tokenizers
import transformers

from abut.chat_template import ChatTemplateProcessor
from abut.errors import TemplateError
from abut.template_report import NEXT_MESSAGES


@dataclass(frozen=True)
class Family:
    """The tokens of the tokenizer that belongs to some templates.

    Attributes:
        eos: the EOS token.
        bos: the BOS token, None where there is none.
        control: control tokens that the templates build or do not write.
        textual: words in the look of a control token that the tokenizer does not have.
    """

    eos: str
    bos: str | None = None
    control: tuple[str, ...] = ()


# By the beginning of the template's name, the longest that fits.
FAMILIES = {
    "cohere": Family("<|END_OF_TURN_TOKEN|>", "<BOS_TOKEN>"),
    "deepseek": Family("<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>"),
    "diffusion_gemma": Family("<eos>", "<bos>"),
    "gemma": Family("<eos>", "<bos>"),
    "glm4moe": Family("<|endoftext|>", control=("<|system|>",)),
    "gptoss": Family("<|return|>", "<|startoftext|>", ("<|constrain|>",)),
    "idefics3": Family("<end_of_utterance>", "<|begin_of_text|>"),
    "lfm2": Family("<|im_end|>", "<|startoftext|>"),
    "llama3": Family("<|eot_id|>", "<|begin_of_text|>", ("<|eom_id|>", "<|python_tag|>")),
    "llava_next": Family("</s>", "<s>"),
    "muse_glimmer": Family("<|eot|>", "<|begin_of_text|>"),
    "nemotron": Family("<|im_end|>", "<s>"),
    "phi3": Family("<|endoftext|>", "<s>"),
    "qwen": Family("<|im_end|>"),
    "smolvlm": Family("<end_of_utterance>", "<|im_start|>"),
}

# What the spellings of control tokens look like in the text of a template.
_SPELLED = re.compile(
    r"<\|[\w\"]+\|?>|<\w+\|>|<｜[^｜>]+｜>|</?[a-z]+_[a-z_]+>|</?think>|\[g?MASK\]|<sop>"
)


def family(name: str) -> Family:
    """The family of a template."""
    return FAMILIES[max((f for f in FAMILIES if name.startswith(f)), key=len)]


def tokenizer(template: str, family: Family) -> Any:
    """Bytes, and the control tokens of the family and of the template."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[])
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    spelled = [family.eos, *([family.bos] if family.bos else []), *family.control]
    spelled += _SPELLED.findall(template)
    backend.add_special_tokens(
        [tokenizers.AddedToken(t, normalized=False, special=True) for t in dict.fromkeys(spelled)]
    )
    hf = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=family.eos, bos_token=family.bos
    )
    hf.chat_template = template
    return hf


def trl_templates() -> dict[str, str]:
    """The templates that ship with the installed TRL, by name."""
    folder = resources.files("trl") / "chat_templates"
    files = (f for f in folder.iterdir() if f.name.endswith(".jinja"))
    return {
        f.name.removesuffix(".jinja"): f.read_text() for f in sorted(files, key=lambda f: f.name)
    }
