"""One turn: a question, an answer, a weighted reward and a metric."""

import verifiers.v1 as vf


class SumData(vf.TaskData):
    answer: str


class SumTask(vf.Task[SumData]):
    @vf.reward(weight=2.0)
    async def right(self, trace: vf.Trace) -> float:
        return 1.0 if self.data.answer in trace.last_reply else (len(trace.last_reply) % 5) / 10

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))


class SumTaskset(vf.Taskset[SumTask, vf.TasksetConfig]):
    def load(self) -> list[SumTask]:
        return [
            SumTask(
                SumData(
                    id=f"sum-{k}",
                    prompt=f"What is {k} + {k}?",
                    system_prompt="Answer with the number.",
                    answer=str(2 * k),
                ),
                self.config.task,
            )
            for k in range(8)
        ]


__all__ = ["SumTaskset"]
