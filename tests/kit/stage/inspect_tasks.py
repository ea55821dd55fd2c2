"""What tasks of Inspect are made of and played on: parts of tasks, and a batch of several."""

from collections.abc import Callable, Sequence
from typing import Any

from inspect_ai import Task
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelAPI, ModelOutput, modelapi
from inspect_ai.scorer import Score, Target, includes, mean, scorer
from inspect_ai.solver import Generate, Solver, TaskState, generate, solver

from abut.envs.task import RolloutTask
from abut.gateway.play.played_agent import AgentSource
from abut.gateway.server.gateway import Gateway
from abut.rollout.rollout import Rollout
from tests.kit.stage.agents import RUN
from tests.kit.stage.evals import Batch, answers
from tests.kit.stage.rollouts import Recording, Stage

JUDGED: list[Any] = []
"""What the judge was asked."""


@modelapi("judge")
class Judge(ModelAPI):
    """Another model: it finds everything correct."""

    async def generate(self, input: Any, tools: Any, tool_choice: Any, config: Any) -> ModelOutput:
        JUDGED.append(input)
        return ModelOutput.from_content("judge", "GRADE: C")


def sums(name: str = "sums", **changes: Any) -> Task:
    """A task of two sums, which are asked as they are."""
    samples = [Sample(id=f"{n}+{n}", input=f"{n}+{n}?", target=str(2 * n)) for n in (2, 3)]
    parts = {"dataset": samples, "solver": [generate()], "scorer": includes()}
    return Task(name=name, **{**parts, **changes})


@scorer(metrics=[mean()])
def gives(value: Any) -> Any:
    """Give a value, or raise it."""

    async def score(state: TaskState, target: Target) -> Score:
        if isinstance(value, Exception):
            raise value
        return Score(value=value)

    return score


@solver
def does(call: Callable[[TaskState, Generate], Any]) -> Solver:
    """A solver that is a function."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        returned: TaskState | None = await call(state, generate)
        return state if returned is None else returned

    return solve


def play_tasks(
    stage: Stage,
    *agents: Any,
    answer: Callable[[str], str] = lambda text: "4",
    generations: int = 2,
    sampler: Any = None,
    gateway: Gateway | None = None,
    engine: Any = None,
    rows: Sequence[tuple[Any, dict[str, Any]]] | None = None,
    **options: Any,
) -> Batch:
    """Play a batch of several tasks, some generations of each of their rows."""
    rows = rows or [(agent, dict(row)) for agent in agents for row in agent.dataset()]
    own, gateway = gateway is None, gateway or Gateway()
    gateway.registry.join_run(RUN)
    sampler = sampler or Recording(answers(stage, answer))
    engine = engine or stage.engine(sampler, **options)
    bound = {
        id(agent): AgentSource(agent, gateway).bind(stage.processor)
        for agent in {id(agent): agent for agent, _ in rows}.values()
    }
    tasks = [
        RolloutTask(
            index=index,
            rollout_id=f"r{index}-{RUN}",
            source=bound[id(agent)],  # type: ignore[arg-type]
            messages=[],
            seed=str(row["prompt"]),
            episode_seed=index // generations,
            columns=row,
            group=index // generations,
            member=index % generations,
            run_id=RUN,
            step=3,
        )
        for index, (agent, row) in enumerate(pair for pair in rows for _ in range(generations))
    ]
    try:
        return Batch(engine, engine.run(tasks), sampler, tasks)
    finally:
        if own:
            gateway.stop()


def calls_of(batch: Batch, rollout: Rollout) -> list[Any]:
    """Return the requests of a rollout, each beside its sample."""
    own = f"{rollout.rollout_id}."
    return [call for call in batch.sampler.calls if call[0].rollout_id.startswith(own)]
