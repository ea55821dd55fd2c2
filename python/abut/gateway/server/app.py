"""The routes of the gateway.

Invariant: every request gets an answer or a refusal, as its protocol writes them. Nothing of a
request is logged, and it is sent only to the rank that plays its rollout.
"""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import ClientError, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector, web

from abut.address import said
from abut.agents.protocol import AgentResult
from abut.concurrency.threads import work_done
from abut.gateway.dialects.chat import (
    DONE,
    KEEP_ALIVE,
    completion,
    event,
    events,
    refusal_body,
)
from abut.gateway.ledger.agent_call import AgentCall, AgentRequest, PolicyAnswer
from abut.gateway.ledger.ledger import Ledger
from abut.gateway.ledger.refusal import Refusal
from abut.gateway.server.body import Beginning, Body, read_body
from abut.gateway.server.connections import Connection
from abut.gateway.server.registry import MODEL, Access, Registry
from abut.gateway.server.standalone import check_id, check_reward

logger = logging.getLogger(__name__)

_MOST_BYTES = 64 * 2**20
_TOO_LARGE = f"the body has more than {_MOST_BYTES} bytes"
# Parsed in about half a millisecond.
_SMALL_BYTES = 2**18
_SMALL_TOKENS = 4096
# A token among the logprobs takes as long as this many bare ids: 8 microseconds.
_AS_LOGPROB = 8
_KEEP_ALIVE_S = 15.0
# How long a client may take to send the next byte of a body.
_BYTE_S = 30.0
_STARTED = int(time.time())
ROLLOUT_HEADER = "x-abut-rollout"
_FORWARDED = "x-abut-forwarded"
_PASSED_ON = ("authorization", "content-type", ROLLOUT_HEADER, "x-stainless-retry-count")
_BY_MODEL = f"{MODEL}/"
_REGISTRY = web.AppKey("registry", Registry)
_PEERS = web.AppKey("peers", ClientSession)


def make_app(registry: Registry) -> web.Application:
    """Return the application of a gateway."""
    app = web.Application(middlewares=[_answer])
    app[_REGISTRY] = registry
    app.cleanup_ctx.append(_peers)
    for path in ("", "/r/{id}"):
        app.router.add_post(f"{path}/v1/chat/completions", _chat)
        app.router.add_get(f"{path}/v1/models", _models)
        app.router.add_post(f"{path}/v1/responses", _responses)
        app.router.add_post(f"{path}/end", _end)
    app.router.add_post("/r/{id}/key", _key_of)
    app.router.add_get("/health", _health)
    return app


async def _peers(app: web.Application) -> Any:
    connector = TCPConnector(limit=0)
    timeout = ClientTimeout(total=None)
    async with ClientSession(
        connector=connector, cookie_jar=DummyCookieJar(), timeout=timeout, trust_env=False
    ) as session:
        app[_PEERS] = session
        yield


@web.middleware  # type: ignore[untyped-decorator]
async def _answer(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Answer a request, and close its connection if nobody has read its body."""
    connection = _connection(request)
    if connection is not None:
        connection.begin()
    try:
        response = await _answer_or_refusal(request, handler)
        if request.can_read_body:
            response.force_close()
            if connection is not None:
                connection.linger()
        return response
    finally:
        if connection is not None:
            connection.end()


async def _answer_or_refusal(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except Refusal as refusal:
        return web.json_response(refusal_body(refusal), status=refusal.status)
    except web.HTTPException as error:
        return _refused(
            f"{error.status}: {error.reason}", error.status if error.status in (404, 405) else 400
        )
    except RecursionError:
        return _refused("the body is nested too deeply", 400)
    except (ConnectionResetError, asyncio.CancelledError):
        raise
    except Exception:
        logger.exception("the gateway failed at a request")
        return _refused("the gateway failed; its log says of what", 500)


def _connection(request: web.Request) -> Connection | None:
    """Return the connection that a request came over, while it is open."""
    transport = request.transport
    protocol = None if transport is None else transport.get_protocol()
    return protocol if isinstance(protocol, Connection) else None


def _refused(message: str, status: int) -> web.Response:
    return web.json_response(refusal_body(Refusal(message, status=status)), status=status)


async def _health(request: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


async def _models(request: web.Request) -> web.Response:
    _admit(request)
    model = {"id": MODEL, "object": "model", "created": _STARTED, "owned_by": "abut"}
    return web.json_response({"object": "list", "data": [model]})


async def _responses(request: web.Request) -> web.Response:
    raise Refusal(
        "there is no /responses here\nhint: use your client's chat completions model, such as "
        "OpenAIChatCompletionsModel or OpenAIChatModel",
        status=404,
    )


async def _end(request: web.Request) -> web.Response:
    registry, standalone = request.app[_REGISTRY], request.app[_REGISTRY].standalone
    access = _admit(request)
    if not (registry.agents_may_end or access.opens_all):
        raise Refusal(
            "only the run's key ends and rewards a rollout, and this is the key of an agent\n"
            "hint: Gateway(agents_may_end=True), or `abut gateway --agents-may-end`, allows it",
            code="wrong_api_key",
        )
    content = Body.of(await _chunks(request) or [b"{}"])
    body, _ = await _parsed(content)
    access.check(_rollout_of(request, body))
    rollout_id = access.rollout_id
    if standalone is None or rollout_id is None:
        why = (
            "the request names no rollout" if standalone else "the trainer ends its rollouts itself"
        )
        raise Refusal(why, code="unknown_rollout")
    reward, extras = body.get("reward"), body.get("extras") or {}
    check_reward(reward)
    if not isinstance(extras, dict):
        raise Refusal("extras must be an object", param="extras")
    return web.json_response(await standalone.end_or_score(rollout_id, AgentResult(reward, extras)))


async def _key_of(request: web.Request) -> web.Response:
    """Answer the key that opens one rollout alone, for the process that starts its agent."""
    registry, id_ = request.app[_REGISTRY], request.match_info["id"]
    registry.check_run_key(_key(request))
    check_id(id_)
    return web.json_response({"rollout_id": id_, "key": registry.key_of(id_)})


def _admit(request: web.Request) -> Access:
    """Check the key of a request, whose body is unread so far."""
    header, path_id = request.headers.get(ROLLOUT_HEADER), request.match_info.get("id")
    access: Access = request.app[_REGISTRY].admit(_key(request), header, path_id)
    return access


def _key(request: web.Request) -> str | None:
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else None


async def _chat(request: web.Request) -> web.StreamResponse:
    registry = request.app[_REGISTRY]
    with _admit(request) as access:
        named = access.rollout_id
        content = registry.bodies.body(named, await _chunks(request))
        body, beginning = await _parsed(content)
        access.check(_rollout_of(request, body))  # the body may name another rollout
        rollout_id = access.rollout_id
        if rollout_id is not None and (rank := registry.rank_of(rollout_id)) is not None:
            return await _pass_on(request, registry, rank, content.whole)
        chat = registry.chat.read(body, None if beginning is None else beginning.request)
        digest, retried = content.digest(beginning), _is_retry(request)
        ledger = await registry.ledger_of(rollout_id, chat, digest, retried=retried)
        if beginning is not None:
            beginning.request = chat
            if named == ledger.rollout_id:
                registry.bodies.keep(named, beginning)
        # Another rank's gateway keeps its connections for the rollouts to come.
        connection = _connection(request)
        if connection is not None and _FORWARDED not in request.headers:
            registry.connections.note(connection, ledger.rollout_id)
        return await _respond(request, ledger, chat, digest, retried)


async def _parsed(content: Body) -> tuple[Any, Beginning | None]:
    small = len(content.rest) <= _SMALL_BYTES
    return await work_done(small, lambda: read_body(content))


async def _respond(
    request: web.Request, ledger: Ledger, chat: AgentRequest, digest: bytes, retried: bool
) -> web.StreamResponse:
    is_open = _ClientListens(request)
    # A call goes on if its client hangs up, so that a retry receives the sample.
    pending = ledger.ask(chat, digest=digest, retried=retried, is_open=is_open)
    try:
        model = chat.model or MODEL
        if chat.stream:
            return await _send_stream(request, ledger, await pending.placed, model)
        return await _send_whole(request, ledger, await pending.answered, model)
    finally:
        is_open.gone = True


async def _chunks(request: web.Request) -> list[bytes]:
    """Return the chunks of a body as they came in, because `request.read()` copies them thrice."""
    chunks: list[bytes] = []
    if (request.content_length or 0) > _MOST_BYTES:
        raise Refusal(_TOO_LARGE)
    if not request.body_exists:  # all such requests share one stream, which ends only once
        return chunks
    size = 0
    try:
        while not request.content.at_eof():
            async with asyncio.timeout(_BYTE_S):
                chunk = await request.content.readany()
            size += len(chunk)
            if size > _MOST_BYTES:
                raise Refusal(_TOO_LARGE)
            if chunk:
                chunks.append(chunk)
    except TimeoutError:
        raise Refusal(f"the body stopped: nothing came for {_BYTE_S:g} s") from None
    return chunks


class _ClientListens:
    """Returns whether the client still listens."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self.gone = False

    def __call__(self) -> bool:
        transport = self._request.transport
        return not self.gone and transport is not None and not transport.is_closing()


def _rollout_of(request: web.Request, body: dict[str, Any]) -> str | None:
    """Return the rollout that a request names: by body, header, path or model, in this order."""
    model = body.get("model")
    by_model = ""
    if isinstance(model, str) and model.startswith(_BY_MODEL):
        by_model = model.removeprefix(_BY_MODEL)
    named = body.get("rollout_id")
    if named is not None and not isinstance(named, str):
        raise Refusal("rollout_id must be a text", param="rollout_id")
    header, path_id = request.headers.get(ROLLOUT_HEADER), request.match_info.get("id")
    return named or header or path_id or by_model or None


def _is_retry(request: web.Request) -> bool:
    count = request.headers.get("x-stainless-retry-count", "0")
    return bool(count.isdecimal() and count.strip("0"))  # `int` refuses more than 4300 digits


async def _send_whole(
    request: web.Request, ledger: Ledger, call: AgentCall, model: str
) -> web.StreamResponse:
    answer, tokenizer, chat = call.answered.result(), ledger.tokenizer, call.request
    body = await work_done(
        _is_small(answer, chat),
        lambda: json.dumps(completion(answer, chat, model, tokenizer)).encode(),
    )
    headers = {ROLLOUT_HEADER: ledger.rollout_id}
    response = web.Response(body=body, content_type="application/json", headers=headers)
    await response.prepare(request)
    await response.write_eof()
    _note_delivery(request, ledger, call)
    return response


async def _send_stream(
    request: web.Request, ledger: Ledger, call: AgentCall, model: str
) -> web.StreamResponse:
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
            await response.write(KEEP_ALIVE)
        except Refusal as refusal:
            await response.write(event(refusal_body(refusal)) + DONE)
            return response
    chat, tokenizer = call.request, ledger.tokenizer
    sent = await work_done(
        _is_small(answer, chat), lambda: b"".join(events(answer, chat, model, tokenizer))
    )
    await response.write(sent + DONE)
    _note_delivery(request, ledger, call)  # clients hang up here, before the body's last byte
    await response.write_eof()
    return response


def _is_small(answer: PolicyAnswer, chat: AgentRequest) -> bool:
    """Return whether an answer is written quickly enough for the loop."""
    sampled = len(answer.ids)
    tokens = (len(answer.prompt_ids) + sampled if chat.token_ids else 0) + (
        _AS_LOGPROB * sampled if chat.logprobs else 0
    )
    return tokens <= _SMALL_TOKENS


def _note_delivery(request: web.Request, ledger: Ledger, call: AgentCall) -> None:
    transport = request.transport
    if transport is not None and not transport.is_closing():
        ledger.delivered(call)


async def _pass_on(
    request: web.Request, registry: Registry, rank: int, content: bytes
) -> web.StreamResponse:
    """Pass a request to the rank that plays its rollout, and a hang-up of the client with it."""
    url = registry.peers.get(rank)
    if url is None or _FORWARDED in request.headers:
        raise Refusal(f"there is no rank {rank} in this run", code="unknown_rollout")
    headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
    headers[_FORWARDED] = "1"
    try:
        reply = await request.app[_PEERS].post(
            url + request.rel_url.raw_path, data=content, headers=headers, allow_redirects=False
        )
    except ClientError as error:
        logger.warning("rank %d's gateway at %s does not answer: %s", rank, url, said(error))
        raise Refusal(f"rank {rank} of this run does not answer", status=500) from error
    async with reply:
        response = web.StreamResponse(status=reply.status)
        response.content_type = reply.content_type
        if ROLLOUT_HEADER in reply.headers:
            response.headers[ROLLOUT_HEADER] = reply.headers[ROLLOUT_HEADER]
        await response.prepare(request)
        async for chunk in reply.content.iter_any():
            await response.write(chunk)
        await response.write_eof()
        return response
