"""TRL's chat templates, rendered with any tokenizer: the text does not depend on its vocabulary."""

import copy
from collections.abc import Sequence
from importlib import resources
from os.path import commonprefix
from typing import Any

from abut.errors import TemplateError
from abut.template.thinking import Render

Message = dict[str, Any]


def _templates() -> dict[str, str]:
    try:
        folder = resources.files("trl") / "chat_templates"
    except ModuleNotFoundError:
        return {}
    if not folder.is_dir():  # the first versions have none
        return {}
    return {
        f.name.removesuffix(".jinja"): f.read_text(encoding="utf-8")
        for f in folder.iterdir()
        if f.name.endswith(".jinja")
    }


TRL = _templates()
USER: Message = {"role": "user", "content": "abut?"}


def with_template(hf_tokenizer: Any, template: str) -> Any:
    """A copy of the tokenizer with this template, and with a BOS token, which some of them need."""
    tokenizer = copy.deepcopy(hf_tokenizer)
    tokenizer.chat_template = template
    tokenizer.bos_token = tokenizer.bos_token or tokenizer.eos_token
    return tokenizer


def renderer(tokenizer: Any, **variables: Any) -> Render:
    def render(messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        try:
            return str(
                tokenizer.apply_chat_template(
                    list(messages),
                    tokenize=False,
                    add_generation_prompt=add_generation_prompt,
                    **variables,
                )
            )
        except Exception as error:
            raise TemplateError(str(error)) from error

    return render


def generation_prompt(render: Render) -> str:
    return render([USER]).removeprefix(render([USER], add_generation_prompt=False))


def completion(render: Render, message: Message) -> str:
    """What the template writes for the message after the generation prompt, closers included."""
    prompt = render([USER])
    written = render([USER, {"role": "assistant", **message}], add_generation_prompt=False)
    return written.removeprefix(commonprefix([written, prompt]))
