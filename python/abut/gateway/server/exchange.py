"""One exchange with a client: its caller, and the answer as one body or as a stream.

A stream begins while its turn is sampled.

Invariant: an answer counts as delivered once its last byte was written to a client that still
listens; in a stream, once its last event was.
"""

import asyncio
import json
from collections.abc import Iterable
from typing import NamedTuple

from aiohttp import web

from abut.agents.protocol import NAME_HINT, is_name
from abut.concurrency.threads import work_done
from abut.gateway.dialects.dialect import HttpDialect
from abut.gateway.ledger.agent_call import AgentCall, AgentRequest, PolicyAnswer
from abut.gateway.ledger.ledger import Ledger
from abut.gateway.ledger.refusal import Refusal
from abut.gateway.server.registry import MODEL

ROLLOUT_HEADER = "x-abut-rollout"
NAME_HEADER = "x-abut-name"
NAMED = "/r/{id}/as/{name}{untrained:(?:/untrained)?}"
"""The path of a rollout with a name, as `Endpoint.named` writes it."""
_SMALL_TOKENS = 4096
# A token among the logprobs takes as long as this many bare ids: 8 microseconds.
_AS_LOGPROB = 8
_KEEP_ALIVE_S = 15.0


class AskingPart(NamedTuple):
    """The part of an agent that sends a request; fields as in `AgentRequest`."""

    name: str | None
    train: bool
    labels: dict[str, str]


def part_of(request: web.Request, session_headers: Iterable[str]) -> AskingPart:
    """Return the part of the agent that sent a request.

    The path says more than the header `x-abut-name`, which cannot mark calls as untrained.

    Raises:
        Refusal: the name or a session is not valid.
    """
    name = request.match_info.get("name") or header_of(request, NAME_HEADER)
    if name is not None and not is_name(name):
        raise Refusal(f"{name[:200]!r} is not a valid name\nhint: {NAME_HINT}", code="wrong_name")
    labels = {}
    for header in session_headers:
        if session := header_of(request, header):
            if not (session.isascii() and session.isprintable()):
                raise Refusal(f"{header} must be printable ASCII text", code="wrong_session")
            labels[header] = session
    return AskingPart(name, not request.match_info.get("untrained"), labels)


def header_of(request: web.Request, name: str) -> str | None:
    """Return the value of a header; several values are joined with commas, as in HTTP."""
    values = request.headers.getall(name, [])
    return ", ".join(values) if values else None


class ClientListens:
    """Tells whether the client of a request still listens.

    Attributes:
        gone: whether the client has its answer, or has hung up.
    """

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self.gone = False

    def __call__(self) -> bool:
        """Return whether the client still listens."""
        transport = self._request.transport
        return not self.gone and transport is not None and not transport.is_closing()


async def send_whole(
    request: web.Request, dialect: HttpDialect, ledger: Ledger, call: AgentCall
) -> web.StreamResponse:
    """Send the answer of a call as one body."""
    answer, tokenizer, asked = call.answered.result(), ledger.tokenizer, call.request
    body = await work_done(
        _is_small(answer, asked),
        lambda: json.dumps(dialect.answer(answer, asked, asked.model or MODEL, tokenizer)).encode(),
    )
    headers = {ROLLOUT_HEADER: ledger.rollout_id}
    response = web.Response(body=body, content_type="application/json", headers=headers)
    await response.prepare(request)
    await response.write_eof()
    _note_delivery(request, ledger, call)
    return response


async def send_stream(
    request: web.Request, dialect: HttpDialect, ledger: Ledger, call: AgentCall
) -> web.StreamResponse:
    """Send the answer of a call as server-sent events, with keep-alive events until it is ready."""
    headers = {"Cache-Control": "no-cache", ROLLOUT_HEADER: ledger.rollout_id}
    response = web.StreamResponse(headers=headers)
    response.content_type = "text/event-stream"
    await response.prepare(request)
    while True:
        try:
            async with asyncio.timeout(_KEEP_ALIVE_S):
                answer = await asyncio.shield(call.answered)
            break
        except TimeoutError:
            await response.write(dialect.keep_alive)
        except Refusal as refusal:
            await response.write(dialect.refused_event(refusal))
            return response
    asked, tokenizer = call.request, ledger.tokenizer
    model = asked.model or MODEL
    sent = await work_done(
        _is_small(answer, asked),
        lambda: b"".join(dialect.events(answer, asked, model, tokenizer)),
    )
    await response.write(sent)
    _note_delivery(request, ledger, call)  # clients hang up here, before the body's last byte
    await response.write_eof()
    return response


def _is_small(answer: PolicyAnswer, asked: AgentRequest) -> bool:
    """Return whether writing an answer is quick enough for the event loop."""
    sampled = len(answer.ids)
    tokens = (len(answer.prompt_ids) + sampled if asked.token_ids else 0) + (
        _AS_LOGPROB * sampled if asked.logprobs else 0
    )
    return tokens <= _SMALL_TOKENS


def _note_delivery(request: web.Request, ledger: Ledger, call: AgentCall) -> None:
    transport = request.transport
    if transport is not None and not transport.is_closing():
        ledger.delivered(call)
