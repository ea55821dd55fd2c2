"""Squares in the prompt and in a later turn of the user."""

import verifiers.v1 as vf
from PIL import Image
from verifiers.v1.utils.image import image_data_url


def shown(colour: str, text: str) -> list[vf.UserMessage]:
    url = image_data_url(Image.new("RGB", (40, 40), colour))
    parts = [
        vf.ImageUrlContentPart(image_url=vf.ImageUrlSource(url=url)),
        vf.TextContentPart(text=text),
    ]
    return [vf.UserMessage(content=parts)]


class ColourData(vf.TaskData):
    colours: list[str]


class ColourTask(vf.Task[ColourData]):
    @vf.reward
    async def named(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply) % 3)


class ColourEnv(vf.SingleAgentEnv):
    async def run(self, task: ColourTask, agents: vf.Agents) -> None:
        async with agents.agent.interaction(task) as talk:
            reply = await talk.turn()
            if not reply.terminated:
                await talk.turn(shown(task.data.colours[1], "And now?"))


class ColourTaskset(vf.Taskset[ColourTask, vf.TasksetConfig]):
    def load(self) -> list[ColourTask]:
        pairs = (["red", "blue"], ["green", "red"], ["blue", "white"], ["black", "green"])
        return [
            ColourTask(ColourData(prompt=shown(pair[0], "Which colour?"), colours=pair))
            for pair in pairs
        ]


__all__ = ["ColourEnv", "ColourTaskset"]
