"""A harness of a few lines: it does what its prompt says, and asks the endpoint like the real ones.

Not a test: `tests/agents/test_harness.py` starts it as the program of a harness.
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request


def event(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def ask(n: int = 1) -> None:
    """Ask the policy n times, one conversation; the status of each answer is an event."""
    messages: list[object] = [{"role": "user", "content": "hi"}]
    for _ in range(n):
        request = urllib.request.Request(
            os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages",
            json.dumps({"model": "m", "max_tokens": 50, "messages": messages}).encode(),
            {"x-api-key": os.environ["ANTHROPIC_API_KEY"], "content-type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request) as reply:
                body = json.load(reply)
        except urllib.error.HTTPError as error:
            event(status=error.code, said=json.load(error))
            return
        event(status=200)
        messages.append({"role": "assistant", "content": body["content"]})
        messages.append({"role": "user", "content": "more"})


def flood(megabytes: int) -> None:
    line = b"x" * 1023 + b"\n"
    for stream in (sys.stdout.buffer, sys.stderr.buffer):
        for _ in range(megabytes * 1024):
            stream.write(line)
        stream.flush()


SLEEP = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"


def leave(own_session: bool) -> None:
    """Start a process that ends by no SIGTERM and holds our pipes open; its id is in a file."""
    child = subprocess.Popen([sys.executable, "-c", SLEEP], start_new_session=own_session)
    with open("pids", "a") as file:
        print(child.pid, file=file)


def hang() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with open("pids", "a") as file:
        print(os.getpid(), file=file)
    time.sleep(1000)


def dig(levels: int) -> None:
    """Make a folder so deep that no path can name its end, beside one that nobody may read."""
    at = os.open(".", os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=at)
        at, above = os.open("d", os.O_RDONLY, dir_fd=at), at
        os.close(above)
    os.makedirs("closed/inside")
    os.chmod("closed", 0)


def show() -> None:
    files = sorted(os.listdir("."))
    event(args=sys.argv[1:], cwd=os.getcwd(), files=files, environ=dict(os.environ))


if __name__ == "__main__":
    exec(sys.stdin.read())
