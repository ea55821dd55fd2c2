"""Write the table of `docs/background/templates.md`: which messages each template can append.

    python scripts/chat_templates.py                 # print the table
    python scripts/chat_templates.py --write         # write it into docs/background/templates.md
    python scripts/chat_templates.py gemma gptoss    # print what these templates write

The script uses the templates of the installed TRL, and two in the `[INST]` style. A template does
not contain the tokens of its tokenizer, so they are listed in `FAMILIES`. The tokenizers have only
these tokens and single bytes, because the text that a template writes does not depend on others.
"""

import argparse
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import tokenizers
import transformers

from abut.template.processor import ChatTemplateProcessor
from abut.template.report import NEXT_MESSAGES, NextVerdict

PAGE = Path(__file__).parents[1] / "docs" / "background" / "templates.md"
MARK = "<!-- scripts/chat_templates.py wrote what follows. -->\n"


@dataclass(frozen=True)
class Family:
    """The tokens of the tokenizer of a family of templates.

    Attributes:
        eos: the EOS token.
        bos: the BOS token; None: there is no BOS token.
        control: control tokens that the templates build or do not write.
    """

    eos: str
    bos: str | None = None
    control: tuple[str, ...] = ()


# By the longest matching prefix of the template's name.
FAMILIES = {
    "cohere": Family("<|END_OF_TURN_TOKEN|>", "<BOS_TOKEN>"),
    "deepseek": Family("<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>"),
    "diffusion_gemma": Family("<eos>", "<bos>"),
    "gemma": Family("<eos>", "<bos>"),
    "glm4moe": Family("<|endoftext|>", control=("<|system|>", "/nothink")),
    "gptoss": Family("<|return|>", "<|startoftext|>", ("<|constrain|>",)),
    "inst": Family("</s>", "<s>"),
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

# The spelling of control tokens in templates.
_SPELLED = re.compile(
    r"<\|[\w\"]+\|?>|<\w+\|>|<｜[^｜>]+｜>|</?[a-z]+_[a-z_]+>|</?think>|\[g?MASK\]|<sop>|\[/?[A-Z_]+\]"
)

# The formats of Llama 2 and Mistral v3.
INST = {
    "inst_llama2": (
        "{% for m in messages %}"
        "{% if m.role == 'system' %}{% if not loop.first %}{{ raise_exception('system first') }}"
        "{% endif %}"
        "{% elif m.role == 'user' %}{{ bos_token + '[INST] ' }}"
        "{% if loop.index0 == 1 and messages[0].role == 'system' %}"
        "{{ '<<SYS>>\\n' + messages[0].content + '\\n<</SYS>>\\n\\n' }}{% endif %}"
        "{{ m.content.strip() + ' [/INST]' }}"
        "{% elif m.role == 'assistant' %}{{ ' ' + m.content.strip() + ' ' + eos_token }}"
        "{% else %}{{ raise_exception('only system, user and assistant') }}{% endif %}"
        "{% endfor %}"
    ),
    "inst_mistral_v3": (
        "{% set system = messages[0].content if messages[0].role == 'system' else '' %}"
        "{% set last = namespace(user=-1) %}"
        "{% for m in messages %}{% if m.role == 'user' %}"
        "{% set last.user = loop.index0 %}{% endif %}{% endfor %}{{ bos_token }}"
        "{% for m in messages %}"
        "{% if m.role == 'user' %}"
        "{% if tools and loop.index0 == last.user %}"
        "{{ '[AVAILABLE_TOOLS] ' + tools|tojson + '[/AVAILABLE_TOOLS]' }}{% endif %}"
        "{{ '[INST] ' + (system + '\\n\\n' if system and loop.index0 == last.user else '') }}"
        "{{ m.content + '[/INST]' }}"
        "{% elif m.role == 'assistant' and m.tool_calls %}{{ '[TOOL_CALLS] [' }}"
        "{% for call in m.tool_calls %}"
        "{% if call.id|length != 9 %}{{ raise_exception('ids have 9 characters') }}{% endif %}"
        "{{ (call.function|tojson)[:-1] + ', \"id\": \"' + call.id + '\"}' }}"
        "{{ ', ' if not loop.last }}{% endfor %}{{ ']' + eos_token }}"
        "{% elif m.role == 'assistant' %}{{ ' ' + m.content + eos_token }}"
        "{% elif m.role == 'tool' %}"
        "{% if m.tool_call_id|length != 9 %}"
        "{{ raise_exception('ids have 9 characters') }}{% endif %}"
        '{{ \'[TOOL_RESULTS] {"content": \' + m.content + \', "call_id": "\' + m.tool_call_id }}'
        "{{ '\"}[/TOOL_RESULTS]' }}"
        "{% endif %}{% endfor %}"
    ),
}


def family(name: str) -> Family:
    """Return the family of a template."""
    return FAMILIES[max((f for f in FAMILIES if name.startswith(f)), key=len)]


def tokenizer(template: str, family: Family) -> Any:
    """Return a tokenizer of bytes and the control tokens of family and template."""
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


def templates() -> dict[str, str]:
    """Return the templates of the installed TRL and of `INST`, by name."""
    folder = resources.files("trl") / "chat_templates"
    found = {f.name: f.read_text() for f in folder.iterdir() if f.name.endswith(".jinja")}
    return {name.removesuffix(".jinja"): found[name] for name in sorted(found)} | INST


def thinking(template: str) -> dict[str, dict[str, bool]]:
    """Return the variables for thinking on and off, if the template has them."""
    if "enable_thinking" not in template:
        return {"": {}}
    return {"on": {"enable_thinking": True}, "off": {"enable_thinking": False}}


def processors(name: str, template: str) -> dict[str, ChatTemplateProcessor]:
    """Return the processors of a template: `""`, or `"on"` and `"off"`."""
    hf = tokenizer(template, family(name))
    return {mode: ChatTemplateProcessor(hf, **keys) for mode, keys in thinking(template).items()}


def rendered_by() -> str:
    """Return the versions that the table was made with."""
    versions = (metadata.version(name) for name in ("trl", "transformers"))
    return "TRL {}, rendered by transformers {}".format(*versions)


def page(all_templates: dict[str, str]) -> str:
    """Return the generated part of the page."""
    footnotes: dict[str, int] = {}
    appendable: Counter[str] = Counter()

    def cell(verdict: NextVerdict) -> str:
        said = "no" if not verdict.appendable else "yes"
        changes = [c for c in dict.fromkeys(verdict.contents) if c != "as is"]
        changed = f" ({', '.join(changes)})" if changes else ""
        notes = verdict.notes if verdict.appendable else (_short(verdict.because),)
        numbers = [footnotes.setdefault(note, len(footnotes) + 1) for note in notes]
        return said + changed + "".join(f" [{n}]" for n in numbers)

    rows = []
    for name, template in all_templates.items():
        modes: dict[tuple[str, ...], list[str]] = {}
        for mode, processor in processors(name, template).items():
            verdicts = processor.verdicts()
            appendable.update(v.kind for v in verdicts if v.appendable and mode != "off")
            appendable.update(f"{v.kind}, off" for v in verdicts if v.appendable and mode != "on")
            report = processor.report
            stops = " ".join(f"`{token.replace('|', PIPE)}`" for token in report.stop_tokens)
            row = (stops, report.history_thinking, *map(cell, verdicts))
            modes.setdefault(row, []).append(mode)
        rows += [[name, ", ".join(mode), *row] for row, mode in modes.items()]
    titles = ["template", "thinking", "a turn ends on", "past thinking", *NEXT_MESSAGES]
    count = len(all_templates)
    lines = [
        f"{count - len(INST)} templates of {rendered_by()}, and {len(INST)} in the `[INST]` style. "
        "Appendable:",
        "",
        "| next | thinking on | thinking off |",
        "|---|---|---|",
        *(
            f"| {kind} | {appendable[kind]} of {count} | {appendable[kind + ', off']} of {count} |"
            for kind in NEXT_MESSAGES
        ),
        "",
        *("| " + " | ".join(row) + " |" for row in [titles, ["---"] * len(titles), *rows]),
        "",
        *(f"[{n}] {note}." + "  " for note, n in footnotes.items()),
    ]
    return "\n".join(line.rstrip() if not line.endswith(".  ") else line for line in lines) + "\n"


PIPE = "\\|"  # in a cell of a Markdown table


def _short(because: str) -> str:
    """Return a reason without its two texts, so that it is the same for all messages."""
    because = re.sub(r": (\.\.\.)?'.* against .*", "", because).rstrip(".")
    because = re.sub(r"render \[[^]]*\]: \w+: (.*)", r"render them: \1", because)
    return re.sub(r" for \[[^]]*\]", " for them", because)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Raw)
    parser.add_argument("name", nargs="*", help="templates to print")
    parser.add_argument("--write", action="store_true", help=f"write into {PAGE.name}")
    options = parser.parse_args(arguments)
    out = sys.stdout.write
    if not options.name:
        text = page(templates())
        if options.write:
            PAGE.write_text(PAGE.read_text().partition(MARK)[0] + MARK + text)
        else:
            out(text)
    for name in options.name:
        for mode, processor in processors(name, templates()[name]).items():
            out(f"{name} {mode}\n{processor.report}\n")
            for verdict in processor.verdicts():
                out(f"{verdict}\n")


_Raw = argparse.RawDescriptionHelpFormatter

if __name__ == "__main__":
    main()
