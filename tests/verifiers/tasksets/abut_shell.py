"""A seat whose harness executes commands."""

import verifiers.v1 as vf


class ShellConfig(vf.EnvConfig):
    worker: vf.AgentConfig = vf.AgentConfig(harness={"id": "bash"})


class ShellEnv(vf.Env[ShellConfig]):
    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        await agents.worker.run(task)


class ShellTaskset(vf.Taskset[vf.Task, vf.TasksetConfig]):
    def load(self) -> list[vf.Task]:
        return [vf.Task(vf.TaskData(prompt="Count the files."))]


__all__ = ["ShellEnv", "ShellTaskset"]
