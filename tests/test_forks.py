"""A program that `tests.kit.forks` starts ends, and prints, what it does under Python itself."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.forks import python

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="only Linux forks")

ENDS = {
    "it returns": "print('done')",
    "a status": "raise SystemExit(3)",
    "a large status": "raise SystemExit(256 + 3)",
    "a text": "raise SystemExit('why')",
    "None": "raise SystemExit",
    "an error": "raise ValueError(1)",
    "Ctrl-C": "raise KeyboardInterrupt",
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "terminated": "os.kill(os.getpid(), signal.SIGTERM)",
    "at once": "print('lost'); os._exit(4)",
    "closed": "print('done'); sys.stdout.close()",
    "no stdout": "sys.stdout = None",
    "at exit": "atexit.register(print, 'last'); print(__name__, sys.argv[1:])",
    "a thread": "threading.Timer(0.1, print, ['late']).start(); raise ValueError",
    "a class of its own": "class Own: pass\natexit.register(lambda: print(pickle.dumps(Own())))",
    "what it is given": "print(input(), os.getcwd(), os.environ['OWN'], file=sys.stderr)",
}
IMPORTS = "import atexit, os, pickle, signal, sys, threading\n"


@pytest.mark.parametrize("ends", ENDS)
def test_it_ends_as_under_python_itself(ends: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(IMPORTS + ENDS[ends])
    environment = {**os.environ, "OWN": "1"}
    environment.pop("PYTHONUNBUFFERED", None)
    real, forked = (
        subprocess.run(
            [*command, "one", "two"],
            input="typed\n",
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment,
        )
        for command in ([sys.executable, str(program)], python(program))
    )
    assert forked.returncode == real.returncode
    assert forked.stdout == real.stdout
    assert forked.stderr.splitlines()[-1:] == real.stderr.splitlines()[-1:]


def test_a_signal_is_forwarded(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "print('ready', flush=True)\n"
        "signal.pause()\n"
    )
    with subprocess.Popen(python(program), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 7


def test_a_program_ends_if_its_relay_is_killed(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import signal; print('ready', flush=True); signal.pause()")
    with subprocess.Popen(python(program), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.kill()
        assert process.stdout.read() == ""  # after the program, which holds it too, has ended


def test_programs_draw_other_numbers_and_servers_have_other_hash_seeds(tmp_path: Path) -> None:
    """Ranks that agree by accident would hide what they must agree on."""
    program = tmp_path / "program.py"
    program.write_text("import numpy; print(numpy.random.random(), hash('a'), sep='\\n')")
    runs = [
        subprocess.run(python(program, server=number), capture_output=True, text=True)
        for number in (0, 0, 1)
    ]
    drawn, hashes = zip(*(run.stdout.split() for run in runs), strict=True)
    assert len({*drawn}) == 3
    assert hashes[0] == hashes[1] != hashes[2] or "PYTHONHASHSEED" in os.environ
