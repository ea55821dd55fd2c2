"""What fails, what a limit ends, and what becomes of the row."""

import asyncio
from typing import Any

import pytest

from tests.kit.stage.rollouts import LIMIT_S, Batched, Recording, Stage, check_exact

pytest.importorskip("inspect_ai")

from inspect_ai.agent import AgentAttempts, react
from inspect_ai.dataset import example_dataset
from inspect_ai.scorer import model_graded_qa
from inspect_ai.solver import generate

from abut.inspect_ai import inspect_task
from tests.kit.stage.evals import answers, call_text
from tests.kit.stage.inspect_tasks import JUDGED, calls_of, does, gives, play_tasks, sums

ALONE = {"retries": 0, "max_failed_frac": 1.0}


@pytest.mark.parametrize("where", ["solver", "scorer"])
def test_code_that_raises_fails_its_rollout_alone(stage: Stage, where: str) -> None:
    async def breaks(state: Any, generate: Any) -> None:
        await generate(state)
        if state.sample_id == "3+3":
            raise ValueError("the solver is broken")

    if where == "solver":
        task = sums(solver=does(breaks))
    else:
        task = sums(scorer=gives(ValueError("the scorer is broken")), dataset=sums().dataset[1:])
    batch = play_tasks(stage, inspect_task(task, log_dir=None), **ALONE)
    failed = [rollout for rollout in batch.rollouts if rollout.failed]
    assert [rollout.index for rollout in failed] == ([2, 3] if where == "solver" else [0, 1])
    for rollout in failed:
        assert f"sums: ValueError('the {where} is broken') (after 1 calls)" in str(rollout.error)
        assert rollout.reward is None
    others = [r.reward for r in batch.rollouts if not r.failed]
    assert others == ([1.0, 1.0] if where == "solver" else [])
    assert [r.extras.get("sums/includes") for r in failed] == [None, None]


def test_an_attempt_that_fails_is_played_again_as_a_new_epoch(stage: Stage) -> None:
    seen: list[tuple[Any, int]] = []

    async def fails_at_first(state: Any, generate: Any) -> None:
        seen.append((state.sample_id, state.epoch))
        await generate(state)
        if state.epoch <= 2:
            raise ValueError("not yet")

    batch = play_tasks(stage, inspect_task(sums(solver=does(fails_at_first)), log_dir=None))
    assert batch.rewards == [1.0, 1.0, 0.0, 0.0]
    assert [rollout.attempts for rollout in batch.rollouts] == [2] * 4
    assert sorted(seen) == [(id_, epoch) for id_ in ("2+2", "3+3") for epoch in (1, 2, 3, 4)]


def test_a_limit_of_messages_ends_a_sample_which_is_scored(stage: Stage) -> None:
    async def talks(state: Any, generate: Any) -> None:
        while True:
            state = await generate(state)

    agent = inspect_task(sums(solver=does(talks), message_limit=5), log_dir=None)
    batch = play_tasks(stage, agent, generations=1)
    assert batch.rewards == [1.0, 0.0]
    assert [rollout.extras["sums/limit"] for rollout in batch.rollouts] == [1.0, 1.0]
    for rollout in batch.rollouts:
        check_exact(rollout.columns, calls_of(batch, rollout))


async def never_ends(state: Any, generate: Any) -> None:
    await generate(state)
    await asyncio.Event().wait()


@pytest.mark.parametrize("whose", ["task's", "given", "run's"])
def test_a_limit_of_time_ends_a_sample_which_is_scored(stage: Stage, whose: str) -> None:
    """The run's is Inspect's too, so that the sample is scored before the rollout fails."""
    seconds = int(LIMIT_S)
    agent = inspect_task(
        sums(solver=does(never_ends), time_limit=seconds if whose == "task's" else None),
        time_limit=seconds if whose == "given" else None,
        log_dir=None,
    )
    run = {"rollout_timeout_s": float(seconds)} if whose == "run's" else {}
    batch = play_tasks(stage, agent, generations=1, retries=0, **run)
    assert [rollout.error for rollout in batch.rollouts] == [None, None]
    assert batch.rewards == [1.0, 0.0]
    assert [rollout.extras["sums/limit"] for rollout in batch.rollouts] == [1.0, 1.0]


def test_a_rollout_whose_time_is_over_ends_its_sample(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the trainer's own model samples, its time does not count, and Inspect has no limit."""
    monkeypatch.setattr("abut.gateway.play.agent_episode._GRACE_S", 0.1)
    ended: list[str] = []

    async def never(state: Any, generate: Any) -> None:
        try:
            await never_ends(state, generate)
        finally:
            ended.append(state.sample_id)

    agent = inspect_task(sums(solver=does(never)), log_dir=None)
    sampler = Batched(answers(stage, lambda text: "4"))
    batch = play_tasks(stage, agent, generations=1, sampler=sampler, rollout_timeout_s=2.0, **ALONE)
    assert [rollout.stop_reason for rollout in batch.rollouts] == ["error", "error"]
    assert "rollout_timeout_s" in str(batch.rollouts[0].error)
    assert sorted(ended) == ["2+2", "3+3"]


def test_an_agent_that_asks_when_its_time_is_over_is_scored(stage: Stage) -> None:
    async def asks_on(state: Any, generate: Any) -> None:
        while (state := await generate(state)).output.stop_reason != "model_length":
            await asyncio.sleep(0.1)

    agent = inspect_task(sums(solver=does(asks_on), scorer=gives(0.5)), log_dir=None)
    sampler = Batched(answers(stage, lambda text: "4"))
    batch = play_tasks(stage, agent, generations=1, sampler=sampler, rollout_timeout_s=2.0)
    assert [rollout.error for rollout in batch.rollouts] == [None, None]
    assert batch.rewards == [0.5, 0.5]


@pytest.mark.parametrize("limit", ["completion", "max_turns"])
def test_a_limit_of_the_run_is_a_full_context_to_inspect(stage: Stage, limit: str) -> None:
    """Further calls get the same answer, and the sample is scored."""
    options = {"completion": 12} if limit == "completion" else {"max_turns": 1}
    stops: list[Any] = []

    async def notes(state: Any, generate: Any) -> None:
        stops.append(state.output.stop_reason)

    solvers = [generate(), generate(), generate(), does(notes)]
    task = sums(solver=solvers, scorer=gives(0.5))
    batch = play_tasks(stage, inspect_task(task, log_dir=None), generations=1, **options)
    assert batch.rewards == [0.5, 0.5]
    reason = "max_completion_tokens" if limit == "completion" else "max_turns"
    assert [rollout.stop_reason for rollout in batch.rollouts] == [reason] * 2
    assert [len(r.turns) for r in batch.rollouts] == [2 if limit == "completion" else 1] * 2
    assert stops == ["model_length"] * 2


def graded(**changes: Any) -> Any:
    made = {"dataset": example_dataset("security_guide")[:2], "scorer": model_graded_qa()}
    return sums("graded", **{**made, **changes})


def test_a_scorer_that_would_ask_the_policy_is_an_error(stage: Stage) -> None:
    batch = play_tasks(stage, inspect_task(graded(), log_dir=None), retries=3, max_failed_frac=1.0)
    for rollout in batch.rollouts:
        assert rollout.error == (
            "EnvError: graded: a scorer calls the policy to grade an answer (after 1 calls)\n"
            'hint: name another model with model_roles={"grader": "openai/…"}'
        )
        assert rollout.reward is None
        assert rollout.attempts == 1  # another one would fail too
    assert len(batch.sampler.calls) == len(batch.rollouts)


def test_another_model_judges_and_none_of_its_tokens_is_in_a_row(stage: Stage) -> None:
    JUDGED.clear()
    agent = inspect_task(graded(), model_roles={"grader": "judge/x"}, log_dir=None)
    batch = play_tasks(stage, agent)
    assert batch.rewards == [1.0] * 4
    assert len(JUDGED) == 4
    for rollout in batch.rollouts:
        assert "GRADE" not in stage.row_text(rollout)
        check_exact(rollout.columns, calls_of(batch, rollout))


def test_a_solver_that_calls_a_scorer_does_not_make_it_ask_the_policy(stage: Stage) -> None:
    """`react` scores each of its attempts in the solver, where the policy is at hand."""
    agent_of_inspect = react(tools=[], attempts=AgentAttempts(attempts=2))
    task = graded(solver=agent_of_inspect, message_limit=8)
    submit = call_text("submit", answer="4")
    batch = play_tasks(
        stage, inspect_task(task, log_dir=None), answer=lambda text: submit, generations=1, **ALONE
    )
    for rollout in batch.rollouts:
        assert "a scorer calls the policy to grade an answer" in str(rollout.error)


def test_sampling_of_the_task_is_dropped_and_its_length_and_stops_are_kept(stage: Stage) -> None:
    from inspect_ai.model import GenerateConfig

    config = GenerateConfig(temperature=0.1, top_p=0.3, seed=5, max_tokens=2, stop_seqs=["!"])
    sampler = Recording(answers(stage, lambda text: "4"))
    batch = play_tasks(
        stage, inspect_task(sums(config=config), log_dir=None), generations=1, sampler=sampler
    )
    assert batch.rewards == [1.0, 0.0]
    assert {request.max_tokens for request, _ in sampler.calls} == {2}
    assert {tuple(request.stop) for request, _ in sampler.calls} == {("!",)}


def test_an_answer_is_never_taken_from_inspects_cache(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("INSPECT_CACHE_DIR", str(tmp_path))
    task = sums(solver=[generate(cache=True)])
    agent = inspect_task(task, log_dir=None)
    for _ in range(2):
        batch = play_tasks(stage, agent)
        assert len(batch.sampler.calls) == 4
