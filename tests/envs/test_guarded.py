"""Threads of lent environments: one each, as long as that lives, and none from before a fork."""

import gc
import os
import subprocess
import sys

import pytest

from abut.envs.foreign import queue_of
from tests.kit.stage.rollouts import Talk, eventually, own_threads


@pytest.mark.usefixtures("no_thread_stays")
def test_an_environment_has_one_thread_as_long_as_it_lives() -> None:
    first, second = Talk(), Talk()
    assert queue_of(first) is queue_of(first)
    assert queue_of(first) is not queue_of(second)
    assert queue_of(first).submit(lambda: 7).result(10) == 7
    del first, second
    gc.collect()
    assert eventually(lambda: not own_threads())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_a_thread_of_its_own_for_each() -> None:
    code = """
import os
from abut.envs import WordGuessEnv
from abut.envs.foreign import queue_of
env = WordGuessEnv()
queue_of(env).submit(lambda: None).result(10)
child = os.fork()
if not child:
    os._exit(queue_of(env).submit(lambda: 7).result(10))
assert queue_of(env).submit(lambda: 8).result(10) == 8
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], timeout=60, check=True, capture_output=True
    )
    assert done.stdout == b"7\n"
