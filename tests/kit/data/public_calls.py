"""Public chat templates that write calls, each with what reads them."""

import functools
import os
import sys
from pathlib import Path
from typing import Any

from abut.template.processor import ChatTemplateProcessor
from tests.kit.checkout import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import call_templates

FOLDER = os.environ.get("ABUT_TEMPLATES")
"""Where `scripts/fetch_templates.py` put the templates."""

TYPES = {
    "text": "string",
    "count": "integer",
    "ratio": "number",
    "flag": "boolean",
    "nothing": "null",
    "items": "array",
    "table": "object",
}
# Some forms cannot hold these: their templates write no escape.
ODD_KEYS = {
    "a": "string",  # begins most of the others
    "a b": "string",
    "a,b": "integer",
    "a:b": "object",
    "a{b": "boolean",
    "a}b": "string",
    'a"b': "string",
    "a'b": "number",
    "a=b": "string",
    "a>b": "array",
    "a.b": "string",
    "é 日": "string",
}
FUNCTIONS = ("look", "fs.read_file", "add-3")
TOOLS = [call_templates.tool(name, TYPES | ODD_KEYS) for name in FUNCTIONS]

PUBLIC = {
    template.name: template
    for template in call_templates.public_templates(None if FOLDER is None else Path(FOLDER))
}
TEMPLATES = {name: template for name, template in PUBLIC.items() if "tool_calls" in template.text}


SWITCHES = ("enable_thinking", "thinking is defined")
MODES: list[tuple[str, str]] = [
    (name, mode)
    for name, template in TEMPLATES.items()
    for mode in ("", "on", "off")
    if not mode or any(switch in template.text for switch in SWITCHES)
]
"""Each template with its default for thinking, and where it has a switch, with that on and off."""


def variables_of(mode: str) -> dict[str, bool]:
    """The variables of the template in a mode for thinking."""
    return dict.fromkeys(("enable_thinking", "thinking"), mode == "on") if mode else {}


def processor_of(name: str, mode: str = "") -> ChatTemplateProcessor:
    """The processor of a template, with `TOOLS`."""
    hf_tokenizer = TEMPLATES[name].hf_tokenizer
    return ChatTemplateProcessor(hf_tokenizer, tools=TOOLS, **variables_of(mode))


@functools.cache
def reading_of(name: str, mode: str = "") -> Any:
    """How the calls of a template are read, with `TOOLS`; None where it writes none."""
    return call_templates.Reading.of(TEMPLATES[name], TOOLS, **variables_of(mode))
