"""What tests of chat templates are made of: a small tokenizer, messages, renders."""

from typing import Any

import pytest

from abut.errors import TemplateError
from abut.parts import Part
from abut.template.mask import Message

tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SHOWN = "{{ '<|im_start|>system\n' + (tools | tojson) + '<|im_end|>\n' }}"
# As gpt-oss's: a result has the name of the first call of the turn.
NAMES = SHOWN + (
    "{% set ns = namespace(name='') %}{% for m in messages %}"
    "{% if m.tool_calls %}{% set ns.name = m.tool_calls[0].function.name %}{% endif %}"
    "{% if m.role == 'tool' and not ns.name %}{{ raise_exception('no call') }}{% endif %}"
    "{{ '<|im_start|>' + (ns.name if m.role == 'tool' else m.role) + '\n' }}"
    "{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
    "{{ '<tool_call>\n' + (c.function | tojson) + '\n</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


TAGS_ALIKE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.role == 'assistant' %}"
    "{% if m.reasoning_content %}{{ '<think>' + m.reasoning_content + '</think>' }}"
    "{% else %}{{ '</think>' }}{% endif %}{% endif %}"
    "{{ m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{{ '</think>' if enable_thinking is defined and not enable_thinking else '<think>' }}"
    "{% endif %}"
)
"""The generation prompt has opened the thinking or closed it, with one tag."""

CALLS_BEHIND_THINKING = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.content %}{{ m.content }}{% endif %}{% for c in m.tool_calls or [] %}"
    '{{ \'<tool_call>\n{"name": "\' + c.function.name + \'", "arguments": \' }}'
    "{{ c.function.arguments | tojson + '}\n</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
)
"""The generation prompt has opened the thinking, which no render shows."""


def tiny_tokenizer(chat_template: str | None, *control: str) -> Any:
    control = control or ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[])
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.add_tokens([tokenizers.AddedToken(t, normalized=False) for t in control])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=control[-1] if len(control) == 1 else "<|im_end|>"
    )
    tokenizer.chat_template = chat_template
    return tokenizer


def render(tokenizer: Any, messages: list[Message], **kwargs: Any) -> str:
    return str(
        tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False, **kwargs
        )
    )


def text(parts: list[Part]) -> str:
    return "".join(parts)


def user(content: Any = "hello") -> Message:
    return {"role": "user", "content": content}


def assistant(content: str) -> Message:
    return {"role": "assistant", "content": content}


def tool(content: str = "42", **keys: Any) -> Message:
    return {"role": "tool", "content": content, **keys}


def system(content: str = "Be brief.") -> Message:
    return {"role": "system", "content": content}


def error(call: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(TemplateError) as caught:
        call(*args, **kwargs)
    return str(caught.value)
