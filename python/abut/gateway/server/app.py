"""The routes of the gateway.

Invariant: every request gets an answer or a refusal, as its protocol writes them. The content of a
request is never logged, and is sent only to the rank that plays its rollout.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from aiohttp import ClientError, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector, web

from abut.address import said
from abut.concurrency.threads import work_done
from abut.gateway.dialects.dialect import HttpDialect
from abut.gateway.ledger.agent_call import AgentRequest
from abut.gateway.ledger.ledger import Ledger
from abut.gateway.ledger.prompt import call_of_answer
from abut.gateway.ledger.refusal import Refusal
from abut.gateway.server.body import Body, Room, chunks_of
from abut.gateway.server.body_json import json_object, read_body
from abut.gateway.server.connections import Connection
from abut.gateway.server.exchange import (
    NAME_HEADER,
    NAMED,
    ROLLOUT_HEADER,
    ClientListens,
    header_of,
    part_of,
    send_stream,
    send_whole,
)
from abut.gateway.server.registry import MODEL, Access, Registry
from abut.gateway.server.results import checked_result
from abut.gateway.server.standalone import check_id

logger = logging.getLogger(__name__)

# Parsed in about half a millisecond.
_SMALL_BYTES = 2**18
# Times the limit of a body: how much of the bodies of one rollout is in memory at once.
_BODIES_AT_ONCE = 4
_STARTED = int(time.time())
_CLIENT_GONE = 499  # as nginx has it
_FORWARDED = "x-abut-forwarded"
_KEY_HEADERS = ("x-api-key", "x-goog-api-key")
# With what a dialect reads of its clients' labels.
_PASSED_ON = (
    *("authorization", *_KEY_HEADERS, "content-type", ROLLOUT_HEADER, "x-stainless-retry-count"),
    *("x-claude-code-agent-id", "x-openai-subagent", "x-codex-turn-metadata"),
)
_BY_MODEL = f"{MODEL}/"
_REGISTRY = web.AppKey("registry", Registry)
_PEERS = web.AppKey("peers", ClientSession)
# By route: a path can hold another dialect's, written with %2F.
_DIALECTS = web.AppKey("dialects", dict[web.AbstractRoute, HttpDialect])


def make_app(registry: Registry) -> web.Application:
    """Return the application of a gateway."""
    app = web.Application(middlewares=[_answer])
    app[_REGISTRY] = registry
    app[_DIALECTS] = of_route = {}
    app.cleanup_ctx.append(_peers)
    for path in ("", "/r/{id}", NAMED):
        for dialect in registry.dialects:
            for own in dialect.paths:
                of_route[app.router.add_post(f"{path}{own}", _ask)] = dialect
            for own in dialect.count_paths:
                of_route[app.router.add_post(f"{path}{own}", _count)] = dialect
            if dialect.kept_path is not None:
                route = app.router.add_get(f"{path}{dialect.kept_path}", _kept)
                of_route[route] = dialect
        app.router.add_get(f"{path}/v1/models", _models)
    for path in ("", "/r/{id}"):
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
    """Answer a request, and close its connection if the body was not read."""
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
        return _refused(request, refusal)
    except web.HTTPException as error:
        status = error.status if error.status in (404, 405) else 400
        return _refused(request, Refusal(f"{error.status}: {error.reason}", status=status))
    except RecursionError:
        return _refused(request, Refusal("the body is nested too deeply"))
    except asyncio.CancelledError:
        raise
    except ConnectionResetError:
        # The client has hung up, so this answer is not sent. Raising here would make aiohttp log a
        # traceback for each client that hangs up while its turn is sampled.
        return web.Response(status=_CLIENT_GONE)
    except Exception:
        logger.exception("the gateway failed while handling a request")
        return _refused(request, Refusal("the gateway failed; see its log", status=500))


def _connection(request: web.Request) -> Connection | None:
    """Return the connection that a request came over, while it is open."""
    transport = request.transport
    protocol = None if transport is None else transport.get_protocol()
    return protocol if isinstance(protocol, Connection) else None


def _refused(request: web.Request, refusal: Refusal) -> web.Response:
    return web.json_response(_dialect(request).refused(refusal), status=refusal.status)


def _dialect(request: web.Request) -> HttpDialect:
    """Return the dialect of a route; for an unknown route, the one with similar paths."""
    found: HttpDialect | None = request.app[_DIALECTS].get(request.match_info.route)
    if found is not None:
        return found
    dialects: Sequence[HttpDialect] = request.app[_REGISTRY].dialects
    return next((one for one in dialects if one.owns(request.path)), dialects[0])


async def _health(request: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


async def _models(request: web.Request) -> web.Response:
    _admit(request)
    model = {"id": MODEL, "object": "model", "created": _STARTED, "owned_by": "abut"}
    return web.json_response({"object": "list", "data": [model]})


async def _kept(request: web.Request) -> web.Response:
    """Answer with an earlier answer, by its id."""
    registry, dialect = request.app[_REGISTRY], _dialect(request)
    access, id_ = _admit(request), request.match_info["answer"]
    rollout_id = access.rollout_id or dialect.rollout_of_answer(id_)
    access.check(rollout_id)
    if rollout_id is not None and (rank := registry.rank_of(rollout_id)) is not None:
        return await _pass_on(request, registry, rank, b"")
    ledger = None if rollout_id is None else registry.live(rollout_id)
    call = None if ledger is None else call_of_answer(id_, ledger.calls)
    if ledger is None or call is None:
        raise Refusal(f"the gateway has no response {id_[:200]!r}", status=404)
    asked = call.request
    answer = call.answered.result()
    return web.json_response(dialect.answer(answer, asked, asked.model or MODEL, ledger.tokenizer))


async def _end(request: web.Request) -> web.Response:
    registry, standalone = request.app[_REGISTRY], request.app[_REGISTRY].standalone
    access = _admit(request)
    if not (registry.agents_may_end or access.opens_all):
        raise Refusal(
            "an agent's key cannot end or reward a rollout: only the run's key can\n"
            "hint: use Gateway(agents_may_end=True) or `abut gateway --agents-may-end` to allow it",
            code="wrong_api_key",
        )
    with _room(request, access) as room:
        body = await _json_of(Body.of(await chunks_of(request, room) or [b"{}"]))
    access.check(_rollout_of(request, body))
    rollout_id = access.rollout_id
    if standalone is None or rollout_id is None:
        why = (
            "the request names no rollout" if standalone else "the trainer ends its rollouts itself"
        )
        raise Refusal(why, code="unknown_rollout")
    return web.json_response(await standalone.end_or_score(rollout_id, checked_result(body)))


async def _key_of(request: web.Request) -> web.Response:
    """Answer with the key that opens only one rollout, for the process that starts its agent."""
    registry, id_ = request.app[_REGISTRY], request.match_info["id"]
    registry.check_run_key(_key(request))
    check_id(id_)
    return web.json_response({"rollout_id": id_, "key": registry.key_of(id_)})


def _admit(request: web.Request) -> Access:
    """Check the key of a request before its body is read."""
    header, path_id = request.headers.get(ROLLOUT_HEADER), request.match_info.get("id")
    access: Access = request.app[_REGISTRY].admit(_key(request), header, path_id)
    return access


def _room(request: web.Request, access: Access) -> Room:
    """Return the room for the body of a request, which a rollout's own key limits."""
    registry = request.app[_REGISTRY]
    most: int = registry.max_body_bytes
    at_once = None if access.opens_all else _BODIES_AT_ONCE * most
    return Room(registry.bodies.taken, _key(request) or "", most, at_once)


def _key(request: web.Request) -> str | None:
    """Return the key of a request, from any of the places where clients put it."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    given = [token.strip()] if scheme.lower() == "bearer" else []
    given += [request.headers.get(name, "") for name in _KEY_HEADERS]
    key: str | None = next(filter(None, given), request.query.get("key"))
    return key


async def _ask(request: web.Request) -> web.StreamResponse:
    with _admit(request) as access:
        with _room(request, access) as room:
            read = await _read(request, access, room)
        if isinstance(read, web.StreamResponse):
            return read
        # Drop the body while the turn is sampled and keep only its beginning, because 40
        # screenshots take 53 MB.
        ledger, asked, digest = read
        # Another rank's gateway keeps its connections for the rollouts to come.
        connection = _connection(request)
        connections = request.app[_REGISTRY].connections
        if connection is not None and access.opens_all:
            connections.share(connection)
        elif connection is not None and _FORWARDED not in request.headers:
            connections.note(connection, ledger.rollout_id)
        return await _respond(request, _dialect(request), ledger, asked, digest)


async def _read(
    request: web.Request, access: Access, room: Room
) -> tuple[Ledger, AgentRequest, bytes] | web.StreamResponse:
    """Return the rollout of a request, the parsed request, and a digest of its body.

    If another rank plays the rollout, return that rank's answer instead.
    """
    registry, dialect = request.app[_REGISTRY], _dialect(request)
    named = access.rollout_id
    content = registry.bodies.body(named, await chunks_of(request, room), dialect)
    small = len(content.rest) <= _SMALL_BYTES
    body, beginning = await work_done(small, lambda: read_body(content, dialect))
    body |= dialect.fields_of(request.path, request.match_info, request.query)
    # The body may name another rollout.
    access.check(_rollout_of(request, body) or dialect.rollout_of(body))
    part = part_of(request, registry.session_headers)
    rollout_id = access.rollout_id
    if rollout_id is not None and (rank := registry.rank_of(rollout_id)) is not None:
        return await _pass_on(request, registry, rank, content.whole)
    like = None if beginning is None else beginning.like
    ignored = await registry.images.read(dialect, body, like)
    asked = dialect.read(body, like, request.headers).of_part(*part)
    if ignored:
        asked = asked.ignoring(ignored)
    digest = content.digest(beginning) if dialect.repeats_bytes else asked.digest
    ledger = await registry.ledger_of(rollout_id, asked, digest, retried=_is_retry(request))
    if beginning is not None:
        beginning.request, beginning.like = asked, None
        if named == ledger.rollout_id:
            registry.bodies.keep(named, beginning, content.earlier)
    return ledger, asked, digest


async def _count(request: web.Request) -> web.StreamResponse:
    """Answer how many tokens the prompt of a request would have; the request is not kept."""
    registry, dialect = request.app[_REGISTRY], _dialect(request)
    access = _admit(request)
    with _room(request, access) as room:
        content = Body.of(await chunks_of(request, room))
        body = await _json_of(content)
    body |= dialect.fields_of(request.path, request.match_info, request.query)
    access.check(_rollout_of(request, body))
    rollout_id = access.rollout_id
    if rollout_id is not None and (rank := registry.rank_of(rollout_id)) is not None:
        return await _pass_on(request, registry, rank, content.whole)
    part = part_of(request, registry.session_headers)
    await registry.images.read(dialect, body)
    asked = dialect.read_count(body, request.headers).of_part(*part)
    return web.json_response({dialect.count_key: await registry.count(rollout_id, asked)})


async def _json_of(content: Body) -> dict[str, Any]:
    """Return the JSON object of a body."""
    whole = content.whole
    return await work_done(len(whole) <= _SMALL_BYTES, lambda: json_object(whole))


async def _respond(
    request: web.Request,
    dialect: HttpDialect,
    ledger: Ledger,
    asked: AgentRequest,
    digest: bytes,
) -> web.StreamResponse:
    is_open, retried = ClientListens(request), _is_retry(request)
    # A call continues if its client hangs up, so that a retry receives the sample.
    pending = ledger.ask(asked, digest=digest, retried=retried, is_open=is_open)
    try:
        if asked.stream:
            return await send_stream(request, dialect, ledger, await pending.placed)
        return await send_whole(request, dialect, ledger, await pending.answered)
    finally:
        is_open.gone = True


def _rollout_of(request: web.Request, body: dict[str, Any]) -> str | None:
    """Return the rollout that a request names: by body, header, path or model, in this order."""
    model = body.get("model")
    by_model = ""
    if isinstance(model, str) and model.startswith(_BY_MODEL):
        by_model = model.removeprefix(_BY_MODEL)
    named = body.get("rollout_id")
    if named is not None and not isinstance(named, str):
        raise Refusal("rollout_id must be a string", param="rollout_id")
    header, path_id = request.headers.get(ROLLOUT_HEADER), request.match_info.get("id")
    return named or header or path_id or by_model or None


def _is_retry(request: web.Request) -> bool:
    count = request.headers.get("x-stainless-retry-count", "0")
    return bool(count.isdecimal() and count.strip("0"))  # `int` refuses more than 4300 digits


async def _pass_on(
    request: web.Request, registry: Registry, rank: int, content: bytes
) -> web.StreamResponse:
    """Pass a request to the rank that plays its rollout, and a hang-up of the client with it."""
    url = registry.peers.get(rank)
    if url is None or _FORWARDED in request.headers:
        raise Refusal(f"this run has no rank {rank}", code="unknown_rollout")
    headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
    for name in (NAME_HEADER, *registry.session_headers):
        if (value := header_of(request, name)) is not None:
            headers[name] = value
    headers[_FORWARDED] = "1"
    try:
        reply = await request.app[_PEERS].request(
            request.method,
            url + request.rel_url.raw_path_qs,
            data=content,
            headers=headers,
            allow_redirects=False,
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
