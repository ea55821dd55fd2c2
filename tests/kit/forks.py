"""Start Python programs without the ten seconds of CPU time that importing TRL takes.

A server imports TRL once, in a process of its own, and forks for each program. `python(...)` is the
command of a relay: it sends the server its arguments, folder, environment and standard files,
forwards signals, and ends with the status of the program. If the relay is killed, its supervisor, a
child of the server, kills the program.
"""

import atexit
import faulthandler
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
import traceback
import types
import warnings
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

_NUMBER_BYTES = 4
_FORWARDED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}
_NO_PROGRAM = 125  # the status of a relay that failed; no test expects it of a program


def python(*arguments: str | Path, server: int = 0) -> list[str]:
    """Return a command that runs Python with arguments `[-W ACTION] -m MODULE …` or `FILE …`.

    With other options it is Python itself. The process id is the relay's, and the program is in the
    server's session. Of the variables that Python reads when it starts, only PYTHONPATH,
    PYTHONFAULTHANDLER and PYTHONDONTWRITEBYTECODE are heeded.

    Args:
        arguments: of Python.
        server: a number; programs of one server have the same hash seed.
    """
    option = str(arguments[0])
    # Only Linux has pidfd_open. Importing vLLM asks for GPUs, after which no process should fork.
    if (
        not hasattr(os, "pidfd_open")
        or find_spec("vllm") is not None
        or (option.startswith("-") and option not in ("-m", "-W"))
    ):
        return [sys.executable, *map(str, arguments)]
    relay = [sys.executable, "-SEP", __file__, "relay", _server(server)]
    return [*relay, *map(str, arguments)]


@functools.cache
def _server(number: int) -> str:
    """Start a server; return the address of its socket."""
    folder = tempfile.TemporaryDirectory(prefix=f"abut-forks-{number}-")
    address = str(Path(folder.name, "socket"))
    process = subprocess.Popen(
        [sys.executable, "-P", __file__, "serve", address],
        stdin=subprocess.PIPE,  # the server exits when this pipe closes
        stdout=subprocess.PIPE,
    )
    atexit.register(folder.cleanup)
    atexit.register(process.wait)
    atexit.register(process.kill)
    assert process.stdout is not None
    with process.stdout as server_stdout:
        assert server_stdout.read(1), "the server of tests/kit/forks.py did not start"
    return address


def _relay(address: str, arguments: list[str]) -> None:
    """Have a program run, and end as it does."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        message = json.dumps([arguments, os.getcwd(), dict(os.environ)]).encode()
        socket.send_fds(server, [len(message).to_bytes(_NUMBER_BYTES)], [0, 1, 2])
        server.sendall(message)
        program = _number(server)

        def forward(number: int, _: object) -> None:
            with suppress(ProcessLookupError):
                os.kill(program, number)

        for number in _FORWARDED:
            signal.signal(number, forward)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
        code = os.waitstatus_to_exitcode(_number(server))
    if code < 0:
        with suppress(OSError):  # of SIGKILL
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _number(server: socket.socket) -> int:
    if not (sent := server.recv(_NUMBER_BYTES, socket.MSG_WAITALL)):
        raise ConnectionError("the server of tests/kit/forks.py has ended")
    return int.from_bytes(sent)


def _serve(address: str) -> None:
    """Fork for each relay that connects, until the standard input closes."""
    with suppress(ImportError):  # a test that needs one of these skips itself
        from transformers import AutoTokenizer  # noqa: F401
        from trl import GRPOTrainer  # noqa: F401

        import abut.trl  # noqa: F401
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        os.write(1, b"1")
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors that ended leave no zombies
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group
        while listener in _ready(listener, 0):
            relay, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                return _supervise(relay)
            relay.close()


def _supervise(relay: socket.socket) -> None:
    """Run the program in a child process, and send its exit status to the relay."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with relay:
        head, files, _, _ = socket.recv_fds(relay, _NUMBER_BYTES, 3)
        message = relay.recv(size, socket.MSG_WAITALL) if (size := int.from_bytes(head)) else b""
        if not message or len(message) < size:  # the relay was killed
            os._exit(1)
        program = os.fork()
        if program != 0:
            with suppress(OSError):  # the relay was killed, and so is the program
                relay.sendall(program.to_bytes(_NUMBER_BYTES))
                ended = os.pidfd_open(program)
                if ended in _ready(ended, relay):
                    # Not `waitpid`, which frees the process id that the relay may still signal.
                    seen = os.waitid(os.P_PID, program, os.WEXITED | os.WNOWAIT)
                    assert seen is not None
                    exited = seen.si_code == os.CLD_EXITED
                    status = seen.si_status << 8 if exited else seen.si_status
                    relay.sendall(status.to_bytes(_NUMBER_BYTES))
            os.kill(program, signal.SIGKILL)
            os.waitpid(program, 0)
            os._exit(0)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    _end(_code_of(lambda: _run(*json.loads(message))))


def _run(arguments: list[str], folder: str, environment: dict[str, str]) -> None:
    """Run the program in this process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", closefd=False)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = os.fdopen(  # type: ignore[misc]
        2, "w", buffering=1, errors="backslashreplace", closefd=False
    )
    if environment.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
    sys.dont_write_bytecode = bool(environment.get("PYTHONDONTWRITEBYTECODE"))
    # Programs of one server would draw the same numbers.
    for name in ("numpy.random", "torch"):
        if name in sys.modules:
            sys.modules[name].seed()
    if arguments[0] == "-W":
        warnings.simplefilter(arguments[1])  # type: ignore[arg-type]
        arguments = arguments[2:]
    path = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [entry for entry in path if entry and entry not in sys.path]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path.insert(0, folder)
        runpy._run_module_as_main(arguments[1])  # type: ignore[attr-defined]
    else:
        sys.argv = arguments
        sys.path.insert(0, os.path.dirname(arguments[0]))
        main.__file__ = arguments[0]
        code = compile(Path(arguments[0]).read_bytes(), arguments[0], "exec")
        exec(code, main.__dict__)


def _code_of(part: Callable[[], object]) -> int:
    """Return the exit status, as a process has it, of a function that may end in any way."""
    try:
        part()
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return (ended.code or 0) & 0xFF
        print(ended.code, file=sys.stderr)
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
    else:
        return 0
    return 1


def _end(code: int) -> None:
    """Do what the interpreter does at exit, except freeing modules, which takes a second."""
    for part in (threading._shutdown, atexit._run_exitfuncs):  # type: ignore[attr-defined]
        code = _code_of(part) or code
    for file in (sys.stdout, sys.stderr):
        if file is not None and not file.closed:
            code = _code_of(file.flush) or code
    os._exit(code)


def _ready(*files: socket.socket | int) -> list[socket.socket | int]:
    """Wait until any of these is readable or closed; return those."""
    return select.select(files, [], [])[0]


if __name__ == "__main__":
    role, address, *rest = sys.argv[1:]
    if role == "serve":
        _serve(address)
    else:
        try:
            _relay(address, rest)
        except BaseException:
            traceback.print_exc()
            os._exit(_NO_PROGRAM)
