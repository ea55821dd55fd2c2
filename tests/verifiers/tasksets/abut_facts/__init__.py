"""A tool by MCP: the answer is in its result alone."""

import verifiers.v1 as vf

from abut_facts.servers.facts import FACTS, FactsToolset


class FactConfig(vf.TaskConfig):
    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class FactData(vf.TaskData):
    answer: str


class FactTask(vf.Task[FactData, vf.State, FactConfig]):
    @classmethod
    def toolsets(cls, config: FactConfig) -> list[vf.Toolset]:
        return [FactsToolset(config.tools)]

    @vf.reward
    async def looked_up(self, trace: vf.Trace) -> float:
        return float(any(self.data.answer in str(m.content) for m in trace.tool_messages))


class FactTasksetConfig(vf.TasksetConfig):
    task: FactConfig = FactConfig()


class FactTaskset(vf.Taskset[FactTask, FactTasksetConfig]):
    def load(self) -> list[FactTask]:
        return [
            FactTask(FactData(prompt=f"Look {name} up.", answer=fact), self.config.task)
            for name, fact in FACTS.items()
        ]


__all__ = ["FactTaskset"]
