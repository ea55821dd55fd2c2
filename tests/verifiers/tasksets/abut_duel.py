"""Two seats that speak in turns for a zero sum; in every second duel the first one gives up.

Both hear the same, so that no text tells their conversations apart.
"""

from collections.abc import Iterator
from itertools import count

import verifiers.v1 as vf


class DuelData(vf.TaskData):
    gives_up: bool


class DuelTask(vf.Task[DuelData]):
    pass


class DuelConfig(vf.EnvConfig):
    player0: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"})
    player1: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"})


class DuelEnv(vf.Env[DuelConfig]):
    async def run(self, task: DuelTask, agents: vf.Agents) -> None:
        tasks = [vf.Task(vf.TaskData(system_prompt="You duel.")) for _ in range(2)]
        said = 0
        async with (
            agents.player0.interaction(tasks[0]) as player0,
            agents.player1.interaction(tasks[1]) as player1,
        ):
            for _ in range(2):
                first = await player0.turn("Your move.")
                if task.data.gives_up:
                    break
                second = await player1.turn("Your move.")
                said += len(first.last_reply) - 2 * len(second.last_reply)
        won = -1.0 if task.data.gives_up else 1.0 + said % 5
        for trace, reward in ((player0.trace, won), (player1.trace, -won)):
            trace.record_reward("payoff", reward)
            trace.record_metric("gave_up", float(task.data.gives_up))


class DuelTaskset(vf.Taskset[DuelTask, vf.TasksetConfig]):
    INFINITE = True

    def load(self) -> Iterator[DuelTask]:
        for k in count():
            yield DuelTask(DuelData(name=f"duel {k}", gives_up=k % 2 == 1))


__all__ = ["DuelEnv", "DuelTaskset"]
