"""The public chat templates that `scripts/chat_templates.py` knows, each with its processor."""

import functools
import importlib.util
import sys
from typing import Any

import pytest

from abut.template.processor import ChatTemplateProcessor
from tests.kit.checkout import ROOT

for needed in ("tokenizers", "transformers", "trl"):
    pytest.importorskip(needed, reason=f"{needed} is not installed; TRL ships the templates")

SCRIPT = ROOT / "scripts" / "chat_templates.py"


def load_script() -> Any:
    spec = importlib.util.spec_from_file_location("chat_templates", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


SCRIPT_MODULE = load_script()


TEMPLATES: dict[str, str] = SCRIPT_MODULE.templates()


@functools.cache
def tokenizer_of(name: str, template: str) -> Any:
    return SCRIPT_MODULE.tokenizer(template, SCRIPT_MODULE.family(name))


_cached: dict[str, dict[str, ChatTemplateProcessor]] = {}


def processor_of(name: str, mode: str) -> ChatTemplateProcessor:
    if name not in _cached:
        _cached[name] = SCRIPT_MODULE.processors(name, TEMPLATES[name])
    return _cached[name][mode]


def first_mode(name: str) -> str:
    return next(iter(SCRIPT_MODULE.thinking(TEMPLATES[name])))
