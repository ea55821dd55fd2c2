"""A task for each way in which an episode may fail, stop, or have no score."""

import asyncio

import verifiers.v1 as vf


class WaywardData(vf.TaskData):
    kind: str


class WaywardTask(vf.Task[WaywardData]):
    async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        if self.data.kind == "setup":
            raise RuntimeError("the setup is broken")

    @vf.stop
    async def enough(self, trace: vf.Trace) -> bool:
        return self.data.kind in ("stop", "stop again") and trace.num_turns >= 1

    @vf.reward
    async def first(self, trace: vf.Trace) -> float:
        if self.data.kind == "reward":
            raise RuntimeError("the reward is broken")
        return {"nan": float("nan"), "infinite": float("inf")}.get(self.data.kind, 0.5)

    @vf.reward
    async def second(self, trace: vf.Trace) -> float:
        return float("-inf") if self.data.kind == "infinite" else 0.25


class WaywardEnv(vf.SingleAgentEnv):
    async def run(self, task: WaywardTask, agents: vf.Agents) -> None:
        kind = task.data.kind
        async with agents.agent.interaction(task) as talk:
            await talk.turn("one")
            if kind == "run":
                raise RuntimeError("the run is broken")
            if kind == "slow":
                await asyncio.sleep(600)
            again = await talk.turn("two")
            if kind == "stop again":
                assert again.terminated
            if kind in ("stop again", "asks on"):
                await talk.turn("three")
        if kind == "finalize":
            talk.trace.record_metric("played", 1.0)

    async def finalize(self, task: WaywardTask, episode: vf.Episode) -> None:
        for trace in episode.traces:
            if task.data.kind == "finalize":
                raise RuntimeError("the judgement is broken")
            if task.data.kind == "unscored":
                trace.rewards["second"] = None
            if task.data.kind == "empty":
                trace.rewards.clear()


class WaywardTaskset(vf.Taskset[WaywardTask, vf.TasksetConfig]):
    KINDS = (
        "fine",
        "setup",
        "run",
        "reward",
        "finalize",
        "nan",
        "infinite",
        "unscored",
        "empty",
        "stop",
        "stop again",
        "asks on",
        "slow",
    )

    def load(self) -> list[WaywardTask]:
        return [WaywardTask(WaywardData(id=kind, kind=kind)) for kind in self.KINDS]


__all__ = ["WaywardEnv", "WaywardTaskset"]
