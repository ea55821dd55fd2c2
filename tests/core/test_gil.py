"""The GIL: other threads go on while the core works, and two never work on one trajectory."""

import functools
import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest

import abut
from abut.errors import TrajectoryError
from tests.kit.checkout import DEMO_ASSETS

TEXT = "The quick brown fox jumps over 13 lazy dogs.\n" * 20_000
"""0.9 MB: milliseconds for the fastest encoder."""
SPELLED = "<|im_end" * 1_000_000 + "<|im_end|>"
"""Many that are nearly spelled and one that is: a long search, and a short answer to make of it."""
LETTERS = "a" * 300_000
"""No place to take the text up again, so all of it is encoded."""
TOKENS = 1_000_000


def gets_in(call: Callable[[], object], meanwhile: Callable[[], object] = lambda: None) -> bool:
    """Whether another thread got the GIL during the call, which then gave it away by itself.

    That thread calls `meanwhile`, in time or not.
    """
    state: list[str] = []
    seen: list[list[str]] = []
    go = threading.Lock()
    go.acquire()

    def look() -> None:
        go.acquire()
        seen.append(list(state))
        meanwhile()

    thread = threading.Thread(target=look)
    thread.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(3600)  # the interpreter takes it from nobody
    try:
        go.release()  # from here on the thread wants it
        state.append("begun")
        call()
        state.append("ended")
    finally:
        sys.setswitchinterval(interval)
        thread.join()
    return seen == [["begun"]]


class Work:
    """What the calls work on, made once."""

    def __init__(self) -> None:
        self.tokenizer = abut.Tokenizer.from_file(DEMO_ASSETS / "tokenizer.json")
        self.ids = np.arange(TOKENS) % 500
        self.logprobs = np.full(TOKENS, -1.0, dtype=np.float32)
        self.row = abut.Columns(
            prompt_ids=self.ids,
            completion_ids=self.ids,
            logprobs=self.logprobs,
            env_mask=np.ones(TOKENS, dtype=np.uint8),
        )
        self.long = self.begun()
        self.long.append_sampled(self.ids, self.logprobs)

    def begun(self) -> abut.Trajectory:
        trajectory = abut.Trajectory(self.tokenizer)
        trajectory.append_text("a")
        trajectory.request()
        return trajectory

    def new(self) -> abut.Trajectory:
        return abut.Trajectory(self.tokenizer)


PARTS = [abut.Content(TEXT)]
CALLS: dict[str, Callable[[Work], object]] = {
    "encode": lambda work: work.tokenizer.encode(TEXT),
    "encode_batch": lambda work: work.tokenizer.encode_batch([TEXT] * 2),
    "encode_parts": lambda work: work.tokenizer.encode_parts(PARTS),
    "control_spellings": lambda work: work.tokenizer.control_spellings(SPELLED),
    "seam": lambda work: work.tokenizer.seam(TEXT, TEXT),
    "is_additive": lambda work: work.tokenizer.is_additive(LETTERS, LETTERS),
    "decode": lambda work: work.tokenizer.decode(work.ids),
    "decode_bytes": lambda work: work.tokenizer.decode_bytes(work.ids),
    "append_text": lambda work: work.new().append_text(TEXT),
    "append_parts": lambda work: work.new().append_parts(PARTS),
    "append_sampled": lambda work: work.begun().append_sampled(work.ids, work.logprobs),
    "columns": lambda work: [work.long.columns() for _ in range(16)],
    "ids": lambda work: [work.long.ids for _ in range(16)],
    "logprobs": lambda work: [work.long.logprobs for _ in range(32)],
    "fork": lambda work: [work.long.fork(len(work.long)) for _ in range(16)],
    "stitch": lambda work: abut.stitch([(work.ids + n, work.ids, work.logprobs) for n in range(8)]),
    "collate": lambda work: abut.collate([work.row] * 16, pad_id=0),
}


@pytest.fixture(scope="module")
def work() -> Work:
    return Work()


@pytest.mark.parametrize("name", CALLS)
def test_other_threads_go_on_meanwhile(work: Work, name: str) -> None:
    """Once is enough: the system need not run the other thread while the call takes.

    A call that keeps the GIL is tried until the test's own time is over.
    """
    while not gets_in(lambda: CALLS[name](work)):
        pass


def test_a_call_that_keeps_the_gil_would_be_caught() -> None:
    """The negative control: neither Python's own code nor that of a builtin lets anybody in."""
    for _ in range(3):
        assert not gets_in(lambda: [sum(range(100_000)) for _ in range(100)])


def test_a_second_thread_on_one_trajectory_is_refused_and_harms_nothing(work: Work) -> None:
    refused = set()

    def touch() -> None:
        try:
            trajectory.append_text("")
        except TrajectoryError as error:
            refused.add(str(error))

    while not refused:  # as above
        trajectory = work.new()
        gets_in(functools.partial(trajectory.append_text, TEXT), touch)
        assert work.tokenizer.decode(trajectory.ids) == TEXT
    assert refused == {
        "the trajectory is in use by another thread\nhint: give each rollout its own "
        "trajectory, or hold a lock around the calls"
    }
