"""Two attempts of one seat at the same task, compared when both have ended."""

import asyncio

import verifiers.v1 as vf


class AttemptsConfig(vf.EnvConfig):
    writer: vf.AgentConfig = vf.AgentConfig()


class AttemptsEnv(vf.Env[AttemptsConfig]):
    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        async with asyncio.TaskGroup() as attempts:
            for _ in range(2):
                attempts.create_task(agents.writer.run(task))

    async def finalize(self, task: vf.Task, episode: vf.Episode) -> None:
        lengths = [len(trace.last_reply) for trace in episode.traces]
        for trace, length in zip(episode.traces, lengths, strict=True):
            trace.record_reward("shortest", float(length == min(lengths)))
            trace.record_metric("length", float(length))


class AttemptsTaskset(vf.Taskset[vf.Task, vf.TasksetConfig]):
    def load(self) -> list[vf.Task]:
        return [vf.Task(vf.TaskData(prompt=f"Write {k} words.")) for k in range(4)]


__all__ = ["AttemptsEnv", "AttemptsTaskset"]
