"""Renders a chat template: everything that abut knows of a template comes through here.

All rendering is transformers' own (`apply_chat_template`), never a second template engine.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

from abut.errors import MissingExtraError, TemplateError
from abut.messages import IMAGE_BLOCKS, Message, texts_of, with_arguments
from abut.parts import Part
from abut.template.mask import free_stem
from abut.template.thinking import render_or_none
from abut.template.turn_layout import WITH_TEMPLATE, TurnLayout, assistant, roles, tool_call, user
from abut.template.veiled_tools import VeiledTools

_OTHERWISE = (
    "hint: use roles, keys and an order that the template accepts, or pass another template: "
    + WITH_TEMPLATE
)
_SANDBOX = (
    "hint: transformers, and so TRL and vLLM, renders templates in a sandbox that keeps them from "
    "changing lists; in the template, replace `x.ids.append(id)` with `x.ids = x.ids + [id]` and "
    "`x.ids.pop(0)` with `x.ids[1:]`, or pass another template: " + WITH_TEMPLATE
)
# What `apply_chat_template` takes besides variables, and abut gives it or must not.
_GIVEN = frozenset(
    {"add_generation_prompt", "continue_final_message", "conversation", "max_length"}
    | {"messages", "padding", "return_assistant_tokens_mask", "return_dict", "return_tensors"}
    | {"tokenize", "tokenizer_kwargs", "truncation"}
)
_WORDS = ("abutWritten", "abutBehind")


class Rendering:
    """Renders messages with one template, its variables and its tokenizer.

    Attributes:
        control: the control tokens of the tokenizer, longest first, and their ids.
        pattern: matches one of them, in a group.
        in_blocks: the roles whose string contents the template writes only as
            `[{"type": "text", "text": ...}]`. They are given to it in that form.
        veil: hides what the definitions of tools spell of control tokens.
        in_strings: the roles of which no probe wrote two text blocks. They are joined.
        joints: by role, what is between two text blocks in the prompt; None where blocks are
            not written as one string would be.
        has_developer: whether the template writes messages of the role `developer`. They are given
            to other templates as `system`.
        arguments: the form in which the template takes the arguments of calls, where it takes only
            one: an object, or its JSON text. They are given to it in that form.
    """

    def __init__(self, hf_tokenizer: Any, options: dict[str, Any]) -> None:
        self._tokenizer = hf_tokenizer
        self._options = options
        # Whitespace-only added tokens are text that got an id (Gemma), not control tokens.
        added = {token: i for token, i in hf_tokenizer.get_added_vocab().items() if token.strip()}
        # Longest first, because a pattern takes the first alternative that fits.
        self.control = dict(sorted(added.items(), key=lambda item: -len(item[0])))
        self.pattern = re.compile(f"({'|'.join(map(re.escape, self.control)) or '(?!)'})")
        self.veil = VeiledTools(None, self.control)
        with suppress(Exception):  # a function without a schema: rendering says what it lacks
            self.veil = VeiledTools(self._schemas(), self.control)
        self.in_blocks: frozenset[str] = frozenset()
        self.in_strings: frozenset[str] = frozenset()
        self.joints: dict[str, str | None] = {}
        self.has_developer = True
        self.arguments: Literal["object", "text"] | None = None
        for role, before, after in (
            ("user", [], []),
            ("assistant", [user()], []),
            ("system", [], [user()]),
            ("developer", [], [user()]),
            ("tool", [user(), assistant()], []),
        ):
            as_string, as_block, as_blocks = self._written(role, before, after)
            if role == "developer":
                self.has_developer = as_string or as_block
            if as_block and not as_string:
                self.in_blocks |= {role}
            # Llama 3.1 takes a tool's message behind a call alone, and writes a list as JSON.
            if not as_blocks:
                self.in_strings |= {role}
            self.joints[role] = self._joint(role, before, after) if as_blocks else "\n"
        self.arguments = self._taken_arguments()

    def __call__(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """Return the text of the whole conversation.

        Raises:
            TemplateError: the template raises.
            MissingExtraError: jinja2 is not installed.
        """
        try:
            rendered = self._tokenizer.apply_chat_template(
                [self._as_taken(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                tokenize=False,
                **{**self._options, **({"tools": self.veil.tools} if self.veil else {})},
            )
        except ImportError as error:  # transformers looks for it with the first template
            raise MissingExtraError(
                "chat templates need jinja2 3.1 or later: pip install 'abut[hf]'"
            ) from error
        except Exception as error:  # a template is foreign code and can raise anything
            name = type(error).__name__
            hint = _SANDBOX if name == "SecurityError" else _OTHERWISE
            raise TemplateError(
                f"the template cannot render {roles(messages)}: {name}: {error}\n{hint}"
            ) from error
        return str(rendered)

    @property
    def options(self) -> dict[str, Any]:
        """The tools, template and variables that `apply_chat_template` gets."""
        return dict(self._options)

    @property
    def tools(self) -> list[Any] | None:
        """The tools that the template shows: functions, or JSON schemas."""
        tools: list[Any] | None = self._options["tools"]
        return tools

    def __getstate__(self) -> dict[str, Any]:
        """Pickle a function as its schema, which is all that a template sees of it."""
        schemas = None if self.tools is None else self._schemas()
        return {**self.__dict__, "_options": {**self._options, "tools": schemas}}

    def _schemas(self) -> list[Any]:
        return [schema_of(tool) for tool in self._options.get("tools") or ()]

    def typed(self, parts: Sequence[Part]) -> list[Part]:
        """Return the parts, with the control tokens that definitions of tools spell as content.

        Raises:
            TemplateError: the template changes the text of such a control token.
        """
        if not self.veil:
            return list(parts)
        typed = self.veil.typed(parts)
        # In any case, because a template may write definitions in capitals.
        if self.veil.stem.lower() in "".join(typed).lower():
            spelled = ", ".join(map(repr, sorted(self.veil.spelled))) or "part of a control token"
            raise TemplateError(
                f"a tool's definition contains {spelled}, and the template changes the text there\n"
                "hint: remove it from the tool's name, description or parameters"
            )
        return typed

    def after_turn(
        self,
        history: Sequence[Message],
        layout: TurnLayout,
        new: Sequence[Message],
        *,
        follow: Sequence[Message] | None = None,
        thinking: str = "",
        add_generation_prompt: bool = True,
        keys: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the text after the last word of the assistant turn after `history`.

        Args:
            history: the messages before the turn.
            layout: how the turn is given to the template.
            new: the messages that the turn is made for: it calls the tools that answer in them.
            follow: the messages that are rendered after the turn; None: `new`.
            thinking: put before the answer, in the content.
            add_generation_prompt: whether the model is asked for its next turn.
            keys: more keys of the turn's message, such as `reasoning_content`.

        Raises:
            TemplateError: the template raises, or does not write the turn once.
        """
        message, anchor = layout.turn(new, free_stem(new), thinking=thinking)
        messages = [*history, {**message, **(keys or {})}, *(new if follow is None else follow)]
        rendered = self(messages, add_generation_prompt=add_generation_prompt)
        if (count := rendered.count(anchor)) != 1:
            raise TemplateError(
                f"the template writes the {layout.what} of message {len(history)} (assistant) "
                f"{count} times\nhint: pass a template that writes the {layout.what} of assistant "
                f"messages once: {WITH_TEMPLATE}"
            )
        return rendered.partition(anchor)[2]

    def tokens(self, text: str) -> list[tuple[str, str]]:
        """Return the control tokens in `text`, each with the text between it and the one before."""
        pieces = self.pattern.split(text)
        return list(zip(pieces[:-1:2], pieces[1::2], strict=True))

    def after_token(self, text: str, count: int) -> str:
        """Return the text after the first `count` control tokens."""
        return self.pattern.split(text, maxsplit=count)[-1]

    def _as_taken(self, message: Message) -> Message:
        if self.arguments is not None and message.get("tool_calls"):
            message = with_arguments(message, self.arguments)
        if message.get("role") == "developer" and not self.has_developer:
            message = {**message, "role": "system"}  # the older name of the same role
        content = message.get("content")
        if isinstance(content, list | tuple) and not all(map(_is_text, content)):
            # A template tells an image by the type, and never sees the picture.
            content = [block if _is_text(block) else {"type": "image"} for block in content]
        elif isinstance(content, list | tuple) and message.get("role") in self.in_strings:
            content = "\n".join(texts_of(message))  # as vLLM does
        if isinstance(content, str) and message.get("role") in self.in_blocks:
            content = [_block(content)]
        return message if content is message.get("content") else {**message, "content": content}

    def _taken_arguments(self) -> Literal["object", "text"] | None:
        """Return the kind of arguments that the template takes; None if it takes either.

        A template that writes a JSON text as it is, and an object as Python would, takes either,
        because the model may have learned either.
        """
        given = {"abutKey": "abutWritten"}
        as_object, as_text = self._with_call(given), self._with_call(code := json.dumps(given))
        if as_object == as_text:
            return None
        if as_object is None:
            return "text"
        is_python = repr(given) in as_object and as_text is not None and code in as_text
        return None if is_python else "object"

    def _with_call(self, arguments: Any) -> str | None:
        """Return the text of a call; None if the template does not write its arguments."""
        calls = [tool_call("abutCalled", arguments)]
        for content in ("", None, "abutBeside"):
            message = {"role": "assistant", "content": content, "tool_calls": calls}
            text = render_or_none(self, [user(), message], add_generation_prompt=False)
            if text is not None and "abutWritten" in text:
                return text
        return None

    def _written(
        self, role: str, before: list[Message], after: list[Message]
    ) -> tuple[bool, bool, bool]:
        """Try whether the template writes a string, one text block, and two text blocks.

        A template that writes the list itself, with brackets and keys, does not know blocks.
        """

        def written(content: Any, *words: str) -> bool:
            message = {"role": role, "content": content}
            text = render_or_none(self, [*before, message, *after]) or ""
            return all(word in text for word in words) and not re.search(r"[\"']text\\?[\"']", text)

        first, second = (_block(word) for word in _WORDS)
        return (
            written(_WORDS[0], _WORDS[0]),
            written([first], _WORDS[0]),
            written([first, second], *_WORDS),
        )

    def _joint(self, role: str, before: list[Message], after: list[Message]) -> str | None:
        """Return the text between two blocks, if the template makes one string of them."""

        def written(content: Any) -> str:
            return self([*before, {"role": role, "content": content}, *after])

        try:
            text = written([_block(word) for word in _WORDS])
            joint = text.partition(_WORDS[0])[2].partition(_WORDS[1])[0]
            is_one_text = not joint.strip() and written(joint.join(_WORDS)) == text
            return joint if is_one_text else None
        except TemplateError:
            return None


def check_variables(given: Mapping[str, Any]) -> None:
    """Refuse variables for a template that are arguments of `apply_chat_template`.

    Raises:
        TypeError: names one.
    """
    if taken := sorted(_GIVEN & given.keys()):
        raise TypeError(
            f"{taken[0]}= cannot be passed as a template variable, because abut sets it itself\n"
            "hint: pass only variables that the template reads, such as enable_thinking=False"
        )


def _is_text(block: Any) -> bool:
    return not isinstance(block, Mapping) or block.get("type") not in IMAGE_BLOCKS


def _block(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def schema_of(tool: Any) -> Any:
    """Return the JSON schema of a tool; transformers makes the schema of a function."""
    if isinstance(tool, dict):
        return tool
    from transformers.utils import get_json_schema

    return get_json_schema(tool)
