"""An environment server for tests: OpenEnv's protocol over `websockets`, and what may go wrong.

An episode says back each action and ends after three. Its reward is the number of actions.
`faults[n]` is what session `n` does instead at its second action, by the names in `_fault`.
"""

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Self

from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers

from tests.kit.servers.fake_server import accept_no_more

SECRET = "the answer is 42"
TEXT = {"type": "string"}
SCHEMA = {
    "action": {"properties": {"message": TEXT, "metadata": {"type": "object"}}},
    "observation": {"properties": {"text": TEXT, "reward": {}, "done": {}, "metadata": {}}},
}


class WireServer:
    """Runs on a thread of its own, until the block ends."""

    def __init__(
        self,
        *,
        max_sessions: int | None = None,
        faults: Sequence[str] = (),
        schema: Any = SCHEMA,
        constructor_s: float = 0.0,
        step_s: float = 0.0,
        constructor_error: str | None = None,
        state_error: str | None = None,
        resets: int | None = None,
        done_at_reset: bool = False,
        status: int | None = None,
        moved: Mapping[str, str] | None = None,
        first: Callable[[dict[str, Any]], str] = lambda kwargs: f"seed {kwargs['seed']}",
        observation: Callable[[str], dict[str, Any]] = lambda text: {"text": text},
        port: int = 0,
    ) -> None:
        self.max_sessions = max_sessions
        self.faults = faults
        self.schema = schema
        self.constructor_s = constructor_s
        self.step_s = step_s
        self.constructor_error = constructor_error
        self.state_error = state_error
        self.resets = resets
        self.done_at_reset = done_at_reset
        self.status = status
        self.moved = dict(moved or {})
        """Where paths redirect to."""
        self.heard: list[tuple[str, Headers]] = []
        """Path and headers of each request."""
        self.first = first
        self.observation = observation
        self.port = port
        self.frames: list[tuple[int, str, Any]] = []
        """Everything that was asked: session, type, data."""
        self.opened = 0
        """Sessions that were ever made."""
        self.refused = 0
        self.active: dict[int, ServerConnection] = {}
        self.most_active = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def asked(self, session: int) -> list[str]:
        """The types of what one session was asked, without the question whether it is there."""
        return [kind for n, kind, _ in list(self.frames) if n == session and kind != "state"]

    def resets_sent(self) -> list[Any]:
        return [data for _, kind, data in list(self.frames) if kind == "reset"]

    def __enter__(self) -> Self:
        ready = threading.Event()

        async def run() -> None:
            self._loop = asyncio.get_running_loop()
            self._stop = asyncio.Event()
            async with serve(
                self._session, "127.0.0.1", self.port, process_request=self._http, max_size=2**24
            ) as server:
                self.port = next(iter(server.sockets)).getsockname()[1]
                ready.set()
                await self._stop.wait()
                await accept_no_more(server)
                self.drop_all()

        self._thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
        self._thread.start()
        assert ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def drop_all(self) -> None:
        for socket in list(self.active.values()):
            socket.transport.abort()

    def close_idle(self) -> None:
        """End all sessions as a server does that reaps them."""
        done = threading.Event()

        def drop() -> None:
            self.drop_all()
            done.set()

        self._loop.call_soon_threadsafe(drop)
        assert done.wait(10)

    def _http(self, socket: ServerConnection, request: Any) -> Any:
        self.heard.append((request.path, request.headers))
        if request.path in self.moved:
            response = socket.respond(HTTPStatus.TEMPORARY_REDIRECT, "moved\n")
            response.headers["Location"] = self.moved[request.path]
            return response
        if self.status is not None:
            return socket.respond(HTTPStatus(self.status), "no\n")
        if request.path == "/health":
            return socket.respond(HTTPStatus.OK, "{}")
        if request.path.endswith("/schema"):
            if self.schema is None:
                return socket.respond(HTTPStatus.NOT_FOUND, "no\n")
            return socket.respond(HTTPStatus.OK, json.dumps(self.schema))
        assert request.path in ("/ws", "/new/ws")
        return None

    async def _session(self, socket: ServerConnection) -> None:
        if self.max_sessions is not None and len(self.active) >= self.max_sessions:
            self.refused += 1
            data = {"active_sessions": len(self.active), "max_sessions": self.max_sessions}
            await self._error(socket, "CAPACITY_REACHED", "full", **data)
            return
        number = self.opened
        self.opened += 1
        self.active[number] = socket
        self.most_active = max(self.most_active, len(self.active))
        try:
            await wait(socket, self.constructor_s)
            if self.constructor_error is not None:
                await self._error(socket, self.constructor_error, "Failed to create environment")
                return
            with contextlib.suppress(Exception):  # the end of the socket
                await self._serve(socket, number)
        finally:
            del self.active[number]

    async def _serve(self, socket: ServerConnection, number: int) -> None:
        steps = resets = 0
        while True:
            frame = json.loads(await socket.recv())
            kind, data = frame["type"], frame.get("data")
            self.frames.append((number, kind, data))
            if kind == "state" and self.state_error is not None:
                await self._error(socket, self.state_error, "no state before reset")
            elif kind == "state":
                await socket.send(json.dumps({"type": "state", "data": {"secret": SECRET}}))
            elif kind == "reset":
                steps, resets = 0, resets + 1
                if self.resets is not None and resets > self.resets:
                    await self._error(socket, "EXECUTION_ERROR", "reset only once")
                else:
                    await self._observe(socket, self.first(data), None, self.done_at_reset)
            else:
                steps += 1
                await wait(socket, self.step_s)
                fault = self.faults[number] if number < len(self.faults) else ""
                if fault and steps == 2:
                    await self._fault(socket, fault)
                else:
                    await self._observe(socket, str(data.get("message", data)), steps, steps >= 3)

    async def _fault(self, socket: ServerConnection, fault: str) -> None:
        name, _, rest = fault.partition(" ")
        if name == "raise":
            await self._error(socket, "EXECUTION_ERROR", "boom")
        elif name == "invalid":
            errors = [{"loc": ["message"], "msg": "Field required"}, {"msg": "again"}]
            await self._error(socket, "VALIDATION_ERROR", "Invalid message", errors=errors)
        elif name == "drop":
            socket.transport.abort()
        elif name == "close":
            await socket.close()
        elif name == "late":
            await wait(socket, float(rest))
            await self._observe(socket, "LATE", 2, False)
        elif name == "reward":  # as it stands: NaN, Infinity, a text
            data = f'{{"observation": {{"text": "n"}}, "reward": {rest}, "done": true}}'
            await socket.send(f'{{"type": "observation", "data": {data}}}')
        elif name == "big":
            await self._observe(socket, "x" * int(rest), 2, False)
        else:
            assert name == "raw"
            await socket.send(rest)

    async def _observe(
        self, socket: ServerConnection, text: str, reward: float | None, done: bool
    ) -> None:
        data = {"observation": self.observation(text), "reward": reward, "done": done}
        await socket.send(json.dumps({"type": "observation", "data": data}))

    async def _error(self, socket: ServerConnection, code: str, message: str, **more: Any) -> None:
        data = {"code": code, "message": message, **more}
        await socket.send(json.dumps({"type": "error", "data": data}))


async def wait(socket: ServerConnection, seconds: float) -> None:
    """Take so long, but no longer than the client wants to know."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(socket.wait_closed(), seconds)
