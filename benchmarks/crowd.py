"""Plays many rollouts at once in a separate process, and prints the CPU time of a turn.

The row `turns` starts it with a `Crowd` as JSON; it prints one JSON object.
"""

import asyncio
import hashlib
import json
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from abut import Columns, RolloutConfig, Sample
from abut.concurrency.loop import new_loop
from abut.concurrency.process_limits import rarer_collections
from abut.envs.task import RolloutTask
from abut.rollout.conversation import Conversation
from abut.rollout.engine import Engine
from abut.samplers.sampler import SampleRequest
from benchmarks.delays import draw_delays, slowest_s
from benchmarks.loading import resident_bytes
from benchmarks.measured_conversation import logprobs
from benchmarks.rows.rollouts.script import WITHOUT_LIMIT
from benchmarks.scale import Scale
from benchmarks.texts import Replies
from benchmarks.workbench import Workbench

_SAMPLE_BYTES = 250
_TEXTS = 256
_FIRST = "Begin."

EnvKind: TypeAlias = Literal["synchronous", "asynchronous", "loop", "none"]


@dataclass(frozen=True)
class Crowd:
    """The rollouts to play."""

    env: EnvKind
    """`none`: no conversations; samples and steps only wait, on two event loops. `loop`: the same
    with conversations, but without abut's engine."""
    rollouts: int
    turns: int
    median_s: float
    """Median delay of samples and of steps; 0: no delays."""


class _Stage:
    """The texts of samples and replies, and their delays."""

    def __init__(self, workbench: Workbench, crowd: Crowd) -> None:
        self.crowd = crowd
        self.delays = draw_delays(7, crowd.median_s, crowd.rollouts, crowd.turns)
        self.replies = Replies(9, workbench.scale.reply_bytes).take(_TEXTS)
        answers = Replies(10, _SAMPLE_BYTES).take(_TEXTS)
        close = workbench.processor.close_token_id
        arrays = [np.append(workbench.tokenizer.encode(text), close) for text in answers]
        self.samples = [Sample(ids, logprobs(len(ids)), "stop") for ids in arrays]

    async def sample(self, request: SampleRequest) -> Sample:
        """Return a sample, after its delay."""
        rollout = int(request.rollout_id)
        if seconds := self.delays[0, rollout, request.turn]:
            await asyncio.sleep(seconds)
        return self.sample_of(rollout, request.turn)

    def sample_of(self, rollout: int, turn: int) -> Sample:
        """Return the sample of a turn."""
        return self.samples[(rollout + turn) % _TEXTS]

    def reply_to(self, rollout: int, turn: int) -> str:
        """Return the environment's reply to that sample."""
        return self.replies[(3 * rollout + turn + 1) % _TEXTS]


class _Env:
    """Answers after a delay, on a thread."""

    alive = True
    reward = 0.0

    def __init__(self, stage: _Stage, rollout: int) -> None:
        self._stage = stage
        self._rollout = rollout
        self._turn = 0

    def reset(self, seed: str) -> Any:
        return self, _FIRST

    def step(self, action: str) -> Any:
        if seconds := self._seconds():
            time.sleep(seconds)
        return self._reply()

    def _seconds(self) -> float:
        return float(self._stage.delays[1, self._rollout, self._turn])

    def _reply(self) -> Any:
        self._turn += 1
        return self, self._stage.reply_to(self._rollout, self._turn - 1)


class _AsyncEnv(_Env):
    """Answers after a delay, on an event loop."""

    async def reset(self, seed: str) -> Any:
        return self, _FIRST

    async def step(self, action: str) -> Any:
        if seconds := self._seconds():
            await asyncio.sleep(seconds)
        return self._reply()


def main(arguments: Sequence[str]) -> None:
    """Play; print the seconds, the CPU seconds per turn, and a digest of the rollouts."""
    folder, text = arguments
    crowd = Crowd(**json.loads(text))
    workbench = Workbench(Path(folder), Scale(), {})
    stage = _Stage(workbench, crowd)
    _play(workbench, stage, min(crowd.rollouts, 4))  # one-time costs
    before = resident_bytes()
    processor, began = time.process_time(), time.perf_counter()
    rows = _play(workbench, stage, crowd.rollouts)
    seconds, processor = time.perf_counter() - began, time.process_time() - processor
    most = resident_bytes("VmHWM")
    found = {
        "seconds": seconds,
        "slowest": slowest_s(stage.delays),
        "turn": processor / (crowd.rollouts * crowd.turns),
        "memory": None if before is None or most is None else (most - before) / crowd.rollouts,
        "tokens": sum(len(row.prompt_ids) + len(row.completion_ids) for row in rows)
        / crowd.rollouts,
        "rows": _digest(rows),
    }
    sys.stdout.write(json.dumps(found) + "\n")


def _play(workbench: Workbench, stage: _Stage, count: int) -> list[Columns]:
    if stage.crowd.env in ("loop", "none"):
        return _play_with_asyncio(workbench, stage, count)
    kind = _AsyncEnv if stage.crowd.env == "asynchronous" else _Env
    config = RolloutConfig(
        max_turns=stage.crowd.turns,
        max_completion_tokens=WITHOUT_LIMIT,
        on_failure="raise",
        rollout_timeout_s=3600,
        max_env_steps=count,
        max_requests=count,
    )
    engine = Engine(workbench.tokenizer, workbench.processor, stage, config)
    tasks = [
        RolloutTask(k, str(k), lambda k=k: kind(stage, k), [], str(k), k)  # type: ignore[misc]
        for k in range(count)
    ]
    rows = [rollout.columns for rollout in engine.run(tasks)]
    assert None not in rows
    return rows  # type: ignore[return-value]


def _play_with_asyncio(workbench: Workbench, stage: _Stage, count: int) -> list[Columns]:
    """Do the same number of waits, and of switches between event loops, with asyncio alone.

    If the crowd has conversations, return their rows. Garbage is collected as rarely as by the
    engine; Python's own threshold makes asyncio alone take two to five times as long.
    """
    envs = new_loop()
    thread = threading.Thread(target=envs.run_forever)
    thread.start()

    async def step(seconds: float) -> None:
        stepping = asyncio.sleep(seconds)
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(stepping, envs))

    async def only_wait(k: int) -> None:
        for of_sample, of_step in stage.delays[:, k].T.tolist():
            await asyncio.sleep(of_sample)
            await step(of_step)

    async def talk(k: int) -> Columns:
        conversation = Conversation(workbench.tokenizer, workbench.processor)
        conversation.open([{"role": "user", "content": _FIRST}])
        for turn, (of_sample, of_step) in enumerate(stage.delays[:, k].T.tolist()):
            if turn:
                said = stage.reply_to(k, turn - 1)
                conversation.reply([{"role": "user", "content": said}])
            conversation.request()
            await asyncio.sleep(of_sample)
            sample = stage.sample_of(k, turn)
            conversation.action(conversation.hear(sample.ids, sample.logprobs))
            await step(of_step)
        return conversation.trajectory.columns()

    async def play_all() -> list[Any]:
        play = talk if stage.crowd.env == "loop" else only_wait
        return await asyncio.gather(*(play(k) for k in range(count)))

    rollouts = new_loop()
    with rarer_collections(count):
        rows = rollouts.run_until_complete(play_all())
    rollouts.close()
    envs.call_soon_threadsafe(envs.stop)
    thread.join()
    envs.close()
    return rows if stage.crowd.env == "loop" else []


def _digest(rows: Sequence[Columns]) -> str:
    """Return a digest of all ids and masks of all rows."""
    digest = hashlib.blake2b()
    for row in rows:
        for column in ("prompt_ids", "completion_ids", "env_mask"):
            digest.update(np.ascontiguousarray(getattr(row, column)).tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    main(sys.argv[1:])
