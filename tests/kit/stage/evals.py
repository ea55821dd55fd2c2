"""What tests of Eval Protocol are played on: a policy that knows its answers, and a batch."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from abut.envs.task import RolloutTask
from abut.gateway.play.played_agent import AgentSource
from abut.gateway.server.gateway import Gateway
from abut.rollout.rollout import Rollout
from tests.kit.stage.agents import RUN
from tests.kit.stage.rollouts import Played, Recording, Stage


def answers(stage: Stage, answer: Callable[[str], str]) -> Any:
    """A script: what the policy says to the conversation as its template wrote it."""

    def script(request: Any) -> list[int]:
        text = stage.tokenizer.decode(request.prompt_ids)
        return [*stage.tokenizer.encode(answer(text)), stage.processor.close_token_id]

    return script


def last_user(text: str) -> str:
    """What was said last in a conversation of the demo's template."""
    return re.findall(r"<\|im_start\|>(?:user|tool)\n(.*?)<\|im_end\|>", text, re.DOTALL)[-1]


def call_text(name: str, /, **arguments: Any) -> str:
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{call}\n</tool_call>"


@dataclass
class Batch(Played):
    tasks: Sequence[RolloutTask]

    def by_row(self, name: str) -> list[Rollout]:
        """The rollouts of the row with this id."""
        pairs = zip(self.tasks, self.rollouts, strict=True)
        return [rollout for task, rollout in pairs if task.columns.get("row_id") == name]

    @property
    def rewards(self) -> list[float | None]:
        return [rollout.reward for rollout in self.rollouts]


def play_test(
    stage: Stage,
    test: Any,
    answer: Callable[[str], str] | None = None,
    *,
    generations: int = 2,
    rows: Sequence[dict[str, Any]] | None = None,
    sampler: Any = None,
    whole_group: bool = True,
    step: int = 3,
    prefix: str = "r",
    **options: Any,
) -> Batch:
    """Play a batch of a test, some generations of each row."""
    rows = list(test.dataset()) if rows is None else rows
    gateway = Gateway()
    gateway.registry.join_run(RUN)
    sampler = sampler or Recording(answers(stage, answer or (lambda text: "yes")))
    engine = stage.engine(sampler, **options)
    bound = AgentSource(test, gateway).bind(stage.processor)
    tasks = [
        RolloutTask(
            index=index,
            rollout_id=f"{prefix}{index}-{RUN}",
            source=bound,
            messages=[],
            seed=str(row["prompt"]),
            episode_seed=index // generations,
            columns=row,
            group=index // generations,
            member=index % generations,
            run_id=RUN,
            step=step,
            whole_group=whole_group,
        )
        for index, row in enumerate(row for row in rows for _ in range(generations))
    ]
    try:
        return Batch(engine, engine.run(tasks), sampler, tasks)
    finally:
        gateway.stop()
