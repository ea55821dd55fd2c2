"""Adapts a text processor of three methods to typed parts.

Invariant: the scaffold around a message is found by calling the processor, and replaying it gives
the text that the processor writes for the real message. If this does not hold, a `TemplateError`
names the call and the reason.
"""

from collections.abc import Sequence
from typing import Any

from abut.errors import TemplateError
from abut.messages import Message
from abut.parts import Content, Part, Scaffold
from abut.pretrained import tokenizer_of
from abut.processor import PartsProcessor, Processor
from abut.template.mask import check_message, free_stem
from abut.template.turn_layout import quote_difference, roles


def as_parts_processor(
    processor: Processor | PartsProcessor,
    hf_tokenizer: Any,
    *,
    end_token: str | None = None,
    stop_token_ids: Sequence[int] = (),
) -> PartsProcessor:
    """Return the processor itself if it returns parts, else an adapter that finds its scaffold.

    A processor with only the three text methods is called with a placeholder and with the real
    text; the two results must differ only in the content. It accepts an optional system message and
    user messages, one at a time.

    Args:
        processor: a processor of either kind.
        hf_tokenizer: a transformers tokenizer.
        end_token: ends the turns of a text processor; None: the tokenizer's EOS token.
        stop_token_ids: more ids that end turns.

    Raises:
        TemplateError: there is no token that ends a turn.
    """
    if isinstance(processor, PartsProcessor):
        return processor
    return _TextProcessorParts(processor, tokenizer_of(hf_tokenizer), end_token, stop_token_ids)


class _TextProcessorParts:
    """A `PartsProcessor` over the three text methods."""

    def __init__(
        self,
        processor: Processor,
        hf_tokenizer: Any,
        end_token: str | None,
        stop_token_ids: Sequence[int],
    ) -> None:
        if end_token is None and hf_tokenizer.eos_token_id is None:
            raise TemplateError(
                f"the tokenizer {hf_tokenizer.name_or_path!r} has no EOS token, so abut cannot "
                "tell where a turn ends\n"
                "hint: set tokenizer.eos_token to the token that closes a turn, or use "
                "ChatTemplateProcessor"
            )
        self._processor = processor
        self._end_token = str(hf_tokenizer.eos_token) if end_token is None else end_token
        end_id = hf_tokenizer.get_vocab().get(self._end_token)
        if end_id is None:
            raise TemplateError(
                f"{self._end_token!r} is not a token of {hf_tokenizer.name_or_path!r}, so abut "
                "cannot tell where a turn ends\n"
                "hint: pass the token that closes a turn; in ChatML it is <|im_end|>"
            )
        self.close_token_id = int(end_id)
        eos = hf_tokenizer.eos_token_id
        ids = [self.close_token_id, *([] if eos is None else [int(eos)]), *stop_token_ids]
        self.stop_token_ids: tuple[int, ...] = tuple(dict.fromkeys(ids))

    def opening(self, messages: Sequence[Message]) -> list[Part]:
        texts = self._texts(messages, takes=(["system", "user"], ["user"]))
        *system, user = texts
        parts = [part for text in system for part in self._split("init_system_input", text)]
        return [*parts, *self._split("append_user_input", user)]

    def closing(self, messages: Sequence[Message] = (), *, after: int | None = None) -> list[Part]:
        return [] if after == self.close_token_id else [Scaffold(self._end_token)]

    def increment(self, messages: Sequence[Message]) -> list[Part]:
        (text,) = self._texts(messages, takes=(["user"],))
        parts = self._split("append_user_input", text)
        if isinstance(parts[0], Scaffold) and parts[0].startswith(self._end_token):
            raise TemplateError(
                f"append_user_input begins with {self._end_token!r}, but the turn before it is "
                "already closed\n"
                "hint: begin with the text between a closed turn and the next one; in ChatML it is "
                '"\\n<|im_start|>user\\n"'
            )
        return parts

    def parse_agent_output(self, completion: str) -> tuple[str, str]:
        return self._processor.parse_agent_output(completion)

    def _texts(self, messages: Sequence[Message], *, takes: tuple[list[str], ...]) -> list[str]:
        for k, message in enumerate(messages):
            check_message(message, k)
        if [message["role"] for message in messages] not in takes:
            wanted = " or ".join(f"[{', '.join(sequence)}]" for sequence in takes)
            raise TemplateError(
                f"a processor with only the three text methods accepts {wanted} here, not "
                f"{roles(messages)}\n"
                "hint: use ChatTemplateProcessor, which accepts every role that the template "
                "supports"
            )
        texts = [message.get("content") for message in messages]
        for k, text in enumerate(texts):
            if not isinstance(text, str):
                raise TemplateError(
                    f"message {k} ({messages[k]['role']}): content={text!r} is not a string\n"
                    "hint: pass the text itself"
                )
        return [str(text) for text in texts]

    def _split(self, name: str, text: str) -> list[Part]:
        """Return the parts that the method `name` writes around `text`."""
        method = getattr(self._processor, name)
        placeholder = free_stem(text) + "0x"
        rendered, real = method(placeholder), method(text)
        for value in (rendered, real):
            if not isinstance(value, str):
                raise TemplateError(
                    f"{name} returned {value!r}, not a string\n"
                    f"hint: return the text of the message with its markup"
                )
        if (count := rendered.count(placeholder)) != 1:
            raise TemplateError(
                f"{name} writes its prompt {count} times, not once\n"
                "hint: write the prompt unchanged, once"
            )
        if (replayed := rendered.replace(placeholder, text)) != real:
            raise TemplateError(
                f"{name} changes its prompt, or the text around it depends on the prompt: "
                f"{quote_difference(replayed, real)}\n"
                "hint: write the prompt unchanged, and always the same text around it"
            )
        before, _, after = rendered.partition(placeholder)
        parts = (Scaffold(before), Content(text), Scaffold(after))
        return [part for part in parts if part]
