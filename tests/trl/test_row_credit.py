"""Advantages of turns and tokens reach the tokens they are of, in every row."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
trl = pytest.importorskip("trl")

import abut.trl  # noqa: E402
from abut.errors import RolloutError  # noqa: E402
from abut.trl import Returns, make_rollout_func, row_credit  # noqa: E402
from tests.kit.stage.rollouts import Talk, env  # noqa: E402
from tests.kit.training.row_cases import WORST, errors_of, loss_of  # noqa: E402
from tests.kit.training.row_oracle import gradient_of, relative_error  # noqa: E402
from tests.kit.training.scripted_rows import RowsRun, alone, branching  # noqa: E402


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
    got: list[Any] = []
    credited = row_credit.credited
    monkeypatch.setattr(
        row_credit,
        "credited",
        lambda credit, scored, **named: got.append(scored) or credited(credit, scored, **named),
    )

    for reward, right in (("last", [0.25] * 4), ("sum", [0.25, 0.5, 0.75, 1.0])):
        got.clear()
        _train_on_env(tmp_path / reward, reward)
        (scored,) = got
        assert [[t.reward for t in r.conversations[0].turns] for r in scored] == [right] * 8
        assert all(turn.tokens > 0 for r in scored for turn in r.conversations[0].turns)


def _train_on_env(folder: Path, reward: str) -> None:
    import dataclasses

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
        ),
        processing_class=tokenizer,
        reward_funcs=abut.trl.env_reward,
        train_dataset=Dataset.from_dict({"prompt": ["go"] * 8}),
        rollout_func=make_rollout_func(
            env(Talk, turns=4),
            config=dataclasses.replace(CONFIG, reward=reward),
            credit=Returns(0.5),
        ),
    ).train()


def test_what_credit_raises_and_returns_is_checked(tmp_path: Path) -> None:
    def broken(group: Any) -> Any:
        raise KeyError("no such turn")

    with pytest.raises(KeyError, match="no such turn"):
        RowsRun(tmp_path / "a", credit=broken).train()
    with pytest.raises(ValueError, match="expected a value for each rollout of the group, 4 in"):
        RowsRun(tmp_path / "b", credit=lambda group: []).train()


def test_a_trained_token_in_no_turn_is_an_error(tmp_path: Path) -> None:
    def forgotten(rng: random.Random, task: Any) -> Any:
        rollout = branching(rng, task)
        del rollout.turns[-1]
        return rollout

    RowsRun(tmp_path / "none", forgotten).train()
    with pytest.raises(RolloutError, match="so a trained token is in no turn"):
        RowsRun(tmp_path / "credit", forgotten, credit=Returns()).train()


def test_credit_needs_our_trainer_and_one_reward(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"\(credit=…\) with TRL's own GRPOTrainer, which"):
        RowsRun(tmp_path / "trl", trainer_class=trl.GRPOTrainer, credit=Returns()).train()
    with pytest.raises(ValueError, match='credit= with multi_objective_aggregation="normalize_th'):
        RowsRun(
            tmp_path / "sum",
            credit=Returns(),
            multi_objective_aggregation="normalize_then_sum",
        ).train()
    with pytest.raises(TypeError, match="credit='turns': must be None, Returns"):
        make_rollout_func(Talk, credit="turns")  # type: ignore[arg-type]
