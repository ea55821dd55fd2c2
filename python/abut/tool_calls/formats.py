"""The formats that have a name: how families write calls, for those who have no template at hand.

They are data, but for `harmony`: what a template says is found by rendering it, and where it says
one of these, that is what is used, with what the template does not say.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from abut.tool_calls.call import Found
from abut.tool_calls.form import CallForm, Mark, NamedBody, ObjectBody, Parameters, Piece
from abut.tool_calls.harmony import read_harmony
from abut.tool_calls.reader import FormReader
from abut.tool_calls.schemas import Schemas

ReadCalls: TypeAlias = Callable[[str, Schemas], Iterator[Found]]

FORMS: Mapping[str, CallForm] = {
    "hermes": CallForm(ObjectBody(), open="<tool_call>\n", close="\n</tool_call>", between="\n"),
    "qwen3_coder": CallForm(
        NamedBody(
            (Piece("name", ">\n"),),
            Parameters("<parameter=", (Mark(">\n", "\n</parameter>"),), "\n"),
        ),
        open="<tool_call>\n<function=",
        close="\n</function>\n</tool_call>",
        between="\n",
    ),
    "glm": CallForm(
        NamedBody(
            (Piece("name", "\n"),),
            Parameters("<arg_key>", (Mark("</arg_key>\n<arg_value>", "</arg_value>"),), "\n"),
        ),
        open="<tool_call>",
        close="\n</tool_call>",
        between="\n",
    ),
    "llama3": CallForm(
        ObjectBody(arguments="parameters"),
        between=";",
        text_before=False,
        marks=("<|python_tag|>",),
    ),
    "mistral": CallForm(ObjectBody(id="id"), begin="[TOOL_CALLS][", between=", ", end="]"),
    "mistral_named": CallForm(
        NamedBody((Piece("name", "[ARGS]"),), before_id="[CALL_ID]"), open="[TOOL_CALLS]"
    ),
}

_FORM_READERS = {name: FormReader(form) for name, form in FORMS.items()}
_MISTRAL_LIST = re.compile(r"\[TOOL_CALLS\]\s*+[\[{]")


def _read_mistral(text: str, schemas: Schemas) -> Iterator[Found]:
    """In the form that its first call has: the older list, or a name before the arguments."""
    at = max(text.find("[TOOL_CALLS]"), 0)
    name = "mistral" if _MISTRAL_LIST.match(text, at) else "mistral_named"
    return _FORM_READERS[name](text, schemas)


READERS: Mapping[str, ReadCalls] = {
    **{name: _FORM_READERS[name] for name in ("hermes", "qwen3_coder", "glm", "llama3")},
    "mistral": _read_mistral,
    "harmony": read_harmony,
}
