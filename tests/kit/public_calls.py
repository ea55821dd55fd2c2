"""Public chat templates that write calls, each with what reads them."""

import functools
import os
import sys
from pathlib import Path
from typing import Any

from assets import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import call_templates

FOLDER = os.environ.get("ABUT_TEMPLATES")
"""Where `scripts/fetch_templates.py` put those of llama.cpp and vLLM."""

TYPES = {
    "text": "string",
    "count": "integer",
    "ratio": "number",
    "flag": "boolean",
    "nothing": "null",
    "items": "array",
    "table": "object",
}
FUNCTIONS = ("look", "fs.read_file", "add-3")
TOOLS = [call_templates.tool(name, TYPES) for name in FUNCTIONS]

PUBLIC = {
    template.name: template
    for template in call_templates.public_templates(None if FOLDER is None else Path(FOLDER))
}
TEMPLATES = {name: template for name, template in PUBLIC.items() if "tool_calls" in template.text}


@functools.cache
def reading_of(name: str) -> Any:
    """How the calls of a template are read, with `TOOLS`; None where it writes none."""
    return call_templates.Reading.of(TEMPLATES[name], TOOLS)
