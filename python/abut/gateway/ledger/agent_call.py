"""One call of an agent: its request, its sample, and the delivery of its answer.

Invariant: a message is a function of the sampled text. The trajectory keeps the tokens of all of
the text, including calls that the message leaves out.
"""

import asyncio
import hashlib
import json
import marshal
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from abut.errors import TemplateError
from abut.gateway.ledger.entry import NO_REWRITES, Dialect
from abut.gateway.ledger.refusal import Refusal
from abut.messages import Message, with_hashes
from abut.processor import CallReadingProcessor, PartsProcessor
from abut.rollout.conversation import PolicyTurn
from abut.samplers.sampler import Sample
from abut.tool_calls.parsed import ParsedCalls

ROLES = ("system", "developer", "user", "assistant", "tool")
"""The roles that a message may have."""


@dataclass(frozen=True)
class AgentRequest:
    """A client's request, as its dialect has read it.

    Attributes:
        messages: as the client sent them, for comparing.
        tools: None if there are none.
        max_tokens: the client's token limit for the turn; None: the client does not set one.
        stop: strings that end the turn.
        calls: whether calls are parsed from the text.
        one_call: whether only the first call is wanted.
        stream: whether the answer is sent as server-sent events.
        usage: whether a stream ends with the token counts.
        logprobs: whether the logprobs of the sampled tokens are wanted.
        token_ids: whether token ids are wanted on the message.
        token_names: whether tokens are called `token_id:N` among the logprobs.
        template_kwargs: variables for the chat template.
        sampling: the client's own settings.
        ignored: the names of fields that change nothing.
        unmet: the fields that constrain the form of the answer and are not enforced.
        origin: why the request begins a conversation, if its client says so.
        follows: the id of an earlier answer; that conversation precedes the messages of this
            request.
        head: how many of the first messages a request that follows this one does not inherit.
        names: the dialect's data about tool names, to write the calls of an answer.
        echo: the fields of the body that an answer repeats.
        dialect: the protocol's rules for answers in a client's history.
        name: of the part of the agent that sent it.
        train: whether its calls are trained.
        labels: what else the client says about that part; one label may be its session.
        said: the digest of its messages, if its dialect has computed one.
        reading: the reader with which its dialect reads the next request of the conversation.
    """

    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    calls: bool = True
    one_call: bool = False
    stream: bool = False
    usage: bool = False
    logprobs: bool = False
    token_ids: bool = False
    token_names: bool = False
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    ignored: Sequence[str] = ()
    unmet: Sequence[str] = ()
    model: str = ""
    rollout_id: str | None = None
    origin: Literal["subagent", "compaction"] | None = None
    follows: str | None = None
    head: int = 0
    names: Mapping[str, Any] = field(default_factory=dict)
    echo: Mapping[str, Any] = field(default_factory=dict)
    dialect: Dialect = NO_REWRITES
    name: str | None = None
    train: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)
    said: bytes = field(default=b"", compare=False, repr=False)
    reading: object = field(default=None, compare=False, repr=False)

    @cached_property
    def frame(self) -> str:
        """The tools and template variables; requests of one conversation have the same."""
        return json.dumps([self.tools, self.template_kwargs], sort_keys=True)

    @cached_property
    def _frame_digest(self) -> bytes:
        """The digest of `frame`.

        Computed once per conversation, because the tools may be longer than everything new in a
        request.
        """
        return hashlib.sha256(self.frame.encode()).digest()

    @property
    def digest(self) -> bytes:
        """A digest of the content of a request, equal for a retry.

        It does not depend on how the client writes the body.
        """
        said = self.said or [with_hashes(message) for message in self.messages]
        asked = (self.dialect.id_prefix, self._frame_digest, said, self.max_tokens, self.stop)
        more = (self.calls, self.one_call, sorted(self.sampling.items()), self.follows)
        # Without references, which `marshal` writes since version 3, equal values have equal bytes.
        # It takes a fifth of the time of `json.dumps`.
        try:
            return hashlib.sha256(marshal.dumps((*asked, *more), 2)).digest()
        except ValueError:  # since Python 3.13, JSON may be deeper than `marshal` accepts
            raise Refusal("the body is nested too deeply") from None

    def with_messages(self, messages: list[Message], **changes: Any) -> "AgentRequest":
        """Return the same request with other messages.

        The values computed from its `frame` are kept.

        Args:
            messages: of the other request.
            changes: new values of other fields, but not of tools or variables.
        """
        other = object.__new__(type(self))  # a tenth of what `copy.copy` takes
        vars(other).update(vars(self), messages=messages, **changes)
        return other

    def with_frame_of(self, earlier: "AgentRequest") -> "AgentRequest":
        """Return this request, with the `frame` of an earlier one if the two share their tools."""
        if self.tools is earlier.tools and self.template_kwargs == earlier.template_kwargs == {}:
            vars(self).update(frame=earlier.frame, _frame_digest=earlier._frame_digest)
        return self

    def ignoring(self, names: Collection[str]) -> "AgentRequest":
        """Return the same request with more ignored fields."""
        return self.with_messages(self.messages, ignored=sorted({*self.ignored, *names}))

    def of_part(self, name: str | None, train: bool, labels: Mapping[str, str]) -> "AgentRequest":
        """Return the same request, sent by a part of the agent."""
        other = object.__new__(type(self))
        vars(other).update(vars(self), name=name, train=train, labels=labels)
        return other


HANDLES = "abut."
"""The beginning of each handle of reasoning; the number of the call and random text follow."""
_HANDLE_BYTES = 12
_json_of = json.JSONEncoder(ensure_ascii=False).encode  # `json.dumps` makes one for each call


@dataclass(frozen=True)
class PolicyAnswer:
    """One turn of the policy, as a client gets it.

    Attributes:
        id: of the call.
        message: as `choices[0].message`, without tokens.
        finish_reason: `stop`, `length` or `tool_calls`.
        prompt_ids: `(P,)` int64: the prompt that the engine got.
        ids: `(T,)` int64: the sampled tokens.
        logprobs: `(T,)` float32, nats.
        own_ids: call ids that the policy wrote itself.
        created: Unix time, seconds.
        number: how many calls of the rollout came before it.
        stop_string: the string of the request's `stop` that ended the turn, if one did.
        handle: the name of its reasoning, which a client sends back if it does not keep the text. A
            client of another rollout cannot know it.
    """

    id: str
    message: Message
    finish_reason: str
    prompt_ids: NDArray[np.int64]
    ids: NDArray[np.int64]
    logprobs: NDArray[np.float32]
    own_ids: frozenset[str] = frozenset()
    created: int = 0
    number: int = 0
    stop_string: str | None = None
    handle: str = ""


def answer_of(
    text: str,
    processor: PartsProcessor,
    call_reader: CallReadingProcessor | None,
    request: AgentRequest,
    *,
    id: str,
    number: int,
    cut: bool,
    stop_string: str | None,
    call_id: Callable[[str | None], str],
    prompt_ids: NDArray[np.int64],
    ids: NDArray[np.int64],
    logprobs: NDArray[np.float32],
) -> PolicyAnswer:
    """Split a turn into text, thinking and calls, as a chat API does.

    Args:
        text: of the sample, without its end token.
        processor: parses thinking.
        call_reader: parses calls; None: calls are not parsed.
        request: says whether calls are wanted.
        id: of the call.
        number: of the call.
        cut: whether a token limit ended the sample.
        stop_string: the string that ended it, if one did.
        call_id: returns an id that no other call of the rollout has, given the one that the policy
            wrote.
        prompt_ids: see `PolicyAnswer`.
        ids: see `PolicyAnswer`.
        logprobs: see `PolicyAnswer`.
    """
    reasoning, action = processor.parse_agent_output(text)
    message: Message = {"role": "assistant", "content": action}
    if reasoning:
        message["reasoning_content"] = message["reasoning"] = reasoning
    own_ids: set[str] = set()
    parsed = _parsed(call_reader, action) if request.tools and request.calls else None
    if parsed is not None and parsed.calls:
        calls = parsed.calls[: 1 if request.one_call else None]
        broken = [action[call.start : call.end] for call in parsed.malformed]
        message["content"] = "\n".join(filter(None, [parsed.content, *broken])) or None
        message["tool_calls"] = []
        for call in calls:
            given = call_id(call.id)
            if given == call.id:
                own_ids.add(given)
            arguments = _json_of(call.arguments)
            function = {"name": call.name, "arguments": arguments}
            message["tool_calls"].append({"id": given, "type": "function", "function": function})
    return PolicyAnswer(
        id=id,
        message=message,
        finish_reason="length" if cut else "tool_calls" if "tool_calls" in message else "stop",
        prompt_ids=prompt_ids,
        ids=ids,
        logprobs=logprobs,
        own_ids=frozenset(own_ids),
        created=int(time.time()),
        number=number,
        stop_string=stop_string,
        handle=f"{HANDLES}{number}.{secrets.token_urlsafe(_HANDLE_BYTES)}",
    )


def _parsed(reader: CallReadingProcessor | None, action: str) -> ParsedCalls | None:
    if reader is None:
        return None
    try:
        parsed: ParsedCalls = reader.parse_tool_calls(action)
    except TemplateError:  # the template does not write calls
        return None
    return parsed


@dataclass(eq=False)
class AgentCall:
    """One call of an agent: a request whose prompt is written, its sample and its answer.

    Invariant: a sample is given to one client at a time, and only to one that sent an equal body.

    Attributes:
        number: how many calls of the rollout came before it.
        digest: of the body; equal bodies have the same one.
        request: as it was read.
        answered: gets the answer, or a `Refusal`.
        is_open: returns whether its client still listens.
        delivered: whether the answer was written to the client, or appeared in a later history.
        sample: of the policy.
        turn: its tokens in the branch.
        generate_s: seconds from the call to its sample.
        asked_at: by the monotonic clock.
        heard_at: when its answer was delivered.
        env_s: seconds from `heard_at` to the next call of the branch.
    """

    number: int
    digest: bytes
    request: AgentRequest
    answered: asyncio.Future[PolicyAnswer]
    is_open: Callable[[], bool]
    asked_at: float
    delivered: bool = False
    sample: Sample | None = None
    turn: PolicyTurn | None = None
    generate_s: float = 0.0
    heard_at: float | None = None
    env_s: float = 0.0
    delivery: int = -1
    """How many answers of the rollout were delivered before this one; -1 until it is delivered."""

    def refuse(self, refusal: Refusal) -> None:
        """Answer with a refusal."""
        set_failed(self.answered, refusal)

    @property
    def sampled_tokens(self) -> int:
        """How many tokens were sampled for it."""
        return 0 if self.turn is None else self.turn.end - self.turn.start

    @property
    def may_be_reused(self) -> bool:
        """True if it has or may still get a sample, which a repeated request can then share."""
        return not self.answered.done() or self.answered.exception() is None


def set_failed(future: asyncio.Future[Any], error: BaseException) -> None:
    """Set an error as the result of a future, unless it has a result; it need not be awaited."""
    if not future.done():
        future.set_exception(error)
        future.exception()  # or the loop logs the error, if the future is not awaited
