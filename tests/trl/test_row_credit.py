"""Advantages of turns and tokens reach the tokens they are of, in every row."""

import dataclasses
import logging
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
trl = pytest.importorskip("trl")

import abut.trl  # noqa: E402
from abut.errors import RolloutError  # noqa: E402
from abut.notices import Once  # noqa: E402
from abut.records.read import read_records  # noqa: E402
from abut.rollout.config import RolloutConfig  # noqa: E402
from abut.rollout.rollout import Rollout, StopReason  # noqa: E402
from abut.trl import Returns, make_rollout_func  # noqa: E402
from abut.trl.rows import row_credit  # noqa: E402
from abut.trl.version import NONE_IS_UNSCORED, trl_version  # noqa: E402
from tests.kit.stage.rollouts import Talk, env  # noqa: E402
from tests.kit.training.row_cases import WORST, errors_of, loss_of  # noqa: E402
from tests.kit.training.row_oracle import (  # noqa: E402
    gradient_of,
    group_advantages,
    relative_error,
)
from tests.kit.training.scripted_rows import (  # noqa: E402
    RowsRun,
    alone,
    branching,
    kept_outputs,
    random_columns,
    rollout_of,
)


def by_turn(group: Any) -> Any:
    """Some numbers for turns, some for tokens; no two alike."""
    return [
        [
            [
                np.linspace(-1, member + j, turn.tokens) if (j + k) % 2 else 0.3 * member - j - k
                for k, turn in enumerate(conversation.turns)
            ]
            for j, conversation in enumerate(rollout.conversations)
        ]
        for member, rollout in enumerate(group)
    ]


def spelled_out(run: RowsRun, group: int = 4) -> list[list[Any]]:
    """What `by_turn` says of each trained token, from the masks alone."""
    found = []
    for number, rows in enumerate(run.rollouts):
        member, of_rows = number % group, []
        for j, columns in enumerate(rows):
            numbers: list[float] = []
            text = "".join(map(str, columns.env_mask.tolist()))
            for k, run_of_ones in enumerate(filter(None, text.split("0"))):
                count = len(run_of_ones)
                each = np.linspace(-1, member + j, count) if (j + k) % 2 else None
                numbers += [0.3 * member - j - k] * count if each is None else each.tolist()
            of_rows.append(torch.tensor(numbers, dtype=torch.float64))
        found.append(of_rows)
    return found


@pytest.mark.parametrize(
    ("loss_type", "script", "settings"),
    [
        ("grpo", branching, {"accumulation": 2, "num_iterations": 2}),
        ("dapo", branching, {"piece": 2, "beta": 0.3}),
        ("dr_grpo", alone, {}),
    ],
)
def test_each_token_has_the_advantage_that_a_function_gives_it(
    tmp_path: Path, loss_type: str, script: Any, settings: dict[str, Any]
) -> None:
    steps = settings.get("num_iterations", 1)
    run = RowsRun(
        tmp_path, script, credit=by_turn, loss_type=loss_type, max_steps=steps, **settings
    ).train()
    for model, found in zip(run.before, run.gradients, strict=True):
        right = gradient_of(loss_of(run), model, run.rollouts, spelled_out(run))
        twice = run.trainer.accelerator.gradient_accumulation_steps
        assert relative_error(found * twice, right) < WORST


def test_returns_of_what_is_paid_at_the_end_are_trls_advantage(tmp_path: Path) -> None:
    run = RowsRun(tmp_path, credit=Returns(), accumulation=2).train()
    assert errors_of(run)[0] < WORST
    assert run.logged()["rollout/alone_frac"] == 0


def test_a_running_score_pays_its_increments(tmp_path: Path, monkeypatch: Any) -> None:
    got = _scored_in(monkeypatch)
    for reward, right in (("last", [0.25] * 4), ("sum", [0.25, 0.5, 0.75, 1.0])):
        got.clear()
        _train_on_env(tmp_path / reward, reward)
        (scored,) = got
        assert [[t.reward for t in r.conversations[0].turns] for r in scored] == [right] * 8
        assert all(turn.tokens > 0 for r in scored for turn in r.conversations[0].turns)


@abut.trl.scored_only
def ones(completions: Any, **_: Any) -> list[float]:
    return [1.0] * len(completions)


@pytest.mark.parametrize(
    ("reward_funcs", "weights", "times", "whole"),
    [
        ([abut.trl.env_reward], [2.0], 2.0, 5.0),
        ([ones, abut.trl.env_reward], [1.0, 0.5], 0.5, 2.25),
        ([abut.trl.env_reward, ones], [0.0, 3.0], 0.0, 3.0),
        ([ones], [3.0], 1.0, 3.0),
    ],
)
def test_rewards_of_turns_count_as_often_as_the_environments(
    tmp_path: Path, monkeypatch: Any, reward_funcs: Any, weights: Any, times: float, whole: float
) -> None:
    """Or the last turn would be paid for what the others have earned."""
    got = _scored_in(monkeypatch)
    _train_on_env(tmp_path, "sum", reward_funcs=reward_funcs, reward_weights=weights)
    (scored,) = got
    right = [times * step for step in (0.25, 0.5, 0.75, 1.0)]
    assert [[t.reward for t in r.conversations[0].turns] for r in scored] == [right] * 8
    assert [r.reward for r in scored] == [pytest.approx(whole)] * 8


def _scored_in(monkeypatch: Any) -> list[Any]:
    """The rollouts that each batch has credited, once it has been trained."""
    got: list[Any] = []
    credited = row_credit.credited
    monkeypatch.setattr(
        row_credit,
        "credited",
        lambda credit, scored, **named: got.append(scored) or credited(credit, scored, **named),
    )
    return got


def _train_on_env(
    folder: Path, reward: str, reward_funcs: Any = abut.trl.env_reward, **args: Any
) -> None:
    from datasets import Dataset

    from tests.kit.training.example_run import CPU
    from tests.kit.training.models import rank_model
    from tests.kit.training.trl_run import CONFIG

    tokenizer, model = rank_model()
    abut.trl.GRPOTrainer(
        model=model,
        args=trl.GRPOConfig(
            str(folder),
            **CPU,
            max_steps=1,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=128,
            **args,
        ),
        processing_class=tokenizer,
        reward_funcs=reward_funcs,
        train_dataset=Dataset.from_dict({"prompt": ["go"] * 8}),
        rollout_func=make_rollout_func(
            env(Talk, turns=4),
            config=dataclasses.replace(CONFIG, reward=reward),
            credit=Returns(0.5),
        ),
    ).train()


def test_a_function_meets_failed_rollouts_and_main_rows_that_are_not_trained(
    tmp_path: Path,
) -> None:
    def partly(rng: random.Random, task: Any) -> Any:
        if task.index == 1:
            return Rollout(
                task.rollout_id, task.index, error="no tool", stop_reason=StopReason.ERROR
            )
        rollout = branching(rng, task)
        rollout.row_trained = task.index != 2 or not rollout.branches
        return rollout

    def to_the_last_turn(group: Any) -> Any:
        return [
            [[0.0] * (len(c.turns) - 1) + [r.advantage] for c in r.conversations] for r in group
        ]

    config = RolloutConfig(on_failure="unscored" if trl_version() >= NONE_IS_UNSCORED else "zero")
    run = RowsRun(tmp_path, partly, credit=to_the_last_turn, config=config)
    kept = kept_outputs(run.trainer)
    batch = run.train().trainer.abut_rows
    of_main = [bool(batch.advantages[k]) for k in range(8)]
    trained = kept[0]["tool_mask"][:8].mul(kept[0]["completion_mask"][:8]).any(1).tolist()
    assert of_main == trained
    assert not trained[1]


def test_what_credit_raises_and_returns_is_checked(tmp_path: Path) -> None:
    def broken(group: Any) -> Any:
        raise KeyError("no such turn")

    with pytest.raises(KeyError, match="no such turn"):
        RowsRun(tmp_path / "a", credit=broken).train()
    with pytest.raises(ValueError, match="expected one value for each rollout of the group, 4 in"):
        RowsRun(tmp_path / "b", credit=lambda group: []).train()


def test_a_trained_token_in_no_turn_is_an_error(tmp_path: Path) -> None:
    def forgotten(rng: random.Random, task: Any) -> Any:
        rollout = branching(rng, task)
        if task.index == 1:
            del rollout.turns[-1]
        return rollout

    run = RowsRun(tmp_path / "none", forgotten).train()
    (of_run,) = [r for r in run.source.played[:8] if r.index == 1]
    listed, trained = of_run.sampled_tokens, int(of_run.columns.env_mask.sum())
    assert listed < trained
    with pytest.raises(RolloutError) as raised:
        RowsRun(tmp_path / "credit", forgotten, credit=Returns()).train()
    rollout_id, _, said = str(raised.value).partition(", ")
    assert rollout_id.startswith("rollout 'train-0-0-1-")
    assert said == (
        f"conversation 0: its turns have {listed} sampled tokens but its row trains {trained}, so "
        "some trained token belongs to no turn or to two turns\n"
        "hint: the code that made the rollout must list each turn exactly once"
    )


def test_other_ranks_hear_of_a_trained_token_in_no_turn(tmp_path: Path, monkeypatch: Any) -> None:
    """Otherwise they would wait for this rank in the next collective."""
    said: list[Any] = []

    def gathered(accelerator: Any, value: Any) -> list[Any]:
        said.append(value)
        return [value]

    def forgotten(rng: random.Random, task: Any) -> Any:
        rollout = branching(rng, task)
        del rollout.turns[-1]
        return rollout

    monkeypatch.setattr(row_credit, "gathered", gathered)
    with pytest.raises(RolloutError):
        RowsRun(tmp_path, forgotten, credit=Returns()).train()
    assert "some trained token belongs to no turn" in said[-1]


NORMALIZED = {"multi_objective_aggregation": "normalize_then_sum"}


def refusal_of(folder: Path, error: type[Exception], *script: Any, **settings: Any) -> str:
    with pytest.raises(error) as raised:
        RowsRun(folder, *script, **settings).train()
    return str(raised.value)


def test_credit_needs_our_trainer_and_one_reward(tmp_path: Path) -> None:
    of_trl = {"trainer_class": trl.GRPOTrainer, "credit": Returns()}
    assert refusal_of(tmp_path / "trl", TypeError, **of_trl) == (
        "make_rollout_func(credit=…) does not work with TRL's own GRPOTrainer, which gives all "
        "tokens of a rollout one advantage\n"
        "hint: train with abut.trl.GRPOTrainer, or call abut.trl.extend(trainer) before train()"
    )
    assert refusal_of(tmp_path / "sum", ValueError, credit=Returns(), **NORMALIZED) == (
        'credit does not work with multi_objective_aggregation="normalize_then_sum", which '
        "computes an advantage for each reward function: credit needs one reward for each "
        "conversation\n"
        'hint: set multi_objective_aggregation="sum_then_normalize", or leave credit out'
    )
    with pytest.raises(TypeError, match="credit='turns': must be None, Returns"):
        make_rollout_func(Talk, credit="turns")  # type: ignore[arg-type]


# ---- rewards of conversations


def players(rng: random.Random, task: Any) -> Any:
    """Two seats of one game, each with its own reward, and a talk that shares the rollout's."""
    rollout = rollout_of(task, 0.5 + 0.1 * task.member, *(random_columns(rng) for _ in range(3)))
    one, two = rollout.branches
    rollout.name, rollout.row_reward = "first", round(rng.random(), 2)
    rollout.branches = [dataclasses.replace(one, name="second", reward=round(rng.random(), 2)), two]
    return rollout


def test_two_players_have_two_baselines(tmp_path: Path) -> None:
    run = RowsRun(tmp_path, players, loss_type="dapo", accumulation=2).train()
    rollouts = sorted(run.source.played[:8], key=lambda rollout: rollout.index)
    seats = [
        group_advantages([r.row_reward for r in rollouts], 4),
        group_advantages([r.branches[0].reward for r in rollouts], 4),
        group_advantages([r.reward for r in rollouts], 4),
    ]
    advantages = [[seat[k] for seat in seats] for k in range(8)]
    right = gradient_of(loss_of(run), run.before[0], run.rollouts, advantages)
    twice = run.trainer.accelerator.gradient_accumulation_steps
    assert relative_error(run.gradients[0] * twice, right) < WORST
    assert errors_of(run)[0] > 0.1, "the rollout's reward for all of them"


def test_other_reward_functions_do_not_count_for_them(
    tmp_path: Path, caplog: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(row_credit, "_once", Once(logging.getLogger(row_credit.__name__)))
    length = abut.trl.scored_only(lambda completion_ids, **_: [len(ids) for ids in completion_ids])
    RowsRun(tmp_path / "env", players).train()
    assert "do not count for it" not in caplog.text
    RowsRun(tmp_path / "two", players, reward_funcs=[abut.trl.env_reward, length]).train()
    assert caplog.text.count("the trainer's reward functions do not count for it") == 1
    assert refusal_of(tmp_path / "sum", ValueError, players, **NORMALIZED) == (
        "AgentResult.rewards does not work with "
        'multi_objective_aggregation="normalize_then_sum", which computes an advantage for each '
        "reward function: AgentResult.rewards needs one reward for each conversation\n"
        'hint: set multi_objective_aggregation="sum_then_normalize", or leave '
        "AgentResult.rewards out"
    )


def test_rollouts_with_a_seat_that_no_other_has_are_counted(tmp_path: Path) -> None:
    def referee(rng: random.Random, task: Any) -> Any:
        rollout = players(rng, task)
        if task.index == 1:
            rollout.branches[1] = dataclasses.replace(rollout.branches[1], name="third", reward=1.0)
        return rollout

    run = RowsRun(tmp_path, referee).train()
    assert run.logged()["rollout/alone_frac"] == 1 / 8
    batch = run.trainer.abut_rows
    assert set(batch.advantages[batch.places.index((1, 2))]) == {0.0}


def test_only_rewards_of_conversations_are_enough(tmp_path: Path) -> None:
    def unscored(rng: random.Random, task: Any) -> Any:
        rollout = players(rng, task)
        rollout.reward = None
        return rollout

    run = RowsRun(tmp_path, unscored).train()
    assert [len(rows) for rows in run.trainer.abut_rows.conversations] == [3] * 8
    rollouts = sorted(run.source.played[:8], key=lambda rollout: rollout.index)
    seats = [
        group_advantages([r.row_reward for r in rollouts], 4),
        group_advantages([r.branches[0].reward for r in rollouts], 4),
        torch.zeros(8, dtype=torch.float64),
    ]
    advantages = [[seat[k] for seat in seats] for k in range(8)]
    right = gradient_of(loss_of(run), run.before[0], run.rollouts, advantages)
    assert relative_error(run.gradients[0], right) < WORST


def test_a_row_that_is_not_to_be_trained_trains_nothing(tmp_path: Path) -> None:
    def untrained(rng: random.Random, task: Any) -> Any:
        rollout = branching(rng, task)
        rollout.row_trained = False
        rollout.branches = [
            dataclasses.replace(branch, trained=k == 0) for k, branch in enumerate(rollout.branches)
        ]
        return rollout

    run = RowsRun(tmp_path, untrained).train()
    rollouts = sorted(run.source.played[:8], key=lambda rollout: rollout.index)
    rows = [[branch.columns for branch in rollout.branches[:1]] for rollout in rollouts]
    advantages = group_advantages(run.rewards, 4)
    right = gradient_of(loss_of(run), run.before[0], rows, advantages)
    assert relative_error(run.gradients[0], right) < WORST


def test_records_have_the_weight_and_the_advantages_of_each_row(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    for name, credit in (("none", None), ("turns", by_turn)):
        run = RowsRun(
            tmp_path, recorder=str(tmp_path / f"{name}.jsonl"), credit=credit, accumulation=2
        ).train()
        records = list(read_records(tmp_path / f"{name}.jsonl"))
        batch = run.trainer.abut_rows
        assert [len(record["rows"]) for record in records] == [
            len(rows) for rows in batch.conversations
        ]
        assert {record["padding_rows"] for record in records} == {batch.padding_rows} == {1}
        for k, record in enumerate(records):
            rows, every = record["rows"], run.rollouts[k]
            assert [row["branch"] for row in rows] == [None, *range(len(rows) - 1)]
            tokens = [int(columns.env_mask.sum()) for columns in every]
            right = [n / sum(tokens) * batch.size / 8 for n in tokens]
            assert [row["weight"] for row in rows] == pytest.approx(right)
            places = [batch.places[row["row"]] for row in rows]
            assert places == [(k, j) for j in range(len(rows))]
            turns = [record["turns"], *(branch["turns"] for branch in record["branches"])]
            assert [len(row["advantages"]) for row in rows] == [len(own) for own in turns]
            if credit is None:
                assert {a for row in rows for a in row["advantages"]} == {record["advantage"]}
            else:
                assert rows[0]["advantages"][0] == pytest.approx(0.3 * (k % 4))
