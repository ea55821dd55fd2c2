"""A multimodal processor: TRL renders with its chat template, and so does abut."""

from typing import Any

import pytest

pytest.importorskip("torch")

from transformers import ProcessorMixin

from abut import ChatTemplateProcessor, Tokenizer, TokenizerError
from abut.audit import audit
from abut.gateway import Gateway
from abut.samplers.vllm import VLLMServerSampler
from tests.kit.data.templates import user


class Speech(ProcessorMixin):  # type: ignore[misc]
    """A processor without an image part: a tokenizer, and a chat template of its own."""

    attributes = ("tokenizer",)
    tokenizer_class = "AutoTokenizer"

    def __init__(self, tokenizer: Any, chat_template: str | None = None) -> None:
        super().__init__(tokenizer, chat_template=chat_template)


@pytest.fixture(params=[True, False], ids=["two templates", "the processor's alone"])
def processor(request: Any, hf_tokenizer: Any) -> Any:
    import copy

    tokenizer = copy.deepcopy(hf_tokenizer)
    template = "{{ '<|im_start|>system\\nSee.<|im_end|>\\n' }}" + tokenizer.chat_template
    if not request.param:
        tokenizer.chat_template = None
    return Speech(tokenizer, chat_template=template)


def test_the_opening_is_what_the_processor_itself_writes(processor: Any) -> None:
    messages = [user("What is this?")]
    written = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    opening = ChatTemplateProcessor(processor).opening(messages)
    assert "".join(map(str, opening)) == written
    assert written.startswith("<|im_start|>system\nSee."), "it is not the tokenizer's template"


def test_whatever_takes_a_tokenizer_takes_the_processor(processor: Any) -> None:
    own = processor.tokenizer.chat_template
    assert audit(processor).template is not None
    gateway = Gateway(sampler=VLLMServerSampler("http://127.0.0.1:1"), tokenizer=processor)
    assert gateway is not None
    assert Tokenizer.from_pretrained(processor).vocab_size > 0
    assert processor.tokenizer.chat_template == own, "the processor's tokenizer stays as it was"


def test_a_processor_without_a_tokenizer_is_refused() -> None:
    for taking in (ChatTemplateProcessor, audit):
        with pytest.raises(TokenizerError) as raised:
            taking(object())
        assert str(raised.value) == (
            "object is not a transformers tokenizer and does not have one\nhint: pass the "
            "model's tokenizer, or a processor with the attribute `tokenizer`"
        )
