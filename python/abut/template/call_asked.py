"""How a template asks the model to write calls, where it writes them otherwise itself."""

import re
from dataclasses import replace

from abut.tool_calls.form import CallForm, ObjectBody


def asked_form(prompt: str, written: CallForm) -> CallForm | None:
    """The form of the example in a prompt: a word, and behind it calls in a list.

    Phi-4 mini is asked for `functools[{"name": [function name], "arguments": ...}, ...]`, and its
    template writes the objects alone. Lists with no word before them are no form of their own:
    that such a prompt asks for calls is no reason to take each list in an answer for some.

    Args:
        prompt: what the template says before the first user message.
        written: how it writes calls itself.
    """
    body = written.body
    if not isinstance(body, ObjectBody) or body.name is None or body.path:
        return None
    # What stands for the values is no JSON: the schemas of tools have names as well.
    example = re.compile(
        rf'(?<![\w<|])(\w+\[)\s*+\{{\s*+"{re.escape(body.name)}"\s*+:[^"{{}}]*,'
        rf'\s*+"{re.escape(body.arguments)}"\s*+:[^"{{}}]*\}}'
    )
    found = example.search(prompt)
    if found is None or found[1] in written.begin + written.open:
        return None
    asked = CallForm(replace(body, syntax="json"), begin=found[1], between=",", end="]")
    return replace(asked, ordinary=written.ordinary)
