"""Plays one side of the row `environments` in a separate process, on all cores.

It is started with a `Side` as JSON and the tokenizer's folder, and prints one JSON object.
"""

import asyncio
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from abut import EnvPool, Rollout, RolloutConfig, Sample
from abut.envs.task import EnvFactory, RolloutTask
from abut.rollout.engine import Engine
from abut.samplers.sampler import SampleRequest
from benchmarks import process_tree
from benchmarks.env_load import OPENENV, RAY, THREADS, Load, Side
from benchmarks.far_env import SESSIONS, FarEnv, columns
from benchmarks.measured_conversation import logprobs
from benchmarks.rows.rollouts.script import WITHOUT_LIMIT
from benchmarks.scale import Scale
from benchmarks.texts import Replies
from benchmarks.workbench import Workbench

_SAMPLE_BYTES = 250
_TEXTS = 64


class _Policy:
    """A sampler that answers immediately."""

    def __init__(self, workbench: Workbench) -> None:
        texts = Replies(10, _SAMPLE_BYTES, pool_bytes=100_000).take(_TEXTS)
        close = workbench.processor.close_token_id
        arrays = [np.append(workbench.tokenizer.encode(text), close) for text in texts]
        self._samples = [Sample(ids, logprobs(len(ids)), "stop") for ids in arrays]

    async def sample(self, request: SampleRequest) -> Sample:
        """Return the next answer."""
        return self._samples[(int(request.rollout_id) + request.turn) % _TEXTS]


def main(arguments: Sequence[str]) -> None:
    """Start, hold and play environments, and print the measurements."""
    text, folder = arguments
    given = json.loads(text)
    side = Side(**{**given, "loads": [Load(**load) for load in given["loads"]]})
    if side.cores:
        os.sched_setaffinity(0, side.cores)
    workbench = Workbench(Path(folder), Scale(), {})
    policy = _Policy(workbench)
    _play(workbench, policy, FarEnv, Load(2, 2))  # one-time costs
    before = process_tree.memory_bytes() if process_tree.is_known() else None
    began = time.perf_counter()
    with _environments(side) as make_env:
        found: dict[str, Any] = asyncio.run(_held(side, make_env, began, before))
        _play(workbench, policy, make_env, Load(side.size, 1))  # start each thread and session
        found["loads"] = [_measured(workbench, policy, make_env, load) for load in side.loads]
    sys.stdout.write(json.dumps(found) + "\n")


@contextmanager
def _environments(side: Side) -> Iterator[EnvFactory | EnvPool]:
    """Yield the source of the rollouts' environments."""
    if side.name == THREADS:
        yield FarEnv
    elif side.name == OPENENV:
        from abut.openenv import OpenEnv, Serve

        sessions = str(-(-side.size // side.processes))
        server = Serve(
            "benchmarks.env_server:app",
            replicas=side.processes,
            python=sys.executable,
            environ={SESSIONS: sessions},
        )
        with OpenEnv(server, reset=dict) as served:
            yield served
    else:
        from abut.ray import RayPool

        os.environ.pop("RAY_ADDRESS", None)  # a cluster of this process
        slots = -(-side.size // side.processes)
        with RayPool(FarEnv, size=side.size, slots=slots) as cluster:
            yield cluster


async def _held(
    side: Side, make_env: EnvFactory | EnvPool, began: float, before: int | None
) -> dict[str, float | None]:
    """Hold environments: first one in each process, then all.

    Returns:
        `start`: seconds until all environments exist; `hosts`: bytes by which all processes have
        grown when each has one environment; `environment`: bytes of one more environment.
    """
    if side.name == RAY:  # the pool lends ready ones first, so the first few would share an actor
        await _end(make_env, await _begun(side, make_env, side.size))
    few = await _begun(side, make_env, side.processes)
    seconds = time.perf_counter() - began
    hosting = None if before is None else process_tree.memory_bytes()
    began = time.perf_counter()
    rest = await _begun(side, make_env, side.size - side.processes)
    seconds += time.perf_counter() - began
    found: dict[str, float | None] = {"start": seconds, "hosts": None, "environment": None}
    if before is not None and hosting is not None:
        found["hosts"] = hosting - before
        found["environment"] = (process_tree.memory_bytes() - hosting) / len(rest)
    await _end(make_env, [*few, *rest])
    return found


async def _begun(side: Side, make_env: EnvFactory | EnvPool, count: int) -> list[Any]:
    """Return `count` environments, each in an episode."""

    async def begin(number: int) -> Any:
        if isinstance(make_env, EnvPool):
            env: Any = await make_env.lend(_task(make_env, number, Load(1, 1)))
            await env.reset(str(number))
            return env
        made: Any = make_env()
        return made.reset(str(number), **columns(number, 1, 0.0))[0]

    return list(await asyncio.gather(*map(begin, range(count))))


async def _end(make_env: EnvFactory | EnvPool, envs: Sequence[Any]) -> None:
    """Return the environments, and wait until that is done."""
    for env in envs:
        env.close()
    if isinstance(make_env, EnvPool):  # they are returned in the order in which they were closed
        last: Any = await make_env.lend(_task(make_env, 0, Load(1, 1)))
        last.close()


def _measured(
    workbench: Workbench, policy: _Policy, make_env: EnvFactory | EnvPool, load: Load
) -> dict[str, Any]:
    """Play a load; return the wall and CPU seconds per turn, and a digest of the rollouts."""
    known = process_tree.is_known()
    of_all = process_tree.processor_s() if known else 0.0
    own, began = time.process_time(), time.perf_counter()
    rollouts = _play(workbench, policy, make_env, load)
    seconds, own = time.perf_counter() - began, time.process_time() - own
    turns = load.rollouts * load.turns
    return {
        "turn": seconds / turns,
        "own": own / turns,
        "all": (process_tree.processor_s() - of_all) / turns if known else None,
        "rows": _digest(rollouts),
    }


def _play(
    workbench: Workbench, policy: _Policy, make_env: EnvFactory | EnvPool, load: Load
) -> list[Rollout]:
    config = RolloutConfig(
        max_turns=load.turns + 1,
        max_completion_tokens=WITHOUT_LIMIT,
        on_failure="raise",
        rollout_timeout_s=3600,
        max_env_steps=load.rollouts,
        max_requests=load.rollouts,
    )
    engine = Engine(workbench.tokenizer, workbench.processor, policy, config)
    return engine.run([_task(make_env, number, load) for number in range(load.rollouts)])


def _task(make_env: EnvFactory | EnvPool, number: int, load: Load) -> RolloutTask:
    row = columns(number, load.turns, load.busy_s)
    return RolloutTask(number, str(number), make_env, [], str(number), number, columns=row)


def _digest(rollouts: Sequence[Rollout]) -> str:
    """Return a digest of all ids, masks and rewards."""
    digest = hashlib.blake2b()
    for rollout in rollouts:
        assert rollout.columns is not None
        for column in ("prompt_ids", "completion_ids", "env_mask"):
            digest.update(np.ascontiguousarray(getattr(rollout.columns, column)).tobytes())
        digest.update(repr(rollout.reward).encode())
    return digest.hexdigest()


if __name__ == "__main__":
    main(sys.argv[1:])
