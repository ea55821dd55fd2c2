"""The interface of a dialect: a protocol that clients speak, from a body to an answer.

Invariant: a dialect decides how a request is read and an answer is written, and which changes of an
answer are its clients' habit. Where a request goes on and what is sampled is the ledger's.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from abut._native import Tokenizer
from abut.gateway.ledger.agent_call import AgentRequest, PolicyAnswer
from abut.gateway.ledger.entry import Dialect
from abut.gateway.ledger.refusal import Refusal


class HttpDialect(Dialect, ABC):
    """One protocol over HTTP.

    Attributes:
        paths: its routes, behind the part that names the rollout.
        count_paths: the routes that count the tokens of a request.
        keep_alive: sent in a stream while its turn is sampled.
        repeats_bytes: whether its clients send the beginning of the body before byte for byte. That
            part is not parsed again, and a retry is an equal body; else it is an equal request.
    """

    paths: ClassVar[Sequence[str]]
    count_paths: ClassVar[Sequence[str]] = ()
    keep_alive: ClassVar[bytes] = b": the turn is being sampled\n\n"
    repeats_bytes: ClassVar[bool] = False

    @abstractmethod
    def read(
        self,
        body: Mapping[str, Any],
        like: AgentRequest | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AgentRequest:
        """Return the request of a body.

        Args:
            body: its JSON.
            like: the request of an earlier body with equal fields, whose messages are the first
                of this one's; only where `repeats_bytes`.
            headers: of the HTTP request, for labels of its client.

        Raises:
            Refusal: names the field that is wrong, or that could not be exact.
        """

    def owns(self, path: str) -> bool:
        """Return whether a route is this dialect's, so that it writes its refusals."""
        return any(own in path for own in self.paths)

    def fields_of(self, path: str, query: Mapping[str, str]) -> Mapping[str, Any]:
        """Return the fields of a request that its address has; they go before those of its body.

        Raises:
            Refusal: the address asks for something that there is not.
        """
        return {}

    def rollout_of(self, body: Mapping[str, Any]) -> str | None:
        """Return the rollout that a body names by the id of an answer, if it does."""
        return None

    def rollout_of_answer(self, id_: str) -> str | None:
        """Return the rollout of an answer's id; None if it is not one of this dialect."""
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

    def count(self, tokens: int) -> dict[str, Any]:
        """Return the JSON of a number of tokens; called only if there are `count_paths`."""
        raise NotImplementedError

    @abstractmethod
    def refused(self, refusal: Refusal) -> dict[str, Any]:
        """Return the JSON of a refusal."""

    @abstractmethod
    def refused_event(self, refusal: Refusal) -> bytes:
        """Return the events that end a stream whose turn was refused."""


def data_event(value: Any) -> bytes:
    """Return a server-sent event without a name."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def named_event(value: Mapping[str, Any]) -> bytes:
    """Return a server-sent event that has the name of its value's type."""
    return b"event: " + str(value["type"]).encode() + b"\n" + data_event(value)
