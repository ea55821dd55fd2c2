"""A server that answers like vLLM, and badly on request: what a real one cannot be made to do."""

import asyncio
import itertools
import json
import threading
from collections.abc import Callable, Sequence
from typing import Any, Self

Fault = Callable[["FakeServer", asyncio.StreamWriter, dict[str, Any]], Any]


def status(code: int, text: str = "no", **headers: str) -> Fault:
    """Answers with an error."""

    async def fault(server: Any, writer: asyncio.StreamWriter, body: Any) -> None:
        lines = {name.replace("_", "-"): value for name, value in headers.items()}
        server.write(writer, code, {"error": {"message": text, "code": code}}, lines)

    return fault


async def half(server: Any, writer: asyncio.StreamWriter, body: Any) -> None:
    """Sends half of a reply, then closes."""
    server.write(writer, 200, server.completion(body), cut=True)
    await writer.drain()
    writer.close()


async def drop(server: Any, writer: asyncio.StreamWriter, body: Any) -> None:
    """Closes without a word."""
    writer.close()


async def hang(server: Any, writer: asyncio.StreamWriter, body: Any) -> None:
    """Never answers; notes whether the client hangs up."""
    server.hanging += 1
    try:
        await server.hung_up(writer)
    finally:  # also where the connection is reset
        server.hanging -= 1


def reply(**changes: Any) -> Fault:
    """Answers with a choice that is changed; None leaves a key out."""

    async def fault(server: Any, writer: asyncio.StreamWriter, body: Any) -> None:
        answer = server.completion(body)
        choice = answer["choices"][0] | changes
        if "token_logprobs" in changes:
            choice["logprobs"] = {"token_logprobs": choice.pop("token_logprobs")}
        answer["choices"] = [{key: value for key, value in choice.items() if value is not ...}]
        server.write(writer, 200, answer)

    return fault


class FakeServer:
    """Runs on a thread of its own while it is entered.

    Attributes:
        faults: for each request for a sample one, in order; after them all are answered well.
        probe_faults: the same for requests that allow one token only.
        requests: the bodies of all requests for a sample.
    """

    def __init__(
        self,
        faults: Sequence[Fault] = (),
        *,
        models: Any = None,
        probe_logprob: float = 0.0,
        delay_s: float = 0.0,
        port: int = 0,
    ) -> None:
        self.faults = list(faults)
        self.probe_faults: list[Fault] = []
        self.models = models or [{"id": "tiny", "max_model_len": 64}]
        self.models_status = 200
        self.info: Any = None
        self.probe_logprob = probe_logprob
        self.delay_s = delay_s
        self.port = port
        self.requests: list[dict[str, Any]] = []
        self.headers: list[bytes] = []
        self.moved: dict[str, str] = {}
        """Where paths redirect to."""
        self.probes = 0
        self.connections = 0
        self.hanging = 0
        self.deaf = False
        self.at_once = self.most_at_once = 0
        self._serving: dict[asyncio.Task[Any], asyncio.StreamWriter] = {}
        self._loop = asyncio.new_event_loop()
        self._readers: dict[asyncio.StreamWriter, asyncio.StreamReader] = {}
        self._ids = itertools.count()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        started = threading.Event()

        async def run() -> None:
            self._stop = asyncio.Event()
            server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
            self.port = server.sockets[0].getsockname()[1]
            started.set()
            await self._stop.wait()
            await accept_no_more(server)
            while others := asyncio.all_tasks() - {asyncio.current_task()}:
                for task, writer in self._serving.items():
                    writer.transport.abort()
                    task.cancel()
                await asyncio.wait(others, timeout=0.01)
            server.close()

        self._thread = threading.Thread(
            target=lambda: self._loop.run_until_complete(run()), name="fake-server", daemon=True
        )
        self._thread.start()
        assert started.wait(10)
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._serving[task] = writer
        self._readers[writer] = reader
        try:
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                lengths = [
                    line for line in head.lower().split(b"\r\n") if b"content-length" in line
                ]
                length = int(lengths[0].split(b":")[1]) if lengths else 0
                content = await reader.readexactly(length)
                self.headers.append(head)
                path = head.split(b" ")[1].decode()
                await self._answer(writer, path, json.loads(content or b"{}"))
                if not writer.is_closing():
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            del self._serving[task], self._readers[writer]

    async def _answer(self, writer: asyncio.StreamWriter, path: str, body: Any) -> None:
        if self.deaf:
            await self.hung_up(writer)
        elif path == "/metrics":
            self.write(writer, 200, f'vllm:num_requests_running{{engine="0"}} {self.at_once}.0\n')
        elif path in self.moved:
            self.write(writer, 307, {}, {"Location": self.moved[path]})
        elif path in ("/health", "/health/"):
            self.write(writer, 200, {})
        elif path.startswith("/server_info"):  # vLLM's with VLLM_SERVER_DEV_MODE alone
            self.write(writer, 404 if self.info is None else 200, self.info or {})
        elif path.endswith("/v1/models"):
            self.write(writer, self.models_status, {"data": self.models})
        elif path == "/detokenize":
            self.write(writer, *self.detokenized(body))
        elif "allowed_token_ids" in body.get("sampling_params", body):
            self.probes += 1
            if self.probe_faults:
                await self.probe_faults.pop(0)(self, writer, body)
            else:
                self.write(writer, 200, self.completion(body, logprob=self.probe_logprob))
        else:
            self.requests.append(body)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            try:
                await asyncio.sleep(self.delay_s)
                if self.faults:
                    await self.faults.pop(0)(self, writer, body)
                elif path == "/generate/":
                    self.write(writer, 200, self.trl_generate(body))
                else:
                    self.write(writer, 200, self.completion(body))
            finally:
                self.at_once -= 1

    def completion(self, body: Any, logprob: float | None = None) -> dict[str, Any]:
        """As vLLM answers: of `/v1/completions`, or of `/inference/v1/generate`."""
        sampling = body.get("sampling_params", body)
        prompt_ids = body.get("prompt") or body["token_ids"]
        ids = sampling.get("allowed_token_ids") or sampled(prompt_ids, sampling)
        logprobs = [-(k + 1) / 8 if logprob is None else logprob for k in range(len(ids))]
        stopped = ids[-1] in sampling.get("stop_token_ids", ())
        choice: dict[str, Any] = {
            "index": 0,
            "token_ids": ids,
            "finish_reason": "stop" if stopped else "length",
        }
        if "sampling_params" in body:
            choice["logprobs"] = {"content": [{"logprob": logprob} for logprob in logprobs]}
        else:
            choice["logprobs"] = {"token_logprobs": logprobs}
            choice |= {"stop_reason": ids[-1] if stopped else None, "text": "x" * len(ids)}
            choice["prompt_token_ids"] = prompt_ids
        return {"id": f"cmpl-{next(self._ids)}", "choices": [choice]}

    def detokenized(self, body: Any) -> tuple[int, Any]:
        """As vLLM answers at `/detokenize`; here a token is its number, between blanks."""
        return 200, {"prompt": " ".join(["", *map(str, body["tokens"]), ""])}

    def trl_generate(self, body: Any) -> dict[str, Any]:
        """As TRL's own server answers, up to 1.10."""
        all_ids = [sampled(ids, body | body["generation_kwargs"]) for ids in body["prompts"]]
        return {
            "prompt_ids": body["prompts"],
            "completion_ids": all_ids,
            "logprobs": [[[-(k + 1) / 8] for k in range(len(ids))] for ids in all_ids],
            "logprob_token_ids": [[[id_] for id_ in ids] for ids in all_ids],
        }

    def write(
        self,
        writer: asyncio.StreamWriter,
        code: int,
        answer: Any,
        headers: dict[str, str] | None = None,
        *,
        cut: bool = False,
    ) -> None:
        content = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
        lines = {"Content-Type": "application/json", "Content-Length": str(len(content))}
        head = "".join(f"{name}: {value}\r\n" for name, value in (lines | (headers or {})).items())
        writer.write(f"HTTP/1.1 {code} Said\r\n{head}\r\n".encode())
        writer.write(content[: len(content) // 2] if cut else content)

    async def hung_up(self, writer: asyncio.StreamWriter) -> None:
        """Wait until the client closes the connection."""
        await self._readers[writer].read()


async def accept_no_more(server: Any) -> None:
    """Before a server closes: it would leave what it accepts meanwhile to the garbage collector."""
    for listening in server.sockets:
        asyncio.get_running_loop().remove_reader(listening)
    await asyncio.sleep(0)  # what it has accepted becomes a connection


def sampled(prompt_ids: Sequence[int], sampling: Any) -> list[int]:
    """Ids that follow from the prompt: as many as it says, at most `max_tokens`."""
    first = sum(prompt_ids)
    return [(first + k) % 500 for k in range(min(sampling["max_tokens"], 4))]
