"""Reverse KL from a teacher as credit: each sampled token of each row that the teacher scored."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
trl = pytest.importorskip("trl")

import abut.trl  # noqa: E402
from abut.errors import RolloutError, TeacherError  # noqa: E402
from abut.records.read import read_records  # noqa: E402
from abut.rollout.config import RolloutConfig  # noqa: E402
from abut.rollout.rollout import Branch, Rollout  # noqa: E402
from abut.trl import (  # noqa: E402
    ModelTeacher,
    Returns,
    ReverseKL,
    TeacherScores,
    make_rollout_func,
    no_reward,
)
from abut.trl.version import NONE_IS_UNSCORED, trl_version  # noqa: E402
from tests.kit.stage.rollouts import Talk  # noqa: E402
from tests.kit.training.row_cases import WORST, loss_of, scale_of  # noqa: E402
from tests.kit.training.row_oracle import (  # noqa: E402
    gradient_of,
    group_advantages,
    logprobs_of,
    relative_error,
    reverse_kl_advantages,
)
from tests.kit.training.scripted_rows import (  # noqa: E402
    GROUP,
    RowsRun,
    alone,
    branching,
    float64_model,
    random_columns,
    rollout_of,
)

COEF = 0.5
LOGS_METRICS = trl_version() >= (1, 0)
"""TRL 0.29 gives reward functions no `log_metric`."""


@pytest.fixture(scope="module")
def teacher_model() -> Any:
    return float64_model(seed=5)[1].eval()


def errors_of(run: RowsRun, advantages: Any, rollouts: Any = None) -> list[float]:
    """The relative error of the gradient of each step, with these advantages of tokens."""
    twice = run.trainer.accelerator.gradient_accumulation_steps  # see `row_cases.errors_of`
    rows = run.rollouts if rollouts is None else rollouts
    return [
        relative_error(found * twice, gradient_of(loss_of(run), model, rows, advantages))
        for model, found in zip(run.before, run.gradients, strict=True)
    ]


def by_row(group: Any) -> Any:
    """A function as the inner credit: another number for each row."""
    return [
        [[member - j / 4] * len(c.turns) for j, c in enumerate(rollout.conversations)]
        for member, rollout in enumerate(group)
    ]


@pytest.mark.parametrize(
    ("loss_type", "script", "inner", "settings"),
    [
        ("grpo", branching, None, {"accumulation": 2, "num_iterations": 2}),
        ("grpo", branching, by_row, {}),
        ("dapo", branching, Returns(), {"piece": 2, "beta": 0.3}),
        ("dapo", branching, None, {"vllm_mode": "token_truncate", "accumulation": 2}),
        ("dr_grpo", alone, None, {}),
    ],
)
def test_each_token_pays_for_its_reverse_kl(
    tmp_path: Path,
    teacher_model: Any,
    loss_type: str,
    script: Any,
    inner: Any,
    settings: dict[str, Any],
) -> None:
    credit = ReverseKL(ModelTeacher(teacher_model), coef=COEF, credit=inner)
    steps = settings.get("num_iterations", 1)
    run = RowsRun(
        tmp_path, script, credit=credit, loss_type=loss_type, max_steps=steps, **settings
    ).train()
    advantages: Any = group_advantages(run.rewards, GROUP, scale_of(run))
    if inner is by_row:
        advantages = [
            [float(k % GROUP - j / 4) for j in range(len(rows))]
            for k, rows in enumerate(run.rollouts)
        ]
    right = reverse_kl_advantages(run.rollouts, advantages, teacher_model, COEF)
    errors = errors_of(run, right)
    assert len(errors) == steps
    assert max(errors) < WORST, errors
    print("ERR", errors)
    for wrong in (-COEF, 2 * COEF):
        control = reverse_kl_advantages(run.rollouts, advantages, teacher_model, wrong)
        assert min(errors_of(run, control)) > 0.05


def test_the_mean_and_the_advantages_are_logged_and_recorded(
    tmp_path: Path, teacher_model: Any
) -> None:
    credit = ReverseKL(ModelTeacher(teacher_model), coef=COEF)
    run = RowsRun(tmp_path, credit=credit, recorder=tmp_path / "r.jsonl").train()
    run.rollout_func.flush()
    kl = [
        torch.cat(rows)
        for rows in reverse_kl_advantages(run.rollouts, [0.0] * 8, teacher_model, -1.0)
    ]
    if LOGS_METRICS:
        logged = run.logged()
        mean = float(torch.cat(kl).mean())
        assert logged["rollout/reverse_kl/mean"] == pytest.approx(mean, abs=1e-5)
        assert logged["rollout/teacher_unscored_frac"] == 0
    advantages = group_advantages(run.rewards, GROUP, scale_of(run))
    right = reverse_kl_advantages(run.rollouts, advantages, teacher_model, COEF)
    records = sorted(read_records(tmp_path / "r.jsonl"), key=lambda r: (r["group"], r["place"]))
    assert len(records) == 8
    for k, record in enumerate(records):
        assert record["teacher"] == "default"
        for j, of in enumerate([record, *record["branches"]]):
            sampled = np.array(of["env_mask"]) == 1
            said = torch.tensor(np.array(of["teacher_logprobs"])[sampled])
            with torch.no_grad():
                expected = logprobs_of(teacher_model, run.rollouts[k][j])
            assert said.tolist() == pytest.approx(expected.tolist(), abs=2e-6)
            (row,) = [r for r in record["rows"] if r["branch"] == (j - 1 if j else None)]
            lengths = [turn["end"] - turn["start"] for turn in of["turns"]]
            means = [float(turn.mean()) for turn in right[k][j].split(lengths)]
            assert row["advantages"] == pytest.approx(means, abs=2e-5)


def test_without_rewards_the_teacher_alone_trains(tmp_path: Path, teacher_model: Any) -> None:
    def unscored(rng: random.Random, task: Any) -> Rollout:
        rollout = branching(rng, task)
        rollout.reward = None
        return rollout

    credit = ReverseKL(ModelTeacher(teacher_model), coef=COEF)
    run = RowsRun(tmp_path, unscored, credit=credit, reward_funcs=no_reward).train()
    right = reverse_kl_advantages(run.rollouts, [0.0] * 8, teacher_model, COEF)
    assert max(errors_of(run, right)) < WORST
    assert run.logged()["rewards/no_reward/mean"] == 0
    assert len(run.trainer.abut_rows.places) > 8, "branches are rows, too"


@pytest.mark.skipif(trl_version() < NONE_IS_UNSCORED, reason="None counts as 0")
def test_a_rollout_without_a_score_is_not_trained_under_env_reward(
    tmp_path: Path, teacher_model: Any
) -> None:
    def partly(rng: random.Random, task: Any) -> Rollout:
        rollout = branching(rng, task)
        rollout.reward = None if task.index == 1 else rollout.reward
        return rollout

    run = RowsRun(tmp_path, partly, credit=ReverseKL(ModelTeacher(teacher_model), coef=COEF))
    run.train()
    rollouts = [rows[:1] if k == 1 else rows for k, rows in enumerate(run.rollouts)]
    advantages = group_advantages(run.rewards, GROUP, scale_of(run))
    right = reverse_kl_advantages(rollouts, advantages, teacher_model, COEF)
    right[1] = [0.0 * right[1][0]]
    assert max(errors_of(run, right, rollouts)) < WORST


class Failing:
    """A teacher that does not score some rows; `asked` has the rows that it was asked for."""

    def __init__(self, inner: Any, fails: Any, error: Any = None) -> None:
        self._inner, self._fails = inner, fails
        self._error = ConnectionError("gone") if error is None else error
        self.asked: list[list[int]] = []

    async def score(self, ids: Any, positions: Any, top_k: int, name: str) -> TeacherScores:
        self.asked.append(ids.tolist())
        if not self._fails(ids.tolist()):
            return await self._inner.score(ids, positions, top_k, name)  # type: ignore[no-any-return]
        if isinstance(self._error, Exception):
            raise self._error
        scores = await self._inner.score(ids, positions, top_k, name)
        return scores._replace(drawn=np.full_like(scores.drawn, self._error))


def three_rows(rng: random.Random, task: Any) -> Rollout:
    """The first token of a prompt says whose: 1 for main rows, 2 for their branches."""
    main, *others = (
        random_columns(rng, prompt=[1 + (k > 0), 10 + task.index, 20 + k], turns=2)
        for k in range(3)
    )
    return rollout_of(task, round(rng.random(), 2), main, *others)


@pytest.mark.parametrize("error", [ConnectionError("gone"), TimeoutError("slow"), float("nan")])
def test_a_row_without_scores_is_not_trained_and_counted(
    tmp_path: Path, teacher_model: Any, error: Any
) -> None:
    """The main row of rollout 1, a branch of rollout 2, and all of rollout 5: five of 24."""
    lost = {(11, 20), (12, 21), (15, 20), (15, 21), (15, 22)}
    teacher = Failing(ModelTeacher(teacher_model), lambda ids: (ids[1], ids[2]) in lost, error)
    path = tmp_path / "r.jsonl"
    run = RowsRun(
        tmp_path, three_rows, credit=ReverseKL(teacher, coef=COEF), piece=3, recorder=path
    ).train()
    run.rollout_func.flush()
    assert len(teacher.asked) == 24
    played = sorted(run.source.played[:8], key=lambda rollout: rollout.index)
    assert [rollout.unscored_rows for rollout in played] == [0, 1, 1, 0, 0, 3, 0, 0]
    if LOGS_METRICS:
        assert run.logged()["rollout/teacher_unscored_frac"] == pytest.approx(5 / 24)
    rewards = [rollout.reward for rollout in played]
    advantages = group_advantages(rewards, GROUP, scale_of(run))
    every = [[r.columns, *(b.columns for b in r.branches)] for r in played]
    kept = [[c for c in rows if (c.prompt_ids[1], c.prompt_ids[2]) not in lost] for rows in every]
    right = reverse_kl_advantages(kept, advantages, teacher_model, COEF)
    # A rollout of which nothing is trained still counts: it has a vote, and a reward in its group.
    with_all = [rows or [_untrained(every[k][0])] for k, rows in enumerate(kept)]
    right = [rows or [torch.zeros(0, dtype=torch.float64)] for rows in right]
    assert max(errors_of(run, right, with_all)) < WORST
    by_id = {record["rollout_id"]: record for record in read_records(path)}
    for rollout in played:
        record = by_id[rollout.rollout_id]
        for of in (record, *record["branches"]):
            is_lost = (of["prompt_ids"][1], of["prompt_ids"][2]) in lost
            assert (of["teacher_logprobs"] is None) == is_lost
            assert of.get("trained", record["row_trained"]) != is_lost


def _untrained(columns: Any) -> Any:
    return abut.Columns(
        prompt_ids=columns.prompt_ids,
        completion_ids=columns.completion_ids,
        logprobs=np.zeros(len(columns.env_mask), np.float32),
        env_mask=np.zeros(len(columns.env_mask), np.uint8),
    )


def test_a_row_whose_scores_were_lost_is_an_error(
    tmp_path: Path, teacher_model: Any, monkeypatch: Any
) -> None:
    """Of every rank, before the next collective."""
    run = RowsRun(tmp_path, three_rows, credit=ReverseKL(ModelTeacher(teacher_model)))
    play = run.rollout_func._play

    def forgetful(*args: Any) -> Any:
        played, *rest = play(*args)
        for turn in played[1][2].branches[0].turns:
            turn.streams.clear()
        return (played, *rest)

    monkeypatch.setattr(run.rollout_func, "_play", forgetful)
    with pytest.raises(RolloutError) as raised:
        run.train()
    assert (
        "conversation 1: it would be trained, but the teacher has not scored it\nhint: code"
        in str(raised.value)
    )


def test_too_many_rollouts_without_scores_end_training(tmp_path: Path, teacher_model: Any) -> None:
    teacher = Failing(ModelTeacher(teacher_model), lambda ids: ids[1] < 15)
    run = RowsRun(tmp_path, three_rows, credit=ReverseKL(teacher))
    with pytest.raises(RolloutError, match="5 of 8 rollouts failed") as raised:
        run.train()
    assert "3 of 3 rows have no teacher scores: the teacher 'default' did not" in str(raised.value)


def test_what_else_a_teacher_raises_ends_training(tmp_path: Path, teacher_model: Any) -> None:
    refused = TeacherError("HTTP 400: prompt_logprobs must be less than 20")
    teacher = Failing(ModelTeacher(teacher_model), lambda ids: ids[1] == 13, refused)
    run = RowsRun(tmp_path, three_rows, credit=ReverseKL(teacher))
    with pytest.raises(TeacherError, match="HTTP 400: prompt_logprobs must"):
        run.train()


def test_nothing_is_scored_that_is_not_trained(tmp_path: Path, teacher_model: Any) -> None:
    """A conversation with `train=False`, a rollout that was not measured, and evaluation."""

    def partly(rng: random.Random, task: Any) -> Rollout:
        rollout = three_rows(rng, task)
        first, last = rollout.branches
        assert isinstance(first, Branch)
        object.__setattr__(first, "trained", False)
        if task.index == 3:
            rollout.measured, rollout.row_trained, rollout.reward = False, False, None
            object.__setattr__(last, "trained", False)
        return rollout

    config = RolloutConfig(on_failure="unscored" if trl_version() >= NONE_IS_UNSCORED else "zero")
    teacher = Failing(ModelTeacher(teacher_model), lambda ids: False)
    run = RowsRun(tmp_path, partly, credit=ReverseKL(teacher), config=config)
    run.train()
    assert len(teacher.asked) == 7 * 2
    assert not [ids for ids in teacher.asked if ids[2] == 21 or ids[1] == 13]
    run.trainer.evaluate()
    assert len(teacher.asked) == 7 * 2


def test_names_of_teachers_come_from_the_dataset(tmp_path: Path, teacher_model: Any) -> None:
    from datasets import Dataset

    from tests.kit.training.example_run import CPU
    from tests.kit.training.models import rank_model
    from tests.kit.training.trl_run import CONFIG

    asked: list[str] = []

    class Named(ModelTeacher):
        async def score(self, *args: Any) -> Any:
            asked.append(args[-1])
            return await super().score(*args)

    def trainer(columns: dict[str, Any], recorder: Any = None, **args: Any) -> Any:
        tokenizer, model = rank_model()
        teacher = Named({"maths": teacher_model, "code": teacher_model})
        return abut.trl.GRPOTrainer(
            model=model,
            args=trl.GRPOConfig(
                str(tmp_path),
                **CPU,
                max_steps=1,
                per_device_train_batch_size=8,
                num_generations=4,
                max_completion_length=128,
                **args,
            ),
            processing_class=tokenizer,
            reward_funcs=no_reward,
            train_dataset=Dataset.from_dict({"prompt": ["go"] * 8} | columns),
            rollout_func=make_rollout_func(
                Talk, config=CONFIG, credit=ReverseKL(teacher), recorder=recorder
            ),
        )

    names = ["maths", "code"] * 4
    made = trainer({"teacher_id": names}, tmp_path / "r")
    made.train()
    assert {*asked} <= {"maths", "code"}
    assert len(asked) == 8
    records = list(read_records(tmp_path / "r"))
    assert sorted(record["teacher"] for record in records) == sorted(asked)
    for record in records:
        assert record["columns"]["teacher_id"] == record["teacher"]
    with pytest.raises(ValueError, match="the dataset has no column 'teacher_id'"):
        trainer({}).train()
    with pytest.raises(ValueError, match="temperature") as raised:
        trainer({"teacher_id": names}, temperature=0.7).train()
    assert str(raised.value) == (
        "credit=ReverseKL(…) does not work with temperature=0.7: the logprobs of the sampled "
        "tokens are at that temperature, but those of the teacher at temperature 1\n"
        "hint: set GRPOConfig(temperature=1.0)"
    )


def test_a_teacher_of_another_temperature_is_refused(tmp_path: Path, teacher_model: Any) -> None:
    teacher = ModelTeacher(teacher_model, temperature=2.0)
    with pytest.raises(ValueError, match="computes them at temperature 2"):
        RowsRun(tmp_path, credit=ReverseKL(teacher)).train()


def test_wrong_arguments_are_refused_where_they_are_given(teacher_model: Any) -> None:
    teacher = ModelTeacher(teacher_model)
    for make, text in (
        (lambda: ReverseKL(teacher_model), "a teacher must have a method `async score("),
        (lambda: ReverseKL(ModelTeacher), "a teacher must have a method `async score("),
        (lambda: ReverseKL(teacher, credit=ReverseKL(teacher)), "the inner credit must be None"),
        (lambda: ReverseKL(teacher, credit=3), "credit=3: must be None"),
        (lambda: make_rollout_func(Talk, credit=ReverseKL), "hint: credit=ReverseKL(teacher)"),
    ):
        with pytest.raises(TypeError) as raised:
            make()
        assert text in str(raised.value)
    for coef in (0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="must be more than 0"):
            ReverseKL(teacher, coef=coef)


def test_no_reward_needs_a_rollout_func_of_abuts() -> None:
    assert no_reward(["a", "b"], measured=[True, False]) == [0.0, None]
    with pytest.raises(ValueError, match="no_reward found no column 'measured'"):
        no_reward(["a"])


@pytest.mark.slow
@pytest.mark.parametrize(("loss_type", "iterations"), [("grpo", 2), ("dapo", 1)])
def test_two_ranks_train_as_one(tmp_path: Path, loss_type: str, iterations: int) -> None:
    from tests.kit.training.ranks import run_ranks

    ranks = run_ranks("rows", tmp_path, "ddp", loss_type, iterations, COEF)
    for rank in ranks:
        assert len(rank["errors"]) == iterations
        assert max(rank["errors"]) < WORST, rank["errors"]
    if LOGS_METRICS:
        logged = [rank["logged"]["rollout/reverse_kl/mean"] for rank in ranks]
        assert logged[0] == logged[1]
