"""abut's engine: all rollouts at once, with everything that a training run uses."""

import asyncio

from abut import RolloutConfig, Sample
from abut.envs.task import RolloutTask
from abut.messages import Message
from abut.rollout.engine import Engine
from abut.samplers.sampler import SampleRequest
from benchmarks.measured_conversation import logprobs
from benchmarks.rows.rollouts.env import ScriptEnv, ToolScriptEnv
from benchmarks.rows.rollouts.lists import Lists, as_lists
from benchmarks.rows.rollouts.script import SYSTEM, WITHOUT_LIMIT, Script


def play_with_tools(script: Script) -> Lists:
    """Replies as tool messages; the environment parses the calls."""
    return _play(script, ToolScriptEnv, [])


def play_with_users(script: Script) -> Lists:
    """Replies as user turns."""
    return _play(script, ScriptEnv, [{"role": "system", "content": SYSTEM}])


def _play(script: Script, env: type[ScriptEnv], messages: list[Message]) -> Lists:
    workbench = script.workbench
    engine = Engine(
        workbench.tokenizer,
        workbench.processor,
        _Sampler(script),
        RolloutConfig(
            max_turns=workbench.scale.turns,
            max_completion_tokens=WITHOUT_LIMIT,
            on_failure="raise",
            # Do not limit environments that sleep.
            max_env_steps=64 if script.delays is None else len(script.sampled),
        ),
    )
    tasks = [
        RolloutTask(index, str(index), lambda: env(script), messages, str(index), index)
        for index in range(len(script.sampled))
    ]
    return as_lists([rollout.columns for rollout in engine.run(tasks)])


class _Sampler:
    """Samples from the script.

    `ScriptedSampler` would make the arrays of each sample from lists, token by token, but a
    server's replies are arrays already, parsed by Rust.
    """

    def __init__(self, script: Script) -> None:
        self._script = script

    async def sample(self, request: SampleRequest) -> Sample:
        index = int(request.rollout_id)
        if seconds := self._script.sample_s(request.turn, index):
            await asyncio.sleep(seconds)
        ids = self._script.sampled[index][request.turn]
        return Sample(ids, logprobs(len(ids)), "stop")
