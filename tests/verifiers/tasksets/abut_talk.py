"""Three turns with a scripted user."""

import verifiers.v1 as vf


class TalkData(vf.TaskData):
    topic: str


class TalkTask(vf.Task[TalkData]):
    @vf.reward
    async def said(self, trace: vf.Trace) -> float:
        return float(sum(len(message.content or "") for message in trace.assistant_messages) % 7)


class TalkEnv(vf.SingleAgentEnv):
    async def run(self, task: TalkTask, agents: vf.Agents) -> None:
        async with agents.agent.interaction(task) as talk:
            reply = await talk.turn()
            for more in ("More about it.", "And the rest?"):
                if reply.terminated:
                    return
                reply = await talk.turn(f"{more} You said {len(reply.last_reply)} letters.")


class TalkTaskset(vf.Taskset[TalkTask, vf.TasksetConfig]):
    def load(self) -> list[TalkTask]:
        topics = ("rain", "snow", "wind", "fog")
        return [TalkTask(TalkData(prompt=f"Talk about {t}.", topic=t)) for t in topics]


__all__ = ["TalkEnv", "TalkTaskset"]
