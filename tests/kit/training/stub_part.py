"""A part of a job without what it is for: `python stub_part.py vllm|gym|accelerate ARGUMENTS…`.

It notes its process, its arguments and its key, leaves a process in the background, and serves what
is asked for its health until it is told to end. `accelerate` ends by itself with the status that
stands in the file `finish`, as soon as that is there.
"""

import json
import os
import socket
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path


class Health(BaseHTTPRequestHandler):
    """Answers everything with the list of one server, this one."""

    def do_GET(self) -> None:
        host, port = self.server.server_address[:2]
        body = json.dumps([{"url": f"http://{host!s}:{port}"}]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        """Say nothing."""


def value_of(words: list[str], option: str) -> str:
    """What stands behind an option."""
    return words[words.index(option) + 1]


def main() -> int:
    """Be the part; returns its status."""
    kind, words = sys.argv[1], sys.argv[2:]
    folder, node = Path(os.environ["STUB_FOLDER"]), os.environ["SLURMD_NODENAME"]
    left = subprocess.Popen(["sleep", "600"], start_new_session=True)
    note = {"pid": os.getpid(), "left": left.pid, "words": words, "cwd": os.getcwd()}
    note["key"] = os.environ.get("ABUT_GATEWAY_KEY") or os.environ.get("RAY_AUTH_TOKEN")
    file = folder / f"{kind}-{node}.json"
    file.with_suffix(".new").write_text(json.dumps(note), encoding="utf-8")
    file.with_suffix(".new").replace(file)
    print(f"{kind} runs on {node}", flush=True)
    if kind == os.environ.get("STUB_FAILS"):
        print("it cannot be started: no memory", flush=True)
        return 7
    if kind == "accelerate":
        while not (finish := folder / "finish").exists():
            time.sleep(0.05)
        return int(finish.read_text())
    if kind == "vllm":
        address = value_of(words, "--host"), int(value_of(words, "--port"))
    else:
        settings = dict(word.split("=", 1) for word in words if word.startswith("+"))
        address = settings["+head_server.host"], int(settings["+head_server.port"])
    if "--headless" in words:
        time.sleep(600)
    if kind == os.environ.get("STUB_HANGS"):
        with socket.create_server(address) as server:
            asked = server.accept()  # and never answered
            (folder / "asked").touch()
            time.sleep(600)
            asked[0].close()
    HTTPServer(address, Health).serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
