"""Servers: a chat endpoint that is no policy (a judge, answers given again), OpenEnv's."""

import atexit
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.kit.servers.free_port import free_port

Answer = Callable[[str, dict[str, Any]], dict[str, Any]]


class ChatServer:
    """Answers each request by `answer(path, body)`, which returns a message; keeps the bodies."""

    def __init__(self, answer: Answer) -> None:
        self.bodies: list[dict[str, Any]] = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None: ...

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                owner.bodies.append(body)
                message = answer(self.path, body)
                reason = "tool_calls" if message.get("tool_calls") else "stop"
                reply = {
                    "id": "c1",
                    "object": "chat.completion",
                    "created": 1,
                    "model": body["model"],
                    "choices": [{"index": 0, "message": message, "finish_reason": reason}],
                    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
                }
                data = json.dumps(reply).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            # Of the default, 5, a machine under load loses connections: a batch asks at once.
            request_queue_size = 512

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "ChatServer":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def says(text: str) -> Answer:
    """Always the same."""
    return lambda path, body: {"role": "assistant", "content": text}


@contextmanager
def openenv_server(app: str, folder: str, **environ: str) -> Iterator[str]:
    """A server of the openenv package in a process of its own; gives its address."""
    port = free_port()
    process = start_server(app, folder, port, environ)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def start_server(
    app: str, folder: str, port: int, environ: dict[str, str]
) -> "subprocess.Popen[bytes]":
    """Start one, and wait until it answers."""
    command = [sys.executable, "-m", "uvicorn", app, "--port", str(port), "--log-level", "error"]
    process = subprocess.Popen(
        command, cwd=folder, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environ}
    )
    atexit.register(process.kill)  # where a test fails before it ends the server
    deadline = time.monotonic() + 120
    try:
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                    return process
            except OSError:
                assert process.poll() is None, f"{app} ended"
                assert time.monotonic() < deadline, f"{app} does not answer"
                time.sleep(0.1)
    except BaseException:
        process.kill()
        process.wait()
        raise
