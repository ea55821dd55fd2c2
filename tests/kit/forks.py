"""Starts Python programs without importing TRL again, which takes ten seconds of CPU time.

A server imports it once, in a process of its own, and forks for each program. `python(...)` is a
command that runs this file as `ask`: it sends the server its words, folder, environment and open
files, passes signals on, and ends as the program does. If it is killed, so is the program.
"""

import atexit
import functools
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

_HEAD = 4  # bytes of a number on the socket


def python(*words: str | Path) -> list[str]:
    """Return a command that runs Python with these words: `[-W ACTION] -m MODULE …` or `FILE …`.

    Its process id is not that of the program, and neither is its session.
    """
    # Only Linux has pidfd_open. And who imports vllm asks for GPUs, which is no good before a fork.
    if not hasattr(os, "pidfd_open") or find_spec("vllm") is not None:
        return [sys.executable, *map(str, words)]
    return [sys.executable, "-S", "-E", __file__, "ask", _server(), *map(str, words)]


@functools.cache
def _server() -> str:
    """Start the server; return the address of its socket."""
    folder = tempfile.TemporaryDirectory(prefix="abut-forks-")
    address = str(Path(folder.name, "socket"))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        # What is imported reads these at once.
        "HF_HUB_OFFLINE": "1",
        "TRL_EXPERIMENTAL_SILENCE": "1",
    }
    process = subprocess.Popen(
        [sys.executable, __file__, "serve", address],
        env=environment,
        stdin=subprocess.PIPE,  # the server ends when this does
        stdout=subprocess.PIPE,
    )
    atexit.register(folder.cleanup)
    atexit.register(process.wait)
    atexit.register(process.kill)
    assert process.stdout is not None
    with process.stdout as said:
        assert said.read(1), "the server of tests/kit/forks.py did not start"
    return address


def _ask(address: str, words: list[str]) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        message = json.dumps([words, os.getcwd(), dict(os.environ)]).encode()
        socket.send_fds(server, [len(message).to_bytes(_HEAD)], [0, 1, 2])
        server.sendall(message)
        program = _number(server)
        for passed_on in (signal.SIGINT, signal.SIGTERM):
            signal.signal(passed_on, lambda number, _: os.kill(program, number))
        code = os.waitstatus_to_exitcode(_number(server))
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _number(server: socket.socket) -> int:
    if not (sent := server.recv(_HEAD)):
        sys.exit("the server of tests/kit/forks.py has ended")
    return int.from_bytes(sent)


def _serve(address: str) -> None:
    with suppress(ImportError):  # a test says itself what it needs
        from transformers import AutoTokenizer  # noqa: F401
        from trl import GRPOTrainer  # noqa: F401

        import abut.trl  # noqa: F401
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        os.write(1, b"1")
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a `_keep`
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all of its group
        while listener in _ready(listener, 0):
            asked, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                return _keep(asked)
            asked.close()


def _keep(asked: socket.socket) -> None:
    """Run the program in one more process, and tell who asked how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with asked:
        head, files, _, _ = socket.recv_fds(asked, _HEAD, 3)
        message = bytearray()
        while len(message) < int.from_bytes(head):
            message += asked.recv(2**16)
        program = os.fork()
        if program != 0:
            asked.sendall(program.to_bytes(_HEAD))
            ended = os.pidfd_open(program)
            if ended not in _ready(ended, asked):
                os.kill(program, signal.SIGKILL)
            _, status = os.waitpid(program, 0)
            with suppress(BrokenPipeError):
                asked.sendall(status.to_bytes(_HEAD))
            os._exit(0)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    code = 1
    try:
        _run(*json.loads(message))
        code = 0
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    # What an interpreter does at its end, but for freeing all modules, which takes a second.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)


def _run(words: list[str], folder: str, environment: dict[str, str]) -> None:
    """Be the program."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    more = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [path for path in more if path and path not in sys.path]
    if words[0] == "-W":
        warnings.simplefilter(words[1])  # type: ignore[arg-type]
        words = words[2:]
    if words[0] == "-m":
        sys.path[0], sys.argv = folder, words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.path[0], sys.argv = os.path.dirname(words[0]), words
        runpy.run_path(words[0], run_name="__main__")


def _ready(*files: socket.socket | int) -> list[socket.socket | int]:
    """Wait until some of these have something to read or end; return them."""
    return select.select(files, [], [])[0]


if __name__ == "__main__":
    role, address, *words = sys.argv[1:]
    if role == "ask":
        _ask(address, words)
    else:
        _serve(address)
