"""The tool of `abut_facts`, from one server for all rollouts of a run."""

import verifiers.v1 as vf
from abut_facts.servers.facts import FACTS, FactsToolset


class SharedData(vf.TaskData):
    answer: str


class SharedTask(vf.Task[SharedData]):
    @vf.reward
    async def looked_up(self, trace: vf.Trace) -> float:
        return float(any(self.data.answer in str(m.content) for m in trace.tool_messages))


class SharedTaskset(vf.Taskset[SharedTask, vf.TasksetConfig]):
    def load(self) -> list[SharedTask]:
        return [
            SharedTask(SharedData(prompt=f"Look {name} up.", answer=fact), self.config.task)
            for name, fact in FACTS.items()
        ]

    @classmethod
    def toolsets(cls, config: vf.TasksetConfig) -> list[vf.Toolset]:
        return [FactsToolset(vf.SharedToolsetConfig())]


__all__ = ["SharedTaskset"]
