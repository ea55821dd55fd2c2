"""A forked process encodes, whatever the threads of its parent did when it was forked."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FORKS = 200

CODE = """
import os, sys, threading, time
from abut import Tokenizer, Trajectory

tokenizer = Tokenizer.from_file(sys.argv[1])
text = "What a thread encodes, while the others do. " * 200  # so long that the GIL is given back
expected = tokenizer.encode(text).tolist()
several = [text] * 8  # so long that a batch of them is worth two threads
over = threading.Event()


def encode():
    while not over.is_set():
        tokenizer.encode(text)
        tokenizer.encode_batch(several)


threads = [threading.Thread(target=encode, daemon=True) for _ in range(4)]
for thread in threads:
    thread.start()
wrong = 0
for _ in range(int(sys.argv[2])):
    child = os.fork()
    if not child:
        trajectory = Trajectory(tokenizer)
        trajectory.append_text(text)
        batch = [ids.tolist() for ids in tokenizer.encode_batch(several)]
        os._exit(trajectory.request().tolist() != expected or batch != [expected] * 8)
    deadline = time.monotonic() + 60
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.kill(child, 9)
            os.waitpid(child, 0)
            sys.exit("a forked process hangs")
        time.sleep(0.0005)
    wrong += os.waitstatus_to_exitcode(ended[1])
over.set()
for thread in threads:
    thread.join()
sys.exit(wrong and "a forked process has other tokens")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_waits_for_no_lock_of_its_parent() -> None:
    from abut.demo.model import ASSETS

    file = Path(ASSETS) / "tokenizer.json"
    command = [sys.executable, "-W", "ignore", "-c", CODE, str(file), str(FORKS)]
    subprocess.run(command, check=True, timeout=500)
