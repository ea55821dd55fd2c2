"""One server of the row `gateway`, in its own process, so that its CPU time can be measured.

It is started with a side, the tokenizer's folder, and a number of rollouts or an address, and
prints the addresses that it listens on as JSON. Then it answers each line of its input with a line
of JSON, and exits when its input closes:

- `clock`: the CPU seconds of this process so far
- `prompts`: the token ids of the prompts since the last `prompts` or `forget`. Each prompt is an
  int64 array in base 64, because a Python object per number would evict the server's own data from
  the CPU caches
- `forget`: an empty list; discards the prompts so far
"""

import asyncio
import base64
import json
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from aiohttp import ClientSession, DummyCookieJar, web

from abut import Endpoint, RolloutConfig, Sample, agent
from abut.concurrency.loop import new_loop
from abut.envs.task import RolloutTask
from abut.gateway import Gateway
from abut.gateway.play.played_agent import AgentSource
from abut.gateway.server.connections import serve
from abut.rollout.engine import Engine
from abut.samplers.sampler import SampleRequest
from benchmarks.measured_conversation import logprobs
from benchmarks.rows.gateway import (
    ABUT,
    DIGEST,
    ENCODES,
    PARSES,
    PASSES,
    RENDERS,
    UPSTREAM,
    a_call,
    digest_of,
)
from benchmarks.rows.rollouts.script import WITHOUT_LIMIT
from benchmarks.scale import Scale
from benchmarks.texts import Replies
from benchmarks.workbench import Workbench

_RUN = "bench"
_TEXTS = 256
_SAMPLE_BYTES = 250
_MOST_BYTES = 64 * 2**20
_LONG_S = 3600

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


def main(arguments: Sequence[str]) -> None:
    """Serve one side until the input closes."""
    side, folder, given = arguments
    if side == ABUT:
        _serve_abut(Path(folder), int(given))
    else:
        _serve_other(side, Path(folder), given)


def _answer_lines(listens: Any, prompts: list[Any], when_over: Callable[[], object]) -> None:
    """Print the addresses, and answer each line of the input, on a thread."""

    def say(value: Any) -> None:
        sys.stdout.write(json.dumps(value) + "\n")
        sys.stdout.flush()

    def answer() -> None:
        say(listens)
        for line in sys.stdin:
            question = line.strip()
            if question == "clock":
                say(time.process_time())
                continue
            wanted = prompts[:] if question == "prompts" else []
            prompts.clear()  # before the answer, because the next request may follow immediately
            say([base64.b64encode(np.asarray(ids, np.int64).tobytes()).decode() for ids in wanted])
        when_over()

    threading.Thread(target=answer, daemon=True).start()


# ---- the gateway


class _Scripted:
    """Samples immediately from prepared answers: some text and a tool call, already encoded."""

    def __init__(self, workbench: Workbench) -> None:
        encode, close = workbench.tokenizer.encode, workbench.processor.close_token_id
        self._samples = []
        for number, text in enumerate(Replies(12, _SAMPLE_BYTES).take(_TEXTS)):
            said = encode(f"{text}\n{a_call(f'number {number}')}", added="parse")
            ids = np.append(said, close)
            self._samples.append(Sample(ids, logprobs(len(ids)), "stop"))
        self.prompts: list[Any] = []

    async def sample(self, request: SampleRequest) -> Sample:
        """Return the next answer."""
        self.prompts.append(request.prompt_ids)
        return self._samples[request.turn % _TEXTS]


def _serve_abut(folder: Path, rollouts: int) -> None:
    """Play rollouts whose agents only wait, because the row sends the requests."""
    workbench = Workbench(folder, Scale(), {})
    sampler = _Scripted(workbench)
    gateway = Gateway()
    gateway.registry.join_run(_RUN)
    over = threading.Event()
    endpoints: list[tuple[str, str]] = []

    @agent
    async def waits(endpoint: Endpoint) -> float:
        endpoints.append((endpoint.base_url, endpoint.api_key))
        if len(endpoints) == rollouts:
            _answer_lines(endpoints, sampler.prompts, over.set)
        await asyncio.to_thread(over.wait)
        return 0.0

    config = RolloutConfig(
        max_completion_tokens=WITHOUT_LIMIT,
        on_failure="raise",
        rollout_timeout_s=_LONG_S,
        max_env_steps=rollouts,
        max_requests=rollouts,
    )
    played = AgentSource(waits, gateway).bind(workbench.processor)
    tasks = [RolloutTask(k, f"{k}-{_RUN}", played, [], str(k), k) for k in range(rollouts)]
    Engine(workbench.tokenizer, workbench.processor, sampler, config).run(tasks)
    gateway.stop()


# ---- the servers that it is compared with


def _serve_other(side: str, folder: Path, upstream: str) -> None:
    rendered: list[list[int]] = []
    app = web.Application(client_max_size=_MOST_BYTES)
    if side == PASSES:
        app.cleanup_ctx.append(_session)
    handlers: dict[str, Callable[[], Handler]] = {
        UPSTREAM: lambda: _upstream,
        PASSES: lambda: _passing_on(upstream),
        PARSES: lambda: _parses,
        ENCODES: lambda: _encoding(Workbench(folder, Scale(), {})),
        RENDERS: lambda: _rendering(Workbench(folder, Scale(), {}), rendered),
    }
    app.router.add_post("/v1/chat/completions", handlers[side]())
    loop = new_loop()
    asyncio.set_event_loop(loop)
    listening = loop.run_until_complete(serve(app, "127.0.0.1", 0))
    listens = [(f"http://127.0.0.1:{listening.port}/v1", "")]
    _answer_lines(listens, rendered, lambda: loop.call_soon_threadsafe(loop.stop))
    loop.run_forever()
    loop.run_until_complete(listening.cleanup())
    loop.close()


_SESSION = web.AppKey("session", ClientSession)


async def _session(app: web.Application) -> AsyncIterator[None]:
    async with ClientSession(cookie_jar=DummyCookieJar(), trust_env=False) as session:
        app[_SESSION] = session
        yield


async def _upstream(request: web.Request) -> web.Response:
    content = await request.read()
    return web.json_response(_COMPLETION, headers={DIGEST: digest_of(content)})


def _passing_on(upstream: str) -> Handler:
    async def pass_on(request: web.Request) -> web.StreamResponse:
        content = await request.read()
        kind = {"Content-Type": request.content_type}
        session = request.app[_SESSION]
        async with session.post(f"{upstream}/chat/completions", data=content, headers=kind) as said:
            return web.Response(
                body=await said.read(),
                content_type=said.content_type,
                headers={DIGEST: said.headers[DIGEST]},
            )

    return pass_on


async def _parses(request: web.Request) -> web.Response:
    json.loads(await request.read())
    return web.json_response(_COMPLETION)


def _encoding(workbench: Workbench) -> Handler:
    encode, value_at = workbench.tokenizer.encode, json.JSONDecoder().raw_decode

    async def answer(request: web.Request) -> web.Response:
        content = await request.read()
        message, _ = value_at(content[content.rindex(b'{"role"') :].decode())
        encode(message["content"])
        return web.json_response(_COMPLETION)

    return answer


def _rendering(workbench: Workbench, rendered: list[list[int]]) -> Handler:
    """Return a handler that does less than a real gateway: it does not decode or parse samples."""
    render = workbench.hf_tokenizer.apply_chat_template

    async def answer(request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        ids = render(
            body["messages"], tools=body["tools"], add_generation_prompt=True, return_dict=False
        )
        rendered.append(ids)
        return web.json_response(_COMPLETION)

    return answer


_MESSAGE = {"role": "assistant", "content": "x" * _SAMPLE_BYTES}
_COMPLETION = {
    "id": "chatcmpl-0",
    "object": "chat.completion",
    "created": 0,
    "model": "policy",
    "choices": [{"index": 0, "message": _MESSAGE, "logprobs": None, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}


if __name__ == "__main__":
    main(sys.argv[1:])
