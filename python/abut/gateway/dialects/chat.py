"""Chat completions: bodies to requests.

Invariant: each field of a body is honoured, refused, or named in a warning as ignored. No field
silently changes the prompt or the sample.
"""

from collections.abc import Hashable, Iterator, Mapping
from typing import Any, Literal, TypeAlias, get_args

from abut._native import Tokenizer
from abut.gateway.dialects.chat_answers import DONE, completion, events, refusal_body
from abut.gateway.dialects.chat_rewrites import CALLS, repeats, with_calls, with_stops
from abut.gateway.dialects.dialect import (
    HttpDialect,
    Like,
    Unenforced,
    blocks_in,
    check_form,
    check_tools,
    data_event,
    flag,
    most_tokens,
    object_at,
    sampling_in,
    stops,
    text_at,
)
from abut.gateway.dialects.image_fields import ImageField, base64_of_url, unread
from abut.gateway.ledger.agent_call import ROLES, AgentRequest, PolicyAnswer
from abut.gateway.ledger.comparable import MOST_DEPTH, calls_of, is_deep, text_of
from abut.gateway.ledger.entry import OWN_KEYS, BranchEntry, Calls, ids_of, without_space
from abut.gateway.ledger.matching import key_of_calls
from abut.gateway.ledger.refusal import Refusal, short
from abut.images import Image
from abut.messages import Message, strange_block

ChatRewrite: TypeAlias = Literal[
    "text_lost", "stop_put_back", "calls_as_text", "code_again", "empty_turn_left_out"
]
"""A change that a chat client is known to make to an answer of the policy:

- text_lost: leaves out the text next to calls (crewai)
- stop_put_back: appends the stop string to the text again (smolagents' `CodeAgent`)
- calls_as_text: writes calls into the content as Python text (smolagents' `ToolCallingAgent`)
- code_again: repeats the code in the text as a call (smolagents' `CodeAgent`)
- empty_turn_left_out: leaves out a turn without text and calls (pydantic-ai, OpenAI Agents)
"""

SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
)
"""Sampling settings. A trainer's settings take precedence over a client's."""

_SAMPLING = {name: name for name in SAMPLING}
_ANSWER_FORMS = (
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
)
_FIELDS = frozenset(
    {"model", "messages", "tools", "tool_choice", "parallel_tool_calls", "max_tokens", "stop"}
    | {"max_completion_tokens", "stream", "stream_options", "logprobs", "top_logprobs", "n"}
    | {"return_token_ids", "return_tokens_as_token_ids", "chat_template_kwargs", "rollout_id"}
    | {"logit_bias", "functions", "function_call", "chat_template", "continue_final_message"}
    | {"metadata"}  # the client's own notes, which do not concern the sample
    | {"add_generation_prompt", "echo", "prompt_logprobs", *SAMPLING, *_ANSWER_FORMS}
)
_TOKEN_FIELDS = frozenset({"prompt_token_ids", "generation_token_ids", "generation_log_probs"})
# Parameters of `with_tools` and of templates that are not variables.
_RESERVED_VARIABLES = {"tools", "chat_template", "hf_tokenizer", "self"}


class Chat(HttpDialect):
    """Chat completions."""

    paths = ("/v1/chat/completions",)
    known_rewrites = get_args(ChatRewrite)
    repeats_bytes = True

    def read(
        self,
        body: Mapping[str, Any],
        like: Like | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AgentRequest:
        """Return the request of a body, see `HttpDialect.read`."""
        if like is not None and like.same_fields:
            request, messages = like.request, _messages(body, like.elements)
            if like.elements < len(request.messages):  # one of them may have had tokens
                asked = request.token_names or flag(body, "return_token_ids")
                token_ids = asked or any(map(_has_tokens, messages))
            else:
                more = messages[like.elements :]
                token_ids = request.token_ids or any(map(_has_tokens, more))
            return request.with_messages(messages, token_ids=token_ids)
        _refuse_inexact(body)
        variables = object_at(body, "chat_template_kwargs")
        if taken := sorted(_RESERVED_VARIABLES & variables.keys()):
            raise Refusal(
                f"chat_template_kwargs: {taken[0]} is reserved, so it cannot be set as a "
                "variable of the template",
                param="chat_template_kwargs",
            )
        choice = body.get("tool_choice")
        options = object_at(body, "stream_options")
        names = flag(body, "return_tokens_as_token_ids")
        unmet = _unmet(body, self.unenforced)
        messages = _messages(body)
        request = AgentRequest(
            messages=messages,
            tools=_tools(body),
            max_tokens=most_tokens(body, "max_tokens", "max_completion_tokens"),
            stop=stops(body, "stop"),
            calls=choice != "none",
            one_call=body.get("parallel_tool_calls") is False,
            stream=flag(body, "stream"),
            usage=bool(options.get("include_usage")),
            logprobs=flag(body, "logprobs"),
            token_ids=flag(body, "return_token_ids") or names or any(map(_has_tokens, messages)),
            token_names=names,
            template_kwargs=variables,
            sampling=sampling_in(body, _SAMPLING),
            ignored=sorted(key for key in body if key not in _FIELDS and body[key] is not None),
            unmet=unmet,
            model=text_at(body, "model") or "",
            rollout_id=text_at(body, "rollout_id"),
            dialect=self,
        )
        return request if like is None else request.with_frame_of(like.request)

    def image_fields(self, element: Mapping[str, Any], place: int) -> Iterator[ImageField]:
        """Yield the parts of the type `image_url`, see `HttpDialect.image_fields`."""
        for number, part in blocks_in(element, "content"):
            if part.get("type") == "image_url":
                path = f"messages[{place}].content[{number}].image_url"
                given = part.get("image_url")
                url = given.get("url") if isinstance(given, dict) else given
                detail = isinstance(given, dict) and given.get("detail") is not None
                role = str(element.get("role")).replace("developer", "system")
                data = base64_of_url(url, path)
                ignored = "image_url.detail" if detail else None
                yield ImageField(path, role, data, part, "image_url", ignored)

    def rewrite_of(
        self, text: str, calls: Calls, entry: BranchEntry, *, same_calls: bool
    ) -> str | None:
        """Return the rule by which a changed message is this answer; None if it is not."""
        if not same_calls:
            as_text = "calls_as_text" in self.rewrites and entry.calls and not calls
            return "calls_as_text" if as_text and text == with_calls(entry) else None
        if not text:
            # Without text only the ids tell two equal calls apart.
            lost = "text_lost" in self.rewrites and calls and ids_of(calls) == entry.call_ids
            return "text_lost" if lost else None
        wholes = [entry.text]
        if "stop_put_back" in self.rewrites:
            wholes += [whole.strip() for whole in with_stops(entry)]
            if text in wholes[1:]:
                return "stop_put_back"
        again = "code_again" in self.rewrites and not calls
        return "code_again" if again and any(repeats(text, w) for w in wholes) else None

    def keys_returned(self, entry: BranchEntry) -> Iterator[Hashable]:
        """Yield a key for each changed spelling of an answer."""
        calls = key_of_calls(calls_of(entry.message))
        if calls:
            yield "", calls
            yield without_space(with_calls(entry)), ()
        for whole in with_stops(entry):
            yield without_space(whole), calls

    def keys_read(self, text: str, calls: tuple[Hashable, ...]) -> Iterator[Hashable]:
        """Yield the key of an answer after which a client has repeated its code."""
        if not calls and CALLS in text:
            yield without_space(text.rpartition(CALLS)[0]), ()

    def answer(
        self, answer: PolicyAnswer, request: AgentRequest, model: str, tokenizer: Tokenizer
    ) -> dict[str, Any]:
        """Return the JSON of an answer, as vLLM writes it."""
        return completion(answer, request, model, tokenizer)

    def events(
        self, answer: PolicyAnswer, request: AgentRequest, model: str, tokenizer: Tokenizer
    ) -> Iterator[bytes]:
        """Yield an answer as server-sent events."""
        return events(answer, request, model, tokenizer)

    def refused(self, refusal: Refusal) -> dict[str, Any]:
        """Return the JSON of a refusal, as OpenAI writes errors."""
        return refusal_body(refusal)

    def refused_event(self, refusal: Refusal) -> bytes:
        """Return the events that end a stream whose turn was refused."""
        return data_event(refusal_body(refusal)) + DONE


def _refuse_inexact(body: Mapping[str, Any]) -> None:
    n = body.get("n")
    if n is not None and n != 1:
        raise Refusal(
            f"n={short(n)}: the gateway draws one sample per request\n"
            "hint: send n requests instead",
            param="n",
        )
    top = body.get("top_logprobs")
    if top:
        raise Refusal(
            f"top_logprobs={short(top)}: the gateway knows only the logprobs of the sampled "
            "tokens\n"
            "hint: send logprobs=true and top_logprobs=0",
            param="top_logprobs",
        )
    for name, holds, why in (
        ("logit_bias", not body.get("logit_bias"), "it would change what the policy samples"),
        ("functions", not body.get("functions"), "the policy would not see it; use tools"),
        (
            "chat_template",
            body.get("chat_template") is None,
            "the gateway uses the trainer's template",
        ),
        (
            "continue_final_message",
            not body.get("continue_final_message"),
            "the policy always samples a whole turn",
        ),
        (
            "add_generation_prompt",
            body.get("add_generation_prompt") is not False,
            "each request begins a new turn",
        ),
        ("echo", not body.get("echo"), "the answer holds only the sampled tokens"),
        (
            "prompt_logprobs",
            body.get("prompt_logprobs") is None,
            "the gateway has no logprobs of prompt tokens",
        ),
    ):
        if not holds:
            raise Refusal(
                f"{name} is not supported: {why}\nhint: remove it from the request", param=name
            )


def _unmet(body: Mapping[str, Any], unenforced: Unenforced) -> list[str]:
    unmet = []
    choice = body.get("tool_choice")
    if choice == "required" or isinstance(choice, Mapping):
        unmet.append("tool_choice")
    elif choice not in (None, "auto", "none"):
        raise Refusal(
            f"tool_choice={short(choice)}: expected 'auto', 'none', 'required' or a function",
            param="tool_choice",
        )
    for name in _ANSWER_FORMS:
        asked = body.get(name)
        if asked is None or (isinstance(asked, Mapping) and asked.get("type") == "text"):
            continue
        check_form(name, unenforced)
        unmet.append(name)
    return unmet


def _has_tokens(message: Message) -> bool:
    """Return whether a client returned a message together with its tokens."""
    return not _TOKEN_FIELDS.isdisjoint(message)


def _messages(body: Mapping[str, Any], read: int = 0) -> list[Message]:
    """Return the messages of a body, whose first `read` messages were checked before."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Refusal("messages must be a list with at least one message", param="messages")
    for place, message in enumerate(messages[read:], read):
        where = f"messages[{place}]"
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            raise Refusal(
                f"{where} must be an object whose role is one of {', '.join(ROLES)}",
                param="messages",
            )
        for key in OWN_KEYS:
            message.pop(key, None)
        content = message.get("content")
        if type(content) is not str:
            content = _with_images(message, _without_thinking(message))
            if (block := strange_block(_texts_in(content))) is not None:
                raise unread(where, block)
            if text_of(_texts_in(content)) is None:
                raise Refusal(
                    f"{where}.content must be a string or a list of text and image parts",
                    param="messages",
                )
        if any(type(value) is not str and is_deep(value) for value in message.values()):
            raise Refusal(f"{where} is nested more than {MOST_DEPTH} deep", param="messages")
        calls = message.get("tool_calls")
        if calls is not None and not (
            isinstance(calls, list)
            and all(
                isinstance(call, dict)
                and isinstance(call.get("function"), dict)
                and isinstance(call["function"].get("name"), str)
                for call in calls
            )
        ):
            raise Refusal(f"{where}.tool_calls must be a list of function calls", param="messages")
    return messages


def _without_thinking(message: Message) -> Any:
    """Move blocks of thinking from an answer's content to its reasoning; return the content.

    LiteLLM's adapter for Anthropic's protocol writes such blocks.
    """
    content = message.get("content")
    if message["role"] != "assistant" or not isinstance(content, list):
        return content
    said = [b for b in content if isinstance(b, dict) and b.get("type") == "thinking"]
    texts = [block.get("thinking") for block in said]
    if not said or not all(isinstance(text, str) for text in texts):
        return content
    message["content"] = [block for block in content if block not in said]
    if not message.get("reasoning_content"):
        message["reasoning_content"] = "".join(map(str, texts))
    return message["content"]


def _with_images(message: Message, content: Any) -> Any:
    """Write the images in a content as other dialects do; return the content."""
    if any(isinstance(part.get("image_url"), Image) for _, part in blocks_in(message, "content")):
        content = message["content"] = [
            {"type": "image", "image": part["image_url"]}
            if isinstance(part, dict) and isinstance(part.get("image_url"), Image)
            else part
            for part in content
        ]
    return content


def _texts_in(content: Any) -> Any:
    """Return a content without its images."""
    if not isinstance(content, list):
        return content
    return [p for p in content if not (isinstance(p, dict) and isinstance(p.get("image"), Image))]


def _tools(body: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    tools = body.get("tools")
    if not tools and isinstance(tools, list | None):
        return None
    if not isinstance(tools, list) or not all(map(_is_tool, tools)):
        raise Refusal(
            'each tool must be a function: {"type": "function", "function": {"name": …, …}}',
            param="tools",
        )
    check_tools(tools)
    return tools


def _is_tool(tool: Any) -> bool:
    return (
        isinstance(tool, dict)
        and tool.get("type") == "function"
        and isinstance(tool.get("function"), dict)
        and isinstance(tool["function"].get("name"), str)
        and bool(tool["function"]["name"])
    )
