"""The interface of a dialect: a protocol that clients speak, from a body to an answer.

Invariant: a dialect decides how to read a request, how to write an answer, and which changes of an
answer are habits of its clients. The ledger decides which conversation a request continues and what
is sampled.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

from abut._native import Tokenizer
from abut.gateway.dialects.image_fields import ImageField
from abut.gateway.ledger.agent_call import AgentRequest, PolicyAnswer
from abut.gateway.ledger.entry import Dialect
from abut.gateway.ledger.refusal import Refusal, short
from abut.images import Image
from abut.messages import blocks_of

Unenforced: TypeAlias = Literal["refuse", "accept"]
"""The treatment of requests that constrain the form of the answer: refuse, or sample freely."""

_MOST_STOPS = 16
_MOST_STOP_CHARS = 1024
_MOST_TOOLS = 512
_NUMBERS_END = 2**63
_WHOLE = ("seed", "top_k")


class Like(NamedTuple):
    """The part of an earlier body that a body repeats.

    Attributes:
        request: the request that was read from the earlier body.
        elements: how many of the first elements of its list are the same objects.
        same_fields: whether all other fields of the body are the same.
    """

    request: AgentRequest
    elements: int
    same_fields: bool


class HttpDialect(Dialect, ABC):
    """One protocol over HTTP.

    Args:
        rewrites: the names of the rules by which a client may change an answer of the policy; names
            of other dialects' rules are allowed too. None: all rules of this dialect. Each use of a
            rule is counted.
        unenforced: "accept" samples freely when a client asks for a form of the answer.

    Attributes:
        list_key: the key of the list in a body that grows with the conversation.
        paths: its routes, without the prefix that names the rollout.
        count_paths: the routes that count the tokens of a request.
        count_key: the key of that number in their answer.
        kept_path: the route that returns an earlier answer by its id, `answer`; None: there is no
            such route.
        keep_alive: the bytes sent in a stream while its turn is being sampled.
        repeats_bytes: whether a retry of its clients has an equal body; otherwise only the request
            is equal.
    """

    list_key: ClassVar[str] = "messages"
    paths: ClassVar[Sequence[str]]
    count_paths: ClassVar[Sequence[str]] = ()
    count_key: ClassVar[str] = ""
    kept_path: ClassVar[str | None] = None
    keep_alive: ClassVar[bytes] = b": the turn is being sampled\n\n"
    repeats_bytes: ClassVar[bool] = False

    def __init__(
        self, rewrites: Collection[str] | None = None, unenforced: Unenforced = "refuse"
    ) -> None:
        super().__init__(rewrites)
        self.unenforced: Unenforced = unenforced

    @abstractmethod
    def read(
        self,
        body: Mapping[str, Any],
        like: Like | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AgentRequest:
        """Return the request of a body.

        Args:
            body: its JSON.
            like: what it repeats of an earlier body.
            headers: of the HTTP request, which may have labels of its client.

        Raises:
            Refusal: a field is wrong, or would make the result inexact; names the field.
        """

    def history_in(self, body: Mapping[str, Any]) -> Sequence[Any]:
        """Return the list in a body that grows with the conversation; empty if it has none."""
        history = body.get(self.list_key)
        return history if isinstance(history, list) else ()

    @abstractmethod
    def image_fields(self, element: Mapping[str, Any], place: int) -> Iterator[ImageField]:
        """Yield the fields of an element that hold an image; `read` then finds an `Image` in them.

        Args:
            element: of the list that grows with the conversation, before `read`.
            place: its index.

        Raises:
            Refusal: a field holds an image of a kind that abut does not take.
        """

    def read_count(
        self, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> AgentRequest:
        """Return the request whose tokens a body asks to count; arguments as for `read`."""
        return self.read(body, None, headers)

    def owns(self, path: str) -> bool:
        """Return whether a path looks like this dialect's, so that it words the refusal."""
        return any(own in path for own in self.paths)

    def fields_of(
        self, path: str, named: Mapping[str, str], query: Mapping[str, str]
    ) -> Mapping[str, Any]:
        """Return the fields of a request that are in its URL; they override those of its body.

        Args:
            path: of one of this dialect's routes.
            named: the named parts of the path.
            query: the query of the URL.

        Raises:
            Refusal: the URL asks for something that the gateway does not have.
        """
        return {}

    def rollout_of(self, body: Mapping[str, Any]) -> str | None:
        """Return the rollout that a body names by the id of an answer, if it does."""
        return None

    def rollout_of_answer(self, id_: str) -> str | None:
        """Return the rollout of an answer's id; None if the id is not of this dialect."""
        named = id_.removeprefix(self.id_prefix).rpartition("-")[0]
        return named if named and id_.startswith(self.id_prefix) else None

    @abstractmethod
    def answer(
        self, answer: PolicyAnswer, request: AgentRequest, model: str, tokenizer: Tokenizer
    ) -> dict[str, Any]:
        """Return the JSON of an answer."""

    @abstractmethod
    def events(
        self, answer: PolicyAnswer, request: AgentRequest, model: str, tokenizer: Tokenizer
    ) -> Iterator[bytes]:
        """Yield an answer as server-sent events."""

    @abstractmethod
    def refused(self, refusal: Refusal) -> dict[str, Any]:
        """Return the JSON of a refusal."""

    @abstractmethod
    def refused_event(self, refusal: Refusal) -> bytes:
        """Return the events that end a stream whose turn was refused."""


def request_like(like: Like | None, fields: Callable[[], AgentRequest]) -> AgentRequest:
    """Return the request of a body without its messages.

    Args:
        like: what the body repeats of an earlier one, whose request is returned, with its old
            messages, if all other fields are equal.
        fields: reads the fields of a new body.
    """
    if like is None:
        return fields()
    return like.request if like.same_fields else fields().with_frame_of(like.request)


def blocks_in(value: Any, key: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects in a list of blocks, with their indices; empty if it is not a list."""
    blocks = value.get(key) if isinstance(value, dict) else None
    for number, block in enumerate(blocks if isinstance(blocks, list) else ()):
        if isinstance(block, dict):
            yield number, block


def data_event(value: Any) -> bytes:
    """Return a server-sent event without a name."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def named_event(value: Mapping[str, Any]) -> bytes:
    """Return a server-sent event that has the name of its value's type."""
    return b"event: " + str(value["type"]).encode() + b"\n" + data_event(value)


def content_of(parts: Sequence[str | Image]) -> Any:
    """Return the content of a message: a string for a single text, otherwise blocks."""
    if len(parts) == 1 and isinstance(parts[0], str):
        return parts[0]
    return blocks_of(parts) or ""


# ---- fields of a body: each is read, or refused by its name


def flag(body: Mapping[str, Any], name: str) -> bool:
    """Return a field that is true or false; False if it is missing."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise Refusal(f"{name}={short(value)}: must be true or false", param=name)
    return bool(value)


def object_at(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a field that is an object; an empty one if it is missing."""
    value = body.get(name)
    if value is not None and not isinstance(value, dict):
        raise Refusal(f"{name} must be an object", param=name)
    return value or {}


def list_at(body: Mapping[str, Any], name: str) -> list[Any]:
    """Return a field that is a list; an empty one if it is missing."""
    value = body.get(name)
    if value is not None and not isinstance(value, list):
        raise Refusal(f"{name} must be a list", param=name)
    return value or []


def text_at(body: Mapping[str, Any], name: str) -> str | None:
    """Return a field that is a string; None if it is missing."""
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise Refusal(f"{name} must be a string", param=name)
    return value


def most_tokens(body: Mapping[str, Any], *names: str) -> int | None:
    """Return the lowest of the token limits of a turn; None if there is no limit."""
    given = []
    for name in names:
        value = body.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise Refusal(f"{name}={short(value)}: must be 1 or more", param=name)
        given.append(value)
    return min(given, default=None)


def sampling_in(body: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return a client's sampling settings, all of which are numbers.

    Other values are refused here, because the sampler would fail on them later and end the rollout.

    Args:
        body: has the settings.
        names: their names in the body, mapped to the names that samplers use.
    """
    given: dict[str, Any] = {}
    for key, name in names.items():
        value = body.get(key)
        if value is None:
            continue
        whole = name in _WHOLE
        if whole and isinstance(value, float) and value.is_integer():
            value = int(value)  # google-genai has a topK of 40.0
        known = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
        if not (known and abs(value) < _NUMBERS_END):  # refuse NaN too, which Python's JSON accepts
            kind = "an integer" if whole else "a number"
            raise Refusal(f"{key}={short(value)}: must be {kind} that fits in 64 bits", param=key)
        given[name] = value
    return given


def stops(body: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Return the strings that end a turn."""
    stop = body.get(name)
    given = [stop] if isinstance(stop, str) else [] if stop is None else stop
    if (
        not isinstance(given, list)
        or len(given) > _MOST_STOPS
        or not all(isinstance(one, str) and 0 < len(one) <= _MOST_STOP_CHARS for one in given)
    ):
        raise Refusal(
            f"{name} must be a string or a list of at most {_MOST_STOPS} strings, each of 1 to "
            f"{_MOST_STOP_CHARS} characters",
            param=name,
        )
    try:
        "".join(given).encode()
    except UnicodeEncodeError:
        raise Refusal(
            f"{name} has half of a surrogate pair, so it is not valid Unicode text", param=name
        ) from None
    return tuple(dict.fromkeys(given))


def check_tools(tools: Sequence[Any]) -> None:
    """Refuse a request with too many tools."""
    if len(tools) > _MOST_TOOLS:
        raise Refusal(
            f"the request has {len(tools)} tools, but the gateway takes at most {_MOST_TOOLS}",
            param="tools",
        )


def check_form(name: str, unenforced: Unenforced) -> None:
    """Refuse a request that constrains the form of its answer, unless it may be sampled freely.

    Args:
        name: of the field that constrains the form.
        unenforced: "refuse" or "accept".
    """
    if unenforced != "accept":
        raise Refusal(
            f"{name} is not enforced: constrained decoding changes the policy's distribution, so "
            "the sample could not be trained\n"
            f"hint: leave {name} out, or start the gateway with Gateway(unenforced='accept'), "
            f"which ignores {name} and samples freely",
            param=name,
        )
